"""An ellipsoid around the prior: exact for a diagonal covariance, conic for a full one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from aspire.sets import checks, conic
from aspire.sets.base import UncertaintySet
from aspire.sets.checks import Index, Vec
from aspire.sets.diagonal import diagonal_argmax, diagonal_upper


def _matrix(value: Vec) -> Vec:
    """A symmetric positive semidefinite covariance."""
    if value.ndim != 2 or value.shape[0] != value.shape[1] or value.size == 0:
        raise ValueError(f"covariance must be a square matrix, got shape {value.shape}")
    scale = np.abs(value).max()
    if np.abs(value - value.T).max() > 1e-9 * scale:
        raise ValueError(f"covariance must be symmetric, got {checks.short(value)}")
    least = float(np.linalg.eigvalsh(value).min())
    if least < -1e-9 * scale:
        raise ValueError(
            f"covariance must be positive semidefinite, got smallest eigenvalue {least:g}"
        )
    return (value + value.T) / 2


@dataclass(frozen=True, repr=False, eq=False)
class Ellipsoid(UncertaintySet):
    """(p - q)' Sigma^-1 (p - q) <= radius^2, p >= 0, sum p = 1.

    covariance: the variance of every weight (one number), one variance per site, or the whole
    matrix Sigma. Where Sigma is singular the set is p = q + A u, |u| <= radius, Sigma = A A';
    a variance of 0 pins p_j = q_j. A matrix needs the extra `aspire-ease[conic]`.
    """

    radius: float
    covariance: ArrayLike
    prior: ArrayLike | Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        radius = checks.number("radius", self.radius)
        sigma: Any = checks.floats("covariance", self.covariance)
        sigma = _matrix(sigma) if sigma.ndim > 1 else checks.numbers("covariance", sigma)
        prior = checks.prior_for(checks.prior_of(self.prior), covariance=sigma)
        if isinstance(prior, np.ndarray) and np.ndim(sigma) == 0:
            sigma = np.full(prior.size, sigma)
        checks.freeze(self, radius=radius, covariance=sigma, prior=prior)

    def _bind(self, n: int) -> Self:
        return type(self)(self.radius, self.covariance, checks.uniform(n))

    def _argmax(self, f: Vec) -> Vec:
        q = self.nominal()
        sigma = np.asarray(self.covariance)
        if self.radius == 0 or not sigma.any():
            return q
        if sigma.ndim == 2:
            return conic.dense_argmax(checks.centred(f), q, sigma, self.radius)
        free = sigma > 0
        g = checks.centred(f[free])
        if g.any():
            q[free] = diagonal_argmax(g, q[free], sigma[free], self.radius)
        return q

    def _inside(self, p: Vec, tol: float) -> bool:
        """Coordinates along the axes of the ellipsoid, each forgiven tol."""
        sigma = np.asarray(self.covariance)
        y = p - self.nominal()
        variance = sigma
        if sigma.ndim == 2:
            variance, axes = conic.axes(sigma)
            y = axes.T @ y
        y = np.maximum(np.abs(y) - tol, 0.0)
        free = variance > 0
        return bool(
            (y[~free] == 0).all()
            and (y[free] ** 2 / variance[free]).sum() <= (self.radius + tol) ** 2
        )

    def _upper(self) -> Vec:
        q = self.nominal()
        sigma = np.asarray(self.covariance)
        if self.radius == 0 or not sigma.any():
            return q
        if sigma.ndim == 2:
            return np.array([self._argmax(e)[j] for j, e in enumerate(np.eye(q.size))])
        free = sigma > 0
        q[free] = diagonal_upper(q[free], sigma[free], self.radius)
        return q

    def _keep(self, index: Index) -> Self:
        sigma = np.asarray(self.covariance)
        sigma = sigma[np.ix_(index, index)] if sigma.ndim == 2 else sigma[index]
        return type(self)(self.radius, sigma, checks.renormalised(self.nominal(), index))
