"""Worker processes that read batches ahead, as the user's DataLoader would have them.

Which samples are in batch n is known beforehand, and so is the key from which random transforms
draw, so that a run has the same numbers however many processes read. (Without any, the transforms
of an evaluation draw from one key for the whole part.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from aspire.problem.failures import calling
from aspire.problem.seeds import seeded
from aspire.problem.sources import Items

Asked = tuple[tuple[int, int], list[int]]  # the key of a batch, and its samples


class Batches(Dataset[Any]):
    """One batch for each thing asked; what it raises is handed on, since torch would reword it."""

    def __init__(self, items: Items) -> None:
        self.items = items

    def __getitem__(self, asked: Asked) -> Any:
        key, index = asked
        try:
            with seeded(key):
                return self.items.batch(self.items.read(index))
        except ValueError as error:
            return error


def read(items: Items, asked: Iterable[Asked]) -> Iterable[tuple[Any, Any]]:
    """The batches that were asked for, in their order."""
    loader = DataLoader(
        Batches(items),
        batch_size=None,
        sampler=asked,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # torch draws from it for its workers
        **items.workers,
    )
    with calling(f"{items.where}: a worker process of the DataLoader"):
        for found in loader:
            if isinstance(found, ValueError):
                raise found
            yield found


def _as_it_is(x: Any) -> Any:
    return x


class Ahead:
    """Mini-batches from number `start` on; the last one can be had again."""

    def __init__(self, items: Items, asked: Callable[[int], Asked], start: int) -> None:
        self.next = start
        self.last: tuple[Any, Any] | None = None
        self.batches = iter(read(items, map(asked, count(start))))

    def has(self, draw: int) -> bool:
        return draw == self.next or (draw == self.next - 1 and self.last is not None)

    def take(self, draw: int) -> tuple[Any, Any]:
        if draw == self.next:
            self.last = next(self.batches)
            self.next += 1
        assert self.last is not None
        return self.last
