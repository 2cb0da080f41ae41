"""Balls around the prior in a divergence: KL and chi-square. q_j = 0 forces p_j = 0 in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from aspire.sets import checks
from aspire.sets.base import UncertaintySet
from aspire.sets.checks import Vec


def _kl_terms(log_ratio: Vec) -> Vec:
    """w log w - w + 1 for w = exp(log_ratio): >= 0, and accurate near w = 1."""
    x = log_ratio
    small = np.abs(x) < 1e-2
    series = x * x * (1 / 2 + x * (1 / 3 + x * (1 / 8 + x * (1 / 30 + x * (1 / 144 + x / 840)))))
    return np.where(small, series, np.exp(x) * x - np.expm1(x))


def _tilted(q: Vec, g: Vec, t: float) -> tuple[Vec, float, float]:
    """p ~ q exp(t g) for g <= 0, its KL from q, and t^2 Var_p(g) = t dKL/dt."""
    x = t * g
    less = float(q @ np.expm1(x))  # sum p = 1 + less, before the division by it
    log_ratio = x - (np.log1p(less) if less > -0.5 else np.log(q @ np.exp(x)))
    p = q * np.exp(log_ratio)
    p /= p.sum()
    deviation = x - p @ x
    return p, float(q @ _kl_terms(log_ratio)), float(p @ deviation**2)


def _binary_kl(q: Vec, move: Vec) -> Vec:
    """u log(u/q) + (1-u) log((1-u)/(1-q)) at u = q + move."""
    far = move > q
    grown = np.where(far, np.log(q + move) - np.log(q), np.log1p(np.where(far, q, move) / q))
    shrunk = np.log1p(-np.minimum(move / (1 - q), 1 - 1e-16))
    kl: Vec = (q + move) * grown + np.maximum(1 - q - move, 0.0) * shrunk
    return kl


def _kl_root(q: Vec, g: Vec, radius: float) -> Vec:
    """The t with KL(t) = radius: Newton for log KL in log t, kept inside a bracket."""
    mean = q @ g
    s = 0.5 * float(np.log(2 * radius / (q @ (g - mean) ** 2)))
    low = -np.inf
    high = np.inf
    p = q
    for _ in range(200):
        p, kl, slope = _tilted(q, g, float(np.exp(s)))
        miss = float(np.log(kl / radius)) if kl > 0 else -1.0
        if abs(miss) <= 1e-14:
            break
        low, high = (s, high) if miss < 0 else (low, s)
        step = s - min(max(miss * kl / max(slope, 1e-300), -2.0), 2.0)
        s = step if low < step < high else (low + high) / 2
        if not low < s < high:
            break
    return p


@dataclass(frozen=True, repr=False, eq=False)
class KL(UncertaintySet):
    """sum_j p_j log(p_j / q_j) <= radius."""

    radius: float
    prior: ArrayLike | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        radius = checks.number("radius", self.radius)
        checks.freeze(self, radius=radius, prior=checks.prior_of(self.prior))

    def _argmax(self, f: Vec) -> Vec:
        """p ~ q exp(f / alpha), or q on the largest losses alone if the radius reaches that."""
        q = self.nominal()
        on = q > 0
        g = checks.centred(f[on])
        g -= g.max()
        if self.radius == 0 or not g.any():
            return q
        top = q[on] * (g == 0)
        if self.radius >= -np.log(top.sum()):
            q[on] = top / top.sum()
        else:
            q[on] = _kl_root(q[on], g, self.radius)
        return q

    def _inside(self, p: Vec, tol: float) -> bool:
        q = self.nominal()
        on = q > 0
        w = np.maximum(p[on], 0.0) / q[on]
        terms = q[on] * np.where(w > 0, _kl_terms(np.log(np.where(w > 0, w, 1.0))), 1.0)
        return bool((p[~on] <= tol).all() and terms.sum() <= self.radius + tol)

    def _upper(self) -> Vec:
        """u_j >= q_j with u log(u/q) + (1-u) log((1-u)/(1-q)) = radius, by bisection."""
        q = self.nominal()
        on = (q > 0) & (q < 1)
        base = q[on]
        low, high = np.zeros_like(base), 1 - base  # u - q: keeps its digits near the prior
        for _ in range(100):
            middle = (low + high) / 2
            ok = _binary_kl(base, middle) <= self.radius
            low = np.where(ok, middle, low)
            high = np.where(ok, high, middle)
        full = self.radius >= -np.log(base)
        q[on] = np.where(full, 1.0, base + (low if self.radius else 0.0))
        return q


def _chi_square_root(q: Vec, f: Vec, radius: float) -> Vec:
    """p = q (f - eta)+ / sum, with the one eta where sum (p-q)^2/q = radius.

    On the sites A with f > eta: mean m, variance v, prior mass Q, and (f - eta) has mean
    x = sqrt(v / ((1 + radius) Q - 1)). Solved with too many sites, eta comes out too small,
    so it is safe to drop the sites below it and to solve again.
    """
    on = np.arange(q.size)
    dropped = 0.0  # 1 - Q, summed directly: Q itself loses the digits of a small radius
    while True:
        w = q[on] / q[on].sum()
        deviation = f[on] - w @ f[on]
        deviation -= w @ deviation  # twice: a far site that was dropped has cost digits
        x = np.sqrt(w @ deviation**2 / max(radius - (1 + radius) * dropped, 1e-300))
        factor = 1 + deviation / x
        if factor.min() > 0:
            break
        dropped += float(q[on[factor <= 0]].sum())
        on = on[factor > 0]
    p = np.zeros_like(q)
    p[on] = w * factor
    p /= p.sum()
    return p


@dataclass(frozen=True, repr=False, eq=False)
class ChiSquare(UncertaintySet):
    """sum_j (p_j - q_j)^2 / q_j <= radius."""

    radius: float
    prior: ArrayLike | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        radius = checks.number("radius", self.radius)
        checks.freeze(self, radius=radius, prior=checks.prior_of(self.prior))

    def _argmax(self, f: Vec) -> Vec:
        """p ~ q (f - eta)+, or q on the largest losses alone if the radius reaches that."""
        q = self.nominal()
        on = q > 0
        g = checks.centred(f[on])
        if self.radius == 0 or not g.any():
            return q
        top = q[on] * (g == g.max())
        if (1 + self.radius) * top.sum() >= 1:
            q[on] = top / top.sum()
        else:
            q[on] = _chi_square_root(q[on], g, self.radius)
        return q

    def _inside(self, p: Vec, tol: float) -> bool:
        q = self.nominal()
        on = q > 0
        moved = np.maximum(np.abs(p - q) - tol, 0.0)
        return bool((moved[~on] == 0).all() and (moved[on] ** 2 / q[on]).sum() <= self.radius + tol)

    def _upper(self) -> Vec:
        """u_j = q_j + sqrt(radius q_j (1 - q_j)), at most 1."""
        q = self.nominal()
        return np.minimum(q + np.sqrt(self.radius * q * (1 - q)), 1.0)
