"""What a site does for the direct form: gradients at the z that it was handed, and losses there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.methods.aspire_ease import references
from aspire.methods.aspire_ease.direct.rules import GRADIENTS, LOSSES, PROBES
from aspire.methods.worker import PASSES
from aspire.problem import sites
from aspire.types import Item, Local, Report, Task

JUDGED = 1024  # samples in a loss, so that it can be had often
Asked = tuple[Task, Local]


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


def mean_gradients(asked: Sequence[Asked], habits: Habits) -> Sequence[Tensor]:
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
    return sites.rows_of(found)


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
