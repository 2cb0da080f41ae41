"""Greedy filling by score without a full sort, and a search over prefixes for all sites at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aspire.sets.checks import Index, Vec

SORT_BELOW = 4096  # small enough that sorting beats further narrowing


def threshold(score: Vec, weight: Vec, amount: float) -> tuple[float, float]:
    """theta and share with sum weight[score > theta] + share sum weight[score = theta] = amount.

    That is where a greedy fill by falling score stops; the ties at the margin share alike.
    If everything fits, theta is the smallest score and share is 1.
    """
    above = 0.0  # weight already known to lie over the candidates
    while score.size > SORT_BELOW:
        size = score.size
        score, weight, above = _narrow(score, weight, above, amount)
        if score.size > 0.9 * size:
            break
    if score[0] == score[-1] and score.min() == score.max():  # ties only: nothing to sort
        share = (amount - above) / max(float(weight.sum()), 1e-300)
        return float(score[0]), min(max(share, 0.0), 1.0)
    order = np.argsort(score)[::-1]
    running = above + np.cumsum(weight[order])
    k = int(np.searchsorted(running, amount, side="right"))
    if k == score.size:
        return float(score[order[-1]]), 1.0
    theta = score[order[k]]
    over = above + weight[score > theta].sum()
    share = (amount - over) / weight[score == theta].sum()
    return float(theta), float(min(max(share, 0.0), 1.0))


def _narrow(score: Vec, weight: Vec, above: float, amount: float) -> tuple[Vec, Vec, float]:
    """Keep the scores between two quantiles of a sample that should enclose the threshold."""
    step = score.size // 1024
    sample = score[::step]
    heavy = weight[::step]
    order = np.argsort(sample)[::-1]
    running = np.cumsum(heavy[order])
    # The target is a share of the weight; four standard errors either side of it in the sample.
    target = (amount - above) / max(float(weight.sum()), 1e-300) * running[-1]
    margin = 4 * float(np.sqrt(heavy @ heavy) / 2)
    ends = np.searchsorted(running, [target - margin, target + margin])
    high, low = sample[order[np.minimum(ends, sample.size - 1)]]
    over = score > high
    under = score < low
    top = above + float(weight[over].sum())
    if top > amount:
        return score[over], weight[over], above
    middle = ~(over | under)
    kept = weight[middle]
    if top + float(kept.sum()) <= amount and under.any():
        return score[under], weight[under], top + float(kept.sum())
    return score[middle], kept, top


def fill(score: Vec, room: Vec, amount: float) -> Vec:
    """argmax over 0 <= x <= room, sum x = amount, of sum x_j score_j; ties share by room."""
    if amount <= 0:
        return np.zeros_like(room)
    theta, share = threshold(score, room, amount)
    x = np.where(score > theta, room, 0.0)
    ties = score == theta
    x[ties] = share * room[ties]
    return x


def last_prefix(fits: Callable[[Index], np.ndarray], n: int, sites: int) -> Index:
    """Per site the largest k in 0..n with fits(k), for a test that holds at 0 and then fails."""
    low = np.zeros(sites, dtype=np.intp)
    high = np.full(sites, n, dtype=np.intp)
    while (low < high).any():
        middle = (low + high + 1) // 2
        ok = fits(middle)
        low = np.where(ok, middle, low)
        high = np.where(ok, high, middle - 1)
    return low
