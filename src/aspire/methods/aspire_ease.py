"""ASPIRE-EASE: asynchronous distributionally robust training with an active set of planes.

Jiao, Yang, Song: Distributed Distributionally Robust Optimization with Non-Convex Objectives,
NeurIPS 2022. Equation numbers are the paper's. Variants are arguments: quorum S = N is
ASPIRE-EASE(-), drop=False is ASPIRE-CP, local_steps K > 1 is ASPIRE-EASE_per, a zero budget is
Mix_Even. Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.core import equations, planes, pull, stationarity
from aspire.core.presets import Auto
from aspire.core.schedules import Constants, Member, Preset, Rates, Scale
from aspire.methods.worker import PASSES, loss_is_due, probe, secant, secant_is_due
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import (
    Array,
    Event,
    Facts,
    Info,
    Joined,
    Left,
    Local,
    Method,
    Noted,
    Refused,
    Report,
    Stepped,
    Task,
)

# ---------------------------------------------------------------- worker


def work(
    worker: Tensor | None, task: Task, local: Local, *, habits: Habits
) -> tuple[Tensor | None, Report]:
    """(11), K times with fresh batches and one task. The worker's state is its w_j alone."""
    if task.kind == "probe":
        return task.vectors["w"], probe(task, local, habits.power)
    w = task.vectors.get("w", worker)
    if w is None:
        raise ValueError(f"task {task.id} carries no w and worker {task.worker} has none yet")
    draws, K = int(task.scalars["draws"]), habits.local_steps
    for n in range(draws, draws + K):
        before, gradient = w, local.gradient(w, n)
        w = equations.worker_step(
            w,
            gradient,
            task.vectors["v"],
            pi=task.scalars["pi"],
            kappa=task.scalars["kappa"],
            rate=task.scalars["rate"],
            limit=habits.limit,
        )
    said = {"gradients": float(K)}
    if habits.slope:
        said["slope"] = float(torch.linalg.vector_norm(gradient))
    if habits.secants and secant_is_due((draws - 1) // K):
        said["curvature"] = secant(before, w, gradient, local, draws + K - 1)
        said["gradients"] += 1.0
    said["samples"] = PASSES * said["gradients"] * local.batch_samples
    if loss_is_due(local, draws, K):
        said["loss"] = local.loss(w)
        said["samples"] += local.loss_samples
    return w, Report(task.worker, task.id, {"w": w}, said)


@dataclass(frozen=True)
class Habits:
    """What a worker does in every task, whatever the task says."""

    local_steps: int
    limit: float  # a1
    power: int  # power iterations in a probe
    secants: bool  # look at the curvature again now and then
    slope: bool  # tell |grad f_j|, which the bound on the pull needs


# ---------------------------------------------------------------- master


@dataclass
class Master:
    """All that the master knows. Rows of absent workers are zero, so sums may run over all."""

    t: int
    z: Tensor  # float64
    average: Tensor  # float64
    w: Tensor  # (N, p) last known w_j
    phi: Tensor  # (N, p)
    sum_w: Tensor  # float64
    sum_phi: Tensor  # float64
    h: float
    planes: planes.Planes
    f: Array  # last known losses
    curvature: Array
    slope: Array
    prior: Array
    present: NDArray[np.bool_]
    last: NDArray[np.int64]  # t of the last step that held j
    task: NDArray[np.int64]  # id of the task in j's hands, -1: none
    probing: NDArray[np.bool_]
    draws: NDArray[np.int64]  # batches that j has drawn
    distance: Array  # last |w_j - z|, for the bound on the pull
    upper: Array  # u_j of the present, for the same
    uncertainty: UncertaintySet  # over the present workers
    constants: Constants = field(default_factory=dict)
    pending: dict[int, Report] = field(default_factory=dict)
    next_id: int = 0

    @property
    def started(self) -> bool:
        return bool(self.constants)

    @property
    def n(self) -> int:
        return int(self.present.sum())


def aspire(
    uncertainty: UncertaintySet | None = None,
    *,
    quorum: int = 1,
    staleness: int | None = None,
    local_steps: int = 1,
    drop: bool = True,
    max_planes: int | None = 50,
    plane_iterations: int | None = None,
    preset: Preset | None = None,
    pull_bound: float | None = None,
) -> Method:
    """The method as a value; what it needs of the sites it learns in `init`.

    uncertainty       None: CDNorm(radius=1/N, budget=N)
    quorum            S, reports that make a step
    staleness         tau; None: no bound, 1: synchronous
    local_steps       K steps of (11) per report
    drop              False: ASPIRE-CP
    max_planes        M; None: unbounded
    plane_iterations  T_1; None: planes are revised to the end
    pull_bound        limit on one worker's pull, in medians; None: off, as in the paper
    """
    preset = Auto() if preset is None else preset
    counts = {"quorum": quorum, "staleness": staleness, "local_steps": local_steps}
    counts |= {"max_planes": max_planes, "plane_iterations": plane_iterations}
    for name, value in counts.items():
        if value is not None and (value != int(value) or value < 1):
            raise ValueError(f"{name}={value}: expected a whole number of at least 1")
    if pull_bound is not None and not pull_bound > 0:
        raise ValueError(f"pull_bound={pull_bound}: expected a positive number or None")
    rules = Rules(
        uncertainty, quorum, staleness, local_steps, drop, max_planes, plane_iterations, preset,
        pull_bound,
    )  # fmt: skip
    habits = Habits(
        local_steps=local_steps,
        limit=preset.limits.a1,
        power=max(preset.power, 0 if pull_bound is None else 1),  # the bound needs |grad f_j|
        secants=preset.secants,
        slope=pull_bound is not None,
    )
    return Method(
        name="aspire",
        settings={"uncertainty": uncertainty, **counts, "drop": drop, "preset": preset}
        | {"pull_bound": pull_bound},
        init=rules.init,
        work=partial(work, habits=habits),
        absorb=rules.absorb,
        model=lambda master: master.average.to(master.w.dtype),
        weights=weights,
        planes=lambda master: len(master.planes),
        gap=rules.gap,
    )


def weights(master: Master) -> Array:
    """pi / sum lam: the weight that each site has now."""
    total = float(master.planes.lam.sum())
    return master.planes.lam @ master.planes.P / total if total > 0 else master.prior


@dataclass(frozen=True)
class Rules:
    """The arguments of `aspire`, and the master's side of the method."""

    uncertainty: UncertaintySet | None
    quorum: int
    staleness: int | None
    local_steps: int
    drop: bool
    max_planes: int | None
    plane_iterations: int | None
    preset: Preset
    pull_bound: float | None

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
        """z0 for everybody; the first task of every worker is a probe at z0."""
        n, z = facts.sites, facts.start.double()
        if self.quorum > n:
            raise ValueError(f"quorum={self.quorum}: expected at most the {n} sites")
        base = self.base(n)
        rows = torch.zeros((n, len(z)), dtype=facts.start.dtype, device=z.device)
        nothing = np.zeros(n)
        master = Master(
            t=0, z=z, average=z, w=rows, phi=torch.zeros_like(rows),
            sum_w=torch.zeros_like(z), sum_phi=torch.zeros_like(z), h=0.0,
            planes=planes.only(base.nominal(), nothing), f=nothing.copy(),
            curvature=np.full(n, np.nan), slope=nothing.copy(), prior=base.nominal(),
            present=np.zeros(n, dtype=bool), last=np.full(n, -1), task=np.full(n, -1),
            probing=np.zeros(n, dtype=bool), draws=np.zeros(n, dtype=np.int64),
            distance=nothing.copy(), upper=nothing.copy(), uncertainty=base,
        )  # fmt: skip
        first = range(n) if facts.present is None else facts.present
        return master, [self.probe_task(master, j) for j in first]

    def base(self, n: int) -> UncertaintySet:
        """The set over all n sites."""
        return (self.uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)

    def probe_task(self, master: Master, j: int) -> Task:
        master.probing[j] = True
        return self.issue(master, j, "probe", {"w": master.z.to(master.w.dtype)}, {})

    def issue(
        self,
        master: Master,
        j: int,
        kind: str,
        vectors: dict[str, Tensor],
        scalars: dict[str, float],
    ) -> Task:
        task = Task(j, master.next_id, kind, vectors, scalars | {"draws": float(master.draws[j])})
        master.task[j] = master.next_id
        master.next_id += 1
        return task

    # ------------------------------------------------------------ absorb

    def absorb(
        self, master: Master, events: Sequence[Event]
    ) -> tuple[Master, list[Task], list[Info]]:
        """Take the events in their order; a step is taken as soon as the quorum is met."""
        tasks: list[Task] = []
        infos: list[Info] = []
        for event in events:
            reason = objection(master, event)
            if reason is not None:
                infos.append(Refused(event, reason))
                continue
            match event:
                case Report():
                    self.receive(master, event, tasks, infos)
                case Left(worker=j):
                    self.leave(master, j)
                case Joined(worker=j):
                    tasks.append(self.probe_task(master, j))
            if not master.started:
                self.start(master, tasks, infos)
            elif self.quorum_met(master):
                self.step(master, tasks, infos)
        return master, tasks, infos

    def receive(self, master: Master, report: Report, tasks: list[Task], infos: list[Info]) -> None:
        j = report.worker
        master.task[j] = -1
        if not master.probing[j]:
            master.draws[j] += self.local_steps
            master.pending[j] = report
            return
        master.probing[j] = False
        master.draws[j] += 1
        master.f[j] = report.scalars["loss"]
        master.curvature[j] = report.scalars.get("curvature", 0.0)
        master.slope[j] = report.scalars.get("slope", 0.0)
        if master.started:
            self.admit(master, j, infos)
            tasks.extend(self.step_tasks(master, np.array([j])))
        else:
            master.present[j] = True

    def start(self, master: Master, tasks: list[Task], infos: list[Info]) -> None:
        """All have answered or are away: form the constants, A = {q}, lam = 1, and begin."""
        if master.probing.any() or not master.present.any():
            return
        self.enter_rows(master, np.flatnonzero(master.present))
        self.restrict(master)
        master.planes = planes.only(master.prior, master.f)
        master.constants = self.preset.constants(self.scale(master))
        rates = self.rates(master, min(self.quorum, master.n))
        h = float(master.planes.F[0]) - rates.c1
        master.h = h if self.preset.simplex else min(max(h, 0.0), self.preset.limits.a2)
        self.expect_pull(master, np.flatnonzero(master.present))
        infos.append(Noted(0, f"started: {_readable(master.constants)}"))
        tasks.extend(self.step_tasks(master, np.flatnonzero(master.present), fresh=True))

    def scale(self, master: Master) -> Scale:
        here = master.present
        return Scale(
            losses=master.f[here],
            curvature=master.curvature[here],
            slope=master.slope[here],
            upper=master.upper[here],
            most=self.max_planes or 50,
            staleness=self.staleness,
        )

    # ------------------------------------------------------------ who is here

    def restrict(self, master: Master) -> None:
        base = self.base(len(master.f))
        everybody = bool(master.present.all())
        master.uncertainty = base if everybody else base.restrict(master.present)
        master.prior = planes.spread(master.uncertainty.nominal(), master.present)
        master.upper = planes.spread(master.uncertainty.upper(), master.present)

    def enter_rows(self, master: Master, workers: NDArray[np.int64]) -> None:
        """They start at w_j = z, phi_j = 0."""
        index = torch.from_numpy(workers)
        master.w[index] = master.z.to(master.w.dtype)
        master.phi[index] = 0.0
        self.rebuild_sums(master)

    def rebuild_sums(self, master: Master) -> None:
        master.sum_w = master.w.sum(0, dtype=torch.float64)
        master.sum_phi = master.phi.sum(0, dtype=torch.float64)

    def admit(self, master: Master, j: int, infos: list[Info]) -> None:
        """A joiner whose probe is in: the set widens to it, and kappa rises if it must."""
        anybody = bool(master.present.any())
        master.present[j] = True
        master.last[j] = master.t - 1
        self.enter_rows(master, np.array([j]))
        self.restrict(master)
        if anybody:
            master.planes = planes.carried_over(
                master.planes, master.present, master.uncertainty, master.f,
                simplex=self.preset.simplex, joined=j,
            )  # fmt: skip
        else:
            master.planes = planes.only(master.prior, master.f)
        self.expect_pull(master, np.array([j]))
        self.raise_kappa(master, j, infos)

    def leave(self, master: Master, j: int) -> None:
        """Its mass leaves the set, its row leaves the sums, its task is forgotten."""
        master.task[j] = -1
        master.probing[j] = False
        master.pending.pop(j, None)
        if not master.present[j]:
            return
        master.present[j] = False
        master.f[j] = 0.0
        master.w[j] = 0.0
        master.phi[j] = 0.0
        if not master.started:
            return
        self.rebuild_sums(master)
        if master.present.any():
            self.restrict(master)
            master.planes = planes.carried_over(
                master.planes, master.present, master.uncertainty, master.f,
                simplex=self.preset.simplex,
            )  # fmt: skip

    def expect_pull(self, master: Master, workers: NDArray[np.int64]) -> None:
        """Before the first report: |w_j - z| as the gradient at z suggests it."""
        rates = [self.worker_rate(master, int(j)) for j in workers]
        master.distance[workers] = rates * master.prior[workers] * master.slope[workers]

    def worker_rate(self, master: Master, j: int, pi: float = 0.0) -> float:
        member = Member(
            weight=max(pi, float(master.prior[j])),
            curvature=float(master.curvature[j]),
            reports=int(master.draws[j]) // self.local_steps,
        )
        return self.preset.worker_rate(
            master.constants, master.t, len(master.planes), master.n, member
        )

    def rates(self, master: Master, active: int) -> Rates:
        return self.preset.rates(master.constants, master.t, len(master.planes), master.n, active)

    def quorum_met(self, master: Master) -> bool:
        """At least S of the present have reported, and no other is tau iterations behind."""
        if len(master.pending) < max(1, min(self.quorum, master.n)):
            return False
        if self.staleness is None:
            return True
        waiting = master.present.copy()
        waiting[list(master.pending)] = False
        return bool((master.t - master.last[waiting] < self.staleness).all())

    # ------------------------------------------------------------ one iteration

    def step(self, master: Master, tasks: list[Task], infos: list[Info]) -> None:
        """t -> t + 1: (12), (13)-(14), (15), then EASE; O(S p) besides the planes."""
        workers = np.array(sorted(master.pending), dtype=np.int64)
        reports = [master.pending[int(j)] for j in workers]
        index = torch.from_numpy(workers)
        rates = self.rates(master, len(workers))
        limits = self.preset.limits
        w = torch.stack([report.vectors["w"] for report in reports])
        far = np.zeros(len(workers), dtype=bool)
        if self.pull_bound is not None:
            far = self.outliers(master, workers, w, self.pull_bound)
            if far.any():
                w[torch.from_numpy(far)] = master.z.to(w.dtype)
                infos.append(Noted(master.t, f"far from z, put back: workers {workers[far]}"))
        master.sum_w += (w.double() - master.w[index].double()).sum(0)
        master.w[index] = w
        master.z = equations.z_step(
            master.z, master.sum_phi, master.sum_w,
            n=master.n, kappa=master.constants["kappa"], rate=rates.eta_z, limit=limits.a1,
        )  # fmt: skip
        lam_before = self.dual_step(master, workers, reports, rates)
        self.learn_scale(master, reports, infos)
        old = master.phi[index]
        phi = equations.phi_step(
            old, master.z.to(w.dtype), w, c2=rates.c2, rate=rates.rho2, limit=limits.a4
        )
        if self.pull_bound is not None:
            phi = self.bounded_phi(master, workers, phi, self.pull_bound)
            phi[torch.from_numpy(far)] = 0.0
        master.sum_phi += (phi.double() - old.double()).sum(0)
        master.phi[index] = phi
        share = self.preset.averaging(master.t)
        master.average = master.z if share >= 1 else master.average.lerp(master.z, share)
        self.revise_planes(master, lam_before, infos)
        master.last[workers] = master.t
        infos.append(Stepped(master.t, tuple(int(j) for j in workers)))
        master.t += 1
        master.pending = {}
        if master.t % max(1000, 10 * len(master.f)) == 0:
            self.rebuild_sums(master)
        tasks.extend(self.step_tasks(master, workers, resend=far))

    def dual_step(
        self, master: Master, workers: NDArray[np.int64], reports: list[Report], rates: Rates
    ) -> Array:
        """The new losses, then (13) and (14) or their simplex form. Returns the old lam."""
        limits, old = self.preset.limits, master.f[workers]
        new = np.array([r.scalars.get("loss", f) for r, f in zip(reports, old, strict=True)])
        master.f[workers] = new
        A = planes.revalued(master.planes, workers, new - old)
        if self.preset.simplex:
            lam, master.h = equations.lam_simplex_step(A.lam, A.F, c1=rates.c1, rate=rates.rho1)
        else:
            master.h = equations.h_step(master.h, A.lam, rate=rates.eta_h, limit=limits.a2)
            lam = equations.lam_step(
                A.lam, A.F, master.h, c1=rates.c1, rate=rates.rho1, limit=limits.a3
            )
        master.planes = planes.Planes(A.P, lam, A.F)
        return A.lam

    def learn_scale(self, master: Master, reports: list[Report], infos: list[Info]) -> None:
        """A steeper L_j than was known, at most 10 medians, counts from now on; so does |grad|."""
        for report in reports:
            j = report.worker
            master.slope[j] = report.scalars.get("slope", master.slope[j])
            found = report.scalars.get("curvature", 0.0)
            if found > master.curvature[j]:
                most = 10.0 * float(np.median(master.curvature[master.present]))
                master.curvature[j] = max(float(master.curvature[j]), min(found, most))
                self.raise_kappa(master, j, infos)

    def raise_kappa(self, master: Master, j: int, infos: list[Info]) -> None:
        needed = self.preset.constants(self.scale(master))["kappa"]
        if needed > master.constants["kappa"]:
            master.constants = {**master.constants, "kappa": needed}
            infos.append(Noted(master.t, f"kappa raised to {needed:.6g} for worker {j}"))

    def revise_planes(self, master: Master, lam_before: Array, infos: list[Info]) -> None:
        """(17)-(20), when (t + 1) mod k == 0 and t < T_1."""
        due = (master.t + 1) % self.preset.every(master.n) == 0
        if not due or master.t >= (self.plane_iterations or math.inf):
            return
        f = master.f[master.present]
        master.constants = self.preset.relevelled(master.constants, f)
        worst = master.uncertainty.worst_case(f)
        before = len(master.planes)
        master.planes = planes.ease(
            master.planes, lam_before, master.f, planes.spread(worst, master.present),
            most=self.max_planes, drop=self.drop, simplex=self.preset.simplex,
            tolerance=1e-9 * master.constants["level"],
        )  # fmt: skip
        if len(master.planes) != before:
            infos.append(Noted(master.t, f"planes {before} -> {len(master.planes)}"))

    def outliers(
        self, master: Master, workers: NDArray[np.int64], w: Tensor, factor: float
    ) -> NDArray[np.bool_]:
        """Whose w_j lies too far from z to be believed."""
        most = factor * float(np.median(master.distance[master.present]))
        master.distance[workers] = pull.norms(w.double() - master.z)
        return master.distance[workers] > most

    def bounded_phi(
        self, master: Master, workers: NDArray[np.int64], phi: Tensor, factor: float
    ) -> Tensor:
        most = factor * float(np.median(master.slope[master.present]))
        return pull.shortened(phi, most * master.upper[workers])

    def step_tasks(
        self,
        master: Master,
        workers: NDArray[np.int64],
        *,
        fresh: bool = False,
        resend: NDArray[np.bool_] | None = None,
    ) -> list[Task]:
        """v_j = phi_j + kappa z and pi_j; w_j too where the worker's own differs from ours."""
        kappa = master.constants["kappa"]
        index = torch.from_numpy(workers)
        v = master.phi[index] + kappa * master.z.to(master.phi.dtype)
        pi = master.planes.pi(workers)
        tasks = []
        for row, j in enumerate(int(j) for j in workers):
            rate = self.worker_rate(master, j, float(pi[row]))
            vectors = {"v": v[row]}
            if fresh or (resend is not None and resend[row]):
                vectors["w"] = master.w[j].clone()
            scalars = {"pi": float(pi[row]), "kappa": kappa, "rate": rate}
            tasks.append(self.issue(master, j, "step", vectors, scalars))
        return tasks

    # ------------------------------------------------------------ stationarity

    def gap(
        self,
        master: Master,
        gradient: Callable[[int, Tensor], Tensor],
        loss: Callable[[int, Tensor], float],
    ) -> float:
        """Definition 1 at the present state, with full-data gradients and losses."""
        here = np.flatnonzero(master.present)
        rates = self.rates(master, min(self.quorum, master.n))
        limits, pi = self.preset.limits, master.planes.pi(here)
        f = np.zeros(len(master.f))
        slope_z = master.sum_phi + master.constants["kappa"] * (master.n * master.z - master.sum_w)
        squares = [stationarity.squared_block(master.z, slope_z, rates.eta_z, limits.a1)]
        for row, j in enumerate(int(j) for j in here):
            w, phi = master.w[j].double(), master.phi[j].double()
            f[j] = loss(j, master.w[j])
            rate = self.worker_rate(master, j, float(pi[row]))
            slope = float(pi[row]) * gradient(j, master.w[j]).double() - phi
            slope += master.constants["kappa"] * (w - master.z)
            squares.append(stationarity.squared_block(w, slope, rate, limits.a1))
            squares.append(stationarity.squared_block(phi, w - master.z, rates.rho2, limits.a4))
        A = master.planes
        squares.append(
            stationarity.dual_blocks(
                A.lam, A.P @ f, master.h, rates, limits, simplex=self.preset.simplex
            )
        )
        return stationarity.total(squares)


def objection(master: Master, event: Event) -> str | None:
    """Why an event must be refused, or None. Reads only."""
    j, n = event.worker, len(master.f)
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
    if master.probing[j]:
        needed, vectors = {"loss"}, {}
    else:
        needed, vectors = set(), {"w": master.w[0]}
    if not needed <= set(event.scalars) or not set(vectors) <= set(event.vectors):
        return f"worker {j} reports {sorted({*event.scalars, *event.vectors})}: incomplete"
    for name, value in event.scalars.items():
        if not math.isfinite(value):
            return f"worker {j} reports {name}={value}: expected a finite number"
    for name, like in vectors.items():
        x = event.vectors[name]
        if x.shape != like.shape or x.dtype != like.dtype:
            return (
                f"worker {j} reports {name} of shape {tuple(x.shape)} and type {x.dtype}: "
                f"expected {tuple(like.shape)} and {like.dtype}"
            )
        if not bool(torch.isfinite(x).all()):
            return f"worker {j} reports {name} with values that are not finite"
    return None


def _expected(task: int) -> str:
    return "none, it has no task" if task < 0 else f"task {task}"


def _readable(constants: Constants) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in constants.items())
