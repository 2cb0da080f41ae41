"""The direct form's master: its first tasks, and what it does with each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from aspire.core import planes
from aspire.core.schedules import usual
from aspire.methods import optimisers
from aspire.methods.aspire_ease import buffers, references
from aspire.methods.aspire_ease.direct.presence import join, leave, objection, restrict
from aspire.methods.aspire_ease.direct.rules import GRADIENTS, LOSSES, PROBES, Rules, whole_set
from aspire.methods.aspire_ease.direct.state import Master, refer, regret, weigh
from aspire.methods.aspire_ease.direct.step import gather, step
from aspire.methods.aspire_ease.direct.tasks import (
    ask,
    first_kind,
    forget_task,
    issue,
    quorum_met,
)
from aspire.protocol import LARGEST
from aspire.types import Event, Facts, Info, Joined, Left, Noted, Refused, Report, Task

LOSS_SHARE = 0.25  # of the gradients' sample passes: what losses may cost besides
WORST = 1e6  # times the usual first loss: beside more, sums would lose what the others say


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
        if not master.hands and not master.members and master.started and master.n:
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
    if kind in GRADIENTS:
        earn(master, report)
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


def earn(master: Master, report: Report) -> None:
    """Losses may cost a quarter of the sample passes of all gradients, see `tasks.issue`."""
    passes = report.scalars["samples"] - report.scalars.get("loss_samples", 0.0)
    master.credit += LOSS_SHARE * max(0.0, passes)


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
    restrict(whole_set(rules, len(master.f)), master)
    master.share = np.where(master.present, 1.0 / master.n, 0.0)
    master.planes = planes.only(master.prior, regret(master))
    weigh(master)
    infos.append(Noted(0, f"started: level {master.first:.6g}, {master.n} sites"))
    ask(rules, master, here.tolist(), tasks)
