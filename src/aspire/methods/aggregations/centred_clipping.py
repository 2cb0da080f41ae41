"""Centred clipping: rows are cut to a length around a centre, which moves to their mean.

Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021.
"""

from __future__ import annotations

from torch import Tensor

from aspire.methods.aggregations.norm_clipping import median_length, within

ITERATIONS = 3


def centred_clipping(
    rows: Tensor,
    weights: Tensor,
    *,
    centre: Tensor,
    radius: float | None = None,
    iterations: int = ITERATIONS,
) -> Tensor:
    """v <- v + sum_j p_j clip(x_j - v, tau), `iterations` times from v = `centre`.

    tau is the radius, or without one the median of the |x_j - v|, which does not look at the
    weights; p are the weights, summing to one.
    """
    p = weights / weights.sum()
    v = centre
    for _ in range(iterations):
        away = rows - v
        v = v + p @ within(away, median_length(away) if radius is None else radius)
    return v
