"""Arrays kept after the first read of a data set, so that the next one only maps files.

The key is made of the names, sizes and times of change of the files that were read, so that a file
that changes is read again. A cache that cannot be written costs time, never a result.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.data.files import cache_folder

Arrays = Mapping[str, NDArray[Any]]
VERSION = 1  # raise it when a reader gives other arrays from the same files
logger = logging.getLogger("aspire")


def cached(name: str, paths: Sequence[Path], read: Callable[[], Arrays]) -> Arrays:
    """What `read()` gives, from the cache if the files are the ones that it was made of."""
    folder = cache_folder() / "arrays" / f"{name}-{key(paths)}"
    found = _load(folder)
    if found is not None:
        return found
    arrays = read()
    try:
        _save(folder, arrays)
    except OSError as error:
        logger.warning("%s is not cached: %s", name, error)
        return arrays
    return _load(folder) or arrays


def key(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256(f"{VERSION}".encode())
    base = os.path.commonpath([path.parent for path in paths])
    for path in paths:
        state = path.stat()
        name = path.relative_to(base).as_posix()
        digest.update(f"\n{name} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


def _load(folder: Path) -> Arrays | None:
    """The arrays of a finished cache folder, mapped; None if there is none or it is broken."""
    try:
        made = {path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))}
    except (OSError, ValueError) as error:
        logger.warning("the cache in %s is broken and is made again: %s", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return made or None


def _save(folder: Path, arrays: Arrays) -> None:
    """Write beside the final place and rename: a cache folder is complete or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(part / f"{name}.npy", array)
        part.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster, with the same arrays
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
