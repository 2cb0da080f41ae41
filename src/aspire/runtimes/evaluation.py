"""A line of history from the sites' own answers: the same keys as the simulator's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from aspire.sets import UncertaintySet


@dataclass
class Evaluation:
    """A question to every site, and what was answered so far."""

    id: int
    w: Tensor
    line: dict[str, Any]  # what the master knew when it asked
    since: float
    answers: dict[int, dict[str, float]] = field(default_factory=dict)


def history_line(asked: Evaluation, sites: int, uncertainty: UncertaintySet) -> dict[str, Any]:
    """Losses of sites that gave no answer are nan; the worst is the worst of those that did."""
    losses = _column(asked, "loss", sites)
    accuracies = _column(asked, "accuracy", sites)
    here = np.isfinite(losses)
    known = bool(np.isfinite(accuracies).any())
    over = uncertainty if here.all() else uncertainty.restrict(here) if here.any() else None
    return asked.line | {
        "losses": losses.tolist(),
        "worst_loss": float(np.nanmax(losses)) if here.any() else math.nan,
        "worst_case_loss": math.nan if over is None else over.value(losses[here]),
        "accuracies": accuracies.tolist() if known else None,
        "worst_accuracy": float(np.nanmin(accuracies)) if known else None,
    }


def evaluated_on(asked: Evaluation) -> str:
    """'test' where every site that answered has a test part, 'train' where none has, or 'mixed'."""
    parts = {bool(answer.get("test")) for answer in asked.answers.values()}
    return "mixed" if len(parts) != 1 else "test" if parts.pop() else "train"


def _column(asked: Evaluation, name: str, sites: int) -> Any:
    return np.array([asked.answers.get(j, {}).get(name, math.nan) for j in range(sites)])
