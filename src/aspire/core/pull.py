"""A bound on the pull of one worker: what a false w_j can do to z and phi_j.

A false loss is bounded by the uncertainty set; a false w_j is not: it enters z directly, and phi_j
integrates it. Two limits, both from medians over the present workers, so that one liar cannot
move them:

- a w_j further from z than `factor` times the median distance says nothing: the worker is put back
  to w_j = z, phi_j = 0, as if it had just returned;
- |phi_j| stays below factor u_j times the median gradient norm, since an honest phi_j tends to
  pi_j grad f_j and pi_j <= u_j.

A lie that stays inside both limits is not stopped; among few workers that can be a strong one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aspire.types import Array


def norms(x: Tensor) -> Array:
    """Length of every row, in float64."""
    found: Array = torch.linalg.vector_norm(x.double(), dim=1).cpu().numpy()
    return found


def shortened(x: Tensor, most: Array) -> Tensor:
    """Row j of x scaled down to length most_j where it is longer."""
    factors = np.minimum(1.0, most / np.maximum(norms(x), 1e-300))
    return x * torch.from_numpy(factors).to(x)[:, None]
