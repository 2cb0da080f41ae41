"""What may be said: every message between a master and its workers is checked here.

A `Kind` lists the names that a kind of task and its report use, and what the work may cost. A name
that is not listed is refused, and so is a number outside its range: what a site says reaches logs,
sums and divisions, and a site may lie. The functions give a reason, or None; they read only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from aspire.types import Kind, Method, Report, Task

LARGEST = 1e12  # size of a loss or of an entry of a vector, and most samples of one report
HUGE = 1e30  # size of any other number: sums and squares of such are still finite
COUNT = 2.0**53  # whole numbers up to here are exact
SHOWN = 64  # letters of a name that a sentence shows

RANGES: dict[str, tuple[float, float]] = {
    "loss": (-LARGEST, LARGEST),
    "reference": (-LARGEST, LARGEST),
    "loss_before": (-LARGEST, LARGEST),
    "test_loss": (-LARGEST, LARGEST),
    "val_loss": (-LARGEST, LARGEST),
    "curvature": (0.0, HUGE),
    "slope": (0.0, HUGE),
    "accuracy": (0.0, 1.0),
    "val_accuracy": (0.0, 1.0),
    "pi": (0.0, HUGE),
    "kappa": (0.0, HUGE),
    "rate": (0.0, HUGE),
    "gradients": (0.0, COUNT),
    "samples": (0.0, LARGEST),
    "loss_samples": (0.0, LARGEST),
    "test": (0.0, 1.0),
    "test_samples": (0.0, LARGEST),
    "val_samples": (0.0, LARGEST),
    "draws": (0.0, COUNT),
    "numbers": (0.0, LARGEST),
    "part": (0.0, LARGEST),
    "bound": (0.0, LARGEST),
}
WHOLE = {"gradients", "samples", "loss_samples", "test", "test_samples", "val_samples", "draws"}
WHOLE |= {"numbers", "part"}
COST = ("gradients", "samples")  # in every report
PARTS = ("train", "val", "test")
ALWAYS = ("loss", "accuracy")  # figures that nobody has to ask for
MOST_METRICS = 12  # besides these
FIELDS = ("value", "n", "low", "high")  # of a figure; the last two together or not at all
RIGHT = ("tested.right", "tested.judged")  # for a certificate
CUT_OFF = ("tested.loss", "tested.n", "tested.bound")  # likewise
PLAIN = re.compile(r"(?!(n|time|event|worker|task|vectors)$)[A-Za-z_][A-Za-z0-9_]{0,63}")


class NoState(ValueError):
    """A new process was handed a task that counts on what an old one remembered."""


def probe_kind(power: int) -> Kind:
    """The start-up probe: the loss, and with power iterations the curvature and the slope."""
    found = ("loss", "curvature", "slope") if power else ("loss",)
    return Kind(batches=1, gradients=power + 1 if power else 0, scalars=found)


EVALUATION = Kind(
    scalars=("loss", "samples"),
    optional=(
        *("accuracy", "test", "test_loss", "test_samples"),
        *("val_loss", "val_accuracy", "val_samples"),
    ),
)
FIGURES = Kind(numbers=("bound",))  # where losses are cut off; 0: as the site has it


# Before the training: how many training samples a site has, and a part of the moments of its inputs
SURVEY = Kind(scalars=("samples", "numbers"), given=(), numbers=("part",))
MOMENTS = "moments"  # the vector in the answer, where there are such numbers


# ---------------------------------------------------------------- what a site says


def report_objection(
    report: Report, kind: Kind, *, parameters: int, dtype: torch.dtype
) -> str | None:
    """Why a report on a task of this kind must be refused."""
    j = report.worker
    reason = name_objection(report, kind) or _odd_number(report.scalars)
    if reason is None and report.scalars["gradients"] > kind.most_gradients:
        reason = (
            f"gradients={report.scalars['gradients']:g}: expected at most {kind.most_gradients}"
        )
    if reason is None:
        reason = _odd_vector(report.vectors, parameters, dtype)
    return None if reason is None else f"worker {j} reports {reason}"


def name_objection(report: Report, kind: Kind | None) -> str | None:
    """What is missing in a report, or has no place there; any plain name where no kind is known."""
    if kind is None:
        strange = [n for n in (*report.vectors, *report.scalars) if not PLAIN.fullmatch(n)]
        return f"{strange[0][:SHOWN]!r}: expected a plain name" if strange else None
    return _odd_names(report.vectors, kind.vectors, ()) or _odd_names(
        report.scalars, (*COST, *kind.scalars), kind.optional
    )


def answer_objection(answer: Report) -> str | None:
    """Why an answer to an evaluation must be refused."""
    reason = (
        _odd_names(answer.vectors, (), ())
        or _odd_names(answer.scalars, EVALUATION.scalars, EVALUATION.optional)
        or _odd_number(answer.scalars)
    )
    return None if reason is None else f"worker {answer.worker} answers {reason}"


def survey_objection(answer: Report, *, parameters: int, dtype: torch.dtype) -> str | None:
    """Why an answer to a survey must be refused."""
    reason = _odd_names(answer.scalars, SURVEY.scalars, ()) or _odd_number(answer.scalars)
    if reason is None:
        needed = (MOMENTS,) if answer.scalars["numbers"] else ()
        reason = _odd_names(answer.vectors, needed, ())
    return reason or _odd_vector(answer.vectors, parameters, dtype)


def figures_objection(answer: Report, metrics: Collection[str]) -> str | None:
    """Why an answer with figures must be refused; `metrics` are those that were asked for."""
    said = answer.scalars
    figures = {f"{part}.{metric}" for part in PARTS for metric in (*ALWAYS, *metrics)}
    reason = _odd_names(answer.vectors, (), ())
    for name, value in said.items():
        figure, _, field = name.rpartition(".")
        known = name in (*RIGHT, *CUT_OFF) or (figure in figures and field in FIELDS)
        if not known or not abs(value) <= LARGEST:
            reason = reason or f"{name[:SHOWN]}={value:g}: expected a figure that was asked for"
        elif not (_of_a_test(said) if figure == "tested" else _whole_figure(figure, said)):
            reason = reason or f"{name}={value:g}: expected a value, its n and an interval or none"
    return None if reason is None else f"worker {answer.worker} answers {reason}"


def _whole_figure(name: str, said: Mapping[str, float]) -> bool:
    """A value, how many samples it is of, and both ends of an interval or none."""
    there = [f"{name}.{field}" in said for field in FIELDS]
    if there not in ([True, True, True, True], [True, True, False, False]):
        return False
    if name.endswith(".accuracy") and not 0 <= said[f"{name}.value"] <= 1:
        return False
    low = said.get(f"{name}.low", 0.0)
    return _is_count(said[f"{name}.n"]) and low <= said.get(f"{name}.high", 0.0)


def _of_a_test(said: Mapping[str, float]) -> bool:
    """So many right of those judged, and a mean of losses between 0 and a bound."""
    right, judged = (said.get(name, 1.0) for name in RIGHT)
    loss, n, bound = (said.get(name, 1.0) for name in CUT_OFF)
    whole = all(
        len([x for x in group if x in said]) in (0, len(group)) for group in (RIGHT, CUT_OFF)
    )
    counts = right == int(right) and _is_count(judged) and _is_count(n)
    return whole and counts and 0 <= right <= judged and 0 <= loss <= bound


def _is_count(value: float) -> bool:
    return 1 <= value <= LARGEST and value == int(value)


# ---------------------------------------------------------------- what a master says


def task_objection(task: Task, kind: Kind, *, parameters: int, dtype: torch.dtype) -> str | None:
    """Why a worker must not do a task of this kind."""
    return (
        task_name_objection(task, kind)
        or _odd_number(task.scalars)
        or _odd_vector(task.vectors, parameters, dtype)
    )


def task_name_objection(task: Task, kind: Kind) -> str | None:
    """What is missing in a task, or has no place there."""
    asked = any(kind is one for one in (EVALUATION, FIGURES, SURVEY))
    numbers = kind.numbers if asked else (*kind.numbers, "draws")
    return _odd_names(task.vectors, kind.given, kind.resent) or _odd_names(
        task.scalars, numbers, ()
    )


def out_of_range(task: Task) -> str | None:
    """What in a task its worker would refuse to compute with, whatever the task's kind."""
    return _odd_number(task.scalars) or _odd_size(task.vectors)


# ---------------------------------------------------------------- names, numbers, vectors


def _odd_names(
    said: Collection[str], needed: Collection[str], optional: Collection[str]
) -> str | None:
    if len(said) == len(needed) and all(map(said.__contains__, needed)):
        return None
    missing = [name for name in needed if name not in said]
    strange = [name for name in said if name not in needed and name not in optional]
    if not missing and not strange:
        return None
    names = sorted(str(name)[:SHOWN] for name in said)
    expected = ", ".join([*needed, *(f"perhaps {name}" for name in optional)]) or "nothing"
    what = "incomplete" if missing else "too much"
    return f"{names}: {what}, expected {expected}"


def _odd_number(scalars: Mapping[str, float]) -> str | None:
    for name, value in scalars.items():
        low, high = RANGES.get(name, (-HUGE, HUGE))
        if not (math.isfinite(value) and low <= value <= high):
            return f"{name}={value:g}: expected a number from {low:g} to {high:g}"
        if name in WHOLE and value != int(value):
            return f"{name}={value:g}: expected a whole number"
    return None


def _odd_vector(vectors: Mapping[str, Tensor], parameters: int, dtype: torch.dtype) -> str | None:
    for name, x in vectors.items():
        if x.dtype != dtype or x.shape != (parameters,):
            return (
                f"{name} of shape {tuple(x.shape)} and type {x.dtype}: "
                f"expected {(parameters,)} and {dtype}"
            )
    return _odd_size(vectors)


def _odd_size(vectors: Mapping[str, Tensor]) -> str | None:
    for name, x in vectors.items():
        largest = size(x)
        if not math.isfinite(largest):
            return f"{name} with values that are not finite"
        if largest > LARGEST:
            return f"{name} with a value of size {largest:g}: expected at most {LARGEST:g}"
    return None


def size(x: Tensor) -> float:
    """max_i |x_i|, 0 of an empty vector; nan where an entry is."""
    if not x.numel():
        return 0.0
    low, high = torch.aminmax(x)
    return max(abs(float(low)), abs(float(high)))


def method_objection(method: Method, task: Task) -> str | None:
    """Why a task is none of this method's; nothing is known where it does not list its kinds."""
    if not method.kinds:
        return None
    kind = method.kinds.get(task.kind)
    return f"a task of kind {task.kind!r}" if kind is None else task_name_objection(task, kind)
