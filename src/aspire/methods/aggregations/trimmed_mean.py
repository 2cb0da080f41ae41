"""The coordinate-wise trimmed mean.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

from torch import Tensor


def trimmed_mean(rows: Tensor, weights: Tensor, *, share: float) -> Tensor:
    """The mean of what is left in every coordinate without the k largest and the k smallest.

    k = floor(share n), at least 1 of three rows or more. Weights are not used.
    """
    n = len(rows)
    k = max(int(share * n + 1e-9), int(n >= 3))  # 0.29 * 100 is a little less than 29
    return rows.sort(dim=0).values[k : n - k].mean(0)
