"""The coordinate-wise trimmed mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

from torch import Tensor


def trimmed_mean(rows: Tensor, weights: Tensor, *, share: float) -> Tensor:
    """The mean by weight of what is left in every coordinate without the k largest and k smallest.

    k = floor(share n), at least 1 of three rows or more, whatever the weights.
    """
    n = len(rows)
    k = max(int(share * n + 1e-9), int(n >= 3))  # 0.29 * 100 is a little less than 29
    values, order = rows.sort(dim=0)
    p = weights[order[k : n - k]]
    return (p * values[k : n - k]).sum(0) / p.sum(0)
