"""The setting `noisy`: a site that is merely hard, and what a reference does about it.

One site has 40 % random labels, in its training part and in its val part. Val is a tenth of the
training part, at every site. What counts are the test parts of the others, whose labels are clean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from reproduction.data.federation import Part
from reproduction.networks.data import Sites
from reproduction.networks.validation import best_and_last, held_out

NOISY = "noisy"  # the setting
SITE = "site 0"  # the one with noise
SHARE = 0.4  # of its labels that are drawn at random, from all classes
LABELS = 54  # purpose: a stream that shares no numbers with others


def sites_of(sites: Sites, seed: int, *, without: bool) -> Sites:
    """The same sites with val parts and with noise; `without`: the one with noise is left out."""
    made = held_out(sites, seed)
    site = made.pop(SITE)
    if without:
        return made
    noise = {part: spoilt(site[part], seed, k) for k, part in enumerate(("train", "val"))}
    return {SITE: site | noise, **made}


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
    found: dict[str, Any] = {}
    lines = best_and_last(history)
    for name, line in lines.items():
        right = [line["accuracies"][j] for j in others]
        found[f"others_worst_{name}"] = float(f"{min(right):.6g}")
        found[f"others_mean_{name}"] = float(f"{np.mean(right):.6g}")
    found["selected_gradients"] = lines["selected"]["gradients"]
    if SITE in names:
        weight = history[-1]["weights"][list(names).index(SITE)]
        found["noisy_weight"] = float(f"{weight:.4g}")
    return found
