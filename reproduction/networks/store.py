"""The arrays of the data sets, from their published files or from a compact folder made of them.

A machine without the published files reads the folder that `write` made, about 37 MiB in all. Both
ways give the same arrays: what the folder rounds is rounded in any case.
"""

from __future__ import annotations

import io
import lzma
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.data import Missing, files_of, reader
from reproduction.data.cache import cached
from reproduction.data.fashion_mnist import idx

VARIABLE = "ASPIRE_NETWORKS_CACHE"
NAMES = ("fashion-mnist", "person-activity", "sc-ma", "daily-sports")
# Units of the nine channels of Daily and Sports: acceleration, rotation, magnetic field
STEPS = np.repeat(np.array([0.01, 0.005, 0.002], dtype=np.float32), 3)
SEGMENT = 125  # rows of a recording, whose columns compress better than its rows
Arrays = Mapping[str, NDArray[Any]]


@lru_cache(maxsize=4)
def arrays(name: str) -> Arrays:
    """The data set `name`: from the compact folder where the variable names one, else its files."""
    folder = os.environ.get(VARIABLE)
    packed = packed_from_files(name) if folder is None else read(Path(folder), name)
    return unpack(name, packed)


def packed_from_files(name: str) -> Arrays:
    paths = files_of(name)
    packers: dict[str, Callable[[], Arrays]] = {
        "fashion-mnist": lambda: fashion(list(paths)),
        "daily-sports": lambda: in_steps(reader(name).read(paths)),
        "sc-ma": lambda: whole_numbers(reader(name).read(paths)),
    }
    return cached(f"{name}-compact", paths, packers.get(name, lambda: reader(name).read(paths)))


def fashion(paths: list[Path]) -> Arrays:
    """All ten classes, unlike the reader. Late: the published test images."""
    images, labels = (np.concatenate([idx(paths[i]), idx(paths[i + 2])]) for i in (0, 1))
    return {"x": images, "y": labels, "late": np.arange(len(labels)) >= len(idx(paths[1]))}


def in_steps(found: Arrays) -> Arrays:
    """Rows in whole steps of each channel, the columns of every recording one after the other."""
    whole = np.rint(found["x"] / STEPS).astype(np.int16)
    recordings = whole.reshape(-1, SEGMENT, whole.size // len(whole) * 5)
    return {**found, "x": recordings.transpose(0, 2, 1)}


def whole_numbers(found: Arrays) -> Arrays:
    """SC-MA counts up to 4,095."""
    return {**found, "x": found["x"].T.astype(np.int16)}


def unpack(name: str, packed: Arrays) -> Arrays:
    x = packed["x"]
    if name == "daily-sports":
        x = x.transpose(0, 2, 1).reshape(-1, len(STEPS)) * STEPS
    if name == "sc-ma":
        x = np.ascontiguousarray(x.T, dtype=np.float32)
    return {**packed, "x": x}


# ---------------------------------------------------------------- the compact folder


def write(folder: Path) -> list[Path]:
    """Make the compact folder from the published files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name in NAMES:
        buffer = io.BytesIO()
        found = packed_from_files(name)
        named: dict[str, Any] = {key: np.asarray(array) for key, array in found.items()}
        np.savez(buffer, **named)
        path = path_of(folder, name)
        path.write_bytes(lzma.compress(buffer.getvalue(), preset=6))
        made.append(path)
    return made


def read(folder: Path, name: str) -> Arrays:
    path = path_of(folder, name)
    if not path.is_file():
        raise Missing(f"{name}: {path} is not there; {VARIABLE} names the folder")
    with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as found:
        return dict(found)


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.npz.xz"


def missing(name: str) -> str | None:
    """Why a data set is not here; None: it is."""
    folder = os.environ.get(VARIABLE)
    try:
        if folder is None:
            files_of(name)
        elif not path_of(Path(folder), name).is_file():
            return f"{name}: not in {VARIABLE}"
    except Missing as error:
        return str(error)
    return None
