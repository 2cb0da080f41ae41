"""What the direct form's master knows: one model, and numbers of every site.

Its arguments (`Rules`), its state (`Master`), who is here, and which events it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from torch import Tensor, nn

from aspire.core import planes
from aspire.methods.aspire_ease import buffers, optimisers, references
from aspire.protocol import LARGEST, report_objection
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import (
    Amount,
    Array,
    Count,
    Event,
    Flat,
    Id,
    Joined,
    Kind,
    Left,
    PerSite,
    Precise,
    SiteCounts,
    SiteMask,
    Sized,
    Worker,
)

GRADIENTS = ("gradient", "both")  # kinds of tasks that ask for a gradient
PROBES = ("probe", "compare", "own")  # a site's first: its loss, and perhaps its reference
LOSSES = (*PROBES, "both", "loss")  # kinds that ask for a loss


@dataclass(frozen=True)
class Rules:
    """The arguments of `direct`, checked."""

    uncertainty: UncertaintySet | None
    quorum: int | None
    staleness: int | None
    local_steps: int
    accumulate: int
    drop: bool
    max_planes: int | None
    loss_tasks: bool
    clip: float | None
    liars: int
    reference: references.Reference | None
    own: references.Own | None
    optimizer: optimisers.Make
    schedule: optimisers.Schedule | None

    @cached_property
    def batches(self) -> int:
        """In one report."""
        return self.local_steps * self.accumulate

    @property
    def measured(self) -> bool:
        """Whether the sites say what their r_j are."""
        return self.own is not None or isinstance(self.reference, nn.Module)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        told = ("loss", "loss_samples")
        given = ("w",) if self.local_steps == 1 else ("w", "metric")
        first = Kind(scalars=told, delays=0)
        if self.clip is not None:
            first = Kind(1, scalars=(*told, "slope"), delays=0)
        compared = replace(first, scalars=(*first.scalars, "reference"))
        found = {} if self.own is None else {"own": self.alone(compared)}
        return found | {
            "probe": first,
            "compare": replace(compared, given=("w", "reference")),
            "gradient": Kind(self.batches, vectors=("g",), given=given),
            "both": Kind(self.batches, vectors=("g",), scalars=told, given=given),
            "loss": Kind(scalars=told),
        }

    def alone(self, first: Kind) -> Kind:
        """A probe before which a site trains alone; a slope, too, costs a gradient."""
        assert self.own is not None
        count = self.own.batches
        cost = count + first.most_gradients
        return replace(first, batches=max(count, first.batches), gradients=cost, delays=count)


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


def first_kind(rules: Rules, master: Master, j: int) -> str:
    """Of the first task of a site: its reference is found once."""
    if master.referred[j]:
        return "probe"
    return "compare" if rules.own is None else "own"


def whole_set(rules: Rules, n: int) -> UncertaintySet:
    return (rules.uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)


# ---------------------------------------------------------------- quorum


def quorum_of(rules: Rules, present: int) -> int:
    """S, by default half of the present."""
    return max(1, present // 2) if rules.quorum is None else rules.quorum


def quorum(rules: Rules, master: Master) -> int:
    """S, but no more than were asked for a gradient."""
    return max(1, min(quorum_of(rules, master.n), len(master.members) + master.asked))


def quorum_met(rules: Rules, master: Master) -> bool:
    """At least S gradients are in, and no site is tau iterations behind."""
    if len(master.members) < quorum(rules, master):
        return False
    return rules.staleness is None or not behind(rules, master).any()


def behind(rules: Rules, master: Master) -> SiteMask:
    """Who was asked tau iterations ago and has not answered; who rests was not asked."""
    assert rules.staleness is not None
    late: SiteMask = (master.last <= master.t - rules.staleness) & master.present
    late[master.members] = False
    late[list(master.resting)] = False
    return late


def waiting(rules: Rules, master: Master) -> list[int]:
    """Those without whom the next step cannot be taken."""
    if not master.started:
        return sorted(j for j, (_, kind) in master.hands.items() if kind in PROBES)
    asked = sorted(j for j, (_, kind) in master.hands.items() if kind in GRADIENTS)
    if quorum(rules, master) - len(master.members) >= len(asked):
        return asked
    return [] if rules.staleness is None else np.flatnonzero(behind(rules, master)).tolist()


# ---------------------------------------------------------------- who is here


def restrict(rules: Rules, master: Master) -> None:
    """The set, the prior and u_j over the present."""
    everybody = whole_set(rules, len(master.f))
    all_here = master.n == len(master.f)
    master.uncertainty = everybody if all_here else everybody.restrict(master.present)
    master.prior = planes.spread(master.uncertainty.nominal(), master.present)
    master.upper = planes.spread(master.uncertainty.upper(), master.present)


def join(rules: Rules, master: Master, j: int) -> None:
    """It starts with its share of the prior and of the steps."""
    anybody = master.n > 0
    master.present[j] = True
    master.last[j] = master.t - 1
    restrict(rules, master)
    master.share *= 1.0 - 1.0 / master.n
    master.share[j] = 1.0 / master.n
    master.counted[j] = 0
    f = regret(master)
    if anybody:
        master.planes = planes.carried_over(
            master.planes, master.present, master.uncertainty, f, simplex=True, joined=j
        )
    else:
        master.planes = planes.only(master.prior, f)
    weigh(master)


def forget_task(master: Master, j: int) -> str:
    """The kind of the task that j had; '' if it had none."""
    _, kind = master.hands.pop(j, (-1, ""))
    master.asked -= kind in GRADIENTS
    return kind


def leave(rules: Rules, master: Master, j: int) -> None:
    """Its task is forgotten; its share and its mass in the planes go to the others.

    A report of it that is gathered already stays: it was as good as the others.
    """
    forget_task(master, j)
    master.resting.pop(j, None)
    if not master.present[j]:
        return
    master.present[j] = False
    master.share[j] = 0.0
    master.norm[j] = 0.0
    master.f[j] = 0.0
    total = float(master.share.sum())
    if total > 0:
        master.share /= total
    if master.started and master.n:
        restrict(rules, master)
        master.planes = planes.carried_over(
            master.planes, master.present, master.uncertainty, regret(master), simplex=True
        )
        weigh(master)


def objection(rules: Rules, master: Master, event: Event) -> str | None:
    """Why an event must be refused, or None. Reads only."""
    j = event.worker
    n = len(master.f)
    if not (isinstance(j, int) and 0 <= j < n):
        return f"unknown worker {j!r}: expected 0 to {n - 1}"
    task, kind = master.hands.get(j, (-1, ""))
    here = bool(master.present[j]) or kind in PROBES
    if isinstance(event, Left):
        return None if here else f"worker {j} left but is not here"
    if isinstance(event, Joined):
        return f"worker {j} joined but is here already" if here else None
    if event.task != task:
        expected = "none, it has no task" if task < 0 else f"task {task}"
        return f"worker {j} reports task {event.task}: expected {expected}"
    reason = report_objection(
        event, rules.kinds[kind], parameters=master.z.numel(), dtype=master.z.dtype
    )
    if reason is None and kind in GRADIENTS:
        reason = buffers.objection(master.layout, event.vectors["g"])
    return reason
