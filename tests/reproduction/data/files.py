"""Tiny data sets in the official formats, and the numbers that are in them."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from pathlib import Path

import numpy as np

from reproduction.data import daily_sports, person_activity, shl

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def put(folder: Path, name: str, content: bytes, ending: str = "") -> None:
    path = folder / (name + ending)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACK[ending](content))


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    return head + values.astype(np.uint8).tobytes()


def fashion_mnist(root: Path, ending: str = ".gz", each: int = 4) -> dict[str, np.ndarray]:
    """`each` images of every label for training, one for testing; image i is 2 x 2 pixels."""
    arrays = {}
    for prefix, count in (("train", each), ("t10k", 1)):
        labels = np.tile(np.arange(10), count)
        images = np.random.default_rng(count).integers(0, 256, (len(labels), 2, 2))
        images[:, 0, 0] = 7  # a pixel that never changes
        arrays |= {f"{prefix}-labels": labels, f"{prefix}-images": images}
        put(root / "fashion_mnist", f"{prefix}-images-idx3-ubyte", idx(images), ending)
        put(root / "fashion_mnist", f"{prefix}-labels-idx1-ubyte", idx(labels), ending)
    return arrays


def person_rows() -> list[tuple[str, str, str, str, str, str]]:
    """Ten readings in each of three recordings of five people."""
    tags, rows = list(person_activity.TAGS), []
    for p, person in enumerate("ABCDE"):
        for recording in (1, 2, 3):
            for i in range(10):
                x = f"{p + 0.1 * i:.4f}", f"{recording:.4f}", f"{-i:.4f}"
                activity = person_activity.ACTIVITIES[(p + i) % 11]
                rows.append((f"{person}0{recording}", tags[i % 4], *x, activity))
    return rows


def person_official(root: Path, ending: str = "") -> None:
    lines = [
        f"{s},{t},63379022605128{i:04},27.05.2009 14:03:25:127,{x},{y},{z},{a}\n"
        for i, (s, t, x, y, z, a) in enumerate(person_rows())
    ]
    put(root / "person_activity", "ConfLongDemo_JSI.txt", "".join(lines).encode(), ending)


def person_short(root: Path, ending: str = ".xz") -> None:
    lines = ["sequence,tag,x,y,z,activity", *(",".join(row) for row in person_rows())]
    put(root / "person_activity", "all_xyz.csv", ("\n".join(lines) + "\n").encode(), ending)


SC_MA_LABELS = [1] * 10 + [0] * 3 + [2] * 5 + [3] * 10 + [4] * 4 + [3] * 5 + [0]


def sc_ma(root: Path, ending: str = "", people: int = 15) -> None:
    for person in range(1, people + 1):
        rows = [
            f"{i if i < 20 else '1e+05'},{2000 + person},{i},{3 * i},{label}\n"
            for i, label in enumerate(SC_MA_LABELS)
        ]
        put(root / "chest_accelerometer", f"{person}.csv", "".join(rows).encode(), ending)


def segment(name: str) -> bytes:
    """125 rows of 45 numbers; the first tells the file, the others their place."""
    place = np.arange(125 * 45).reshape(125, 45) / 8.0
    place[:, 0] = int(name[1:3]) * 1000 + int(name[5]) * 100 + int(name[8:10])
    return "".join(",".join(f"{v:g}" for v in row) + "\n" for row in place).encode()


def daily_sports_files(root: Path, *, packed: bool) -> None:
    folder = root / "daily_sports_activities"
    for activity in daily_sports.ACTIVITIES:
        contents = {name: segment(name) for name in daily_sports.members(activity)}
        if not packed:
            for name, content in contents.items():
                put(folder, name, content)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / f"{activity}.tar.xz", "w:xz", preset=0) as archive:
            for name, content in contents.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def shl_files(root: Path, days: dict[str, list[str]], rows: int = 400, ending: str = "") -> None:
    """100 rows a second, 21 columns and more; the label changes every 50 rows, and 0 is one."""
    for user, names in days.items():
        for d, day in enumerate(names):
            folder = root / "shl" / "release" / user / day
            start = 1_498_120_000_000 + 86_400_000 * d
            labels = [f"{start + 10 * i} {i // 50 % 9} 0 0 0 0 0 0\n" for i in range(rows)]
            put(folder, "Label.txt", "".join(labels).encode(), ending)
            for p, position in enumerate(shl.POSITIONS):
                lines = []
                for i in range(rows):
                    channels = [f"{100 * p + c + 0.001 * i:.4f}" for c in range(9)]
                    channels[0] = "NaN" if i == 60 else channels[0]
                    lines.append(" ".join([f"{start + 10 * i}", *channels, *["0.5"] * 13]) + "\n")
                put(folder, f"{position}_Motion.txt", "".join(lines).encode(), ending)
