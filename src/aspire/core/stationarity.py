"""Definition 1: the stationarity gap, with L_p (not L~) and full-data gradients."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from aspire.core.equations import clip, project_simplex
from aspire.core.schedules import Limits, Rates
from aspire.types import Array


def squared_block(x: Tensor, gradient: Tensor, rate: float, limit: float) -> float:
    """|(x - clip(x - rate gradient))/rate|^2: a gradient step that the box lets through."""
    step = (x - clip(x - rate * gradient, limit)) / rate
    return float(step.double().square().sum())


def squared_lam_block(lam: Array, F: Array, h: float, rates: Rates, limit: float) -> float:
    """The lam block and the h block of the pair (13)-(14)."""
    ascent = (lam - np.clip(lam + rates.rho1 * (F - h), 0.0, limit)) / rates.rho1
    return float(ascent @ ascent)


def squared_h_block(h: float, lam: Array, rates: Rates, limit: float) -> float:
    step = (h - min(max(h - rates.eta_h * (1.0 - float(lam.sum())), 0.0), limit)) / rates.eta_h
    return step * step


def squared_simplex_block(lam: Array, F: Array, rates: Rates) -> float:
    """Under `auto`: (lam - project_simplex(lam + rho1 P f))/rho1, and no h block."""
    ascent = (lam - project_simplex(lam + rates.rho1 * F)[0]) / rates.rho1
    return float(ascent @ ascent)


def dual_blocks(
    lam: Array, F: Array, h: float, rates: Rates, limits: Limits, *, simplex: bool
) -> float:
    """Squared gap of (lam, h) in the form that the preset uses."""
    if simplex:
        return squared_simplex_block(lam, F, rates)
    return squared_lam_block(lam, F, h, rates, limits.a3) + squared_h_block(
        h, lam, rates, limits.a2
    )


def total(squares: list[float]) -> float:
    """(21)  |grad G^t| from its squared blocks."""
    return math.sqrt(math.fsum(squares))
