"""Draws of the master: which workers a round asks. Counter-based, from (seed, round) alone."""

from __future__ import annotations

import numpy as np

from aspire.problem import batches
from aspire.types import Array, Indices

# Purposes of our streams (see aspire.problem.batches); 16 and up, so that they meet no other.
WEIGHTED = 16
EVEN = 17
STEP = 18


def weighted(
    seed: int, t: int, workers: Indices, weights: Array, count: int
) -> tuple[Indices, Array]:
    """`count` draws with replacement from `workers` by weight: who was drawn, and how often."""
    share = weights[workers]
    ends = np.cumsum(share if share.sum() > 0 else np.ones(len(workers)))
    points = [batches.uniform(seed, i, t, WEIGHTED) * ends[-1] for i in range(count)]
    found = np.minimum(np.searchsorted(ends, points, side="right"), len(workers) - 1)
    times = np.bincount(found, minlength=len(workers))
    return workers[times > 0], times[times > 0].astype(np.float64)


def even(seed: int, t: int, workers: Indices, count: int) -> Indices:
    """`count` of `workers`, each set alike, without replacement; in worker order."""
    marks = [batches.uniform(seed, int(j), t, EVEN) for j in workers]
    return np.sort(workers[np.argsort(marks, kind="stable")[:count]])


def step(seed: int, t: int, most: int) -> int:
    """A whole number from 1 to `most`, each alike."""
    return 1 + min(int(batches.uniform(seed, 0, t, STEP) * most), most - 1)
