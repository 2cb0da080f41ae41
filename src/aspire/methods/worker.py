"""What every method's worker may do besides its own step: the start-up probe, the checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from aspire.problem import batches, sites
from aspire.protocol import NoState
from aspire.types import Count, Flat, Local, Report, Sized, Task

PASSES = 3  # a gradient costs three passes over its samples, a loss one
EARLY = frozenset(int(1.25**k) for k in range(25))  # reports whose step is checked
OVERSHOOT = 1.5  # a_w s of a step that is too long; 2 would swing for ever
COLUMNS = 2**15  # of a step that is checked, at a time


@dataclass(frozen=True)
class Foreseen:
    """A worker that has begun on its next task: the gradient at its w_j on batch `draw`."""

    w: Flat
    draw: Count
    gradient: Annotated[Tensor, Sized("1 p")]

    def serves(self, task: Task) -> bool:
        return "w" not in task.vectors and int(task.scalars["draws"]) == self.draw


def held(worker: Tensor | Foreseen | None, task: Task) -> Tensor:
    """The w_j that a task starts from: the one that it brings, else the worker's own."""
    own = worker.w if isinstance(worker, Foreseen) else worker
    w = task.vectors.get("w", own)
    if w is None:
        raise NoState(f"task {task.id} carries no w and worker {task.worker} has none yet")
    return w


def columns(tasks: Sequence[Task], names: Sequence[str], like: Tensor) -> tuple[Tensor, ...]:
    """Numbers of many tasks, one column (R, 1) a name, to stand beside rows like `like`."""
    table = np.array([[[task.scalars[name]] for task in tasks] for name in names])
    return torch.from_numpy(table).to(like).unbind(0)


def probe(task: Task, local: Local, power: int) -> Report:
    """One probe, see `probes`."""
    return probes([task], [local], power)[0]


def probes(tasks: Sequence[Task], locals_: Sequence[Local], power: int) -> list[Report]:
    """The loss at z, and with power iterations the local curvature L_j and |grad f_j|.

    L_j is the norm that `power` iterations on gradient differences converge to, all on one batch.
    """
    found = []
    for task, local in zip(tasks, locals_, strict=True):
        loss = local.loss(task.vectors["w"])
        samples = float(local.loss_samples)
        found.append({"loss": loss, "gradients": 0.0, "samples": samples})
    if power:
        w = torch.stack([task.vectors["w"] for task in tasks])
        draws = [int(task.scalars["draws"]) for task in tasks]
        curvatures, slopes = curvatures_at(w, locals_, draws, power)
        for row, (said, local) in enumerate(zip(found, locals_, strict=True)):
            said |= {"curvature": curvatures[row], "slope": slopes[row]}
            said["gradients"] += power + 1
            said["samples"] += PASSES * (power + 1) * local.batch_samples
    reports = zip(tasks, found, strict=True)
    return [Report(task.worker, task.id, {}, said) for task, said in reports]


def curvatures_at(
    w: Tensor, locals_: Sequence[Local], draws: Sequence[int], power: int
) -> tuple[list[float], list[float]]:
    """Per row the largest eigenvalue (by size) of the Hessian on one batch, and |gradient|."""
    base = sites.gradients(locals_, w, draws)
    reach = 0.01 * (1.0 + lengths(w))
    signs = batches.signs(0, 0, 0, count=w.shape[1], device=str(w.device))
    direction = (signs.to(w.dtype) / math.sqrt(w.shape[1])).expand_as(w)
    length = torch.zeros_like(reach)
    for _ in range(power):
        ahead = sites.gradients(locals_, w + reach * direction, draws)
        change = (ahead - base) / reach
        length = lengths(change)
        direction = torch.where(length > 0, change / length, direction)
    return length[:, 0].tolist(), lengths(base)[:, 0].tolist()


def lengths(x: Tensor) -> Tensor:
    """|x_j| of every row, as a column."""
    found: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return found


def checked_step(
    before: Tensor, after: Tensor, gradient: Tensor, again: Tensor, task: Task
) -> tuple[Tensor, float]:
    """The step (11) once more, and the curvature of f_j along it, 0 where that is not positive.

    With d = after - before and s = pi d . (again - gradient) / |d|^2 + kappa, where `again` is the
    gradient at `after` on the same batch, a step with a_w s > 1.5 goes too far: it is cut to the
    minimiser on the line, d/(a_w s).
    A start where the loss is flat hides the curvature that the probe looks for; this finds it,
    and it follows the curvature along the way (`schedules.learn`).
    """
    length, turn = along(before, after, gradient, again)
    pi, kappa, rate = (task.scalars[name] for name in ("pi", "kappa", "rate"))
    if not (length > 0 and pi > 0):
        return after, 0.0
    bend = turn / length
    overshoot = rate * (pi * bend + kappa)
    if overshoot > OVERSHOOT:
        after = before + (after - before) / overshoot
    return after, max(bend, 0.0)


def along(before: Tensor, after: Tensor, gradient: Tensor, again: Tensor) -> tuple[float, float]:
    """d . d and d . (again - gradient) in float64, as many columns at a time as a cache holds."""
    parts = []
    for cut in zip(*(x.split(COLUMNS) for x in (before, after, gradient, again)), strict=True):
        step = (cut[1] - cut[0]).double()
        turn = (cut[3] - cut[2]).double()
        parts.append(torch.stack([step.square().sum(), turn @ step]))
    length, turned = torch.stack(parts).sum(0).tolist()
    return length, turned


def check_is_due(reports: int) -> bool:
    """At the first reports in ever larger gaps, then at every fiftieth: about 2 % of them."""
    return reports % 50 == 0 or reports in EARLY


def loss_is_due(local: Local, draws: int, local_steps: int) -> bool:
    """Report the loss so often that it costs at most as many sample passes as the gradients."""
    every = math.ceil(local.loss_samples / (PASSES * local.batch_samples * local_steps))
    return (draws // local_steps) % max(1, every) == 0
