"""Fashion-MNIST: three kinds of clothing that look alike, one at each site.

H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
Learning Algorithms", arXiv:1708.07747 (2017). MIT licence. Files: IDX, as published (.gz) or
unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.data.cache import Arrays
from reproduction.data.files import find, opened
from reproduction.data.partitions import one_class_each
from reproduction.data.reader import GIVEN, Reader

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
KEPT = {0: "T-shirt/top", 2: "pullover", 6: "shirt"}


def idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes: 0 0 8 n, n sizes of 4 bytes (big end first), then the values."""
    with opened(path) as file:
        content = file.read()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path}: expected an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], dtype=">u4").astype(int)
    values = np.frombuffer(content, dtype=np.uint8, offset=min(start, len(content)))
    if len(content) < start or values.size != shape.prod():
        raise ValueError(
            f"{path}: {values.size} values: expected {shape.prod()}, as the shape {shape} says"
        )
    return values.reshape(shape)


def files(folder: Path) -> list[Path]:
    return [find(folder, name) for name in FILES]


def read(paths: Sequence[Path]) -> Arrays:
    """The images of the three kinds as rows of bytes, in published order within each kind."""
    parts: list[dict[str, NDArray[Any]]] = []
    for images_path, labels_path in (paths[:2], paths[2:]):
        images = idx(images_path)
        labels = idx(labels_path)
        if len(images) != len(labels):
            raise ValueError(f"{images_path}: {len(images)} images for {len(labels)} labels")
        sites = one_class_each(labels, list(KEPT))
        site = np.repeat(np.arange(len(sites), dtype=np.int8), [len(rows) for rows in sites])
        x = images.reshape(len(images), -1)[np.concatenate(sites)]
        parts.append({"x": x, "site": site, "late": np.full(len(x), images_path == paths[2])})
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return arrays | {"y": arrays["site"]}


READER = Reader(
    name="fashion-mnist",
    folder="fashion_mnist",
    sites=tuple(KEPT.values()),
    classes=tuple(KEPT.values()),
    hidden=(),
    splits={"paper": GIVEN},
    find=files,
    read=read,
    notes=(
        "Labels 0, 2 and 6 of the ten, renumbered 0 to 2, one at each site; the published train "
        "and test parts, so that the seed changes nothing. Pixels 0 to 1, standardised per pixel "
        "with the std floored at a tenth of its mean over the pixels, and kept within 3 of them."
    ),
    unit=1.0 / 255.0,
    floor=0.1,
    limit=3.0,
)
