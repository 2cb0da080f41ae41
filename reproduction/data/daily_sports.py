"""Daily and Sports Activities: five sensor units on the bodies of eight people.

K. Altun, B. Barshan, O. Tuncel, "Comparative study on classifying human activities with miniature
inertial and magnetic sensors", Pattern Recognition 43 (2010); UCI data set 256. Files:
aNN/pP/sSS.txt as published, or aNN.tar.xz with the same inside.

It has the shape of SHL (placements on the body, three kinds of sensors, eight activities) and can
be downloaded freely. It is not SHL, and results on it are not results on SHL.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from reproduction.data.cache import Arrays
from reproduction.data.files import Missing, numbers
from reproduction.data.reader import GIVEN, RANDOM, Reader

ACTIVITIES = {
    "a01": "sitting",
    "a02": "standing",
    "a07": "standing still in an elevator",
    "a08": "moving around in an elevator",
    "a09": "walking in a parking lot",
    "a10": "walking on a flat treadmill",
    "a12": "running on a treadmill",
    "a15": "cycling on an exercise bike",
}
PEOPLE = range(1, 9)
SEGMENTS = range(3, 61, 3)  # every third of sixty: 5 s each, in order of time
LATE = 51  # this segment and those after it: the last fifth of each five minutes
ROWS = 125
CHANNELS = 9
PLACEMENTS = ("torso", "right arm", "left arm", "right leg", "left leg")
# What each site gets of the rows of each placement: five sites hold mostly torso and arms, the
# sixth mostly legs, so that even weights leave it behind (docs/data.md)
SHARES = (
    (0.40, 0.05, 0.05, 0.02, 0.02),
    (0.20, 0.40, 0.10, 0.02, 0.02),
    (0.10, 0.30, 0.30, 0.02, 0.02),
    (0.10, 0.10, 0.35, 0.02, 0.02),
    (0.15, 0.10, 0.15, 0.07, 0.07),
    (0.05, 0.05, 0.05, 0.85, 0.85),
)
MEMBER = re.compile(r"(?:^|/)(a\d\d)/p(\d)/s(\d\d)\.txt$")


def members(activity: str) -> list[str]:
    return [f"{activity}/p{p}/s{s:02}.txt" for p in PEOPLE for s in SEGMENTS]


def files(folder: Path) -> list[Path]:
    """The archives of all activities, or else the single files of the published folders."""
    archives = [folder / f"{name}.tar.xz" for name in ACTIVITIES]
    if all(path.is_file() for path in archives):
        return archives
    for base in (folder, folder / "data"):
        paths = [base / name for activity in ACTIVITIES for name in members(activity)]
        if (base / "a01").is_dir():
            absent = next((path for path in paths if not path.is_file()), None)
            if absent is not None:
                raise Missing(f"{absent} is not there")
            return paths
    raise Missing(f"neither the folders a01, a02, ... nor a01.tar.xz, ... are in {folder}")


def contents(paths: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """The name aNN/pP/sSS.txt and the bytes of every segment that is read, in order."""
    wanted = [name for activity in ACTIVITIES for name in members(activity)]
    if len(paths) == len(wanted):
        yield from ((name, path.read_bytes()) for name, path in zip(wanted, paths, strict=True))
        return
    for activity, path in zip(ACTIVITIES, paths, strict=True):
        with tarfile.open(path, "r:xz") as archive:
            found = {
                m[0].lstrip("/"): member
                for member in archive
                if member.isfile() and (m := MEMBER.search(member.name))
            }
            for name in members(activity):
                part = archive.extractfile(found[name]) if name in found else None
                if part is None:
                    raise ValueError(f"{path}: expected {name} in it")
                yield name, part.read()


def read(paths: Sequence[Path]) -> Arrays:
    """One row, one sample: the nine channels of one unit at one instant; group: the placement."""
    made = []
    for name, content in contents(paths):
        rows = numbers(io.BytesIO(content), Path(name), delimiter=",").astype(np.float32)
        if rows.shape != (ROWS, CHANNELS * len(PLACEMENTS)) or not np.isfinite(rows).all():
            raise ValueError(f"{name}: expected {ROWS} rows of 45 finite numbers")
        made.append((name, rows.reshape(ROWS, len(PLACEMENTS), CHANNELS)))
    each = ROWS * len(PLACEMENTS)
    activity = [list(ACTIVITIES).index(name[:3]) for name, _ in made]
    return {
        "x": np.concatenate([rows for _, rows in made]).reshape(-1, CHANNELS),
        "y": np.repeat(np.array(activity, dtype=np.int8), each),
        "site": np.tile(np.arange(len(PLACEMENTS), dtype=np.int8), len(made) * ROWS),
        "late": np.repeat([int(name[-6:-4]) >= LATE for name, _ in made], each),
    }


READER = Reader(
    name="daily-sports",
    folder="daily_sports_activities",
    sites=tuple(f"site {j}" for j in range(1, len(SHARES) + 1)),
    classes=tuple(ACTIVITIES.values()),
    hidden=(96, 48, 24),
    splits={"paper": RANDOM, "by-sequence": GIVEN},
    find=files,
    read=read,
    notes=(
        "Not SHL: a stand-in of the same shape. Six sites hold the five placements in unequal "
        "shares; one row of one unit (9 channels) is one sample; 8 of the 19 activities, every "
        "third segment. paper: a random fifth of each site's rows is the test part. by-sequence: "
        "the last fifth of each person's five minutes of each activity is."
    ),
    shares=SHARES,
)
