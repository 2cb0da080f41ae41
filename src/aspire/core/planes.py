"""Equations (17) to (20): the active set of cutting planes and its multipliers.

A plane is a distribution p_l over the sites (the paper's a_l is p_l - pbar; pbar cancels).
Absent sites have entry zero in every plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from aspire.core.equations import project_simplex
from aspire.sets import UncertaintySet
from aspire.types import Array, Sized


@dataclass(frozen=True)
class Planes:
    """A: rows of P are the planes p_l, lam their multipliers, F = P f their values."""

    P: Annotated[Array, Sized("L N")]
    lam: Annotated[Array, Sized("L")]
    F: Annotated[Array, Sized("L")]

    def check(self) -> None:
        if not len(self.lam):
            raise ValueError("no planes: expected at least one")

    def __len__(self) -> int:
        return len(self.lam)

    def pi(self, workers: NDArray[np.int64]) -> Array:
        """pi_j = sum_l lam_l p_{l,j}: all that worker j needs of the planes. O(L S)."""
        weights: Array = self.lam @ self.P[:, workers]
        return weights


def only(p: Array, f: Array) -> Planes:
    """A = {p} with multiplier one."""
    return Planes(P=p[None, :].copy(), lam=np.ones(1), F=np.array([p @ f]))


def spread(p: Array, present: NDArray[np.bool_]) -> Array:
    """A distribution over the present sites as one over all sites."""
    full = np.zeros(len(present))
    full[present] = p
    return full


def revalued(planes: Planes, workers: NDArray[np.int64], change: Array) -> Planes:
    """F = P f after f changed by `change` at `workers`. O(L S), not O(L N)."""
    return Planes(planes.P, planes.lam, planes.F + planes.P[:, workers] @ change)


def ease(
    planes: Planes,
    lam_before: Array,
    f: Array,
    worst: Array,
    *,
    most: int | None,
    drop: bool,
    simplex: bool,
    tolerance: float,
) -> Planes:
    """(18)-(20)  Add the worst case where it cuts, drop the planes that stayed inactive.

    (18) feasible while p . f <= max_l p_l . f, with F computed afresh;
    (19) else A <- A + {p} with lam = 0;
    (20) a plane that was there before goes when lam_l = 0 both at t and at t + 1.
    The last plane never goes. Above `most` planes the old one with the smallest lam goes.
    """
    F = planes.P @ f
    cuts = float(worst @ f) > float(F.max()) + tolerance
    keep = np.ones(len(planes), dtype=bool)
    if drop:
        keep = (planes.lam > 0) | (lam_before > 0)
        if not keep.any():
            keep[int(np.argmax(F))] = not cuts
    P = planes.P[keep]
    lam = planes.lam[keep]
    F = F[keep]
    if cuts and most is not None and len(lam) >= most:
        stay = np.arange(len(lam)) != int(np.argmin(lam))
        P = P[stay]
        lam = lam[stay]
        F = F[stay]
        if simplex and len(lam):
            lam = project_simplex(lam)[0]
    if cuts:
        P = np.vstack([P, worst])
        lam = np.append(lam, 0.0)
        F = np.append(F, worst @ f)
    if simplex and lam.sum() == 0.0:
        lam[-1] = 1.0
    return Planes(P, lam, F)


def carried_over(
    planes: Planes,
    present: NDArray[np.bool_],
    uncertainty: UncertaintySet,
    f: Array,
    *,
    simplex: bool,
    joined: int | None = None,
) -> Planes:
    """The planes after the present sites changed.

    Leaving: entries of absent sites go, the rest is renormalised. Joining: the newcomer enters
    every plane with its prior. Planes outside the new set are dropped; none left: A = {q}, lam = 1.
    """
    q = uncertainty.nominal()
    P = np.where(present, planes.P, 0.0)
    if joined is not None:
        share = spread(q, present)[joined]
        P[:, joined] = 0.0
        total = P.sum(axis=1, keepdims=True)
        P = np.divide(P, total, out=np.zeros_like(P), where=total > 0) * (1.0 - share)
        P[:, joined] = share
    total = P.sum(axis=1)
    P[total > 0] /= total[total > 0, None]
    inside = [
        bool(s > 0) and uncertainty.contains(p[present], tol=1e-9)
        for p, s in zip(P, total, strict=True)
    ]
    if not any(inside):
        return only(spread(q, present), f)
    P = P[inside]
    lam = planes.lam[inside]
    if simplex:
        lam = project_simplex(lam)[0]
    return Planes(P, lam, P @ f)
