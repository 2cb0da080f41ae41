"""What a line of history says about the sites, on every engine in the same words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import numpy as np

from aspire.problem.problem import Figures
from aspire.protocol import answer_objection, figures_objection
from aspire.sets import UncertaintySet
from aspire.types import Array, As, Count, Flat, Id, Report, Worker

Line = Annotated[dict[str, Any], As(dict[str, float | list[float | None] | None])]  # of history
# Who was away from which iteration to which; None: to the end.
Away = TypedDict("Away", {"site": Worker, "from": Count, "to": Count | None, "reason": str})


@dataclass
class Evaluation:
    """A question to every site, and what was answered so far."""

    id: Id
    w: Flat
    line: Line  # what the master knew when it asked
    since: float
    answers: dict[Worker, dict[str, float]] = field(default_factory=dict)

    def objection(self, answer: Report) -> str | None:
        """Why an answer must be refused, or None."""
        return answer_objection(answer)


@dataclass
class FinalFigures(Evaluation):
    """The question for figures with intervals, after the last event: in no checkpoint."""

    bound: float | None = None  # where losses are cut off for the certificate
    metrics: tuple[str, ...] = ()

    def objection(self, answer: Report) -> str | None:
        return figures_objection(answer, self.metrics)


def answered(asked: Evaluation, sites: int) -> tuple[Figures, tuple[Array, Array, Array]]:
    """What the sites said, and how many training, test and validation samples it is about."""
    figures = Figures(
        _column(asked, "loss", sites),
        _column(asked, "test_loss", sites),
        _known(_column(asked, "accuracy", sites)),
        _known(_column(asked, "val_loss", sites)),
        _known(_column(asked, "val_accuracy", sites)),
    )
    trained, tested, validated = (
        _column(asked, name, sites) for name in ("samples", "test_samples", "val_samples")
    )
    for counts in (tested, validated):
        counts[np.isnan(counts) & np.isfinite(trained)] = 0.0
    return figures, (trained, tested, validated)


def scored(figures: Figures, uncertainty: UncertaintySet) -> dict[str, Any]:
    """What a line of history says about the sites.

    `losses` and all that is formed of them are on the training parts. The worst is the worst of the
    sites that answered, and the worst case is over those.
    """
    losses = figures.train_losses
    accuracies = figures.accuracies
    told = losses.tolist()
    vals = _told(figures.val_losses)
    val_accuracies = _told(figures.val_accuracies)
    here = np.isfinite(losses)
    over = uncertainty if here.all() else uncertainty.restrict(here) if here.any() else None
    return {
        "losses": told,
        "train_losses": told,
        "test_losses": _told(figures.test_losses),
        "val_losses": vals,
        "worst_loss": float(np.nanmax(losses)) if here.any() else math.nan,
        "worst_case_loss": math.nan if over is None else over.value(losses[here]),
        "accuracies": None if accuracies is None else accuracies.tolist(),
        "worst_accuracy": None if accuracies is None else float(np.nanmin(accuracies)),
        "worst_val_loss": None if vals is None else max(x for x in vals if x is not None),
        "val_accuracies": val_accuracies,
        "worst_val_accuracy": (
            None if val_accuracies is None else min(x for x in val_accuracies if x is not None)
        ),
    }


def evaluated_on(test_samples: Array) -> str:
    """Where accuracies are from: 'test' or 'train' parts, 'mixed', 'none' where nobody answered."""
    known = test_samples[np.isfinite(test_samples)] > 0
    if not known.size:
        return "none"
    if known.all():
        return "test"
    return "mixed" if known.any() else "train"


def _told(values: Array | None) -> list[float | None] | None:
    """With None for what is not known; None where nothing is."""
    if values is None or not np.isfinite(values).any():
        return None
    return [x if math.isfinite(x) else None for x in values.tolist()]


def _known(values: Array) -> Array | None:
    return values if np.isfinite(values).any() else None


def _column(asked: Evaluation, name: str, sites: int) -> Array:
    return np.array([asked.answers.get(j, {}).get(name, math.nan) for j in range(sites)])
