"""The samples of a site: tensors or items, made of whatever a user has (`sources`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from aspire.arguments import kind, near, shown
from aspire.problem.ahead import Ahead, Asked, read
from aspire.problem.conversion import Fit, dense, each, is_array
from aspire.problem.failures import calling
from aspire.problem.sources import TARGETS, Collate, Held, Items, source_of
from aspire.protocol import PARTS

CHUNK = 4096  # samples in one forward pass of an evaluation
LONGEST = 200  # letters of a site's name


# ---------------------------------------------------------------- the sites and their parts


def named(sites: Any) -> dict[Any, Any]:
    """The sites by their names; those of a list are 0, 1, 2, ..."""
    if isinstance(sites, Mapping):
        found = dict(sites)
    elif isinstance(sites, str | bytes | Tensor | np.ndarray | Dataset | DataLoader):
        raise ValueError(f"sites is {kind(sites)}: expected a list of sites, or a mapping of them")
    elif not isinstance(sites, Iterable):
        raise ValueError(f"sites={shown(sites)}: expected a list of sites, or a mapping of them")
    else:
        found = dict(enumerate(sites))
        if type(sites) is tuple and len(found) == 2 and all(map(is_array, found.values())):
            raise ValueError(
                "sites is one pair of arrays: expected a list of sites; one site is [(x, y)]"
            )
    if not found:
        raise ValueError("sites is empty: expected at least one site")
    with calling("the name of a site"):
        names = [str(name) for name in found]
    for name in names:
        if len(name) > LONGEST or not name.isprintable():
            raise ValueError(f"sites has the name {shown(name)}: expected a short one, in one line")
    once(names, "sites")
    return found


def once(names: Iterable[str], what: str) -> None:
    """Refuse a name that stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} has two sites named {shown(name)}: expected each name once")
        seen.add(name)


def parts_of(
    data: Any, device: str, where: str, collate: Collate | None = None
) -> tuple[Samples, Samples | None, Samples | None]:
    """The training part of a site, its test part and its validation part, if it has them."""
    of_columns = isinstance(data, Mapping) and any(name in data for name in TARGETS)
    if not isinstance(data, Mapping) or (of_columns and not has_train(data)):
        return Samples(data, device, where, collate), None, None
    extra = [name for name in data if name not in PARTS]
    if extra or "train" not in data:
        hint = near(extra[0], PARTS) if extra else ""
        raise ValueError(
            f"{where} has the parts {shown(list(data))}: expected 'train' and optionally "
            f"'val' and 'test'{hint}"
        )
    made = {
        name: Samples(part, device, f"{where} ({name})", collate)
        for name, part in data.items()
        if part is not None or name == "train"
    }
    return made["train"], made.get("test"), made.get("val")


def has_train(data: Any) -> bool:
    """Whether the data of a site is in parts."""
    return isinstance(data, Mapping) and "train" in data


class Samples:
    """One part of a site: a pair of tensors, several tensors in a structure, or items."""

    def __init__(self, part: Any, device: str, where: str, collate: Collate | None = None) -> None:
        self.device = device
        self.where = where
        self.pair: tuple[Tensor, Tensor] | None = None
        self.classes: int | None = None  # that the model scores, where the targets are such
        self.fit = Fit()
        self.standard: Callable[[Tensor], Tensor] | None = None  # what inputs go through then
        source = source_of(part, where, collate)
        self.source: Held | Items | None = source  # None: the pair is all there is
        self.ahead: Ahead | None = None  # batches that worker processes read
        self.size = source.size
        self.batch_size = source.batch_size  # that of a DataLoader; None: it came in none
        self.columns: list[str] | None = None  # names, where the inputs came with some
        self.notes: tuple[str, ...] = ()  # how they were converted
        if isinstance(source, Held):
            self.columns = source.columns
            self.notes = source.notes
            inputs, targets = (each(self._here, x) for x in (source.inputs, source.targets))
            plain = isinstance(inputs, Tensor)
            self.pair = (inputs, targets) if plain else None
            self.source = None if plain else replace(source, inputs=inputs, targets=targets)
        if self.size == 0:
            raise ValueError(f"{where} is empty: expected at least one sample")

    def only(self, index: Tensor) -> Self:
        """These samples alone; of tensors, gathered once."""
        found = copy.copy(self)
        found.pair, found.size = self.take(index), len(index)
        return found

    def convert(self, fit: Fit, notes: Iterable[str], classes: int | None) -> None:
        """Hand out samples as `fit` makes them."""
        self.classes = classes
        self.notes = tuple(dict.fromkeys([*self.notes, *notes]))
        if self.pair is not None:
            self.pair = fit(*self.pair)
        else:
            self.fit = fit

    def standardize(self, by: Callable[[Tensor], Tensor]) -> None:
        """Hand out inputs as `by` makes them."""
        if self.pair is not None:
            self.pair = (by(self.pair[0]), self.pair[1])
        else:
            self.standard = by

    def take(self, index: Tensor) -> tuple[Any, Any]:
        if self.pair is not None:
            return self.pair[0][index], self.pair[1][index]
        assert self.source is not None
        return self._fitted(self.source.take(index))

    def _fitted(self, found: tuple[Any, Any]) -> tuple[Any, Any]:
        inputs, targets = self.fit(*(each(self._here, x) for x in found))
        return inputs if self.standard is None else self.standard(inputs), targets

    @property
    def workers(self) -> bool:
        """Whether processes read its items."""
        return isinstance(self.source, Items) and bool(self.source.workers)

    def batch(self, draw: int, asked: Callable[[int], Asked]) -> tuple[Any, Any]:
        """Mini-batch number `draw`, while those after it are read."""
        assert isinstance(self.source, Items)
        if self.ahead is None or not self.ahead.has(draw):
            self.ahead = Ahead(self.source, asked, draw)
        return self._fitted(self.ahead.take(draw))

    def _here(self, x: Tensor) -> Tensor:
        return dense(x, f"{self.where}: items of the Dataset").to(self.device)

    def chunks(
        self, index: Tensor | None = None, piece: int = CHUNK
    ) -> Iterator[tuple[Any, Any, int]]:
        """All samples, or those at `index`, in pieces that fit in memory, each with its size."""
        if index is None and self.pair is not None and self.size <= piece:
            yield *self.pair, self.size
            return
        if index is None and self.pair is not None:
            pieces = zip(self.pair[0].split(piece), self.pair[1].split(piece), strict=True)
            yield from ((inputs, targets, len(targets)) for inputs, targets in pieces)
            return
        source = self.source
        if isinstance(source, Items):
            piece = min(piece, source.most)
        pieces = (torch.arange(self.size) if index is None else index).split(piece)
        if isinstance(source, Items) and source.workers and len(pieces) > 1:
            # from where what draws at random in this process would
            seed = torch.initial_seed() % 2**31
            asked = [((n, seed), some.tolist()) for n, some in enumerate(pieces)]
            for found, some in zip(read(source, asked), pieces, strict=True):
                yield *self._fitted(found), len(some)
            return
        for some in pieces:
            yield *self.take(some), len(some)
