"""A bound on the pull of one worker: what a false w_j can do to z and phi_j.

A false loss is bounded by the uncertainty set; a false w_j is not, it enters z directly and phi_j
integrates it. So the distance |w_j - z| and |phi_j| are limited to `factor` times their median
over the present workers. It does not stop a lie that stays inside that limit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aspire.types import Array


def limit(norms: Array, factor: float) -> float:
    """factor times the median of the last known norms of the present workers."""
    return factor * float(np.median(norms))


def shortened(x: Tensor, most: float) -> tuple[Tensor, Array]:
    """Rows of x scaled down to norm `most` where they are longer, and their norms before."""
    norms = torch.linalg.vector_norm(x.double(), dim=1)
    factors = torch.clamp(most / norms.clamp_min(1e-300), max=1.0)
    return x * factors.to(x.dtype)[:, None], norms.cpu().numpy()
