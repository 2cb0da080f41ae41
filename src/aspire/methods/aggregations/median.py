"""The coordinate-wise median.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates, ICML 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLOSE = 1e-12  # sums of weights that differ by less are equal


def median(rows: Tensor, weights: Tensor) -> Tensor:
    """m_i with as much weight on rows below it as above, in every coordinate i.

    Where that is a whole interval, its middle: with even weights the usual median.
    """
    values, order = rows.sort(dim=0)
    below = (weights / weights.sum())[order].cumsum(0)
    low = (below < 0.5 - CLOSE).sum(0, keepdim=True)
    high = (below <= 0.5 + CLOSE).sum(0, keepdim=True)
    middle = torch.stack([values.gather(0, low)[0], values.gather(0, high)[0]])
    return middle.mean(0)
