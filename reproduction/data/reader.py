"""What the readers of single data sets have in common: arrays in, sites out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reproduction.data.cache import Arrays
from reproduction.data.federation import Federation, Part, Standard, standard, sums
from reproduction.data.partitions import SPLIT, Indices, mixtures, split

TEST_SHARE = 0.2
RANDOM, GIVEN = "random", "given"  # ways to split; GIVEN: rows with late = True are for testing


@dataclass(frozen=True)
class Reader:
    """One data set. `find` gives its files or raises Missing; `read` gives four arrays of equal
    length: x (inputs), y (targets), site (or group, where `shares` mixes the groups into sites)
    and late (rows of the test part where the split is given by time, recording or publisher).
    """

    name: str
    folder: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    hidden: tuple[int, ...]
    splits: Mapping[str, str]  # protocol -> RANDOM or GIVEN
    find: Callable[[Path], Sequence[Path]]
    read: Callable[[Sequence[Path]], Arrays]
    notes: str
    unit: float = 1.0  # inputs = unit * x
    floor: float = 0.0
    limit: float = math.inf
    scaled: int | None = None  # the first so many features are standardised; None: all
    shares: tuple[tuple[float, ...], ...] | None = None


def federation(
    reader: Reader, arrays: Arrays, *, protocol: str = "paper", seed: int = 0, raw: bool = False
) -> Federation:
    """Divide the rows, form the standardisation from the training parts, and hand out tensors."""
    parts = divide(reader, arrays, protocol, seed)
    x = arrays["x"]
    y = np.asarray(arrays["y"])
    rows = {name: {p: x[i] for p, i in site.items()} for name, site in parts.items()}
    scale = standard(
        [sums(site["train"]) for site in rows.values()],
        floor=reader.floor,
        limit=reader.limit,
        scaled=reader.scaled,
        unit=reader.unit,
    )
    return Federation(
        name=reader.name,
        protocol=protocol,
        seed=seed,
        sites={
            name: {
                part: _tensors(rows[name][part], y[index], reader.unit, None if raw else scale)
                for part, index in site.items()
            }
            for name, site in parts.items()
        },
        classes=reader.classes,
        inputs=x.shape[1],
        hidden=reader.hidden,
        standard=scale,
        raw=raw,
        notes=reader.notes,
    )


def _tensors(
    inputs: NDArray[Any], targets: NDArray[Any], unit: float, scale: Standard | None
) -> Part:
    made = torch.from_numpy(inputs).float()
    if unit != 1.0:
        made = made * unit
    return made if scale is None else scale.apply(made), torch.from_numpy(targets.astype(np.int64))


def divide(
    reader: Reader, arrays: Arrays, protocol: str, seed: int
) -> dict[str, dict[str, Indices]]:
    """The rows of each site's train and test part."""
    if protocol not in reader.splits:
        known = " or ".join(repr(name) for name in reader.splits)
        raise ValueError(f"protocol={protocol!r}: expected {known} for {reader.name}")
    if seed != int(seed) or seed < 0:
        raise ValueError(f"seed={seed}: expected a whole number of at least 0")
    late = np.asarray(arrays["late"])
    made = {}
    for j, (name, rows) in enumerate(zip(reader.sites, _rows(reader, arrays, seed), strict=True)):
        if reader.splits[protocol] == RANDOM:
            train, test = (rows[part] for part in split(len(rows), TEST_SHARE, SPLIT, seed, j))
        else:
            train = rows[~late[rows]]
            test = rows[late[rows]]
        if not len(train) or not len(test):
            raise ValueError(
                f"{reader.name}, site {name!r}: {len(train)} samples for training and {len(test)} "
                f"for testing under the protocol {protocol!r}: expected some of both"
            )
        made[name] = {"train": train, "test": test}
    return made


def _rows(reader: Reader, arrays: Arrays, seed: int) -> list[Indices]:
    """The rows of each site. Groups are mixed apart for early and late rows, so that the shares
    hold in the train and in the test part alike."""
    site = np.asarray(arrays["site"])
    if reader.shares is None:
        return [np.flatnonzero(site == j) for j in range(len(reader.sites))]
    halves = 2 * site.astype(np.int64) + np.asarray(arrays["late"])
    return mixtures(halves, np.repeat(np.array(reader.shares), 2, axis=1), seed=seed)


def tail_of_runs(values: NDArray[Any], share: float = TEST_SHARE) -> NDArray[np.bool_]:
    """True on the last `share` (rounded) of every stretch of equal neighbours."""
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    ends = np.r_[starts[1:], len(values)]
    first_late = ends - np.rint(share * (ends - starts)).astype(np.int64)
    return np.arange(len(values)) >= np.repeat(first_late, ends - starts)
