"""Localization Data for Person Activity: four radio tags on each of five people.

B. Kaluza, V. Mirchevska, E. Dovgan, M. Lustrek, M. Gams, "An Agent-based Approach to Care in
Independent Living", AmI 2010; UCI data set 196. Files: ConfLongDemo_JSI.txt as published, or
all_xyz.csv (sequence, tag, x, y, z, activity), each plain or compressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reproduction.data.cache import Arrays
from reproduction.data.files import Missing, look_for, numbers, opened, plain_name
from reproduction.data.reader import GIVEN, RANDOM, Reader

OFFICIAL = "ConfLongDemo_JSI.txt"
SHORT = "all_xyz.csv"
# Columns of sequence, tag, x, y, z, activity
COLUMNS = {OFFICIAL: (0, 1, 4, 5, 6, 7), SHORT: (0, 1, 2, 3, 4, 5)}
PEOPLE = ("A", "B", "C", "D", "E")
TAGS = {
    "010-000-024-033": "left ankle",
    "010-000-030-096": "right ankle",
    "020-000-033-111": "chest",
    "020-000-032-221": "belt",
}
ACTIVITIES = (
    "walking",
    "falling",
    "lying down",
    "lying",
    "sitting down",
    "sitting",
    "standing up from lying",
    "on all fours",
    "sitting on the ground",
    "standing up from sitting",
    "standing up from sitting on the ground",
)


def files(folder: Path) -> list[Path]:
    path = look_for(folder, OFFICIAL) or look_for(folder, SHORT)
    if path is None:
        raise Missing(f"neither {OFFICIAL} nor {SHORT} (plain, .gz or .xz) is in {folder}")
    return [path]


def read(paths: Sequence[Path]) -> Arrays:
    """One row, one reading of one tag: x, y, z in metres and the tag one-hot.

    Late: the last of each person's recordings (05 of 01 to 05).
    """
    path = paths[0]
    official = plain_name(path) == OFFICIAL
    with opened(path) as file:
        lines = file.read().decode("ascii").splitlines()
    rows = [line.split(",") for line in lines[0 if official else 1 :] if line]
    width = 8 if official else 6
    bad = next((row for row in rows if len(row) != width), None)
    if bad is not None:
        raise ValueError(f"{path}: {','.join(bad)!r} has {len(bad)} columns: expected {width}")
    columns = [[row[c] for row in rows] for c in COLUMNS[OFFICIAL if official else SHORT]]
    sequence = columns[0]
    tags = columns[1]
    activity = columns[5]
    xyz = numbers(
        [",".join(cells) for cells in zip(*columns[2:5], strict=True)], path, delimiter=","
    )
    tag = _codes(tags, tuple(TAGS), path)
    last = {name[0]: name for name in sorted(set(sequence))}
    return {
        "x": np.concatenate([xyz, np.eye(len(TAGS))[tag]], axis=1).astype(np.float32),
        "y": _codes(activity, ACTIVITIES, path).astype(np.int8),
        "site": _codes([name[0] for name in sequence], PEOPLE, path).astype(np.int8),
        "late": np.array([name == last[name[0]] for name in sequence]),
    }


def _codes(values: list[str], known: Sequence[str], path: Path) -> np.ndarray:
    """The place of each value in `known`."""
    places = {name: i for i, name in enumerate(known)}
    try:
        return np.array([places[value] for value in values])
    except KeyError as error:
        raise ValueError(f"{path}: {error.args[0]!r}: expected one of {list(known)}") from None


READER = Reader(
    name="person-activity",
    folder="person_activity",
    sites=tuple(f"person {name}" for name in PEOPLE),
    classes=ACTIVITIES,
    hidden=(64, 32, 16),
    splits={"paper": RANDOM, "by-sequence": GIVEN},
    find=files,
    read=read,
    notes=(
        "One reading of one tag is one sample. paper: a random fifth of each person's readings is "
        "the test part, which is easy for a time series, since neighbours in time fall on both "
        "sides. by-sequence: each person's last recording is the test part."
    ),
    scaled=3,
)
