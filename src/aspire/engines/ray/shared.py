"""Memory that the driver and an actor on the same machine share, so that long vectors need no post.

A store of objects that many may read costs a vector of a million numbers more than its arithmetic.
A `Segment` is a file in memory without a name (memfd): the driver makes one a worker, the worker
opens it through /proc, and it is gone when both are, however they end. Each direction has a half.
Who finds no such file there, or another one (another machine, another user), says `Unreachable`.

One message at a time is in each half, and who reads it copies it: messages never change.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

TASK = 0  # the halves
REPORT = 1
NAME = "aspire"  # of the file, for people
TOKEN = 64  # bytes that tell one file from another
Address = tuple[str, bytes, int]  # path, token, bytes of a half
Layout = dict[str, tuple[str, tuple[int, ...]]]  # of the vectors in a half, one after the other


class Unreachable(OSError):
    """The segment is not there for this process."""


class Segment:
    """Two halves of `room` bytes each."""

    def __init__(self, file: int, address: Address) -> None:
        self.file = file
        self.address = address
        self.bytes = np.frombuffer(mmap.mmap(file, TOKEN + 2 * address[2]), dtype=np.uint8)

    @classmethod
    def make(cls, room: int) -> Segment | None:
        """A new one of this process; None where the system has no such files, or no more."""
        room += -room % TOKEN  # vectors begin at whole lines of the cache
        try:
            file = os.memfd_create(NAME)
            os.ftruncate(file, TOKEN + 2 * room)
        except (AttributeError, OSError):
            return None
        made = cls(file, (f"/proc/{os.getpid()}/fd/{file}", secrets.token_bytes(TOKEN), room))
        made.bytes[:TOKEN] = np.frombuffer(made.address[1], dtype=np.uint8)
        return made

    @classmethod
    def open(cls, address: Address) -> Segment:
        """Another process's."""
        path, token, room = address
        try:
            if not os.readlink(path).startswith(f"/memfd:{NAME}"):
                raise Unreachable(f"{path} is another file")
            file = os.open(path, os.O_RDWR)
        except OSError as error:
            raise Unreachable(str(error)) from None
        try:
            if os.fstat(file).st_size != TOKEN + 2 * room:
                raise Unreachable(f"{path} has another size")
            found = cls(file, address)
        finally:
            os.close(file)
        if found.bytes[:TOKEN].tobytes() != token:
            raise Unreachable(f"{path} is another run's")
        return found

    def put(self, half: int, vectors: Mapping[str, np.ndarray[Any, Any]]) -> Layout | None:
        """Where they lie; None: there is no room for them."""
        if sum(map(padded, vectors.values())) > self.address[2]:
            return None
        layout: Layout = {name: (x.dtype.str, x.shape) for name, x in vectors.items()}
        for name, place in self._views(half, layout).items():
            np.copyto(place, vectors[name])
        return layout

    def take(self, half: int, layout: Layout) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of what was put."""
        return {name: place.copy() for name, place in self._views(half, layout).items()}

    def _views(self, half: int, layout: Layout) -> dict[str, np.ndarray[Any, Any]]:
        at = TOKEN + half * self.address[2]
        found = {}
        for name, (kind, shape) in layout.items():
            view = np.ndarray(shape, kind, self.bytes, at)
            at += padded(view)
            found[name] = view
        return found

    def close(self) -> None:
        """No more processes can open it."""
        os.close(self.file)


def padded(x: np.ndarray[Any, Any]) -> int:
    """Bytes up to the next vector."""
    return x.nbytes + -x.nbytes % TOKEN
