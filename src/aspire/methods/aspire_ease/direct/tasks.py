"""What sites are asked in the direct form, and for whom the next step waits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aspire.methods import optimisers
from aspire.methods.aspire_ease.direct.rules import (
    GRADIENTS,
    LOSSES,
    PROBES,
    Rules,
    quorum_of,
)
from aspire.methods.aspire_ease.direct.state import Master
from aspire.problem import batches
from aspire.types import SiteMask, Task

ENOUGH = 0.1  # of the mean weight: with that or more a site is always asked for a gradient
RARELY = 0.02  # least probability that a site is asked for one


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


def first_kind(rules: Rules, master: Master, j: int) -> str:
    """Of the first task of a site: its reference is found once."""
    if master.referred[j]:
        return "probe"
    return "compare" if rules.own is None else "own"


def ask(rules: Rules, master: Master, workers: Sequence[int], tasks: list[Task]) -> None:
    """A gradient with probability 10 n pi_j, at least 2 %; else the loss where due, or a rest.

    A site that rests is asked again when about every site has reported once more.
    """
    present = master.n
    for j in workers:
        due = loss_is_due(master, j)
        if not rules.loss_tasks or for_a_gradient(master, j, present):
            tasks.append(issue(rules, master, j, "both" if due else "gradient"))
        elif due:
            tasks.append(issue(rules, master, j, "loss"))
        else:
            master.next_id += 1
            master.resting[j] = master.reports + master.n


def for_a_gradient(master: Master, j: int, present: int) -> bool:
    """Drawn by the number of the task; certain where j has a tenth of the mean weight, or more."""
    chance = max(present * float(master.pi[j]) / ENOUGH, RARELY)
    return chance >= 1 or batches.uniform(master.seed, j, master.next_id, batches.TASK) <= chance


def loss_is_due(master: Master, j: int) -> bool:
    """While there is credit, those that have not told their loss for long."""
    if master.credit < master.loss_cost[j]:
        return False
    oldest = int(master.heard[master.present].min())
    return 2 * int(master.heard[j]) <= oldest + master.reports


def issue(rules: Rules, master: Master, j: int, kind: str) -> Task:
    """All tasks since the last step share one copy of z.

    A loss is paid for when it is asked for, so that many that are out together stay within the
    credit. A site's first task has no price.
    """
    vectors = {"w": optimisers.handed(master)}
    if "metric" in rules.kinds[kind].given:
        vectors["metric"] = optimisers.metric(master, rules.optimizer, rules.schedule)
    if "reference" in rules.kinds[kind].given:
        vectors["reference"] = master.compared
    task = Task(j, master.next_id, kind, vectors, {"draws": float(master.draws[j])})
    master.hands[j] = (task.id, kind)
    master.asked += kind in GRADIENTS
    if kind in LOSSES and kind not in PROBES:
        master.credit -= float(master.loss_cost[j])
    master.next_id += 1
    return task


def forget_task(master: Master, j: int) -> str:
    """The kind of the task that j had; '' if it had none."""
    _, kind = master.hands.pop(j, (-1, ""))
    master.asked -= kind in GRADIENTS
    return kind
