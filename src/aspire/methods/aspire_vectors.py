"""The vectors of a master step: (12) and (15) with their sums and the average, block by block.

A vector of a million numbers leaves the processor's cache between one equation and the next, and
memory for its temporaries costs more than its arithmetic. So all equations are applied to one block
of columns before the next, in place. Every number depends on its own column alone, so blocks change
no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from aspire.core import equations, pull
from aspire.core.pull import Indices
from aspire.core.schedules import Limits, Rates
from aspire.methods.aspire_state import Master

BLOCK = 2**15  # numbers of one vector


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
    size = max(BLOCK // rows, 1024) // 256 * 256  # no odd ends of vector instructions inside
    if vectors[0].shape[-1] <= size:
        return iter([vectors])
    return zip(*(x.split(size, -1) for x in vectors), strict=True)


def move(
    master: Master, workers: Indices, w: Tensor, held: Held | None, rates: Rates, limits: Limits,
    *, share: float,
) -> Tensor:  # fmt: skip
    """w_j as reported, (12), (15) and the average, for these workers; returns their v_j.

    The old vectors are overwritten. `share` is what the new z weighs in the average.
    """
    own_vectors(master, w.dtype)
    kappa, most = master.constants["kappa"], w if held is None or held.most is None else held.most
    v, rows = torch.empty_like(w), (rows_at(master.w, workers), rows_at(master.phi, workers))
    vectors = (master.z, master.average, master.sum_w, master.sum_phi)
    for old_w, old_phi, new, top, out, z, average, sum_w, sum_phi in blocks(
        len(w), *rows, w, most, v, *vectors
    ):
        add_change(sum_w, new, old_w)
        equations.z_step(
            z, sum_phi, sum_w, n=master.n, kappa=kappa, rate=rates.eta_z, limit=limits.a1, out=z
        )
        short = z.to(w.dtype)
        phi = equations.phi_step(old_phi, short, new, c2=rates.c2, rate=rates.rho2, limit=limits.a4)
        if held is not None:
            phi = held.on(phi, top)
        add_change(sum_phi, phi, old_phi)
        old_w.copy_(new)
        old_phi.copy_(phi)
        average.copy_(z) if share >= 1 else average.lerp_(z, share)
        torch.add(phi, short, alpha=kappa, out=out)
    if len(w) > 1:
        index = torch.from_numpy(workers).to(w.device)
        master.w.index_copy_(0, index, rows[0])
        master.phi.index_copy_(0, index, rows[1])
    return v


def rows_at(matrix: Tensor, workers: Indices) -> Tensor:
    """One row where it lies, or a copy of several."""
    if len(workers) == 1:
        return matrix.narrow(0, int(workers[0]), 1)
    return matrix.index_select(0, torch.from_numpy(workers).to(matrix.device))


def add_change(total: Tensor, new: Tensor, old: Tensor) -> None:
    """`total` stays the sum of all rows when these become `new`.

    Where a value changes by less than a factor of two its difference is exact in any precision.
    """
    change = torch.sub(new, old)
    total += change[0] if len(change) == 1 else change.sum(0, dtype=total.dtype)


def own_vectors(master: Master, dtype: torch.dtype) -> None:
    """z and the average in memory that nobody else reads: a message may share it in float64."""
    shared = master.z.dtype == dtype
    if shared or master.average.data_ptr() == master.z.data_ptr():
        master.average = master.average.clone()
    if shared:
        master.z = master.z.clone()
