"""SHL: the Sussex-Huawei Locomotion data set, phones in four positions, eight ways to move.

H. Gjoreski, M. Ciliberto, L. Wang, F. J. Ordonez Morales, S. Mekki, S. Valentin, D. Roggen, "The
University of Sussex-Huawei Locomotion and Transportation Dataset for Multimodal Analytics with
Mobile Devices", IEEE Access 6 (2018). Files, as published, in one folder per user and day:
Hand_Motion.txt, Torso_Motion.txt, Hips_Motion.txt, Bag_Motion.txt and Label.txt.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from reproduction.data.cache import Arrays
from reproduction.data.files import Missing, find, numbers, opened, plain_name
from reproduction.data.reader import GIVEN, RANDOM, TEST_SHARE, Reader

MODES = ("still", "walk", "run", "bike", "car", "bus", "train", "subway")
POSITIONS = ("Hand", "Torso", "Hips", "Bag")
# What each site gets of the rows of each position
SHARES = (
    (0.55, 0.05, 0.05, 0.05),
    (0.05, 0.55, 0.05, 0.05),
    (0.05, 0.05, 0.55, 0.05),
    (0.05, 0.05, 0.05, 0.55),
    (0.25, 0.20, 0.05, 0.05),
    (0.05, 0.10, 0.25, 0.25),
)
EVERY = 100  # one row in so many is read: of 100 readings a second, one
CHANNELS = tuple(range(1, 10))  # accelerometer, gyroscope, magnetometer; column 0 is the time
NEAR = 1000.0  # a row more than so many ms after the last label has none


def files(folder: Path) -> list[Path]:
    """Five files for every day: its labels, then its four positions."""
    days = sorted({path.parent for path in folder.rglob("Label.txt*") if _is_label(path)})
    if not days:
        raise Missing(f"no Label.txt (plain, .gz or .xz) is in {folder} or below it")
    names = ("Label.txt", *(f"{position}_Motion.txt" for position in POSITIONS))
    return [find(day, name) for day in days for name in names]


def _is_label(path: Path) -> bool:
    return plain_name(path) == "Label.txt"


def read(paths: Sequence[Path]) -> Arrays:
    """One row in EVERY, one sample: nine channels of one phone; group: its position.

    A row has the coarse label that was last written before it; rows without one (0), and rows with
    a reading missing, are left out. Late: the last fifth of each user's days, at least one.
    """
    each = 1 + len(POSITIONS)
    days = [paths[i : i + each] for i in range(0, len(paths), each)]
    late = late_days([day[0].parent for day in days])
    parts = []
    for day in days:
        with opened(day[0]) as file:
            labels = numbers(file, day[0], usecols=(0, 1))
        for position, path in enumerate(day[1:]):
            x, y = _motion(path, labels)
            site = np.full(len(y), position, dtype=np.int8)
            is_late = np.full(len(y), day[0].parent in late)
            parts.append({"x": x, "y": y, "site": site, "late": is_late})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _motion(path: Path, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with opened(path) as file:
        rows = numbers(islice(file, 0, None, EVERY), path, usecols=(0, *CHANNELS))
    before = np.searchsorted(labels[:, 0], rows[:, 0], side="right") - 1
    label = np.where(before < 0, 0.0, labels[before, 1])
    label[rows[:, 0] - labels[before, 0] > NEAR] = 0.0
    if not np.isin(label, range(len(MODES) + 1)).all():
        raise ValueError(f"{path.parent}: expected labels from 0 to 8 in column 2 of Label.txt")
    kept = (label > 0) & np.isfinite(rows).all(axis=1)
    return rows[kept, 1:].astype(np.float32), (label[kept] - 1).astype(np.int8)


def late_days(days: Sequence[Path]) -> set[Path]:
    """The last fifth of each user's days, rounded up, never all. A day's folder is ddmmyy."""
    made: set[Path] = set()
    for user in {day.parent for day in days}:
        own = sorted((day for day in days if day.parent == user), key=_date)
        count = min(len(own) - 1, -int(-TEST_SHARE * len(own) // 1))
        made.update(own[len(own) - count :])
    return made


def _date(day: Path) -> str:
    name = day.name
    return name[4:] + name[2:4] + name[:2] if len(name) == 6 and name.isdigit() else name


READER = Reader(
    name="shl",
    folder="shl",
    sites=tuple(f"site {j}" for j in range(1, len(SHARES) + 1)),
    classes=MODES,
    hidden=(96, 48, 24),
    splits={"paper": RANDOM, "by-sequence": GIVEN},
    find=files,
    read=read,
    notes=(
        "Six sites hold the four positions in unequal shares (ours: the paper does not give its "
        "own); one row of one phone (9 channels) in a hundred is one sample. paper: a random fifth "
        "of each site's rows is the test part. by-sequence: the last fifth of each user's days is."
    ),
    shares=SHARES,
)
