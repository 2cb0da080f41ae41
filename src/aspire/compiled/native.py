"""The package's C, as the wheel or an editable install has it; Python's lock is let go.

`hatch_build.py` compiles it when the package is built, on x86-64 for AVX2 and for AVX-512. Which of
them is taken follows what torch says of the processor. Where none can be taken, one warning says
so, and torch does the same, only slower.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from aspire.compiled.activations import KINDS

logger = logging.getLogger("aspire")
HERE = Path(__file__).parent
NAMES = {torch.float32: "rows32", torch.float64: "rows64"}
MOST_LAYERS = 16  # as in rows.c

_number = ctypes.c_int64
_array = ctypes.c_void_p
_double = ctypes.c_double
_several = _number * MOST_LAYERS
_numbers = _double * MOST_LAYERS


def several(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of a structure that are of one kind."""
    return [(name, kind) for name in names.split()]


class NativeStack(ctypes.Structure):
    """As in rows.c."""

    _fields_ = (
        *several(_number, "layers batch row"),
        *several(_several, "inputs outputs bias kind"),
        *several(_numbers, "a b c drop"),
        *several(_double, "decay drop_first"),
        ("seed", ctypes.c_uint64),
        *several(_array, "samples targets"),
    )


def shapes(layers: Sequence[Any]) -> list[Any]:
    """`inputs` to `drop` of a NativeStack."""
    sizes = [(x.inputs, x.outputs, int(x.bias), KINDS.index(x.activation.kind)) for x in layers]
    numbers = [(*x.activation.numbers, x.drop) for x in layers]
    return [
        *(_several(*column) for column in zip(*sizes, strict=True)),
        *(_numbers(*column) for column in zip(*numbers, strict=True)),
    ]


def at(x: Any) -> int:
    """Where an array lies: C order, as all of them are here."""
    if not x.flags.c_contiguous:
        raise ValueError(f"an array of strides {x.strides}: expected one piece of memory")
    return int(x.ctypes.data)


@lru_cache(maxsize=4)
def library(dtype: torch.dtype) -> Any:
    """The compiled functions for rows of this type; None: there are none."""
    found: Any = load(NAMES[dtype], NativeStack) if dtype in NAMES else None
    if found is None:
        return None
    found.room_bytes.argtypes = (_array,)
    found.room_bytes.restype = _number
    found.gradients.argtypes = (_array, _array, _number, *[_array] * 4)
    found.judged.argtypes = (_array, _array, _array, _number, _array)
    found.judged.restype = ctypes.c_double
    found.digests.argtypes = (_array, _number, _number, _array, _array)
    found.digests.restype = None
    return found


def load(name: str, structure: type[ctypes.Structure]) -> ctypes.CDLL | None:
    """The library of this name for this processor, if its functions take this structure."""
    processor = torch.backends.cpu.get_cpu_capability().lower()
    vectors = processor if processor in ("avx2", "avx512") else "any"
    path = HERE / f"{name}-{vectors}.so"
    try:
        found = ctypes.CDLL(str(path))
        size = _number.in_dll(found, "structure_size").value
    except (OSError, ValueError) as error:  # there is no such file, or no such number in it
        _warn(str(error))
        return None
    if size != ctypes.sizeof(structure):
        _warn(f"{path.name} has a structure of {size} bytes: expected {ctypes.sizeof(structure)}")
        return None
    return found


_reasons: list[str] = []


def _warn(reason: str) -> None:
    """Once in a process."""
    if not _reasons:
        logger.warning(
            "aspire runs without its compiled code, on the CPU several times slower for small "
            "networks: %s. Install a wheel that has it, or from source with a C compiler.",
            reason,
        )
    _reasons.append(reason)
