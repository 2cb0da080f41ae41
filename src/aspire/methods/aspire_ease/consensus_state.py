"""ASPIRE-EASE's master: what it knows, what it refuses, and who is here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.core import planes, pull
from aspire.core.presets import CONVEX, LOCAL, NETWORK, WHOLE
from aspire.core.schedules import Constants, Member, Preset, Rates, Scale, median, usual
from aspire.protocol import LARGEST, probe_kind, report_objection
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import (
    Array,
    Count,
    Event,
    Info,
    Joined,
    Kind,
    Left,
    Noted,
    PerSite,
    Precise,
    Report,
    Rows,
    SiteCounts,
    SiteMask,
    Task,
    Worker,
)


@dataclass(frozen=True)
class Rules:
    """The arguments of `aspire`, checked."""

    uncertainty: UncertaintySet | None
    quorum: int
    staleness: int | None
    local_steps: int
    drop: bool
    max_planes: int | None
    plane_iterations: int | None
    preset: Preset
    pull_bound: float | None
    coordinate_bound: float | None

    @property
    def bounded(self) -> bool:
        return self.pull_bound is not None or self.coordinate_bound is not None

    @property
    def power(self) -> int:
        """Power iterations in a probe; a bound on the pull needs |grad f_j|."""
        return max(self.preset.power, int(self.bounded))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """What is asked of a worker. A step that is checked costs one gradient more."""
        checks = self.preset.checks
        step = Kind(
            self.local_steps,
            gradients=self.local_steps + int(checks),
            vectors=("w",),
            optional=("loss", "curvature") if checks else ("loss",),
            given=("v",),
            resent=("w",),
            numbers=("pi", "kappa", "rate"),
        )
        return {"probe": probe_kind(self.power), "step": step}


@dataclass
class Master:
    """All that the master knows. Rows of absent workers are zero, so sums may run over all."""

    t: Count
    z: Precise
    average: Precise
    w: Rows  # last known w_j
    phi: Rows
    sum_w: Precise
    sum_phi: Precise
    h: float
    planes: planes.Planes
    f: PerSite  # last known losses
    curvature: PerSite  # L_j
    first: PerSite  # L_j of the probe
    slope: PerSite
    prior: PerSite
    present: SiteMask
    last: SiteCounts  # t of the last step that held j
    task: SiteCounts  # id of the task in j's hands, -1: none
    probing: SiteMask
    draws: SiteCounts  # batches that j has drawn
    upper: PerSite  # u_j of the present
    pulls: pull.Pulls
    uncertainty: UncertaintySet  # over the present workers
    constants: Constants = field(default_factory=dict)
    pending: dict[Worker, Report] = field(default_factory=dict)
    next_id: Count = 0
    n: Count = 0  # workers present
    linear: bool = True  # as in Facts
    whole: bool = True
    most_loss: float = LARGEST  # size of a loss that the adversary sees

    @property
    def started(self) -> bool:
        return bool(self.constants)

    def check(self) -> None:
        here = int(self.present.sum())
        if self.started and (self.n != here or self.uncertainty.size not in (here, len(self.f))):
            raise ValueError(f"{here} workers are present, n={self.n} and the set differ")


def weights(master: Master) -> Array:
    """pi / sum lam: the weight that each site has now."""
    total = float(master.planes.lam.sum())
    return master.planes.lam @ master.planes.P / total if total > 0 else master.prior


def whole_set(rules: Rules, n: int) -> UncertaintySet:
    """The set over all n sites."""
    return (rules.uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)


def scale(rules: Rules, master: Master) -> Scale:
    here = master.present
    return Scale(
        losses=master.f[here],
        curvature=believed(rules, master)[here],
        slope=master.slope[here],
        upper=master.upper[here],
        most=rules.max_planes or 50,
        staleness=rules.staleness,
        kind=kind(rules, master),
    )


def kind(rules: Rules, master: Master) -> str:
    """Which of the usual constants are for this problem."""
    if master.linear:
        return WHOLE if master.whole else CONVEX
    return NETWORK if rules.local_steps == 1 else LOCAL


def believed(rules: Rules, master: Master) -> Array:
    """L_j; of workers whose gradients are beyond the bound on their pull, the median one."""
    if rules.pull_bound is None:
        return master.curvature
    here = master.present
    usual = master.pulls.length
    lengths = np.where(usual > 0, usual, master.slope)
    far = lengths > rules.pull_bound * median(lengths[here])
    return np.where(far, median(master.curvature[here]), master.curvature)


STEEPEST = 1e6  # times the usual L_j or |grad f_j|: what a site may claim for its own step
WORST = 1e6  # times the usual first loss: beside more, sums would lose what the others say


def cap_claims(master: Master, workers: NDArray[np.int64]) -> None:
    """What these workers' probes claim, bounded by what the present ones have in common.

    A steep site takes short steps, which is its own affair, but not so short that the gradient
    that they imply overflows.
    """
    here = master.present
    for claims in (master.curvature, master.first, master.slope, master.pulls.length):
        most = STEEPEST * usual(claims[here])
        if most > 0:
            claims[workers] = np.minimum(claims[workers], most)
    master.f[workers] = seen(master, master.f[workers])


def seen(master: Master, losses: Array) -> Array:
    """Losses as the adversary sees them: beyond `most_loss` one is as bad as any other."""
    return np.clip(losses, -master.most_loss, master.most_loss)


def rates_of(rules: Rules, master: Master, active: int) -> Rates:
    return rules.preset.rates(master.constants, master.t, len(master.planes), master.n, active)


def worker_rate(rules: Rules, master: Master, j: int, pi: float = 0.0) -> float:
    member = Member(
        weight=max(pi, float(master.prior[j])),
        curvature=float(master.curvature[j]),
        reports=int(master.draws[j]) // rules.local_steps,
    )
    return rules.preset.worker_rate(
        master.constants, master.t, len(master.planes), master.n, member
    )


# ---------------------------------------------------------------- tasks


def issue(
    master: Master,
    j: int,
    kind: str,
    vectors: dict[str, Tensor],
    scalars: dict[str, float],
) -> Task:
    scalars["draws"] = float(master.draws[j])
    task = Task(j, master.next_id, kind, vectors, scalars)
    master.task[j] = master.next_id
    master.next_id += 1
    return task


def probe_tasks(master: Master, workers: Iterable[int]) -> list[Task]:
    """All carry the same z, once in memory however many they are."""
    z = master.z.to(master.w.dtype)
    workers = list(workers)
    master.probing[workers] = True
    return [issue(master, j, "probe", {"w": z}, {}) for j in workers]


def whole(master: Master, task: Task) -> Task:
    """With the w_j that the worker started from: our row, since it has not reported on it yet."""
    if "w" in task.vectors:
        return task
    return replace(task, vectors={**task.vectors, "w": master.w[task.worker].clone()})


# ---------------------------------------------------------------- who is here


def restrict(rules: Rules, master: Master) -> None:
    """The set, the prior and u_j over the present workers."""
    everybody = whole_set(rules, len(master.f))
    master.n = int(master.present.sum())
    all_here = master.n == len(master.f)
    master.uncertainty = everybody if all_here else everybody.restrict(master.present)
    master.prior = planes.spread(master.uncertainty.nominal(), master.present)
    master.upper = planes.spread(master.uncertainty.upper(), master.present)


def enter_rows(master: Master, workers: NDArray[np.int64]) -> None:
    """They start at w_j = z, phi_j = 0; their rows were zero."""
    z = master.z.to(master.w.dtype)
    master.w[torch.from_numpy(workers).to(z.device)] = z
    master.sum_w += len(workers) * z.double()


def rebuild_sums(master: Master) -> None:
    master.sum_w = master.w.sum(0, dtype=torch.float64)
    master.sum_phi = master.phi.sum(0, dtype=torch.float64)


def admit(rules: Rules, master: Master, j: int, infos: list[Info]) -> None:
    """A joiner whose probe is in: the set widens to it, and kappa rises if it must."""
    anybody = bool(master.present.any())
    master.present[j] = True
    master.last[j] = master.t - 1
    enter_rows(master, np.array([j]))
    restrict(rules, master)
    cap_claims(master, np.array([j]))
    if anybody:
        carry_planes_over(rules, master, joined=j)
    else:
        master.planes = planes.only(master.prior, master.f)
    raise_kappa(rules, master, j, infos)


def leave(rules: Rules, master: Master, j: int) -> None:
    """Its mass leaves the set, its row leaves the sums, its task is forgotten."""
    master.task[j] = -1
    master.probing[j] = False
    master.pending.pop(j, None)
    if not master.present[j]:
        return
    master.present[j] = False
    pull.forget(master.pulls, j)
    master.sum_w -= master.w[j].double()
    master.sum_phi -= master.phi[j].double()
    master.f[j] = 0.0
    master.w[j] = 0.0
    master.phi[j] = 0.0
    if not master.started:
        return
    master.n -= 1
    if master.n:
        restrict(rules, master)
        carry_planes_over(rules, master)


def carry_planes_over(rules: Rules, master: Master, joined: int | None = None) -> None:
    """The planes over those who are present now."""
    master.planes = planes.carried_over(
        master.planes,
        master.present,
        master.uncertainty,
        master.f,
        simplex=rules.preset.simplex,
        joined=joined,
    )


def raise_kappa(rules: Rules, master: Master, j: int, infos: list[Info]) -> None:
    needed = rules.preset.constants(scale(rules, master))["kappa"]
    if needed > master.constants["kappa"]:
        master.constants = {**master.constants, "kappa": needed}
        infos.append(Noted(master.t, f"kappa raised to {needed:.6g} for worker {j}"))


# ---------------------------------------------------------------- refusal


def objection(rules: Rules, master: Master, event: Event) -> str | None:
    """Why an event must be refused, or None. Reads only."""
    j = event.worker
    n = len(master.f)
    if not (isinstance(j, int) and 0 <= j < n):
        return f"unknown worker {j!r}: expected 0 to {n - 1}"
    if isinstance(event, Left):
        away = not (master.present[j] or master.probing[j])
        return f"worker {j} left but is not here" if away else None
    if isinstance(event, Joined):
        here = master.present[j] or master.probing[j]
        return f"worker {j} joined but is here already" if here else None
    if event.task != master.task[j]:
        return f"worker {j} reports task {event.task}: expected {_expected(int(master.task[j]))}"
    kind = rules.kinds["probe" if master.probing[j] else "step"]
    return report_objection(event, kind, parameters=len(master.z), dtype=master.w.dtype)


def _expected(task: int) -> str:
    return "none, it has no task" if task < 0 else f"task {task}"
