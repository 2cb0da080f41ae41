"""Letters: a long vector that is posted as it lies.

A message of the federation is one `bytes`, a header and the numbers, and a copy of a million
numbers into it takes as long as a pass over them. What lies in a letter has been written into such
a `bytes` from the beginning, behind room for the header.
"""

from __future__ import annotations

import ctypes
import sys
import warnings

import torch
from torch import Tensor

ROOM = 512  # bytes before the numbers, at least: a header takes about 150
ALIGNED = 64  # bytes: where torch begins its own; sums may depend on it in their last bit
LONG = 2**16  # numbers: shorter vectors are copied in no time
TRIES = 4

_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize  # of NULL: what is in them is set afterwards
_bytes.argtypes, _bytes.restype = (ctypes.c_void_p, ctypes.c_ssize_t), ctypes.py_object

with warnings.catch_warnings():  # torch warns once a process of memory that is only read
    warnings.simplefilter("ignore")
    torch.frombuffer(bytes(8), dtype=torch.float64)


def empty_like(x: Tensor) -> Tensor:
    """As torch's for one vector on the CPU; in a letter if it is long, and as messages have it."""
    room, worth_it = ROOM, x.numel() >= LONG and sys.byteorder == "little"
    for _ in range(TRIES if worth_it else 0):
        letter = _bytes(None, room + x.nbytes)
        found = torch.frombuffer(letter, dtype=x.dtype, offset=room).view_as(x)
        askew = -found.data_ptr() % ALIGNED
        if not askew:
            found.untyped_storage().__dict__["letter"] = letter
            return found
        del letter, found  # memory of about that size begins there again
        room += askew
    return torch.empty_like(x)


def room_before(x: Tensor) -> int:
    """Bytes before x in its letter; 0: it has none of its own."""
    memory = x.untyped_storage()
    letter: bytes | None = getattr(memory, "letter", None)
    return 0 if letter is None or memory.nbytes() != x.nbytes else len(letter) - x.nbytes


def posted(x: Tensor, header: bytes) -> bytes:
    """The header, which fills the room before it, and x."""
    ctypes.memmove(x.data_ptr() - len(header), header, len(header))
    letter: bytes = x.untyped_storage().__dict__["letter"]
    return letter
