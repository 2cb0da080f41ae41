"""The set of the paper: every weight near its prior, and not too many of them far away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from aspire.sets import checks
from aspire.sets.base import UncertaintySet
from aspire.sets.cdnorm_oracle import best_moves
from aspire.sets.checks import Index, Vec
from aspire.sets.fill import last_prefix


def largest_raises(r: Vec, room: Vec, budget: float) -> Vec:
    """Per site the largest m: m <= r_j and m/r_j + (price of lowering the others by m) <= Gamma.

    The others are lowered cheapest first, that is by falling r, the order in which all arrays
    come. Prefix sums give amount and price of the first k of them, with j's own share taken out.
    """
    amount = np.concatenate([[0.0], np.cumsum(room)])
    price = np.concatenate([[0.0], np.cumsum(room / r)])
    rank = np.arange(r.size)

    def without_own(k: Index) -> tuple[Vec, Vec]:
        own = np.where(k > rank, room, 0.0)
        return amount[k] - own, price[k] - own / r

    def fits(k: Index) -> np.ndarray:
        m, cost = without_own(k)
        return np.asarray((m <= r) & (m / r + cost <= budget))

    k = last_prefix(fits, r.size, r.size)
    m, cost = without_own(k)
    next_r = np.append(r, np.inf)[k]
    next_room = np.append(room, 0.0)[k]
    rest = np.minimum(r - m, (budget - m / r - cost) / (1 / r + 1 / next_r))
    m += np.clip(rest, 0.0, next_room)
    return np.maximum(m, 0.0)


@dataclass(frozen=True, repr=False, eq=False)
class CDNorm(UncertaintySet):
    """(16)  |p_j - q_j| <= r_j, sum_j |p_j - q_j| / r_j <= Gamma, p >= 0, sum p = 1.

    prior q: None is uniform. radius r: one number or one per site; r_j = 0 pins p_j = q_j.
    budget Gamma: how many sites may use their whole radius at once; 0 gives p = q, and
    anything >= N is a box.
    """

    prior: ArrayLike | Mapping[str, float] | None = None
    radius: ArrayLike | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("radius", self.radius), ("budget", self.budget)):
            if value is None:
                raise ValueError(f"{name} must be given, got None")
        radius: Any = checks.numbers("radius", self.radius)
        prior = checks.prior_for(checks.prior_of(self.prior), radius=radius)
        if isinstance(prior, np.ndarray) and np.ndim(radius) == 0:
            radius = np.full(prior.size, radius)
        budget = checks.number("budget", self.budget)
        checks.freeze(self, prior=prior, radius=radius, budget=budget)

    def _bind(self, n: int) -> Self:
        return type(self)(checks.uniform(n), self.radius, self.budget)

    def _parts(self) -> tuple[Vec, Vec, float]:
        return self.nominal(), np.asarray(self.radius, dtype=np.float64), float(self.budget or 0.0)

    def _argmax(self, f: Vec) -> Vec:
        q, r, budget = self._parts()
        q += best_moves(f, q, r, budget)
        return np.maximum(q, 0.0, out=q)

    def _inside(self, p: Vec, tol: float) -> bool:
        q, r, budget = self._parts()
        moved = np.maximum(np.abs(p - q) - tol, 0.0)
        free = r > 0
        within = (moved <= r).all() and (moved[free] / r[free]).sum() <= budget + tol
        return bool(within)

    def _upper(self) -> Vec:
        q, r, budget = self._parts()
        free = np.flatnonzero(r > 0)
        order = free[np.argsort(-r[free], kind="stable")]
        q[order] += largest_raises(r[order], np.minimum(r, q)[order], budget)
        return np.minimum(q, 1.0)

    def _keep(self, index: Index) -> Self:
        q, r, budget = self._parts()
        return type(self)(checks.renormalised(q, index), r[index], budget)
