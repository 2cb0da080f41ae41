"""What every uncertainty set offers. The sets differ only in the few hooks at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np

from aspire.sets import checks
from aspire.sets.checks import Index, Vec


class UncertaintySet(ABC):
    """A convex set P of probability vectors p, one weight per site.

    A set that was given numbers only, no vector, does not know N yet: `size` is None, and
    `for_sites(n)` binds it. `worst_case`, `value` and `contains` bind it by themselves.
    """

    def worst_case(self, losses: Any) -> Any:
        """(17)  argmax over p in P of sum_j p_j losses_j, exact.

        Computed in float64. A tensor comes back as a tensor of the same device and floating
        dtype, everything else as a float64 array. Equal losses give `nominal()`.
        """
        return checks.like(losses, self._solve(checks.loss_vector(losses)))

    def value(self, losses: Any) -> float:
        """max over p in P of sum_j p_j losses_j."""
        f = checks.loss_vector(losses)
        return float(self._solve(f) @ f)

    def contains(self, p: Any, tol: float = 1e-9) -> bool:
        """Whether p is in the set, give or take tol in every entry and in every bound."""
        weights = np.asarray(checks.to_numpy(p), dtype=np.float64)
        if weights.ndim != 1 or weights.size == 0:
            raise ValueError(f"p must be a vector, one weight per site, got shape {weights.shape}")
        bound = self.for_sites(weights.size)
        if not np.isfinite(weights).all():
            return False
        simplex = weights.min() >= -tol and abs(weights.sum() - 1) <= tol
        return bool(simplex and bound._inside(weights, tol))

    def for_sites(self, n: int) -> Self:
        """This set over n sites; ValueError if it was made for another number."""
        n = checks.site_count(n)
        if self.pending:
            raise ValueError(f"the prior depends on the sites, call over(...) first: {self!r}")
        if self.size is None:
            return self._bind(n)
        if self.size != n:
            raise ValueError(f"this set is over {self.size} sites, got {n}: {self!r}")
        return self

    @property
    def pending(self) -> bool:
        """Whether its prior, by name or by size, is known only with the sites."""
        return checks.waits(self._state().get("prior"))

    def over(self, names: Sequence[str], samples: Sequence[int] | None = None) -> Self:
        """This set with a prior by name or by size as a vector, as far as that is known.

        names, samples   the sites' names and numbers of training samples, in their order
        """
        prior = checks.prior_over(self._state().get("prior"), names, samples)
        known = self.pending and prior is not None
        return replace(self, prior=prior) if known else self  # type: ignore[type-var]

    def upper(self) -> Vec:
        """u_j = max over p in P of p_j, the largest weight that the set allows site j."""
        self._need_size()
        return self._upper()

    def restrict(self, present: Any) -> Self:
        """The same kind of set over the present sites: a boolean mask, or a list of indices.

        The prior is renormalised, radii and budgets stay as they are.
        """
        index, n = checks.present_index(present, self.size)
        return self.for_sites(n)._keep(index)

    def check(self) -> None:
        """ValueError where the fields are not those of such a set over as many sites as it says."""
        self.restrict(np.ones(self._need_size(), dtype=bool))

    def _solve(self, f: Vec) -> Vec:
        bound = self.for_sites(f.size)
        return bound.nominal() if f.min() == f.max() else bound._argmax(f)

    def _need_size(self) -> int:
        if self.size is None:
            raise ValueError(
                f"the number of sites must be known, call for_sites(n) first: {self!r}"
            )
        return self.size

    def _state(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={checks.short(v)}" for name, v in self._state().items())
        return f"{type(self).__name__}({inner})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other) or not isinstance(other, UncertaintySet):
            return NotImplemented
        pairs = zip(self._state().values(), other._state().values(), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.size))

    # What a set with one number and a prior shares; the others say it their own way.

    @property
    def size(self) -> int | None:
        """N, or None while it is not known."""
        prior = self._state()["prior"]
        return None if prior is None or self.pending else np.size(prior)

    def nominal(self) -> Vec:
        """The prior q (or the centre of a set that has none): a fresh float64 vector."""
        self._need_size()
        return np.array(self._state()["prior"], dtype=np.float64)

    def _bind(self, n: int) -> Self:
        return replace(self, prior=checks.uniform(n))  # type: ignore[type-var]

    def _keep(self, index: Index) -> Self:
        prior = checks.renormalised(self.nominal(), index)
        return replace(self, prior=prior)  # type: ignore[type-var]

    @abstractmethod
    def _argmax(self, f: Vec) -> Vec: ...

    @abstractmethod
    def _inside(self, p: Vec, tol: float) -> bool: ...

    @abstractmethod
    def _upper(self) -> Vec: ...
