"""ASPIRE-EASE: asynchronous distributionally robust training with an active set of planes.

Jiao, Yang, Song: Distributed Distributionally Robust Optimization with Non-Convex Objectives,
NeurIPS 2022. Equation numbers are the paper's. Variants are arguments: quorum S = N is
ASPIRE-EASE(-), drop=False is ASPIRE-CP, local_steps K > 1 is ASPIRE-EASE_per, a zero budget is
Mix_Even. Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from aspire.arguments import real_number, whole_number
from aspire.core import planes, pull
from aspire.core.preset_names import name_at_sites, preset_of
from aspire.core.presets import Auto
from aspire.core.schedules import Constants, Preset, usual
from aspire.methods.arguments import check, refit
from aspire.methods.aspire_ease.consensus_state import (
    WORST,
    Master,
    Rules,
    admit,
    cap_claims,
    enter_rows,
    leave,
    objection,
    probe_tasks,
    rates_of,
    restrict,
    scale,
    weights,
    whole,
    whole_set,
)
from aspire.methods.aspire_ease.consensus_step import first_tasks, gap, quorum_met, step, waiting
from aspire.methods.aspire_ease.passes import worker_step
from aspire.methods.worker import (
    PASSES,
    Foreseen,
    check_is_due,
    checked_step,
    held,
    loss_is_due,
    probes,
)
from aspire.problem import sites
from aspire.protocol import LARGEST
from aspire.sets import UncertaintySet
from aspire.types import (
    Event,
    Facts,
    Fast,
    Flat,
    Info,
    Item,
    Joined,
    Left,
    Local,
    Look,
    Method,
    Noted,
    Plain,
    Refused,
    Report,
    Task,
)

# ---------------------------------------------------------------- worker


@dataclass(frozen=True)
class Habits:
    """What a worker does in every task, whatever the task says."""

    local_steps: int
    limit: float  # a1
    power: int  # power iterations in a probe
    checks: bool  # see now and then whether the step is not too long


def work(
    worker: Tensor | Foreseen | None, task: Task, local: Local, *, habits: Habits
) -> tuple[Tensor | None, Report]:
    """One task. The worker's state is its w_j, and what it has foreseen."""
    return work_many([(worker, task, local)], habits=habits)[0]


def ahead(
    worker: Tensor | None, task: Task, local: Local, *, habits: Habits
) -> Tensor | Foreseen | None:
    """The first gradient of the next task: (11) takes it at w_j, which is known with the report.

    So it can be had while that travels; the master says no more than how to step along it.
    """
    if worker is None or task.kind == "probe":
        return worker
    draw = int(task.scalars["draws"]) + habits.local_steps
    return Foreseen(worker, draw, sites.gradients([local], worker.unsqueeze(0), [draw]))


def work_many(items: Sequence[Item], *, habits: Habits) -> list[tuple[Tensor | None, Report]]:
    """The probes together, and the steps together."""
    asked = [item for item in items if item[1].kind == "probe"]
    if not asked:
        return step_rows(items, habits)
    said = iter(probes([t for _, t, _ in asked], [x for _, _, x in asked], habits.power))
    steps = [item for item in items if item[1].kind != "probe"]
    stepped = iter(step_rows(steps, habits) if steps else [])
    return [
        (task.vectors["w"], next(said)) if task.kind == "probe" else next(stepped)
        for _, task, _ in items
    ]


def step_rows(items: Sequence[Item], habits: Habits) -> list[tuple[Tensor | None, Report]]:
    """K times (11), with fresh batches and one task each; rows are workers."""
    tasks = [item[1] for item in items]
    locals_ = [item[2] for item in items]
    draws = [int(task.scalars["draws"]) for task in tasks]
    K = habits.local_steps
    w = sites.stacked([held(worker, task) for worker, task, _ in items])
    v = sites.stacked([task.vectors["v"] for task in tasks])
    before = w
    gradient = first_gradients(items, w, draws)
    w = worker_step(w, gradient, v, tasks, habits.limit)
    for k in range(1, K):
        before = w
        gradient = sites.gradients(locals_, w, [n + k for n in draws])
        w = worker_step(w, gradient, v, tasks, habits.limit)
    said: list[dict[str, float]] = [{"gradients": float(K)} for _ in tasks]
    due = [r for r, n in enumerate(draws) if habits.checks and check_is_due((n - 1) // K)]
    if due:
        last = [draws[r] + K - 1 for r in due]
        again = sites.gradients([locals_[r] for r in due], w[due], last)
        for r, there in zip(due, again, strict=True):
            w[r], said[r]["curvature"] = checked_step(before[r], w[r], gradient[r], there, tasks[r])
            said[r]["gradients"] += 1.0
    rows = sites.rows_of(w)
    return [
        (rows[r], told(task, locals_[r], draws[r], rows[r], said[r], K))
        for r, task in enumerate(tasks)
    ]


def first_gradients(items: Sequence[Item], w: Tensor, draws: Sequence[int]) -> Tensor:
    """At the w that they start from: for one worker, perhaps what it has foreseen."""
    worker, task, _ = items[0]
    if len(items) == 1 and isinstance(worker, Foreseen) and worker.serves(task):
        return worker.gradient
    return sites.gradients([local for _, _, local in items], w, draws)


def told(task: Task, local: Local, draws: int, w: Tensor, said: dict[str, float], K: int) -> Report:
    """The report on a task: w, what its steps cost, and now and then the loss."""
    said["samples"] = PASSES * said["gradients"] * local.batch_samples
    if loss_is_due(local, draws, K):
        said["loss"] = local.loss(w)
        said["samples"] += local.loss_samples
    return Report(task.worker, task.id, {"w": w}, said)


# ---------------------------------------------------------------- factory


def consensus(
    uncertainty: UncertaintySet | None = None,
    *,
    quorum: int | None = None,
    staleness: int | None = None,
    local_steps: int = 1,
    drop: bool = True,
    max_planes: int | None = 50,
    plane_iterations: int | None = None,
    preset: str | Preset | None = None,
    pull_bound: float | None = None,
    coordinate_bound: float | None = None,
) -> Method:
    """Return the paper's form as a value; what it needs of the sites it learns in `init`.

    uncertainty       None: CDNorm(radius=1/N, budget=N)
    quorum            S, reports that make a step; None: 1
    staleness         tau; None: no bound, 1: synchronous
    local_steps       K steps of (11) per report
    drop              False: ASPIRE-CP
    max_planes        M; None: unbounded
    plane_iterations  T_1; None: planes are revised to the end
    preset            Auto(...), Paper(...) or Theorem1(...), or its name; None: Auto()
    pull_bound        limit on one worker's pull, in medians; None: off, as in the paper
    coordinate_bound  the same in every coordinate, see core.pull; None: off
    """
    preset = Auto() if preset is None else preset_of(preset)
    quorum = 1 if quorum is None else whole_number("quorum", quorum)
    local_steps = whole_number("local_steps", local_steps)
    counts = {"quorum": quorum, "staleness": staleness, "local_steps": local_steps}
    counts |= {"max_planes": max_planes, "plane_iterations": plane_iterations}
    check(counts, {})
    bounds = {"pull_bound": pull_bound, "coordinate_bound": coordinate_bound}
    for name, bound in bounds.items():
        if bound is not None:
            real_number(name, bound, "a positive number or None", above=0.0, finite=False)
    rules = Rules(
        uncertainty,
        quorum,
        staleness,
        local_steps,
        drop,
        max_planes,
        plane_iterations,
        preset,
        pull_bound,
        coordinate_bound,
    )
    habits = Habits(
        local_steps=local_steps,
        limit=preset.limits.a1,
        power=rules.power,
        checks=preset.checks,
    )
    return Method(
        name="aspire",
        settings={
            "form": "consensus",
            "uncertainty": uncertainty,
            **counts,
            "drop": drop,
            "preset": preset,
            **bounds,
        },
        init=partial(init, rules),
        work=partial(work, habits=habits),
        absorb=partial(absorb, rules),
        model=lambda master: master.average.to(master.w.dtype),
        look=partial(look, rules),
        fit=refit(consensus, rules),
        fast=Fast(partial(work_many, habits=habits), partial(ahead, habits=habits)),
        kinds=rules.kinds,
        states=(Master,) if uncertainty is None else (Master, type(uncertainty)),
        memory=Flat | Foreseen | None,
        site_arguments=site_arguments(rules),
    )


def look(rules: Rules, master: Master) -> Look:
    """What runtimes and tables read off the master."""
    return Look(
        weights=weights(master),
        planes=len(master.planes),
        waiting=waiting(rules, master),
        whole=partial(whole, master),
        gap=partial(gap, rules, master) if master.constants else None,
    )


def site_arguments(rules: Rules) -> dict[str, Plain] | None:
    """What `Habits` and the kinds of tasks come from."""
    known = name_at_sites(rules.preset)
    if known is None:
        return None
    bounds = {"pull_bound": rules.pull_bound, "coordinate_bound": rules.coordinate_bound}
    given = {name: min(bound, LARGEST) for name, bound in bounds.items() if bound is not None}
    return {"local_steps": rules.local_steps, "preset": known, **given}


# ---------------------------------------------------------------- init


def init(rules: Rules, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
    """z0 for everybody; the first task of every worker is a probe at z0."""
    n = facts.sites
    z = facts.start.double()
    if rules.quorum > n:
        raise ValueError(f"quorum={rules.quorum}: expected at most the {n} sites")
    everybody = whole_set(rules, n)
    rows = torch.zeros((n, len(z)), dtype=facts.start.dtype, device=z.device)
    nothing = np.zeros(n)
    master = Master(
        t=0,
        z=z,
        average=z,
        w=rows,
        phi=torch.zeros_like(rows),
        sum_w=torch.zeros_like(z),
        sum_phi=torch.zeros_like(z),
        h=0.0,
        planes=planes.only(everybody.nominal(), nothing),
        f=nothing.copy(),
        curvature=np.full(n, np.nan),
        first=nothing.copy(),
        slope=nothing.copy(),
        prior=everybody.nominal(),
        present=np.zeros(n, dtype=bool),
        last=np.full(n, -1),
        task=np.full(n, -1),
        probing=np.zeros(n, dtype=bool),
        draws=np.zeros(n, dtype=np.int64),
        upper=nothing.copy(),
        uncertainty=everybody,
        pulls=pull.nothing(n, rows[0], coordinates=rules.coordinate_bound is not None),
        linear=facts.linear,
        whole=facts.whole,
    )
    first = range(n) if facts.present is None else facts.present
    return master, probe_tasks(master, first)


# ---------------------------------------------------------------- absorb


def absorb(
    rules: Rules, master: Master, events: Sequence[Event]
) -> tuple[Master, list[Task], list[Info]]:
    """Take the events in their order; a step is taken as soon as the quorum is met."""
    tasks: list[Task] = []
    infos: list[Info] = []
    for event in events:
        reason = objection(rules, master, event)
        if reason is not None:
            infos.append(Refused(event, reason))
            continue
        match event:
            case Report():
                receive(rules, master, event, tasks, infos)
            case Left(worker=j):
                leave(rules, master, j)
            case Joined(worker=j):
                tasks.extend(probe_tasks(master, [j]))
        if not master.started:
            start(rules, master, tasks, infos)
        elif quorum_met(rules, master):
            step(rules, master, tasks, infos)
    return master, tasks, infos


def receive(
    rules: Rules, master: Master, report: Report, tasks: list[Task], infos: list[Info]
) -> None:
    j = report.worker
    master.task[j] = -1
    if not master.probing[j]:
        master.draws[j] += rules.local_steps
        master.pending[j] = report
        return
    master.probing[j] = False
    master.draws[j] += 1
    master.f[j] = report.scalars["loss"]
    master.curvature[j] = master.first[j] = report.scalars.get("curvature", 0.0)
    master.slope[j] = master.pulls.length[j] = report.scalars.get("slope", 0.0)
    if master.started:
        admit(rules, master, j, infos)
        tasks.extend(first_tasks(rules, master, np.array([j])))
    else:
        master.present[j] = True


def start(rules: Rules, master: Master, tasks: list[Task], infos: list[Info]) -> None:
    """All have answered or are away: form the constants, A = {q}, lam = 1, and begin."""
    if master.probing.any() or not master.present.any():
        return
    here = np.flatnonzero(master.present)
    enter_rows(master, here)
    restrict(rules, master)
    typical = usual(np.abs(master.f[here]))
    if typical > 0:
        master.most_loss = min(WORST * typical, LARGEST)
    cap_claims(master, here)
    master.planes = planes.only(master.prior, master.f)
    master.constants = rules.preset.constants(scale(rules, master))
    rates = rates_of(rules, master, min(rules.quorum, master.n))
    h = float(master.planes.F[0]) - rates.c1
    master.h = h if rules.preset.simplex else min(max(h, 0.0), rules.preset.limits.a2)
    infos.append(Noted(0, f"started: {_readable(master.constants)}"))
    tasks.extend(first_tasks(rules, master, here))


def _readable(constants: Constants) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in constants.items())
