"""What the baselines' workers do: local steps of gradient descent, or one gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from aspire.methods.state import Kind, State
from aspire.methods.worker import PASSES, loss_is_due, probe
from aspire.types import Array, Local, Report, Task

GRADIENT = {"gradient": Kind(1, vectors=("g",))}


def cost(local: Local, *, gradients: int = 0, losses: int = 0) -> dict[str, float]:
    """What every report carries: a gradient costs three passes over its samples, a loss one."""
    samples = PASSES * gradients * local.batch_samples + losses * local.loss_samples
    return {"gradients": float(gradients), "samples": float(samples)}


def iterates(w: Tensor, local: Local, *, draws: int, steps: int, rate: float) -> list[Tensor]:
    """w after each of `steps` steps w <- w - rate grad f_j(w), each on a fresh batch."""
    path = []
    for n in range(draws, draws + steps):
        w = w - rate * local.gradient(w, n)
        path.append(w)
    return path


def gradient_at(worker: None, task: Task, local: Local, *, power: int) -> tuple[None, Report]:
    """grad f_j(w) on one batch, and the loss at w when it is due."""
    if task.kind == "probe":
        return None, probe(task, local, power)
    w, draws = task.vectors["w"], int(task.scalars["draws"])
    due = loss_is_due(local, draws, 1)
    scalars = cost(local, gradients=1, losses=int(due))
    if due:
        scalars["loss"] = local.loss(w)
    return None, Report(task.worker, task.id, {"g": local.gradient(w, draws)}, scalars)


def weighted_gradient(master: State, weights: Array, reports: list[Report]) -> Tensor:
    """sum_j weights_j g_j over the reports, the weights renormalised where some are missing."""
    total = sum(float(weights[report.worker]) for report in reports)
    slope = torch.zeros_like(master.w)
    if total > 0:
        for report in reports:
            slope += float(weights[report.worker]) / total * report.vectors["g"].double()
    return slope
