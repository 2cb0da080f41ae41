"""The direct form: the same problem and planes as ASPIRE-EASE, without copies of the model.

With w_j = z the Lagrangian is L = h + sum_l lam_l (p_l . f(z) - h). Sites report gradients at the z
that they were handed, the master weighs them by the planes and hands the sum to a torch optimiser.
Sets, planes, EASE, quorum, staleness and absences are those of the paper; no theorem covers it.
Order of this file: worker, factory, init, absorb; the master's state is in `direct_state`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aspire.arguments import flag, real_number, whole_number
from aspire.core import planes
from aspire.core.equations import lam_simplex_step
from aspire.core.schedules import usual
from aspire.methods.arguments import check
from aspire.methods.aspire_ease import buffers, optimisers, references
from aspire.methods.aspire_ease.direct_state import (
    GRADIENTS,
    LOSSES,
    PROBES,
    Master,
    Rules,
    first_kind,
    forget_task,
    join,
    leave,
    objection,
    quorum_met,
    quorum_of,
    refer,
    regret,
    restrict,
    waiting,
    weigh,
    weights,
    whole_set,
)
from aspire.methods.worker import PASSES
from aspire.problem import batches, sites
from aspire.protocol import LARGEST
from aspire.sets import UncertaintySet
from aspire.types import (
    Event,
    Facts,
    Info,
    Item,
    Joined,
    Left,
    Local,
    Method,
    Noted,
    Plain,
    Refused,
    Report,
    Stepped,
    Task,
)

JUDGED = 1024  # samples in a loss, so that it can be had often
LOSS_SHARE = 0.25  # of the gradients' sample passes: what losses may cost besides
WINDOW = 50  # reports per site over which shares s_j are averaged
FEW = 5  # reports of j until its share is measured
MOST = 5.0  # times n: the largest 1/s_j
RARELY = 0.02  # least probability that a site is asked for a gradient
WORST = 1e6  # times the usual first loss: beside more, sums would lose what the others say
ASCENT, REGULAR = 0.1, 0.02  # rho1 n m of one report, c1_0 / m
FORGET = 0.3  # the newest z counts min(1, 2/(2 + 0.3 t)) in the average

Asked = tuple[Task, Local]

# ---------------------------------------------------------------- worker


@dataclass(frozen=True)
class Habits:
    """What a worker does in every task, whatever the task says."""

    local_steps: int
    accumulate: int
    slope: bool  # a probe has |grad f_j| as well
    own: references.Own | None  # how the site trains alone, where it is asked to


def work(worker: None, task: Task, local: Local, *, habits: Habits) -> tuple[None, Report]:
    return work_many([(worker, task, local)], habits=habits)[0]


def work_many(items: Sequence[Item], *, habits: Habits) -> list[tuple[None, Report]]:
    """Gradients of all tasks that ask for one, together; f_j at the z that was handed out."""
    asked = [(task, local) for _, task, local in items if task.kind in GRADIENTS]
    rows: dict[int, Tensor] = {}
    for group in calls(asked):
        found = mean_gradients(group, habits)
        rows |= {task.id: row for (task, _), row in zip(group, found, strict=True)}
    return [(None, answer(task, local, rows.get(task.id), habits)) for _, task, local in items]


def calls(asked: Sequence[Asked]) -> list[Sequence[Asked]]:
    """The tasks by the calls that their gradients are taken in.

    All in one where rows are; on a GPU those at one z; else each, so that z is not copied for it.
    """
    if any(sites.together(local) for _, local in asked):
        return [asked]
    groups: dict[int, list[Asked]] = {}
    for task, local in asked:
        key = id(task.vectors["w"]) if sites.replays(local) else -1 - task.id
        groups.setdefault(key, []).append((task, local))
    return list(groups.values())


def mean_gradients(asked: Sequence[Asked], habits: Habits) -> list[Tensor]:
    """[g_j | b_j] of each task: the mean gradient over K local steps of so many batches each.

    With K = 1 all gradients are at z. With more, step k goes from w_k to w_k - metric g_k, so the
    mean gradient is (z - w_K)/K in units of the metric.
    """
    locals_ = [local for _, local in asked]
    w = sites.stacked([task.vectors["w"] for task, _ in asked])
    draws = np.array([int(task.scalars["draws"]) for task, _ in asked])
    p = sites.parameters(locals_[0], w)
    mean, w = batch_mean(locals_, w, draws, habits.accumulate, p)
    total = mean
    for k in range(1, habits.local_steps):
        metric = sites.stacked([task.vectors["metric"][:p] for task, _ in asked])
        w = torch.cat([w[:, :p] - metric * mean, w[:, p:]], dim=1)
        mean, w = batch_mean(locals_, w, draws + k * habits.accumulate, habits.accumulate, p)
        total = total + mean
    if habits.local_steps > 1:
        total = total / habits.local_steps
    found = total if p == w.shape[1] else torch.cat([total, w[:, p:]], dim=1)
    # a view of one row would keep the others in memory
    rows = found.unbind(0)
    return list(rows) if len(rows) == 1 else [row.clone() for row in rows]


def batch_mean(
    locals_: Sequence[Local], w: Tensor, draws: Any, count: int, p: int
) -> tuple[Tensor, Tensor]:
    """The mean gradient of `count` batches at w, and w with the buffers that they left."""
    found = sites.gradients(locals_, w, draws.tolist())
    total = found[:, :p]
    for c in range(1, count):
        w = _with_buffers(w, found, p)
        found = sites.gradients(locals_, w, (draws + c).tolist())
        total = total + found[:, :p]
    return (total if count == 1 else total / count), _with_buffers(w, found, p)


def _with_buffers(w: Tensor, found: Tensor, p: int) -> Tensor:
    return w if p == w.shape[1] else torch.cat([w[:, :p], found[:, p:]], dim=1)


def answer(task: Task, local: Local, g: Tensor | None, habits: Habits) -> Report:
    """What the work cost, and what was asked for."""
    said = {"gradients": 0.0}
    if g is not None:
        said["gradients"] = float(habits.local_steps * habits.accumulate)
    losses = 0
    if task.kind in LOSSES:
        losses = 1
        said["loss"] = sites.loss(local, task.vectors["w"])
        said["loss_samples"] = float(local.loss_samples)
    if task.kind in PROBES:
        losses += first_look(task, local, habits, said)
    said["samples"] = PASSES * said["gradients"] * local.batch_samples
    said["samples"] += losses * local.loss_samples
    return Report(task.worker, task.id, {} if g is None else {"g": g}, said)


def first_look(task: Task, local: Local, habits: Habits, said: dict[str, float]) -> int:
    """|g_j| and r_j, where they are asked for; how many losses they took."""
    if habits.slope:
        said["gradients"] += 1.0
        said["slope"] = slope(task, local)
    if task.kind == "compare":
        said["reference"] = sites.loss(local, task.vectors["reference"])
        return 1
    if task.kind == "probe" or habits.own is None:
        return 0
    said["gradients"] += habits.own.batches
    said["reference"], losses = references.alone(habits.own, task, local, said["loss"])
    return losses


def slope(task: Task, local: Local) -> float:
    """|g_j| at the start."""
    w = task.vectors["w"].unsqueeze(0)
    g = sites.gradients([local], w, [int(task.scalars["draws"])])
    return length_of(g[0, : sites.parameters(local, w)])


def length_of(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


# ---------------------------------------------------------------- factory


def direct(
    uncertainty: UncertaintySet | None = None,
    *,
    quorum: int | None = None,
    staleness: int | None = None,
    local_steps: int = 1,
    accumulate: int = 1,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
    optimizer: optimisers.Make | None = None,
    schedule: optimisers.Schedule | None = None,
    clip: float | None = None,
    liars: int = 1,
    reference: Sequence[float] | Mapping[str, float] | nn.Module | str | None = None,
    own_gradients: int | None = None,
    loss_tasks: bool = True,
    drop: bool = True,
    max_planes: int | None = 50,
) -> Method:
    """The method as a value, for networks: no copies of the model, a torch optimiser at the master.

    uncertainty    None: CDNorm(radius=1/N, budget=N)
    quorum         S, gradients that make a step; None: half of the present sites
    staleness      tau; None: no bound, 1: synchronous
    local_steps    K steps at a site in one report, in the metric of the optimiser
    accumulate     batches in one gradient
    learning_rate  of AdamW, for all tensors; None: relative to the size of each tensor
    weight_decay   of AdamW (decoupled): it is outside the losses that the adversary sees
    optimizer      function(groups) -> torch optimiser, one group per tensor; None: AdamW
    schedule       function(optimizer) -> torch scheduler, stepped with every master step; None:
                   1/sqrt(1 + t/2000) with the relative steps, else none
    clip           a report longer than clip times the (liars + 1)-th largest of the sites' last
                   norms is scaled down to that; None: off
    liars          sites whose norms may be false
    reference      r_j, the adversary works on f_j - r_j: numbers in the order of the sites or by
                   name; a model of the same architecture, whose losses they are; or 'own-best':
                   each site trains alone first, and r_j is its lowest loss on its val part
    own_gradients  of a site that does so; None: as many as the run has for each site afterwards
    loss_tasks     ask sites that have little weight mostly for their loss alone, or let them rest
    """
    liars = whole_number("liars", liars, least=0)
    counts = {"quorum": quorum, "staleness": staleness, "max_planes": max_planes}
    counts |= {"local_steps": local_steps, "accumulate": accumulate}
    check(counts, {"learning_rate": learning_rate})
    decay = real_number("weight_decay", weight_decay, "a number of at least 0", least=0.0)
    flag("loss_tasks", loss_tasks)
    if clip is not None:
        real_number("clip", clip, "a positive number or None", above=0.0)
    if optimizer is not None and (learning_rate is not None or decay):
        raise ValueError("optimizer is given: expected learning_rate and weight_decay in it")
    if schedule is None and optimizer is None and learning_rate is None:
        schedule = optimisers.Settling
    default = optimisers.Default(learning_rate, decay, floored=clip is not None)
    known = references.checked(reference)
    rules = Rules(
        uncertainty=uncertainty,
        quorum=quorum,
        staleness=staleness,
        local_steps=whole_number("local_steps", local_steps),
        accumulate=whole_number("accumulate", accumulate),
        drop=drop,
        max_planes=max_planes,
        loss_tasks=loss_tasks,
        clip=clip,
        liars=liars,
        reference=known,
        own=references.own_of(known, own_gradients, replace(default, floored=False)),
        optimizer=optimizer or default,
        schedule=schedule,
    )
    return made(rules)


def made(rules: Rules) -> Method:
    """The method of these rules."""
    slope = rules.clip is not None
    habits = Habits(rules.local_steps, rules.accumulate, slope, rules.own)
    unsized = rules.own is not None and rules.own.gradients is None
    return Method(
        name="direct",
        settings=settings_of(rules),
        init=partial(init, rules),
        work=partial(work, habits=habits),
        work_many=partial(work_many, habits=habits),
        absorb=partial(absorb, rules),
        model=lambda master: master.average.to(master.z.dtype),
        weights=weights,
        planes=lambda master: len(master.planes),
        waiting=partial(waiting, rules),
        kinds=rules.kinds,
        states=(Master,) if rules.uncertainty is None else (Master, type(rules.uncertainty)),
        buffers=True,
        judged=JUDGED,
        judged_on="train" if rules.own is None else "val",
        budgeted=partial(budgeted, rules) if unsized else None,
        site_arguments=site_arguments(rules),
        any_execution=True,
    )


def budgeted(rules: Rules, sites: int, iterations: int | None, gradients: int | None) -> Method:
    """The method for a run of that length: what a site that trains alone may spend."""
    assert rules.own is not None
    step = quorum_of(rules, sites) * rules.batches
    count = references.share(sites, step, iterations, gradients)
    return made(replace(rules, own=replace(rules.own, gradients=count)))


def site_arguments(rules: Rules) -> dict[str, Plain]:
    """What `Habits`, the kinds of tasks and the part that is judged come from."""
    found: dict[str, Plain] = {"local_steps": rules.local_steps, "accumulate": rules.accumulate}
    if rules.clip is not None:
        found["clip"] = rules.clip
    if rules.own is not None:
        found |= {"reference": references.OWN_BEST, "own_gradients": rules.own.gradients}
        found["learning_rate"] = rules.own.optimizer.learning_rate
        found["weight_decay"] = rules.own.optimizer.weight_decay
    return found


def settings_of(rules: Rules) -> dict[str, Any]:
    """What run.json holds of the arguments."""
    default = rules.optimizer if isinstance(rules.optimizer, optimisers.Default) else None
    same = ["quorum", "staleness", "max_planes", "local_steps", "accumulate", "drop", "loss_tasks"]
    same += ["uncertainty", "clip", "liars"]
    found = {name: getattr(rules, name) for name in same} | {
        "reference": references.plain(rules.reference),
        "form": "direct",
        "learning_rate": None if default is None else default.learning_rate,
        "weight_decay_of_optimizer": 0.0 if default is None else default.weight_decay,
        "optimizer": None if default is not None else optimisers.name_of(rules.optimizer),
        "schedule": optimisers.name_of(rules.schedule),
    }
    return found if rules.own is None else found | {"own_gradients": rules.own.gradients}


# ---------------------------------------------------------------- init


def init(rules: Rules, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
    n = facts.sites
    if rules.quorum is not None and rules.quorum > n:
        raise ValueError(f"quorum={rules.quorum}: expected at most the {n} sites")
    if rules.own is not None and rules.own.gradients is None:
        raise ValueError("reference='own-best' without own_gradients: expected a number of them")
    everybody = whole_set(rules, n)
    z = facts.start.clone()
    behind = sum(buffer.size for buffer in facts.buffers)
    layout = buffers.layout_of(len(z) - behind, facts.buffers)
    moments = optimisers.moments_of(z[: layout.parameters], facts.tensors)
    optimisers.opened(rules.optimizer, rules.schedule, z, moments)  # it fails now or never
    real = ("f", "upper", "norm", "drift", "loss_cost")
    numbers: dict[str, Any] = {name: np.zeros(n) for name in real}
    whole = ("counted", "clipped", "draws", "heard")
    counts: dict[str, Any] = {name: np.zeros(n, dtype=np.int64) for name in whole}
    master = Master(
        t=0,
        seed=seed,
        z=z,
        average=z.double(),
        gathered=torch.zeros_like(z),
        mass=0.0,
        moments=moments,
        layout=layout,
        planes=planes.only(everybody.nominal(), np.zeros(n)),
        pi=everybody.nominal(),
        uncertainty=everybody,
        reference=references.numbers(rules.reference, facts),
        referred=np.full(n, not rules.measured),
        compared=references.vector(rules.reference, facts),
        prior=everybody.nominal(),
        present=np.zeros(n, dtype=bool),
        share=np.full(n, 1.0 / n),
        last=np.full(n, -1),
        **numbers,
        **counts,
    )
    first = range(n) if facts.present is None else facts.present
    return master, [issue(rules, master, j, first_kind(rules, master, j)) for j in first]


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
                receive(rules, master, event, tasks)
            case Left(worker=j):
                leave(rules, master, j)
            case Joined(worker=j):
                tasks.append(issue(rules, master, j, first_kind(rules, master, j)))
        if not master.started:
            start(rules, master, tasks, infos)
        elif master.members and quorum_met(rules, master):
            step(rules, master, tasks, infos)
        if master.started and master.n and not master.hands and not master.members:
            heaviest = int(np.where(master.present, master.pi, -1.0).argmax())
            master.resting.pop(heaviest, None)
            tasks.append(issue(rules, master, heaviest, "gradient"))
    return master, tasks, infos


def receive(rules: Rules, master: Master, report: Report, tasks: list[Task]) -> None:
    """A gradient waits for the quorum; a loss alone needs none, its site goes on."""
    j = report.worker
    kind = forget_task(master, j)
    master.draws[j] += rules.kinds[kind].batches
    if kind in LOSSES:
        master.f[j] = np.clip(report.scalars["loss"], -master.most_loss, master.most_loss)
        master.heard[j] = master.reports
        master.loss_cost[j] = report.scalars["loss_samples"]
    if kind in PROBES:
        enter(rules, master, report, tasks)
        return
    master.reports += 1
    account(master, report)
    if kind in GRADIENTS:
        gather(rules, master, report)
        return
    master.last[j] = master.t - 1
    ask(rules, master, [j], tasks)


def enter(rules: Rules, master: Master, report: Report, tasks: list[Task]) -> None:
    """A site has answered its probe."""
    j = report.worker
    master.norm[j] = report.scalars.get("slope", 0.0)
    if "reference" in report.scalars:
        refer(master, j, report.scalars["reference"])
    if master.started:
        join(rules, master, j)
        ask(rules, master, [j], tasks)
    else:
        master.present[j] = True


def account(master: Master, report: Report) -> None:
    """Losses may cost a quarter of the sample passes of all gradients."""
    losses = report.scalars.get("loss_samples", 0.0)
    master.credit += LOSS_SHARE * (report.scalars["samples"] - losses) - losses


def start(rules: Rules, master: Master, tasks: list[Task], infos: list[Info]) -> None:
    """All have answered or are away: f_0 and A = {q}, lam = 1."""
    if any(kind in PROBES for _, kind in master.hands.values()) or not master.n:
        return
    here = np.flatnonzero(master.present)
    typical = usual(np.abs(master.f[here]))
    master.first = max(typical, float(np.finfo(np.float64).tiny))
    if typical > 0:
        master.most_loss = min(WORST * typical, LARGEST)
    master.f = np.clip(master.f, -master.most_loss, master.most_loss)
    if rules.measured:
        master.reference = np.clip(master.reference, -master.most_loss, master.most_loss)
    restrict(rules, master)
    master.share = np.where(master.present, 1.0 / master.n, 0.0)
    master.planes = planes.only(master.prior, regret(master))
    weigh(master)
    infos.append(Noted(0, f"started: level {master.first:.6g}, {master.n} sites"))
    ask(rules, master, here.tolist(), tasks)


# ---------------------------------------------------------------- one step


def gather(rules: Rules, master: Master, report: Report) -> None:
    """Add (pi_j / s_j) clip(g_j) to the step, whose mean over steps is sum_j pi_j grad f_j."""
    g = report.vectors["g"]
    j = report.worker
    p = master.layout.parameters
    weight = float(master.pi[j]) * inverse_share(master, j)
    scale = 1.0 if rules.clip is None else clipped(rules, master, j, length_of(g[:p]))
    whole = g.numel() == p
    (master.gathered if whole else master.gathered[:p]).add_(
        g if whole else g[:p], alpha=weight * scale
    )
    if not whole:
        gather_buffers(rules, master, j, g, weight)
    master.members.append(j)


def gather_buffers(rules: Rules, master: Master, j: int, g: Tensor, weight: float) -> None:
    """Under `clip`, no farther from the master's than others are, and none until that is known."""
    moments = buffers.as_moments(master.layout, g)
    if rules.clip is not None:
        known = np.sort(master.drift[master.present & (master.drift > 0)])[::-1]
        enough = len(known) > rules.liars
        most = rules.clip * float(known[rules.liars]) if enough else 0.0
        moments, master.drift[j] = buffers.near(master.layout, master.z, moments, most)
        weight = weight if enough else 0.0
    buffers.gather(master.layout, master.gathered, moments, weight)
    master.mass += weight


def clipped(rules: Rules, master: Master, j: int, length: float) -> float:
    """clip(g_j)/g_j: no longer than c times the (b + 1)-th largest of the sites' last norms."""
    assert rules.clip is not None
    master.norm[j] = length
    known = np.sort(master.norm[master.present & (master.norm > 0)])[::-1]
    most = rules.clip * float(known[min(rules.liars, len(known) - 1)]) if len(known) else math.inf
    if length <= most:
        return 1.0
    master.clipped[j] += 1
    return most / length


def inverse_share(master: Master, j: int) -> float:
    """1/s_j; n until it is measured, and never above 5 n: a site so rare counts less than pi_j."""
    n = master.n
    if master.counted[j] < FEW:
        return float(n)
    return float(min(1.0 / max(master.share[j], 1e-300), MOST * n))


def measure_shares(master: Master, members: list[int], reports: int) -> None:
    """s_j: the running mean over steps of 1{j in Q}/|Q|."""
    forget = max(1.0 / (master.t + 1.0), min(1.0, reports / (WINDOW * master.n)))
    master.share *= 1.0 - forget
    who = np.array(members, dtype=np.int64)
    master.share[who] += forget / reports
    master.counted[who] += 1


def step(rules: Rules, master: Master, tasks: list[Task], infos: list[Info]) -> None:
    """t -> t + 1: z along the gathered gradients, then the planes' multipliers."""
    reports = len(master.members)
    p = master.layout.parameters
    members = sorted(set(master.members))
    here = [j for j in members if master.present[j]]
    optimisers.step(master, rules.optimizer, rules.schedule, master.gathered[:p], reports)
    buffers.step(master.layout, master.z, master.gathered, master.mass, reports)
    master.average.lerp_(master.z.double(), min(1.0, 2.0 / (2.0 + FORGET * master.t)))
    measure_shares(master, here, reports)
    master.gathered.zero_()
    master.mass = 0.0
    master.members = []
    master.last[here] = master.t
    hear(rules, master, infos)
    infos.append(Stepped(master.t, tuple(members)))
    master.t += 1
    rested = [j for j, until in master.resting.items() if until <= master.reports]
    for j in rested:
        del master.resting[j]
    ask(rules, master, [*here, *rested], tasks)


# ---------------------------------------------------------------- losses, multipliers, planes


def hear(rules: Rules, master: Master, infos: list[Info]) -> None:
    """(13)-(14) with h minimised out, for all reports since the last step; (17)-(20) every n."""
    A = master.planes
    f = regret(master)
    reports = master.reports - master.stepped
    level = max(usual(np.abs(master.f[master.present])), 1e-3 * master.first)
    c1 = REGULAR * level / math.sqrt(master.t + 1)
    F = A.P @ f
    lam, _ = lam_simplex_step(A.lam, F, c1=c1, rate=ASCENT * reports / (master.n * level))
    master.planes = planes.Planes(A.P, lam, F)
    if master.reports // master.n > master.stepped // master.n:
        revise_planes(rules, master, A.lam, level, infos)
    master.stepped = master.reports
    weigh(master)


def revise_planes(
    rules: Rules, master: Master, lam_before: Any, level: float, infos: list[Info]
) -> None:
    f = regret(master)
    before = len(master.planes)
    worst = planes.spread(master.uncertainty.worst_case(f[master.present]), master.present)
    master.planes = planes.ease(
        master.planes,
        lam_before,
        f,
        worst,
        most=rules.max_planes,
        drop=rules.drop,
        simplex=True,
        tolerance=1e-9 * level,
    )
    if len(master.planes) != before:
        infos.append(Noted(master.t, f"planes {before} -> {len(master.planes)}"))


# ---------------------------------------------------------------- tasks


def ask(rules: Rules, master: Master, workers: Sequence[int], tasks: list[Task]) -> None:
    """A gradient with probability n pi_j, at least 2 %; else the loss where it is due, or a rest.

    A site that rests is asked again when about every site has reported once more.
    """
    for j in workers:
        chance = max(master.n * float(master.pi[j]), RARELY)
        drawn = batches.uniform(master.seed, j, master.next_id, batches.TASK)
        due = loss_is_due(master, j)
        if not rules.loss_tasks or drawn <= chance:
            tasks.append(issue(rules, master, j, "both" if due else "gradient"))
        elif due:
            tasks.append(issue(rules, master, j, "loss"))
        else:
            master.next_id += 1
            master.resting[j] = master.reports + master.n


def loss_is_due(master: Master, j: int) -> bool:
    """While there is credit, those that have not told their loss for long."""
    if master.credit < master.loss_cost[j]:
        return False
    oldest = int(master.heard[master.present].min())
    return 2 * int(master.heard[j]) <= oldest + master.reports


def issue(rules: Rules, master: Master, j: int, kind: str) -> Task:
    """All tasks since the last step share one copy of z."""
    vectors = {"w": optimisers.handed(master)}
    if "metric" in rules.kinds[kind].given:
        vectors["metric"] = optimisers.metric(master, rules.optimizer, rules.schedule)
    if "reference" in rules.kinds[kind].given:
        vectors["reference"] = master.compared
    task = Task(j, master.next_id, kind, vectors, {"draws": float(master.draws[j])})
    master.hands[j] = (task.id, kind)
    master.asked += kind in GRADIENTS
    master.next_id += 1
    return task
