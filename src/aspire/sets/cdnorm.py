"""The set of the paper: every weight near its prior, and not too many of them far away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from aspire.sets import checks
from aspire.sets.base import UncertaintySet
from aspire.sets.cdnorm_oracle import best_moves
from aspire.sets.checks import Index, Vec
from aspire.sets.fill import last_prefix


@dataclass(frozen=True, repr=False, eq=False)
class CDNorm(UncertaintySet):
    """|p_j - q_j| <= r_j, sum_j |p_j - q_j| / r_j <= Gamma, p >= 0, sum p = 1.   (Eq. 16)

    prior q: None is uniform. radius r: one number or one per site; r_j = 0 pins p_j = q_j.
    budget Gamma: how many sites may use their whole radius at once; 0 gives p = q, and
    anything >= N is a box.
    """

    prior: ArrayLike | None = None
    radius: ArrayLike | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("radius", self.radius), ("budget", self.budget)):
            if value is None:
                raise ValueError(f"{name} must be given, got None")
        radius: Any = checks.numbers("radius", self.radius)
        prior = checks.prior_for(checks.distribution(self.prior), radius=radius)
        if prior is not None and np.ndim(radius) == 0:
            radius = np.full(prior.size, radius)
        budget = checks.number("budget", self.budget)
        checks.freeze(self, prior=prior, radius=radius, budget=budget)

    @property
    def size(self) -> int | None:
        return None if self.prior is None else np.size(self.prior)

    def nominal(self) -> Vec:
        self._need_size()
        return np.array(self.prior, dtype=np.float64)

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
        """Raise j by m, paid by lowering the others cheapest first: the largest radii.

        m <= r_j and m/r_j + cost_j(m) <= Gamma, where cost_j is the price of lowering the
        others by m in total. Prefix sums over falling radii, j's own share taken out.
        """
        q, r, budget = self._parts()
        free = np.flatnonzero(r > 0)
        order = free[np.argsort(-r[free], kind="stable")]
        r_, room = r[order], np.minimum(r, q)[order]
        moved = np.concatenate([[0.0], np.cumsum(room)])
        spent = np.concatenate([[0.0], np.cumsum(room / r_)])
        rank = np.arange(order.size)

        def without_own(k: Index) -> tuple[Vec, Vec]:
            own = np.where(k > rank, room, 0.0)
            return moved[k] - own, spent[k] - own / r_

        def fits(k: Index) -> np.ndarray:
            m, cost = without_own(k)
            return np.asarray((m <= r_) & (m / r_ + cost <= budget))

        k = last_prefix(fits, order.size, order.size)
        m, cost = without_own(k)
        next_r = np.append(r_, np.inf)[k]
        rest = np.minimum(r_ - m, (budget - m / r_ - cost) / (1 / r_ + 1 / next_r))
        m += np.clip(rest, 0.0, np.append(room, 0.0)[k])
        q[order] += np.maximum(m, 0.0)
        return np.minimum(q, 1.0)

    def _keep(self, index: Index) -> Self:
        q, r, budget = self._parts()
        return type(self)(checks.renormalised(q, index), r[index], budget)
