"""Projection onto an uncertainty set, for GDA: argmin |p - x| over p in P.

Sets given by bounds and one budget on the moves d = p - q have a short exact answer; for the
others (KL, chi-square, ellipsoid) there is none here, and they are refused.
"""

from __future__ import annotations

import numpy as np

from aspire.core.equations import LARGE, project_simplex
from aspire.sets import Box, CDNorm, CVaR, Simplex, TotalVariation, UncertaintySet
from aspire.types import Array

PROJECTED = (Simplex, Box, CVaR, CDNorm, TotalVariation)


def refuse_unknown(uncertainty: UncertaintySet | None) -> None:
    """ValueError for a set without a projection."""
    if uncertainty is not None and not isinstance(uncertainty, PROJECTED):
        names = ", ".join(kind.__name__ for kind in PROJECTED)
        raise ValueError(f"uncertainty={uncertainty!r}: expected one of {names}")


def project(uncertainty: UncertaintySet, x: Array) -> Array:
    """argmin_p |p - x| over p in P."""
    q = uncertainty.nominal()
    match uncertainty:
        case Simplex():
            return project_simplex(x)[0]
        case Box(low=low, high=high):
            d = moves(x - q, np.asarray(low) - q, np.minimum(high, 1.0) - q)
        case CVaR(beta=beta):
            d = moves(x - q, -q, np.minimum(q / (1.0 - beta), 1.0) - q)
        case TotalVariation(radius=radius):
            d = moves(x - q, -q, 1.0 - q, price=np.ones(len(q)), budget=radius)
        case CDNorm(radius=radius, budget=budget):
            r = np.asarray(radius, dtype=np.float64)
            price = np.divide(1.0, r, out=np.zeros(len(q)), where=r > 0)
            most = float(budget or 0.0)
            d = moves(x - q, -np.minimum(r, q), r, price=price, budget=most)
        case _:
            raise ValueError(f"uncertainty={uncertainty!r}: there is no projection for it")
    return np.maximum(q + d, 0.0)


def moves(
    y: Array, low: Array, high: Array, *, price: Array | None = None, budget: float = np.inf
) -> Array:
    """argmin_d |d - y| over low <= d <= high, sum d = 0, sum_j price_j |d_j| <= budget.

    With a multiplier theta for the budget, d_j = clip(shrink(y_j - nu, theta price_j)), where nu
    makes the sum zero. The price paid falls as theta grows: bisect theta. A shift of y changes nu
    alone; large numbers are shifted, as in `project_simplex`.
    """
    if float(np.abs(y).max()) > LARGE:
        y = np.maximum(y - y.max(), -LARGE)
    price = np.zeros(len(y)) if price is None else price
    d = balanced(y, low, high, np.zeros(len(y)))
    if float(price @ np.abs(d)) <= budget:
        return d
    below = 0.0
    above = float(np.ptp(y)) / float(price[price > 0].min())  # there nothing moves
    for _ in range(200):
        theta = 0.5 * (below + above)
        if theta in (below, above):
            break
        d = balanced(y, low, high, theta * price)
        below, above = (theta, above) if float(price @ np.abs(d)) > budget else (below, theta)
    return balanced(y, low, high, above * price)


def balanced(y: Array, low: Array, high: Array, shrink: Array) -> Array:
    """d_j(nu) = clip(sign(y_j - nu) (|y_j - nu| - shrink_j)+, low_j, high_j), sum d = 0.

    low <= 0 <= high. The sum falls with nu and is linear between the knots, where one d_j changes
    its slope.
    """

    def d(nu: float) -> Array:
        x = y - nu
        small = x - np.minimum(np.maximum(x, -shrink), shrink)
        clipped: Array = np.minimum(np.maximum(small, low), high)
        return clipped

    knots = np.unique(
        np.concatenate(
            [
                y - shrink - high,
                y - shrink,
                y + shrink,
                y + shrink - low,
            ]
        )
    )
    left, right = 0, len(knots) - 1  # d >= 0 at the first knot, d <= 0 at the last
    while right - left > 1:
        middle = (left + right) // 2
        if d(knots[middle]).sum() >= 0:
            left = middle
        else:
            right = middle
    before = d(knots[left])
    after = d(knots[right])
    a = float(before.sum())
    b = float(after.sum())
    share = a / (a - b) if a > b else 0.0
    return before * (1.0 - share) + after * share
