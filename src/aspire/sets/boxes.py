"""Sets bounded by boxes or by the l1 distance: Box, Simplex, CVaR, TotalVariation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from aspire.sets import checks
from aspire.sets.base import UncertaintySet
from aspire.sets.checks import SUM_TOL, Index, Vec
from aspire.sets.fill import fill


def nearest_to_uniform(low: Vec, high: Vec) -> Vec:
    """argmin |p - 1/N|^2 over low <= p <= high, sum p = 1: p = clip(c, low, high) for one level c.

    sum clip(c, low, high) is piecewise linear in c with breakpoints at the bounds.
    """
    ends = np.concatenate([low, high])
    order = np.argsort(ends, kind="stable")
    knots = ends[order]
    slope = np.cumsum(np.concatenate([np.ones(low.size), -np.ones(low.size)])[order])
    total = low.sum() + np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(knots))])
    level = float(np.interp(1.0, total, knots))
    return np.minimum(np.maximum(level, low), high)


@dataclass(frozen=True, repr=False, eq=False, init=False)
class Box(UncertaintySet):
    """lower_j <= p_j <= upper_j, p >= 0, sum p = 1.

    The bounds are kept as `low` and `high`, since `upper()` is the bound that the sum leaves of
    them. `nominal()` is the point nearest to uniform.
    """

    low: ArrayLike
    high: ArrayLike

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        low = checks.numbers("lower", lower)
        high = checks.numbers("upper", upper)
        center = checks.prior_for(None, lower=low, upper=high)
        if center is not None:
            low = low + np.zeros(center.size)
            high = high + np.zeros(center.size)
        if np.any(np.asarray(low) > high):
            pair = f"{checks.short(low)} and {checks.short(high)}"
            raise ValueError(f"lower must be <= upper in every entry, got {pair}")
        if np.sum(low) > 1 + SUM_TOL:
            raise ValueError(f"lower must sum to at most 1, got {np.sum(low):g}")
        if center is not None and np.sum(high) < 1 - SUM_TOL:
            raise ValueError(f"upper must sum to at least 1, got {np.sum(high):g}")
        checks.freeze(self, low=low, high=high)

    @property
    def size(self) -> int | None:
        return np.shape(self.low)[0] if np.ndim(self.low) else None

    def _bounds(self) -> tuple[Vec, Vec]:
        low = np.asarray(self.low, np.float64)
        high = np.asarray(self.high, np.float64)
        return low, np.minimum(high, 1.0)

    def nominal(self) -> Vec:
        self._need_size()
        return nearest_to_uniform(*self._bounds())

    def _bind(self, n: int) -> Self:
        return type(self)(np.full(n, self.low), np.full(n, self.high))

    def _argmax(self, f: Vec) -> Vec:
        """Start at the lower bounds and give the rest to the highest losses first."""
        low, high = self._bounds()
        p = fill(f, high - low, 1 - low.sum())
        p += low
        return p

    def _inside(self, p: Vec, tol: float) -> bool:
        low, high = self._bounds()
        return bool((p >= low - tol).all() and (p <= high + tol).all())

    def _upper(self) -> Vec:
        """u_j = min(upper_j, 1 - sum of the other lower bounds)."""
        low, high = self._bounds()
        rest: Vec = 1 - (low.sum() - low)
        return np.maximum(np.minimum(high, rest), low)

    def _keep(self, index: Index) -> Self:
        """Bounds divided by what the present sites hold of `nominal()`: never empty."""
        center = self.nominal()
        checks.renormalised(center, index)
        mass = center[index].sum()
        low, high = self._bounds()
        high = np.minimum(high[index] / mass, 1.0)
        return type(self)(np.minimum(low[index] / mass, high), high)

    def __repr__(self) -> str:
        return f"Box(lower={checks.short(self.low)}, upper={checks.short(self.high)})"


@dataclass(frozen=True, repr=False, eq=False)
class Simplex(UncertaintySet):
    """p >= 0, sum p = 1: every weighting of the sites, so the worst case is the worst site."""

    sites: int | None = None

    def __post_init__(self) -> None:
        if self.sites is not None:
            checks.freeze(self, sites=checks.site_count(self.sites))

    @property
    def size(self) -> int | None:
        return self.sites

    def nominal(self) -> Vec:
        return checks.uniform(self._need_size())

    def _bind(self, n: int) -> Self:
        return type(self)(n)

    def _argmax(self, f: Vec) -> Vec:
        """Uniform over the sites with the largest loss."""
        top = np.where(f == f.max(), 1.0, 0.0)
        top /= top.sum()
        return top

    def _inside(self, p: Vec, tol: float) -> bool:
        return True

    def _upper(self) -> Vec:
        return np.ones(self._need_size())

    def _keep(self, index: Index) -> Self:
        return type(self)(index.size)


@dataclass(frozen=True, repr=False, eq=False)
class CVaR(UncertaintySet):
    """p_j <= q_j / (1 - beta): the mean over the worst 1 - beta of the prior mass."""

    beta: float
    prior: ArrayLike | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        beta = checks.number("beta", self.beta)
        if beta >= 1:
            raise ValueError(f"beta must be in [0, 1), got {beta:g}")
        checks.freeze(self, beta=beta, prior=checks.prior_of(self.prior))

    def _argmax(self, f: Vec) -> Vec:
        q = self.nominal()
        return q if self.beta == 0 else fill(f, q / (1 - self.beta), 1.0)

    def _inside(self, p: Vec, tol: float) -> bool:
        return bool((p <= self.nominal() / (1 - self.beta) + tol).all())

    def _upper(self) -> Vec:
        return np.minimum(self.nominal() / (1 - self.beta), 1.0)


@dataclass(frozen=True, repr=False, eq=False)
class TotalVariation(UncertaintySet):
    """sum_j |p_j - q_j| <= radius; the total variation distance is half of that sum."""

    radius: float
    prior: ArrayLike | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        radius: Any = checks.number("radius", self.radius)
        checks.freeze(self, radius=radius, prior=checks.prior_of(self.prior))

    def _argmax(self, f: Vec) -> Vec:
        """Move min(radius/2, 1 - q_top) from the lowest losses to the largest one.

        Several largest ones share by prior, or alike where they have none.
        """
        q = self.nominal()
        top = f == f.max()
        share = q[top] if q[top].any() else np.ones(int(top.sum()))
        room = np.where(top, 0.0, q)
        amount = min(self.radius / 2, float(room.sum()))
        p = q - fill(-f, room, amount)
        p[top] += amount * (share / share.sum())
        return p

    def _inside(self, p: Vec, tol: float) -> bool:
        return bool(np.maximum(np.abs(p - self.nominal()) - tol, 0).sum() <= self.radius + tol)

    def _upper(self) -> Vec:
        return np.minimum(self.nominal() + self.radius / 2, 1.0)
