"""One master step of the direct form: weighted gradients, then the optimiser, then the planes."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from aspire.methods import clipping, optimisers
from aspire.methods.aspire_ease import buffers
from aspire.methods.aspire_ease.direct.losses import hear
from aspire.methods.aspire_ease.direct.rules import Rules
from aspire.methods.aspire_ease.direct.state import Master
from aspire.methods.aspire_ease.direct.tasks import ask
from aspire.methods.aspire_ease.direct.worker import length_of
from aspire.types import Info, Report, Stepped, Task

WINDOW = 50  # reports per site over which shares s_j are averaged
FEW = 5  # reports of j until its share is measured
MOST = 5.0  # times n: the largest 1/s_j
FORGET = 0.3  # the newest z counts min(1, 2/(2 + 0.3 t)) in the average


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
    return clipping.factor(master, j, length, clipping.threshold(master, rules.clip, rules.liars))


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
