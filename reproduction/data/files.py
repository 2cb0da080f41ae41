"""Where the data is, and how a file is read whether it is plain or compressed."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

ENDINGS = ("", ".gz", ".xz")
# What a damaged file raises on reading, besides ValueError
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)


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
    for ending in ENDINGS:
        if (folder / (name + ending)).is_file():
            return folder / (name + ending)
    below = {path.name: path for path in sorted(folder.rglob(name + "*")) if path.is_file()}
    return next((below[name + ending] for ending in ENDINGS if name + ending in below), None)


def find(folder: Path, name: str) -> Path:
    """As `look_for`, but a file that is not there is an error."""
    path = look_for(folder, name)
    if path is None:
        raise Missing(f"{name} (plain, .gz or .xz) is not in {folder}")
    return path


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return cast(BinaryIO, lzma.open(path, "rb")) if path.suffix == ".xz" else path.open("rb")


def plain_name(path: Path) -> str:
    return path.stem if path.suffix in ENDINGS else path.name


def numbers(source: Any, where: Path, **options: Any) -> NDArray[np.float64]:
    """A table of numbers; a bad cell is a ValueError that names the file."""
    try:
        return np.loadtxt(source, dtype=np.float64, ndmin=2, comments=None, **options)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
