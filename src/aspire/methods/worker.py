"""What every method's worker may do besides its own step: the start-up probe, the checks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aspire import batches
from aspire.types import Local, Report, Task

PASSES = 3  # a gradient costs three passes over its samples, a loss one
OVERSHOOT = 1.5  # a_w s of a step that is too long; 2 would swing for ever


class NoState(ValueError):
    """A new process was handed a task that counts on what an old one remembered."""


def held(worker: Tensor | None, task: Task) -> Tensor:
    """The w_j that a task starts from: the one that it brings, else the worker's own."""
    w = task.vectors.get("w", worker)
    if w is None:
        raise NoState(f"task {task.id} carries no w and worker {task.worker} has none yet")
    return w


def columns(tasks: Sequence[Task], names: Sequence[str], like: Tensor) -> tuple[Tensor, ...]:
    """Numbers of many tasks, one column (R, 1) a name, to stand beside rows like `like`."""
    table = [[task.scalars[name] for name in names] for task in tasks]
    return torch.tensor(table, dtype=like.dtype, device=like.device).unsqueeze(2).unbind(1)


def probe(task: Task, local: Local, power: int) -> Report:
    """The loss at z, and with power iterations the local curvature L_j and |grad f_j|.

    L_j is the norm that `power` iterations on gradient differences converge to, all on one batch.
    """
    w, draw = task.vectors["w"], int(task.scalars["draws"])
    scalars = {"loss": local.loss(w), "gradients": 0.0, "samples": float(local.loss_samples)}
    if power:
        curvature, slope = curvature_at(w, local, draw, power)
        scalars |= {"curvature": curvature, "slope": slope, "gradients": float(power + 1)}
        scalars["samples"] += PASSES * (power + 1) * local.batch_samples
    return Report(task.worker, task.id, {}, scalars)


def curvature_at(w: Tensor, local: Local, draw: int, power: int) -> tuple[float, float]:
    """The largest eigenvalue (by size) of the Hessian on one batch, and the gradient's norm."""
    base = local.gradient(w, draw)
    reach = 0.01 * (1.0 + float(torch.linalg.vector_norm(w)))
    signs = batches.signs(0, 0, 0, count=len(w), device=str(w.device))
    direction = signs.to(w.dtype) / math.sqrt(len(w))
    curvature = 0.0
    for _ in range(power):
        change = (local.gradient(w + reach * direction, draw) - base) / reach
        curvature = float(torch.linalg.vector_norm(change))
        if not curvature > 0:
            break
        direction = change / curvature
    return curvature, float(torch.linalg.vector_norm(base))


def checked_step(
    before: Tensor, after: Tensor, gradient: Tensor, again: Tensor, task: Task
) -> tuple[Tensor, float]:
    """The step (11) once more, and the curvature L_j that it revealed where it went too far.

    With d = after - before and s = pi d . (again - gradient) / |d|^2 + kappa, where `again` is the
    gradient at `after` on the same batch, a step with a_w s > 1.5 goes too far: it is cut to the
    minimiser on the line, d/(a_w s).
    A start where the loss is flat hides the curvature that the probe looks for; this finds it.
    """
    step = after - before
    length = float(step.double().square().sum())
    pi, kappa, rate = (task.scalars[name] for name in ("pi", "kappa", "rate"))
    if not (length > 0 and pi > 0):
        return after, 0.0
    bend = float((again - gradient).double() @ step.double()) / length
    overshoot = rate * (pi * bend + kappa)
    if not overshoot > OVERSHOOT:
        return after, 0.0
    return before + step / overshoot, bend


def check_is_due(reports: int) -> bool:
    """At the first reports in ever larger gaps, then at every fiftieth: about 2 % of them."""
    return reports % 50 == 0 or (reports < 50 and reports & (reports - 1) == 0)


def loss_is_due(local: Local, draws: int, local_steps: int) -> bool:
    """Report the loss so often that it costs at most as many sample passes as the gradients."""
    every = math.ceil(local.loss_samples / (PASSES * local.batch_samples * local_steps))
    return (draws // local_steps) % max(1, every) == 0
