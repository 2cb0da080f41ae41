"""What the direct form's master knows: one model, and numbers of every site."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from torch import Tensor

from aspire.core import planes
from aspire.methods import optimisers
from aspire.methods.aspire_ease import buffers
from aspire.protocol import LARGEST
from aspire.sets import UncertaintySet
from aspire.types import (
    Amount,
    Array,
    Count,
    Flat,
    Id,
    PerSite,
    Precise,
    SiteCounts,
    SiteMask,
    Sized,
    Worker,
)


@dataclass
class Master:
    """z, its average, the step that is being gathered and the optimiser's moments.

    Of every site there are numbers only.
    """

    t: Count
    seed: Count
    z: Flat  # parameters, then buffers
    average: Precise
    gathered: Flat  # sum of (pi_j / s_j) clip(g_j) since the last step
    mass: Amount  # sum of pi_j / s_j
    moments: optimisers.Moments
    layout: buffers.Layout
    planes: planes.Planes
    pi: PerSite  # weights of the planes, as of the last step
    f: PerSite  # last known losses
    reference: PerSite  # r_j: the adversary sees f_j - r_j
    referred: SiteMask  # whose r_j is known
    compared: Annotated[Tensor, Sized("p|0")]  # the model whose losses are the r_j, if it is one
    prior: PerSite
    upper: PerSite  # u_j of the present
    present: SiteMask
    share: PerSite  # s_j, the part of a step that is j's on average
    counted: SiteCounts  # gradients of j since it came
    norm: PerSite  # |g_j| of its last report; 0: none yet
    drift: PerSite  # how far its last buffers were from z's; 0: not known
    clipped: SiteCounts
    loss_cost: PerSite  # samples in a loss of j
    heard: SiteCounts  # number of the report with which j last told its loss
    last: SiteCounts  # t of the last step before which j reported
    draws: SiteCounts  # batches that j has drawn
    uncertainty: UncertaintySet  # over the present
    hands: dict[Worker, tuple[Id, str]] = field(default_factory=dict)  # id and kind of j's task
    members: list[Worker] = field(default_factory=list)  # whose reports are gathered
    asked: Count = 0  # gradients that are out
    resting: dict[Worker, Count] = field(default_factory=dict)  # until so many reports are in
    credit: float = 0.0  # sample passes that losses may still cost
    reports: Count = 0  # absorbed, without probes
    stepped: Count = 0  # of these, when the multipliers last moved
    next_id: Count = 0
    first: float = 0.0  # f_0; 0: not started
    most_loss: float = LARGEST

    @property
    def n(self) -> int:
        return int(np.count_nonzero(self.present))

    @property
    def started(self) -> bool:
        return self.first > 0

    def check(self) -> None:
        here = self.n
        if self.started and self.uncertainty.size not in (here, len(self.f)):
            raise ValueError(f"{here} workers are present and the set differs")
        if self.layout.parameters > len(self.z):
            raise ValueError("more parameters than the model has")


def weights(master: Master) -> Array:
    return master.pi


def weigh(master: Master) -> None:
    """pi = lam P, after the planes or their multipliers changed."""
    master.pi = master.planes.lam @ master.planes.P


def regret(master: Master) -> Array:
    """What the adversary sees."""
    return np.where(master.present, master.f - master.reference, 0.0)


def refer(master: Master, j: int, said: float) -> None:
    """r_j, bounded as f_j is."""
    master.reference[j] = np.clip(said, -master.most_loss, master.most_loss)
    master.referred[j] = True
