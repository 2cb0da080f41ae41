"""Bounds on the pull of one worker: what a false w_j, or poisoned data, can do to z and phi_j.

A false loss is bounded by the uncertainty set; a false w_j is not: it enters z directly, and phi_j
integrates it. Both bounds read a report as the gradient that it implies, which is (11) solved for
grad f_j, so nothing that a worker says about itself counts. The measure is what other workers do,
so that one liar cannot move it.

- `pull_bound` b: a report that implies a gradient longer than b median ones says nothing; the
  worker is put back to w_j = z, phi_j = 0, as if it had just returned.
- `coordinate_bound` b: in no coordinate does a worker pull harder than b u_j times the second
  strongest worker there: |phi_j| <= b u_j m and |w_j - z| <= b u_j m / kappa, m_c the second
  largest over workers of |running mean of the implied gradient|. What only one site has, such as
  the trigger of a backdoor, is learnt slowly; so is an honest site's peculiarity. (A median over
  workers holds more liars, and keeps a network from units that few of many sites need.)

A lie inside these limits is not stopped; among few workers that can be a strong one, and two liars
who agree are no longer alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from aspire.core.schedules import median
from aspire.types import Array, Indices, Mask, PerSite, SiteCounts, Sized

PANEL = 32  # workers whose implied gradients are remembered
MEMORY = 100  # reports in their running means
REFRESH = 25  # steps between two looks at what workers have in common
COLUMNS = 1024  # whose squares are added up first; as in methods/passes.c
FRESH = 0.1  # share of the newest length in a worker's usual one
LONGEST = 1e30  # that is learnt: infinity would stay for ever


@dataclass
class Pulls:
    """What the bounds remember; `rows` is empty without a coordinate bound."""

    length: PerSite  # usual |implied gradient| of each worker
    rate: PerSite  # a_w of the last task
    kappa: PerSite  # of the last task
    weight: PerSite  # pi_j of the last task, not below a tenth of u_j
    rows: Annotated[Tensor, Sized("K p")]  # at most PANEL running means
    seat: SiteCounts  # worker -> row, -1: none
    seen: Annotated[Indices, Sized("K")]  # row -> reports in it, 0: free
    common: Annotated[Tensor, Sized("p|0")]  # m, empty: not known yet

    def check(self) -> None:
        if self.seat.max() >= len(self.rows):
            raise ValueError(f"a worker has seat {self.seat.max()} of {len(self.rows)}")


def nothing(n: int, like: Tensor, *, coordinates: bool) -> Pulls:
    """Nobody has reported; `like` is one row."""
    panel = min(n, PANEL) if coordinates else 0
    return Pulls(
        length=np.zeros(n),
        rate=np.ones(n),
        kappa=np.ones(n),
        weight=np.ones(n),
        rows=torch.zeros((panel, len(like)), dtype=like.dtype, device=like.device),
        seat=np.full(n, -1),
        seen=np.zeros(panel, dtype=np.int64),
        common=like[:0].clone(),
    )


def column(values: Array, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(like)[:, None]


def implied(
    before: Tensor,
    after: Tensor,
    phi: Tensor,
    z: Tensor,
    *,
    kappa: Tensor,
    rate: Tensor,
    weight: Tensor,
) -> Tensor:
    """grad f_j, for which (11) is solved: ((w - w_new)/(K a_w) - kappa (w - z) + phi_j) / pi_j.

    Exact for one step and the z of the task; the z of now stands for it. Rows are workers, `rate`
    is K a_w and `weight` pi_j.
    """
    moved = (before - after).div_(rate)
    return moved.add_(phi).addcmul_(before - z, kappa, value=-1).div_(weight)


def squares(gradients: Tensor) -> Tensor:
    """Sums of g^2 over every COLUMNS columns, in float64: (S, blocks).

    Halves are added to each other again and again: an order of additions that everybody can keep,
    with any library on any device.
    """
    odd = -gradients.shape[1] % COLUMNS
    sums = torch.nn.functional.pad(gradients.double(), (0, odd)).square_()
    sums = sums.view(len(gradients), -1, COLUMNS)
    while sums.shape[2] > 1:
        low, high = sums.chunk(2, dim=2)
        sums = low + high
    return sums[:, :, 0]


def total(squares: Tensor) -> list[float]:
    """The sum of every row, one number after the other."""
    found: list[float] = np.cumsum(squares.cpu().numpy(), axis=1)[:, -1].tolist()
    return found


def too_strong(
    pulls: Pulls, workers: Sequence[int], lengths: Sequence[float], present: Mask, bound: float
) -> list[bool]:
    """Whose implied gradient is longer than `bound` median ones; their lengths are learnt."""
    most = bound * median(pulls.length[present])
    for j, length in zip(workers, lengths, strict=True):
        pulls.length[j] += FRESH * (min(length, LONGEST) - pulls.length[j])
    return [length > most for length in lengths]


def learn(pulls: Pulls, workers: Indices, gradients: Tensor) -> None:
    """Running means of the implied gradients of the first PANEL workers that report."""
    for row, j in enumerate(workers.tolist()):
        if pulls.seat[j] < 0:
            free = np.flatnonzero(pulls.seen == 0)
            if not len(free):
                continue
            pulls.seat[j] = free[0]
        seat = int(pulls.seat[j])
        pulls.seen[seat] += 1
        share = 1.0 / min(int(pulls.seen[seat]), MEMORY)
        pulls.rows[seat].lerp_(gradients[row], share)


def refresh(pulls: Pulls, n: int) -> None:
    """m anew; not known before three workers, and half of those who may, have reported."""
    known = np.flatnonzero(pulls.seen)
    if 2 * len(known) >= min(n, PANEL) and len(known) >= 3:
        rows = pulls.rows[torch.from_numpy(known).to(pulls.rows.device)]
        pulls.common = rows.abs_().topk(2, 0).values[1]


def forget(pulls: Pulls, j: int) -> None:
    """A worker that left: its row is free."""
    if pulls.seat[j] >= 0:
        pulls.rows[pulls.seat[j]] = 0.0
        pulls.seen[pulls.seat[j]] = 0
        pulls.seat[j] = -1


def within(x: Tensor, most: Tensor) -> Tensor:
    """argmin_y |y - x| over |y| <= most, coordinate by coordinate."""
    return torch.maximum(torch.minimum(x, most), -most)
