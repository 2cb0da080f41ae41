"""Metrics that a user asks for: names of torchmetrics, its objects, or functions."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aspire.arguments import is_number, kind, near, shown
from aspire.problem.failures import calling
from aspire.protocol import ALWAYS, MOST_METRICS

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
ALIASES = {
    "f1": "f1score",
    "mae": "meanabsoluteerror",
    "mse": "meansquarederror",
    "r2": "r2score",
}
EXPECTED = "expected a name of torchmetrics, a torchmetrics object or callable(outputs, targets)"


@dataclass(frozen=True)
class Metric:
    """A figure of a model's outputs and their targets. `given`: a name, an object, a function."""

    name: str
    given: Any

    def on(self, outputs: Tensor, targets: Tensor) -> Scorer:
        """The metric, made for these samples once."""
        with calling(f"the metric {self.name!r}"):
            if isinstance(self.given, str):
                return by_name(self.name, self.given, outputs, targets)
            return Scorer(self.name, fresh(self.given), outputs, targets)


@dataclass(frozen=True)
class Scorer:
    """A metric on samples, or on a resample of them."""

    name: str
    score: Callable[[Tensor, Tensor], Any]
    outputs: Tensor
    targets: Tensor
    contrast: bool = False  # of one class alone it says nothing

    def __call__(self, index: Tensor | None = None) -> float | None:
        """One number; None where it is not defined, as AUROC is not for one class alone."""
        outputs = self.outputs if index is None else self.outputs[index]
        targets = self.targets if index is None else self.targets[index]
        if self.contrast and bool((targets == targets[0]).all()):
            return None
        with calling(f"the metric {self.name!r}"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return number(self.score(outputs, targets))


def metrics_of(given: Any) -> tuple[Metric, ...]:
    """The argument `metrics`: one metric, a list of names, or a mapping name -> metric.

    `loss` and `accuracy` are always there, and may be named.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",")]
    if callable(given):
        given = [given]
    if not isinstance(given, Mapping):
        given = dict(_named(given))
    for name in given:
        if not isinstance(name, str) or not PLAIN.fullmatch(name):
            raise ValueError(
                f"metrics has the name {shown(name)}: expected a plain word of at most 32 letters"
            )
    made = tuple(Metric(n, _checked(n, x)) for n, x in given.items() if n != x or n not in ALWAYS)
    if len(made) > MOST_METRICS:
        raise ValueError(f"metrics names {len(made)}: expected at most {MOST_METRICS}")
    return made


def _named(given: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(given, Iterable):
        raise ValueError(f"metrics={shown(given)}: {EXPECTED}, a list or a mapping of them")
    for one in given:
        name = one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__)
        yield name, one


def _checked(name: str, given: Any) -> Any:
    if name in ALWAYS:
        raise ValueError(f"metrics has the name {name!r}, which is always there: expected another")
    if isinstance(given, str):
        class_named(given)
        return given
    if isinstance(given, type) or not callable(given):
        raise ValueError(f"metrics: {name} is {kind(given)}: {EXPECTED}")
    return given


# ---------------------------------------------------------------- one figure


def fresh(metric: Any) -> Callable[[Tensor, Tensor], Any]:
    """A function of samples; an object of torchmetrics is copied, and begins afresh each time."""
    if not hasattr(metric, "reset"):
        return metric  # type: ignore[no-any-return]
    own = copy.deepcopy(metric)

    def score(outputs: Tensor, targets: Tensor) -> Any:
        own.reset()
        own.update(outputs, targets)
        return own.compute()

    return score


def number(value: Any) -> float | None:
    """One finite number, or None for one that is not finite."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = float(value)
    if not is_number(value):
        raise ValueError(f"it gave {shown(value)}: expected one number")
    return float(value) if abs(value) < float("inf") else None


def class_named(name: str) -> Any:
    """The class of torchmetrics with this name, whatever its capitals."""
    try:
        import torchmetrics
    except ImportError:
        raise ValueError(
            f"metrics={name!r} needs torchmetrics: install aspire-ease[metrics], or give a "
            "callable(outputs, targets)"
        ) from None
    base = torchmetrics.Metric
    kinds = [x for x in vars(torchmetrics).values() if isinstance(x, type) and issubclass(x, base)]
    known = {x.__name__.lower(): x for x in kinds}
    found = known.get(ALIASES.get(name.lower(), name.lower()))
    if found is None:
        hint = near(name.lower(), [*ALIASES, *known])
        raise ValueError(f"metrics={name!r}: expected a name of torchmetrics{hint}")
    return found


def by_name(name: str, given: str, outputs: Tensor, targets: Tensor) -> Scorer:
    """Of torchmetrics: on class scores where it knows tasks, else on the numbers themselves.

    Two classes are a binary task, whose score is the probability of class 1; more are averaged
    with equal weights.
    """
    made = class_named(given)
    known = inspect.signature(made).parameters
    if "task" not in known:
        outputs = outputs.reshape(targets.shape) if outputs.numel() == len(targets) else outputs
        return Scorer(name, fresh(made()), outputs, targets)
    about, chances = task_of(outputs, targets)
    if "average" in known and about["task"] != "binary":
        about["average"] = "macro"
    shape = chances.shape if about["task"] == "multilabel" else chances.shape[:1]
    return Scorer(name, fresh(made(**about)), chances, targets.reshape(shape).long(), contrast=True)


def task_of(outputs: Tensor, targets: Tensor) -> tuple[dict[str, Any], Tensor]:
    """The arguments of a classification metric, and the probabilities that it looks at."""
    if outputs.ndim == 2 and outputs.shape[1] > 1 and targets.ndim == 1:
        chances = outputs.float().softmax(1)
        if outputs.shape[1] == 2:
            return {"task": "binary"}, chances[:, 1]
        return {"task": "multiclass", "num_classes": outputs.shape[1]}, chances
    if outputs.numel() != targets.numel() or not bool(((targets == 0) | (targets == 1)).all()):
        raise ValueError("it is for classes: expected class scores and class numbers, or 0 and 1")
    if outputs.numel() == len(targets):
        return {"task": "binary"}, outputs.float().reshape(-1).sigmoid()
    return {"task": "multilabel", "num_labels": outputs.shape[1]}, outputs.float().sigmoid()
