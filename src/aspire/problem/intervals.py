"""Intervals for what was measured on n independent samples, and one-sided bounds that are exact.

`wilson`, `normal` and `percentiles` are for display: 95 % where n is large, less where it is small.
`lowest_share` and `highest_mean` hold for every n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from aspire.arguments import real_number, shown

LEVEL = 0.95  # of an interval that is shown
WIDTH = 1.959963984540054  # standard deviations on each side of it
STEPS = 60  # halvings of [0, 1]
Pair = tuple[float, float]


def wilson(right: int, n: int) -> Pair:
    """Wilson's score interval for the share of which `right` of n is a sample."""
    share = right / n
    over = WIDTH**2 / n
    middle = (share + over / 2) / (1 + over)
    half = WIDTH * math.sqrt(share * (1 - share) / n + over / (4 * n)) / (1 + over)
    low = middle - half if right else 0.0
    return low, middle + half if right < n else 1.0


def normal(mean: float, error: float) -> Pair:
    """mean +- 1.96 standard errors."""
    return mean - WIDTH * error, mean + WIDTH * error


def percentiles(estimates: Sequence[float]) -> Pair:
    """The bootstrap's interval: of 199 resamples the fifth from either end."""
    ordered = sorted(estimates)
    place = max(1, round((1 - LEVEL) / 2 * (len(ordered) + 1)))
    return ordered[place - 1], ordered[-place]


# ---------------------------------------------------------------- bounds for a certificate


def level_of(alpha: float) -> float:
    """alpha, checked."""
    found = real_number("alpha", alpha, "a number above 0 and at most 0.5", above=0.0)
    if found > 0.5:
        raise ValueError(f"alpha={shown(alpha)}: expected a number above 0 and at most 0.5")
    return found


def lowest_share(right: int, n: int, alpha: float) -> float:
    """Clopper and Pearson's lower bound: the p with P(Binomial(n, p) >= right) = alpha."""
    if not right:
        return 0.0
    return _crossing(lambda p: _upper_tail(right, n, p) < alpha, 0.0, right / n)[0]


def _upper_tail(right: int, n: int, p: float) -> float:
    """P(Binomial(n, p) >= right) for p of at most right/n, where terms fall from the first on."""
    if right == n:
        return p**n
    choose = math.lgamma(n + 1) - math.lgamma(right + 1) - math.lgamma(n - right + 1)
    first = math.exp(choose + right * math.log(p) + (n - right) * math.log1p(-p))
    i = np.arange(right, n)
    ratios = (n - i) / (i + 1) * (p / (1 - p))
    return first * (1.0 + float(np.cumprod(ratios).sum()))


def highest_mean(mean: float, n: int, alpha: float) -> float:
    """Hoeffding's upper bound (his Theorem 1) for the mean of n independent numbers in [0, 1].

    The largest m with n KL(mean, m) <= log 1/alpha, where KL is that of two coins.
    """
    mean = min(max(mean, 0.0), 1.0)
    most = math.log(1 / alpha) / n
    return _crossing(lambda m: _divergence(mean, m) <= most, mean, 1.0)[1]


def _divergence(a: float, b: float) -> float:
    """KL of a coin with a from one with b."""
    if b >= 1:
        return 0.0 if a >= 1 else math.inf
    found = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return found + (a * math.log(a / b) if a > 0 else 0.0)


def _crossing(holds: Callable[[float], bool], low: float, high: float) -> Pair:
    """Two numbers beside each other: where `holds` is true and, above it, no more."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low, high
