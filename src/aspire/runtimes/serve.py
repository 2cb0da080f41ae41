"""The worker's side of every engine: one task in, one report out, where the data is.

Besides the method's own tasks there are evaluations: kind `evaluate`, a negative id, the model as
`w`. The answer is for the history; no method ever sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from aspire.methods.worker import NoState
from aspire.sites import Site
from aspire.types import Method, Report, Task

__all__ = ["EVALUATE", "Crew", "NoState", "evaluation_tasks", "look_ahead", "serve"]

EVALUATE = "evaluate"
Crew = Sequence[Callable[[], tuple[Method, Site]]]  # one a site, called where its data is


def serve(method: Method, local: Site, worker: Any, task: Task) -> tuple[Any, Report]:
    """Do one task; `worker` is what this worker remembers, None in a new process.

    Raises NoState where a new process got a task for an old one: ask for it again (say `Back`).
    """
    device = local.train.device
    if device != "cpu":
        task = replace(task, vectors={k: v.to(device) for k, v in task.vectors.items()})
    if task.kind == EVALUATE:
        return worker, evaluation(local, task)
    worker, report = method.work(worker, task, local)
    if device != "cpu":
        report = replace(report, vectors={k: v.cpu() for k, v in report.vectors.items()})
    return worker, report


def look_ahead(method: Method, local: Site, worker: Any, task: Task) -> Any:
    """Begin on the task after this one, whose report is out; the worker as it is then."""
    if method.ahead is None or task.kind == EVALUATE:
        return worker
    return method.ahead(worker, task, local)


def evaluation(local: Site, task: Task) -> Report:
    """The loss on the training part, the accuracy on the test part where there is one."""
    w = task.vectors["w"]
    said = {"loss": local.full_loss(w), "samples": float(local.train.size)}
    accuracy = local.accuracy(w)
    if accuracy is not None:
        said["accuracy"] = accuracy
    said["test"] = float(local.test is not None)
    return Report(task.worker, task.id, {}, said)


def evaluation_tasks(workers: Sequence[int], id: int, w: Tensor) -> list[Task]:
    """The same question to each of them; `id` is negative."""
    return [Task(j, id, EVALUATE, {"w": w}) for j in workers]
