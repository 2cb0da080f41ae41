"""The package's C, compiled for this machine where it has a compiler; Python's lock is let go.

A library is kept in the user's cache, by what it was made of: source, compiler, processor. Where
it cannot be made, `library` gives None and everything works without it, only slower.
ASPIRE_NATIVE=0 in the environment switches it off.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from aspire.compiled.activations import KINDS

logger = logging.getLogger("aspire")
HERE = Path(__file__).parent
# the first has the others
SOURCES = "native.c", "activations.c", "rows.c"
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC")
NATIVE = ("-march=native",), ("-mcpu=native",), ()  # the first that the compiler takes
PRECISIONS = {torch.float32: ("-DREAL=float", "-DSINGLE"), torch.float64: ("-DREAL=double",)}
MOST_LAYERS = 16  # as in rows.c
SECONDS = 60.0

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
    found: Any = compiled(SOURCES, *PRECISIONS[dtype]) if dtype in PRECISIONS else None
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


def compiled(sources: Sequence[str], *more: str) -> ctypes.CDLL | None:
    """The first of these files of the package, which has the others in it, with `more` flags."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if os.environ.get("ASPIRE_NATIVE") == "0" or compiler is None:
        return None
    why = ""
    for native in NATIVE:
        try:
            flags = (*FLAGS, *native, *more)
            return ctypes.CDLL(str(_made(shlex.split(compiler), flags, sources)))
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            why = str(error)
    logger.info("%s was not compiled, so the slower way is taken: %s", sources[0], why)
    return None


def _made(compiler: list[str], flags: tuple[str, ...], sources: Sequence[str]) -> Path:
    """The library's file, made unless it is there."""
    said = subprocess.run(
        [*compiler, "--version"], capture_output=True, timeout=SECONDS, check=True
    )
    texts = [(HERE / name).read_bytes() for name in sources]
    parts = *texts, said.stdout, repr(flags).encode(), _processor()
    stem = Path(sources[0]).stem
    digest = hashlib.sha256(b" ".join(parts)).hexdigest()[:24]
    home = _home()
    name = f"{stem}-{digest}.so"
    if not (home / name).is_file():
        with tempfile.TemporaryDirectory(dir=home) as beside:
            made = Path(beside) / name
            order = [*compiler, *flags, str(HERE / sources[0]), "-o", str(made)]
            subprocess.run([*order, "-lm"], capture_output=True, timeout=SECONDS, check=True)
            os.replace(made, home / name)
    return home / name


def _home() -> Path:
    """The user's cache if it is there and theirs, else a folder for the time being."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aspire"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.stat(home).st_uid == os.getuid() and os.access(home, os.W_OK):
            return home
    except OSError:
        pass
    home = Path(tempfile.mkdtemp(prefix="aspire-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def _processor() -> bytes:
    """What tells two kinds of processor apart."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}".encode()
    return b"".join(sorted({x for x in lines if x.startswith((b"model", b"flags", b"Features"))}))
