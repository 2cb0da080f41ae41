"""The vectors of a master step: (12) and (15) with their sums and the average.

A vector of a million numbers leaves the processor's cache between one equation and the next, and
memory for its temporaries costs more than its arithmetic. So all equations are applied to a few
columns before the next, in place: here in blocks, in `passes` compiled. Every number depends on its
own column alone, so that changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aspire.core import equations, pull
from aspire.core.pull import COLUMNS
from aspire.core.schedules import Limits, Rates
from aspire.methods.aspire_ease.consensus_state import Master
from aspire.types import Array, Indices

BLOCK = 2**15  # numbers of one vector
FEW = 8  # reports that passes.c takes


@dataclass(frozen=True, slots=True)
class Step:
    """Reports and what they change: the master's vectors are overwritten."""

    workers: Indices
    told: Tensor  # (S, p)
    w: Tensor  # (N, p)
    phi: Tensor
    z: Tensor
    average: Tensor
    sum_w: Tensor
    sum_phi: Tensor
    n: int
    kappa: float
    rates: Rates
    limits: Limits
    share: float  # what the new z weighs in the average
    push: Array | None = None  # (S,) what v_j has of the worker's move, besides


@dataclass(frozen=True)
class Held:
    """What the bounds on the pull made of a step's reports."""

    far: Tensor  # put back to w = z, phi = 0
    any: bool  # whether anybody is
    most: Tensor | None  # |phi_j| in every coordinate

    def on(self, phi: Tensor, most: Tensor) -> Tensor:
        """phi_j in some columns, within `most` there."""
        if self.most is not None:
            phi = pull.within(phi, most)
        return phi.masked_fill_(self.far[:, None], 0.0) if self.any else phi


def blocks(rows: int, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The vectors, and the rows of matrices, cut alike; whole where they are short."""
    size = max(BLOCK // rows // COLUMNS, 1) * COLUMNS
    if vectors[0].shape[-1] <= size:
        return iter([vectors])
    return zip(*(x.split(size, -1) for x in vectors), strict=True)


# ---------------------------------------------------------------- (12) and (15)


def move(s: Step, held: Held | None) -> Tensor:
    """w_j as reported, (12), (15) and the average, for these workers; returns their v_j."""
    told = s.told
    rates = s.rates
    limits = s.limits
    most = told if held is None or held.most is None else held.most
    v = torch.empty_like(told)
    rows = (rows_at(s.w, s.workers), rows_at(s.phi, s.workers))
    for old_w, old_phi, new, top, out, z, average, sum_w, sum_phi in blocks(
        len(told), *rows, told, most, v, s.z, s.average, s.sum_w, s.sum_phi
    ):
        moved = None if s.push is None else torch.sub(new, old_w)
        add_change(sum_w, new, old_w)
        equations.z_step(
            z, sum_phi, sum_w, n=s.n, kappa=s.kappa, rate=rates.eta_z, limit=limits.a1, out=z
        )
        short = z.to(told.dtype)
        phi = equations.phi_step(old_phi, short, new, c2=rates.c2, rate=rates.rho2, limit=limits.a4)
        if held is not None:
            phi = held.on(phi, top)
        add_change(sum_phi, phi, old_phi)
        old_w.copy_(new)
        old_phi.copy_(phi)
        average.copy_(z) if s.share >= 1 else average.lerp_(z, s.share)
        torch.add(phi, short, alpha=s.kappa, out=out)
        if moved is not None and s.push is not None:
            for row, way, push in zip(out, moved, s.push.tolist(), strict=True):
                row.add_(way, alpha=push)
    if len(told) > 1:
        index = torch.from_numpy(s.workers).to(told.device)
        s.w.index_copy_(0, index, rows[0])
        s.phi.index_copy_(0, index, rows[1])
    return v


def rows_at(matrix: Tensor, workers: Indices) -> Tensor:
    """One row where it lies, or a copy of several."""
    if len(workers) == 1:
        return matrix.narrow(0, int(workers[0]), 1)
    return matrix.index_select(0, torch.from_numpy(workers).to(matrix.device))


def add_change(total: Tensor, new: Tensor, old: Tensor) -> None:
    """`total` stays the sum of all rows when these become `new`.

    Where a value changes by less than a factor of two its difference is exact in any precision.
    Few changes are added in their order, as in passes.c.
    """
    change = torch.sub(new, old)
    if len(change) == 1:
        total += change[0]
    elif len(change) > FEW:
        total += change.sum(0, dtype=total.dtype)
    else:
        first, *rest = change.unbind(0)
        together = first.to(total.dtype, copy=True)
        for row in rest:
            together += row
        total += together


def step_of(
    master: Master,
    workers: Indices,
    w: Tensor,
    rates: Rates,
    limits: Limits,
    share: float,
    push: Array | None,
) -> Step:
    """The master's vectors, with z and the average in memory that nobody else reads."""
    own_vectors(master, w.dtype)
    m = master
    return Step(
        workers,
        w,
        m.w,
        m.phi,
        m.z,
        m.average,
        m.sum_w,
        m.sum_phi,
        m.n,
        m.constants["kappa"],
        rates,
        limits,
        share,
        push,
    )


def own_vectors(master: Master, dtype: torch.dtype) -> None:
    """A message may share the memory of z in float64."""
    shared = master.z.dtype == dtype
    if shared or master.average.data_ptr() == master.z.data_ptr():
        master.average = master.average.clone()
    if shared:
        master.z = master.z.clone()


# ---------------------------------------------------------------- what reports imply


@dataclass(frozen=True, slots=True)
class Implied:
    """Reports, what was known of their workers, and the numbers of the tasks that they answer."""

    workers: Indices
    told: Tensor  # (S, p)
    w: Tensor  # (N, p)
    phi: Tensor
    z: Tensor
    kappa: Array  # (N,), as the rest
    rate: Array  # a_w
    weight: Array  # pi_j
    steps: int  # K


def implied_of(master: Master, workers: Indices, told: Tensor, steps: int) -> Implied:
    m = master
    x = master.pulls
    return Implied(workers, told, m.w, m.phi, m.z, x.kappa, x.rate, x.weight, steps)


def implied_gradients(x: Implied) -> Iterator[Tensor]:
    """What these reports say of the gradients, in blocks of columns."""
    told = x.told
    rows = (rows_at(x.w, x.workers), rows_at(x.phi, x.workers))
    kappa, rate, weight = (pull.column(n[x.workers], told) for n in (x.kappa, x.rate, x.weight))
    rate = rate * x.steps
    for before, phi, after, z in blocks(len(told), *rows, told, x.z):
        yield pull.implied(
            before, after, phi, z.to(told.dtype), kappa=kappa, rate=rate, weight=weight
        )


def implied_squares(x: Implied) -> list[float]:
    """|g_j|^2 of what these reports say of the gradients."""
    return pull.total(torch.cat([pull.squares(g) for g in implied_gradients(x)], dim=1))
