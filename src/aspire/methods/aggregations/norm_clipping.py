"""The mean of rows that are cut to the median length.

Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, arXiv:1911.07963, 2019.
There the length is a given number; here it is the median of the lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor


def norm_clipping(rows: Tensor, weights: Tensor) -> Tensor:
    """sum_j p_j x_j min(1, tau/|x_j|), tau the median of the |x_j|; p the weights, summing to one.

    The median does not look at the weights.
    """
    return weights / weights.sum() @ within(rows, median_length(rows))


def median_length(rows: Tensor) -> Tensor:
    """Of two in the middle their mean."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths.quantile(0.5)


def within(rows: Tensor, most: Tensor | float) -> Tensor:
    """clip(x_j, tau) = x_j min(1, tau/|x_j|) of every row."""
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(lengths > most, rows * (most / lengths), rows)
