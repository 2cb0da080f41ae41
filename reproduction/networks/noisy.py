"""The setting `noisy`: a site that is merely hard, and what a reference does about it.

One site has 40 % random labels, in its training part and in its val part. Val is a tenth of the
training part, at every site. What counts are the test parts of the others, whose labels are clean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.runs.selection import Watched
from reproduction.data.federation import Part
from reproduction.data.partitions import shuffled
from reproduction.networks.data import Sites

NOISY = "noisy"  # the setting
SITE = "site 0"  # the one with noise
SHARE = 0.4  # of its labels that are drawn at random, from all classes
VAL = 10  # one of so many training samples
LABELS, SPLIT = 54, 55  # purposes: streams that share no numbers


def sites_of(sites: Sites, seed: int, *, without: bool) -> Sites:
    """The same sites with val parts and with noise; `without`: the one with noise is left out."""
    made: Sites = {}
    for j, (name, site) in enumerate(sites.items()):
        if name == SITE and without:
            continue
        train, val = split(site["train"], seed, j)
        if name == SITE:
            train = spoilt(train, seed, 0)
            val = spoilt(val, seed, 1)
        made[name] = {"train": train, "val": val, "test": site["test"]}
    return made


def split(part: Part, seed: int, j: int) -> tuple[Part, Part]:
    order = torch.from_numpy(shuffled(len(part[1]), SPLIT, seed, j))
    count = max(1, len(order) // VAL)
    return taken(part, order[count:]), taken(part, order[:count])


def taken(part: Part, index: Tensor) -> Part:
    return part[0][index], part[1][index]


def spoilt(part: Part, seed: int, number: int) -> Part:
    """Labels drawn anew, each with probability SHARE; some are right by chance."""
    rng = np.random.default_rng([LABELS, seed, number])
    labels = part[1].numpy()
    drawn = rng.integers(0, int(labels.max()) + 1, len(labels))
    return part[0], torch.from_numpy(np.where(rng.random(len(labels)) < SHARE, drawn, labels))


def figures(history: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """At the evaluation that `select` takes by default, and at the last: the sites without noise.

    Accuracies are on test parts. The noisy site's weight is that at the end.
    """
    others = [j for j, name in enumerate(names) if name != SITE]
    watched = Watched()
    for count in range(2, len(history) + 1):  # a run does not look at its start
        watched.look(history[:count], (), "last", lambda: torch.zeros(0))
    best = watched.validation.line
    if best is None:
        raise ValueError("the history has no validation losses: expected them at every site")
    found: dict[str, Any] = {}
    for name, line in (("selected", history[best]), ("last", history[-1])):
        right = [line["accuracies"][j] for j in others]
        found[f"others_worst_{name}"] = float(f"{min(right):.6g}")
        found[f"others_mean_{name}"] = float(f"{np.mean(right):.6g}")
    found["selected_gradients"] = history[best]["gradients"]
    if SITE in names:
        weight = history[-1]["weights"][list(names).index(SITE)]
        found["noisy_weight"] = float(f"{weight:.4g}")
    return found
