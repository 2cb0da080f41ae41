"""The worker's side of every engine: one task in, one report out, where the data is.

Besides the method's own tasks there are questions with a negative id: kind `evaluate`, whose answer
is for the history, `figures` at the end, both with the model as `w`, and `survey` before the start.
No method ever sees them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from aspire.engines import survey
from aspire.engines.carrier import Crew
from aspire.problem.figures import figures_of
from aspire.problem.sites import Site
from aspire.protocol import EVALUATION, FIGURES, LARGEST, SURVEY, NoState, task_objection
from aspire.runs.evaluation import Evaluation, FinalFigures
from aspire.types import Kind, Method, Report, Task

__all__ = ["Crew", "NoState", "look_ahead", "objection", "questions", "serve"]

logger = logging.getLogger("aspire")
EVALUATE = "evaluate"
AT_THE_END = "figures"
# the kinds of questions
ASKED = {EVALUATE: EVALUATION, AT_THE_END: FIGURES, survey.SURVEY: SURVEY}


def objection(
    task: Task, kinds: Mapping[str, Kind], *, parameters: int, dtype: torch.dtype
) -> str | None:
    """Why a worker must not do a task, or None."""
    asked = task.kind in ASKED
    kind = ASKED[task.kind] if asked else kinds.get(task.kind)
    if kind is None or asked != (task.id < 0):
        known = ", ".join([*kinds, *(f"{name} with a negative id" for name in ASKED)])
        return f"kind {task.kind!r}: expected one of {known}"
    return task_objection(task, kind, parameters=parameters, dtype=dtype)


def serve(method: Method, local: Site, worker: Any, task: Task) -> tuple[Any, Report]:
    """Do one task; `worker` is what this worker remembers, None in a new process.

    Raises NoState where a new process got a task for an old one: ask for it again (say `Back`).
    """
    device = local.train.device
    if device != "cpu":
        task = replace(task, vectors={k: v.to(device) for k, v in task.vectors.items()})
    if task.kind == EVALUATE:
        return worker, evaluation(local, task)
    if task.kind == survey.SURVEY:
        return worker, survey.survey(local, task)
    if task.kind == AT_THE_END:
        found = figures_of(local, task.vectors["w"], task.scalars["bound"] or None)
        return worker, Report(task.worker, task.id, {}, found)
    worker, report = method.work(worker, task, local)
    if device != "cpu":
        report = replace(report, vectors={k: v.cpu() for k, v in report.vectors.items()})
    return worker, report


def look_ahead(method: Method, local: Site, worker: Any, task: Task) -> Any:
    """Begin on the task after this one, whose report is out; the worker as it is then."""
    ahead = None if method.fast is None else method.fast.ahead
    if ahead is None or task.kind in ASKED:
        return worker
    return ahead(worker, task, local)


def evaluation(local: Site, task: Task) -> Report:
    """The losses on all parts, and the accuracy on the test part where there is one.

    A test or validation loss that is no number is left out: nobody trains on it, so it is no reason
    to end a run.
    """
    found = local.scores(task.vectors["w"])
    said = {"loss": found.train_loss, "samples": float(local.train.size)}
    if found.accuracy is not None:
        said["accuracy"] = found.accuracy
    said["test"] = float(local.test is not None)
    if local.test is not None:
        said["test_samples"] = float(local.test.size)
    if found.test_loss is not None and abs(found.test_loss) <= LARGEST:
        said["test_loss"] = found.test_loss
    if local.val is not None:
        said["val_samples"] = float(local.val.size)
    if found.val_loss is not None and abs(found.val_loss) <= LARGEST:
        said["val_loss"] = found.val_loss
    if found.val_accuracy is not None:
        said["val_accuracy"] = found.val_accuracy
    return Report(task.worker, task.id, {}, said)


def questions(workers: Sequence[int], asked: Evaluation) -> list[Task]:
    """The same question to each of them."""
    if isinstance(asked, FinalFigures):
        numbers = {"bound": asked.bound or 0.0}
        return [Task(j, asked.id, AT_THE_END, {"w": asked.w}, numbers) for j in workers]
    return [Task(j, asked.id, EVALUATE, {"w": asked.w}) for j in workers]


def say_conversions(notes: Iterable[str]) -> None:
    """One line for all that was converted at all sites; `notes` are those of `Site.notes`."""
    found = list(dict.fromkeys(notes))
    if found:
        logger.warning("converted: %s", ", ".join(found))
