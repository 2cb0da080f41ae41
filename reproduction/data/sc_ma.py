"""SC-MA: activity recognition from a single chest-mounted accelerometer, fifteen people.

P. Casale, O. Pujol, P. Radeva, "Personalization and user verification in wearable systems using
biometric walking patterns", Personal and Ubiquitous Computing 16 (2012); UCI data set 287. Files:
1.csv to 15.csv (number, x, y, z, label), plain or compressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduction.data.cache import Arrays
from reproduction.data.files import find, numbers, opened
from reproduction.data.reader import GIVEN, RANDOM, Reader, tail_of_runs

PEOPLE = 15
ACTIVITIES = (
    "working at computer",
    "standing up, walking and going up and down stairs",
    "standing",
    "walking",
    "going up and down stairs",
    "walking and talking with someone",
    "talking while standing",
)


def files(folder: Path) -> list[Path]:
    return [find(folder, f"{person}.csv") for person in range(1, PEOPLE + 1)]


def read(paths: Sequence[Path]) -> Arrays:
    """One row, one sample: x, y, z in raw counts. Rows with label 0 (no activity) are left out.

    The first column is not read: from 100,000 on it is printed with five digits only, so the order
    of the rows is their time. Late: the last fifth of every stretch of one activity.
    """
    parts = [_person(path) for path in paths]
    labels = [part[:, 3].astype(np.int8) for part in parts]
    late = [tail_of_runs(y) for y in labels]
    kept = [y > 0 for y in labels]
    site = np.repeat(np.arange(len(parts), dtype=np.int8), [rows.sum() for rows in kept])
    return {
        "x": np.concatenate([p[k, :3] for p, k in zip(parts, kept, strict=True)]),
        "y": np.concatenate([y[k] - 1 for y, k in zip(labels, kept, strict=True)]),
        "site": site,
        "late": np.concatenate([t[k] for t, k in zip(late, kept, strict=True)]),
    }


def _person(path: Path) -> np.ndarray:
    with opened(path) as file:
        table = numbers(file, path, delimiter=",", usecols=(1, 2, 3, 4)).astype(np.float32)
    if not np.isin(table[:, 3], range(len(ACTIVITIES) + 1)).all():
        raise ValueError(f"{path}: expected labels from 0 to {len(ACTIVITIES)} in the last column")
    return table


READER = Reader(
    name="sc-ma",
    folder="chest_accelerometer",
    sites=tuple(f"person {person}" for person in range(1, PEOPLE + 1)),
    classes=ACTIVITIES,
    hidden=(32, 16),
    splits={"paper": RANDOM, "by-sequence": GIVEN},
    find=files,
    read=read,
    notes=(
        "One row is one sample; rows without an activity are left out. paper: a random fifth of "
        "each person's rows is the test part. by-sequence: the last fifth of every stretch of one "
        "activity is; everybody does the activities in one fixed order, so a single cut in time "
        "would leave whole activities out of either part."
    ),
)
