"""Validation parts, and the two models of a run: that of the best evaluation, and the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aspire.runs.selection import LAST, Watched
from reproduction.data.federation import Part
from reproduction.data.partitions import shuffled
from reproduction.networks.data import Sites

VAL = 10  # one of so many training samples
SPLIT = 55  # purpose: a stream that shares no numbers with others
Line = Mapping[str, Any]


def held_out(sites: Sites, seed: int) -> Sites:
    """The same sites with a tenth of each training part as val part."""
    made: Sites = {}
    for j, (name, site) in enumerate(sites.items()):
        train, val = split(site["train"], seed, j)
        made[name] = {"train": train, "val": val, "test": site["test"]}
    return made


def split(part: Part, seed: int, j: int) -> tuple[Part, Part]:
    order = torch.from_numpy(shuffled(len(part[1]), SPLIT, seed, j))
    count = max(1, len(order) // VAL)
    return taken(part, order[count:]), taken(part, order[:count])


def taken(part: Part, index: Tensor) -> Part:
    return part[0][index], part[1][index]


def best_and_last(history: Sequence[Line], rule: str = LAST) -> dict[str, Line]:
    """The evaluation that `select` takes by this rule, 'last' being worst_loss, and the last one.

    A run does not look at its start.
    """
    watched = Watched()
    for count in range(2, len(history) + 1):
        watched.look(history[:count], (), rule, lambda: torch.zeros(0))
    best = watched.validation.line
    if best is None:
        raise ValueError("the history has no validation losses: expected them at every site")
    return {"selected": history[best], "last": history[-1]}
