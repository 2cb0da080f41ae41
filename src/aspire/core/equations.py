"""Equations (11) to (15): the gradient-projection steps of one master iteration t -> t + 1.

Vectors of the model's size are torch tensors; what is as long as the planes (lam, F = P f) is a
float64 numpy array. `limit` arguments are the boxes a1 .. a4; infinity means no box. A call on a
vector costs more than its arithmetic, so sums are formed in place, term by term: `slope` is what
stands in the equation's bracket.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from aspire.types import Array


def clip(x: Tensor, limit: float) -> Tensor:
    """argmin_y |y - x| over |y|inf <= limit."""
    return x if math.isinf(limit) else x.clamp(-limit, limit)


LARGE = 1e6  # beside numbers of this size a sum of 1 is lost


def project_simplex(x: Array) -> tuple[Array, float]:
    """argmin_y |y - x| over y >= 0, sum y = 1, and its threshold: y = max(x - threshold, 0).

    A shift of x changes the threshold alone. Large numbers are shifted so that the largest is 0;
    then all below -1 become zero, however far below they are.
    """
    if len(x) == 1:
        return np.ones(1), float(x[0]) - 1.0
    if float(np.abs(x).max()) > LARGE:
        top = float(x.max())
        y, threshold = project_simplex(np.maximum(x - top, -2.0))
        return y, threshold + top
    total = -1.0
    threshold = -math.inf
    for k, value in enumerate(np.sort(x)[::-1].tolist(), start=1):
        total += value
        if value <= total / k:  # this one and the smaller ones become zero
            break
        threshold = total / k
    return np.maximum(x - threshold, 0.0), threshold


def worker_step(
    w: Tensor,
    gradient: Tensor,
    v: Tensor,
    *,
    pi: Tensor,
    kappa: Tensor,
    rate: Tensor,
    limit: float,
) -> Tensor:
    """(11)  w_j <- clip(w_j - a_w (pi_j grad f_j(w_j) - phi_j + kappa (w_j - z)), a1).

    The task carries v_j = phi_j + kappa z, so the worker needs neither phi_j nor z. Many workers:
    rows of w, gradient and v with columns of pi, kappa and rate.
    """
    slope = torch.mul(gradient, pi).addcmul_(w, kappa).sub_(v)
    return clip(torch.addcmul(w, slope, rate, value=-1.0, out=slope), limit)


def z_step(
    z: Tensor,
    sum_phi: Tensor,
    sum_w: Tensor,
    *,
    n: int,
    kappa: float,
    rate: float,
    limit: float,
    out: Tensor | None = None,
) -> Tensor:
    """(12)  z <- clip(z - eta_z (sum_j phi_j + kappa sum_j (z - w_j)), a1), over all n workers.

    With eta_z = 1/(kappa n) this is the exact minimiser over z. `out` may be z itself.
    """
    slope = torch.add(sum_phi, z, alpha=kappa * n).sub_(sum_w, alpha=kappa)
    out = torch.sub(z, slope, alpha=rate, out=out)
    return out if math.isinf(limit) else out.clamp_(-limit, limit)


def h_step(h: float, lam: Array, *, rate: float, limit: float) -> float:
    """(13)  h <- clip(h - eta_h (1 - sum_l lam_l), 0, a2), with the old lam."""
    return min(max(h - rate * (1.0 - float(lam.sum())), 0.0), limit)


def lam_step(lam: Array, F: Array, h: float, *, c1: float, rate: float, limit: float) -> Array:
    """(14)  lam_l <- clip(lam_l + rho1 (p_l . f - h - c1_t lam_l), 0, a3), with the new h."""
    return np.clip(lam + rate * (F - h - c1 * lam), 0.0, limit)


def lam_simplex_step(lam: Array, F: Array, *, c1: float, rate: float) -> tuple[Array, float]:
    """(13)-(14)  with h minimised out: lam <- project_simplex(lam + rho1 (P f - c1_t lam)).

    Minimising L~ over a free h keeps lam on the simplex; h is the threshold divided by rho1.
    """
    lam, threshold = project_simplex(lam + rate * (F - c1 * lam))
    return lam, threshold / rate


def phi_step(phi: Tensor, z: Tensor, w: Tensor, *, c2: float, rate: float, limit: float) -> Tensor:
    """(15)  phi_j <- clip(phi_j + rho2 (z - w_j - c2_t phi_j), a4), with the new z and w_j."""
    slope = torch.sub(z, w).sub_(phi, alpha=c2)
    return clip(torch.add(phi, slope, alpha=rate), limit)
