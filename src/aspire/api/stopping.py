"""Why a run ends: its limits, a figure that no longer improves, or its time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from aspire.arguments import real_number, whole_number
from aspire.runs.selection import Watched

ITERATIONS = "iterations"
GRADIENTS = "gradients"
PATIENCE = "patience_evaluations"
SECONDS = "max_seconds"
CALLBACKS = "callbacks"
USUAL = 2000  # iterations where no limit is given


@dataclass(frozen=True)
class RunLimits:
    """How long a run may be, and how often it is evaluated; None: no limit."""

    iterations: int | None
    gradients: int | None
    evaluate_every: int
    patience_evaluations: int | None
    max_seconds: float | None


def limits_of(
    iterations: Any,
    gradients: Any,
    evaluate_every: Any,
    patience_evaluations: Any,
    max_seconds: Any,
) -> RunLimits:
    """Those of a new run, checked; evaluate_every=None: 20 times in all."""
    if iterations is None and gradients is None:
        iterations = USUAL
    if iterations is not None:
        iterations = whole_number(ITERATIONS, iterations)
    if gradients is not None:
        gradients = whole_number(GRADIENTS, gradients)
    if evaluate_every is None:
        evaluate_every = max(1, math.ceil((iterations or gradients) / 20))
    evaluate_every = whole_number("evaluate_every", evaluate_every, least=0)
    others = check_stopping(patience_evaluations, max_seconds, evaluate_every)
    return RunLimits(iterations, gradients, evaluate_every, *others)


def check_stopping(
    patience_evaluations: Any, max_seconds: Any, evaluate_every: int
) -> tuple[int | None, float | None]:
    """Both limits, checked; None: there is none."""
    if patience_evaluations is not None:
        patience_evaluations = whole_number(PATIENCE, patience_evaluations)
        if not evaluate_every:
            raise ValueError(
                f"{PATIENCE}={patience_evaluations} with evaluate_every=0: expected evaluations "
                "before the end"
            )
    if max_seconds is not None:
        max_seconds = real_number(SECONDS, max_seconds, "a positive number of seconds", above=0.0)
    return patience_evaluations, max_seconds


@dataclass
class Stopping:
    """Asked after evaluations and steps; once it has found a reason it stays with it."""

    patience_evaluations: int | None = None
    max_seconds: float | None = None
    reason: str | None = None

    def look(self, watched: Watched, seconds: float, *, asked: bool = False) -> bool:
        """Whether the run ends here though it has not reached its limits.

        `asked`: a callback wants it to end.
        """
        if self.reason is None and self._impatient(watched):
            self.reason = PATIENCE
        elif self.reason is None and self._late(seconds):
            self.reason = SECONDS
        elif self.reason is None and asked:
            self.reason = CALLBACKS
        return self.reason is not None

    def _impatient(self, watched: Watched) -> bool:
        most = self.patience_evaluations
        return most is not None and watched.stalled() >= most

    def _late(self, seconds: float) -> bool:
        return self.max_seconds is not None and seconds >= self.max_seconds
