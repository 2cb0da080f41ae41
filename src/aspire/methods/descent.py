"""What the baselines' workers do: local steps of gradient descent, or one gradient.

Rows are workers: all tasks of one kind are worked on together, one task is a row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from aspire.methods.worker import PASSES, columns, loss_is_due, probe
from aspire.problem import sites
from aspire.types import Array, Item, Kind, Local, Report, Task

GRADIENT = {"gradient": Kind(1, vectors=("g",), optional=("loss",))}

Answer = tuple[None, Report]  # these workers remember nothing
Many = Callable[[Sequence[Item]], list[Answer]]
Rows = Callable[[Sequence[Task], Sequence[Local]], list[Report]]

# ---------------------------------------------------------------- tasks of several kinds


def answers(items: Sequence[Item], *, kinds: Mapping[str, Rows], power: int) -> list[Answer]:
    """`work_many` of a baseline: the tasks of each kind together, answers in their order."""
    known: dict[str, Rows] = {"probe": partial(probes, power=power), **kinds}
    found: dict[int, Report] = {}
    for kind in dict.fromkeys(task.kind for _, task, _ in items):
        at = [i for i, (_, task, _) in enumerate(items) if task.kind == kind]
        reports = known[kind]([items[i][1] for i in at], [items[i][2] for i in at])
        found.update(zip(at, reports, strict=True))
    return [(None, found[i]) for i in range(len(items))]


def alone(many: Many, worker: None, task: Task, local: Local) -> Answer:
    """`work` of a baseline: a row by itself."""
    return many([(worker, task, local)])[0]


def probes(tasks: Sequence[Task], locals_: Sequence[Local], *, power: int) -> list[Report]:
    return [probe(task, local, power) for task, local in zip(tasks, locals_, strict=True)]


# ---------------------------------------------------------------- rows


def cost(local: Local, *, gradients: int = 0, losses: int = 0) -> dict[str, float]:
    """What every report carries: a gradient costs three passes over its samples, a loss one."""
    samples = PASSES * gradients * local.batch_samples + losses * local.loss_samples
    return {"gradients": float(gradients), "samples": float(samples)}


def points(tasks: Sequence[Task], name: str = "w") -> Tensor:
    """A vector of each task: (R, p)."""
    return torch.stack([task.vectors[name] for task in tasks])


def drawn(tasks: Sequence[Task]) -> list[int]:
    """How many batches each task's worker has drawn before."""
    return [int(task.scalars["draws"]) for task in tasks]


def descend(tasks: Sequence[Task], locals_: Sequence[Local], steps: int) -> list[Tensor]:
    """The rows after each of `steps` steps w_j <- w_j - rate grad f_j(w_j), on fresh batches."""
    w = points(tasks)
    draws = drawn(tasks)
    path = []
    (rate,) = columns(tasks, ("rate",), w)
    for k in range(steps):
        w = w - rate * sites.gradients(locals_, w, [n + k for n in draws])
        path.append(w)
    return path


def told(task: Task, local: Local, gradients: int) -> dict[str, float]:
    """The numbers of a report: what its gradients cost, and the loss at w when it is due."""
    due = loss_is_due(local, int(task.scalars["draws"]), gradients)
    loss = {"loss": local.loss(task.vectors["w"])} if due else {}
    return cost(local, gradients=gradients, losses=len(loss)) | loss


def gradient_rows(tasks: Sequence[Task], locals_: Sequence[Local]) -> list[Report]:
    """grad f_j(w) on one batch, and the loss at w when it is due."""
    found = sites.gradients(locals_, points(tasks), drawn(tasks))
    return [
        Report(task.worker, task.id, {"g": g}, told(task, local, 1))
        for task, local, g in zip(tasks, locals_, found, strict=True)
    ]


# ---------------------------------------------------------------- master


def weighted(weights: Sequence[float] | Array, rows: Sequence[Tensor]) -> Tensor:
    """sum_r weights_r rows_r / sum_r weights_r in float64; zero where all weights are."""
    share = torch.as_tensor(weights, dtype=torch.float64)
    found = torch.stack(list(rows)).double()
    total = float(share.sum())
    return (share / total if total > 0 else share).to(found.device) @ found


def weighted_gradient(weights: Array, reports: Sequence[Report]) -> Tensor:
    """sum_j weights_j g_j over the reports, the weights renormalised where some are missing."""
    return weighted([weights[r.worker] for r in reports], [r.vectors["g"] for r in reports])
