"""Where the data is, and how a file is read whether it is plain or compressed."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Opener = Callable[[Path], IO[bytes]]
OPENERS: dict[str, Opener] = {
    "": lambda path: path.open("rb"),
    ".gz": lambda path: gzip.open(path, "rb"),
    ".xz": lambda path: lzma.open(path, "rb"),
}


class Missing(ValueError):
    """A data set that is not there; the text says which command gets it."""


def cache_folder() -> Path:
    """ASPIRE_CACHE, or `aspire` in the place that the platform has for caches."""
    if named := os.environ.get("ASPIRE_CACHE"):
        return Path(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "aspire"
    home = Path.home()
    return (home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache") / "aspire"


def data_folder(data: str | Path | None) -> Path:
    """The folder that holds one folder per data set: `data`, ASPIRE_DATA, or one in the cache."""
    if data is not None:
        return Path(data)
    if named := os.environ.get("ASPIRE_DATA"):
        return Path(named)
    return cache_folder() / "data"


def look_for(folder: Path, name: str) -> Path | None:
    """The file `name`, plain or compressed, in the folder or else anywhere below it."""
    for ending in OPENERS:
        if (folder / (name + ending)).is_file():
            return folder / (name + ending)
    below = {path.name: path for path in sorted(folder.rglob(name + "*")) if path.is_file()}
    return next((below[name + ending] for ending in OPENERS if name + ending in below), None)


def find(folder: Path, name: str) -> Path:
    """As `look_for`, but a file that is not there is an error."""
    path = look_for(folder, name)
    if path is None:
        raise Missing(f"{name} (plain, .gz or .xz) is not in {folder}")
    return path


def opened(path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed."""
    return OPENERS[path.suffix if path.suffix in OPENERS else ""](path)


def plain_name(path: Path) -> str:
    return path.stem if path.suffix in OPENERS else path.name


def numbers(source: Any, where: Path, **options: Any) -> NDArray[np.float64]:
    """A table of numbers; a bad cell is a ValueError that names the file."""
    try:
        return np.loadtxt(source, dtype=np.float64, ndmin=2, comments=None, **options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
