"""The samples of a site: a pair of tensors or a Dataset, made of whatever a user has."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from aspire.arguments import kind, near, shown
from aspire.problem.conversion import Fit, dense, each, first_line, is_array, tensor_of
from aspire.problem.failures import calling

CHUNK = 4096  # samples in one forward pass of an evaluation
LONGEST = 200  # letters of a site's name
PARTS = ("train", "val", "test")
EXPECTED = (
    "expected (inputs, targets), a map-style torch Dataset, or a mapping with 'train' and "
    "optionally 'val' and 'test'"
)


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


def parts_of(data: Any, device: str, where: str) -> tuple[Samples, Samples | None, Samples | None]:
    """The training part of a site, its test part and its validation part, if it has them."""
    if not isinstance(data, Mapping):
        return Samples(data, device, where), None, None
    extra = [name for name in data if name not in PARTS]
    if extra or "train" not in data:
        hint = near(extra[0], PARTS) if extra else ""
        raise ValueError(
            f"{where} has the parts {shown(list(data))}: expected 'train' and optionally "
            f"'val' and 'test'{hint}"
        )
    test, val = (
        None if data.get(name) is None else Samples(data[name], device, f"{where} ({name})")
        for name in ("test", "val")
    )
    return Samples(data["train"], device, f"{where} (train)"), test, val


class Samples:
    """One part of a site: a pair of tensors, or a map-style Dataset of (input, target)."""

    def __init__(self, part: Any, device: str, where: str) -> None:
        self.device = device
        self.where = where
        self.pair: tuple[Tensor, Tensor] | None = None
        self.columns: list[str] | None = None  # names, where the inputs came with some
        self.notes: tuple[str, ...] = ()  # how they were converted
        self.classes: int | None = None  # that the model scores, where the targets are such
        self.fit = Fit()
        if isinstance(part, tuple | list):
            self.pair = self._pair(part)
            self.size = len(self.pair[0])
        else:
            self.dataset, self.size = part, self._length(part)
        if self.size == 0:
            raise ValueError(f"{where} is empty: expected at least one sample")

    def _pair(self, part: Any) -> tuple[Tensor, Tensor]:
        if len(part) != 2:
            raise ValueError(f"{self.where} is a {type(part).__name__} of {len(part)}: {EXPECTED}")
        if any(isinstance(x, Dataset) for x in part):
            raise ValueError(
                f"{self.where} is a pair with a Dataset in it: expected one Dataset, or "
                "{'train': ..., 'test': ...}"
            )
        if isinstance(part[0], str):
            raise ValueError(
                f"{self.where} begins with {shown(part[0])}: {EXPECTED}; sites with names are a "
                "mapping, {name: site}"
            )
        inputs, targets = (
            tensor_of(x, f"{self.where}: {what}").to(self.device)
            for x, what in zip(part, ("inputs", "targets"), strict=True)
        )
        if len(inputs) != len(targets):
            raise ValueError(
                f"{self.where} has {len(inputs)} inputs and {len(targets)} targets: "
                "expected as many of one as of the other"
            )
        if hasattr(part[0], "columns"):
            self.columns = [str(name) for name in part[0].columns]
        self.notes = tuple(
            f"{what} from a {type(x).__name__} to a tensor"
            for x, what in zip(part, ("inputs", "targets"), strict=True)
            if hasattr(x, "to_numpy")
        )
        return inputs, targets

    def _length(self, part: Any) -> int:
        if isinstance(part, DataLoader):
            raise ValueError(f"{self.where} is a DataLoader: expected its dataset, loader.dataset")
        if not isinstance(part, Dataset):
            raise ValueError(f"{self.where} is {kind(part)}: {EXPECTED}")
        if isinstance(part, IterableDataset) or not hasattr(part, "__len__"):
            raise ValueError(
                f"{self.where} is {kind(part)} without a length: expected a map-style Dataset, "
                "with __len__ and __getitem__"
            )
        with calling(f"{self.where}: len() of the Dataset"):
            return len(part)

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

    def take(self, index: Tensor) -> tuple[Any, Any]:
        if self.pair is not None:
            return self.pair[0][index], self.pair[1][index]
        with calling(f"{self.where}: __getitem__ of the Dataset"):
            items = [self.dataset[i] for i in index.tolist()]
        return self.fit(*self._collated(items))

    def _collated(self, items: list[Any]) -> tuple[Any, Any]:
        for item in items:
            if not isinstance(item, tuple | list) or len(item) != 2:
                many = f" of {len(item)}" if isinstance(item, tuple | list) else ""
                raise ValueError(
                    f"{self.where}: the Dataset gives {kind(item)}{many}: expected a pair "
                    "(input, target)"
                )
        try:
            inputs, targets = default_collate(items)
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"{self.where}: the items of the Dataset do not go into one batch ("
                f"{first_line(error)}): expected pairs of numbers or tensors, all of one shape"
            ) from error
        return each(self._here, inputs), each(self._here, targets)

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
        for some in (torch.arange(self.size) if index is None else index).split(piece):
            yield *self.take(some), len(some)


@contextmanager
def seeded(key: tuple[int, int]) -> Iterator[None]:
    """Dropout and random transforms draw from this key."""
    cards = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=cards):
        seed = key[0] << 31 ^ key[1]
        if cards:
            torch.manual_seed(seed)
        else:  # the same, without a note to each kind of card that it should seed itself later
            torch.default_generator.manual_seed(seed)
        yield
