"""What a loader gives: sites with train and test parts, ready for aspire.api."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reproduction.data.partitions import HELD_OUT, split

Part = tuple[Tensor, Tensor]  # inputs float32, targets int64
Sites = Mapping[str, Mapping[str, Part]]


@dataclass(frozen=True)
class Standard:
    """inputs -> (inputs - mean) / std within +-limit, one mean and std per feature, float32."""

    mean: Tensor
    std: Tensor
    limit: float = math.inf

    def apply(self, inputs: Tensor) -> Tensor:
        scaled = (inputs - self.mean) / self.std
        return scaled if math.isinf(self.limit) else scaled.clamp(-self.limit, self.limit)


@dataclass(frozen=True)
class Sums:
    """All that a site tells about its inputs: how many, their sum and their sum of squares."""

    count: int
    total: NDArray[np.float64]
    squares: NDArray[np.float64]


def sums(inputs: NDArray[Any]) -> Sums:
    exact = inputs.astype(np.float64)
    return Sums(len(inputs), exact.sum(axis=0), np.einsum("ij,ij->j", exact, exact))


def standard(
    sites: Iterable[Sums],
    *,
    floor: float = 0.0,
    limit: float = math.inf,
    scaled: int | None = None,
    unit: float = 1.0,
) -> Standard:
    """Mean and std over the samples of all sites, from their sums alone; inputs come as unit * x.

    std is at least floor * (its mean over features), and no value leaves +-limit: a near-constant
    feature must not become a huge one. Features from number `scaled` on (one-hot columns) are
    left as they are.
    """
    parts = list(sites)
    count = sum(part.count for part in parts)
    mean = unit / count * np.sum([part.total for part in parts], axis=0)
    squares = unit**2 / count * np.sum([part.squares for part in parts], axis=0)
    std = np.sqrt(np.maximum(squares - mean**2, 0.0))
    std = np.maximum(std, floor * std[:scaled].mean())
    std[std == 0.0] = 1.0
    if scaled is not None:
        mean[scaled:] = 0.0
        std[scaled:] = 1.0
    return Standard(torch.tensor(mean).float(), torch.tensor(std).float(), limit)


@dataclass(frozen=True)
class Federation:
    """A data set as sites.

    sites      name -> {"train": (inputs, targets), "test": (inputs, targets)}, as train() takes it
    classes    names of the classes; targets are 0 to len(classes) - 1
    inputs     features of one sample
    hidden     widths of the hidden layers that the paper uses on it
    standard   the standardisation, from the training parts; applied already unless `raw`
    """

    name: str
    protocol: str
    seed: int
    sites: Sites
    classes: tuple[str, ...]
    inputs: int
    hidden: tuple[int, ...]
    standard: Standard
    raw: bool
    notes: str

    @property
    def layers(self) -> tuple[int, ...]:
        """Widths from the inputs to the classes."""
        return (self.inputs, *self.hidden, len(self.classes))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Samples for training and for testing, per site."""
        return {
            name: (len(site["train"][1]), len(site["test"][1])) for name, site in self.sites.items()
        }

    def held_out(self, share: float = 0.1, seed: int = 0) -> Federation:
        """`share` of each training part, drawn at random, becomes the site's `val`; the rest of it
        is what is trained on."""
        made: dict[str, dict[str, Part]] = {}
        for j, (name, site) in enumerate(self.sites.items()):
            inputs, targets = site["train"]
            kept, held = split(len(targets), share, HELD_OUT, seed, j)
            made[name] = {
                part: (inputs[torch.from_numpy(index)], targets[torch.from_numpy(index)])
                for part, index in (("train", kept), ("val", held))
            } | {"test": site["test"]}
        return replace(self, sites=made, notes=f"{self.notes} Val: {share} of each training part.")

    def without_test(self) -> Federation:
        """For a search, which must not see the test parts."""
        left = {
            name: {part: pair for part, pair in site.items() if part != "test"}
            for name, site in self.sites.items()
        }
        return replace(self, sites=left)
