"""`rows.c`, compiled for this machine where it has a compiler, and called without Python's lock.

The library is kept in the user's cache, by what it was made of: source, compiler, processor. Where
it cannot be made, `library` gives None and everything works without it, only slower.
ASPIRE_NATIVE=0 in the environment switches it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("aspire")
SOURCE = Path(__file__).with_name("rows.c")
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC")
KINDS = {torch.float32: ("-DREAL=float", "-DSINGLE"), torch.float64: ("-DREAL=double",)}
MOST_LAYERS = 16  # as in rows.c
SECONDS = 60.0

_number, _array = ctypes.c_int64, ctypes.c_void_p
_several = _number * MOST_LAYERS


class Bench(ctypes.Structure):
    """As in rows.c."""

    _fields_ = (
        ("layers", _number), ("batch", _number), ("row", _number),
        ("inputs", _several), ("outputs", _several), ("bias", _several), ("relu", _several),
        ("decay", ctypes.c_double), ("w", _array), ("g", _array), ("samples", _array),
        ("targets", _array), ("judged", _array), ("judged_targets", _array),
        ("judged_count", _array), ("loss", _array), ("curvature", _array), ("digests", _array),
        ("multipliers", _array), ("held", _array), ("pi", _array), ("rate", _array),
        ("kappa", ctypes.c_double), ("overshoot", ctypes.c_double),
    )  # fmt: skip


class Master(ctypes.Structure):
    """As in rows.c."""

    _fields_ = (
        ("sites", _number), ("row", _number), ("flight", _array), ("w", _array), ("phi", _array),
        ("g", _array), ("z", _array), ("average", _array), ("sum_w", _array), ("sum_phi", _array),
    )  # fmt: skip


@lru_cache(maxsize=4)
def library(dtype: torch.dtype) -> Any:
    """The compiled functions for rows of this type; None: there are none."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if os.environ.get("ASPIRE_NATIVE") == "0" or dtype not in KINDS or compiler is None:
        return None
    try:
        found = ctypes.CDLL(str(_made(compiler, (*FLAGS, *KINDS[dtype]))))
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("rows.c was not compiled, so the slower way is taken: %s", error)
        return None
    one, real = _number, ctypes.c_double
    found.work.argtypes = (_array, one, *[_array] * 5)
    found.step.argtypes = (_array, one, _array, _array, _array, *[real] * 5)
    found.step.restype = None
    return found


def _made(compiler: str, flags: tuple[str, ...]) -> Path:
    """The library's file, made unless it is there."""
    said = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True)
    parts = SOURCE.read_bytes(), said.stdout, repr(flags).encode(), _processor()
    name = f"rows-{hashlib.sha256(b' '.join(parts)).hexdigest()[:24]}.so"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aspire"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = os.stat(home).st_uid == os.getuid() and os.access(home, os.W_OK)
    except OSError:
        mine = False
    if not mine:
        home = Path(tempfile.mkdtemp(prefix="aspire-"))
    if not (home / name).is_file():
        with tempfile.TemporaryDirectory(dir=home) as beside:
            made = Path(beside) / name
            order = [compiler, *flags, str(SOURCE), "-o", str(made), "-lm"]
            subprocess.run(order, capture_output=True, timeout=SECONDS, check=True)
            os.replace(made, home / name)
    return home / name


def _processor() -> bytes:
    """What tells two kinds of processor apart."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}".encode()
    return b"".join(sorted({x for x in lines if x.startswith((b"model", b"flags", b"Features"))}))
