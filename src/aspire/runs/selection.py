"""Which evaluation was the best so far, by the worst site: it chooses the model and ends the run.

An evaluation is judged over the sites that are present when the newest one is taken. One that lacks
a figure of such a site is not eligible: neither the newest, nor the best so far when somebody who
was away then has returned. What is found here never reaches a method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from aspire.types import Count, Flat

LOSS = "worst_loss"
ACCURACY = "worst_accuracy"
LAST = "last"
RULES = (LOSS, ACCURACY, LAST)
TRAINING = "worst training loss"
Figure = tuple[float, ...]  # the smaller, the better


@dataclass
class Best:
    """The best evaluation so far by one figure."""

    line: Count | None = None  # its place in the history; None: none is eligible
    since: Count = 0  # evaluations after it, or after the run was extended
    seen: bool = False  # whether one was ever eligible


@dataclass
class Watched:
    """All that is remembered of the evaluations besides the history: data only."""

    validation: Best = field(default_factory=Best)
    training: Best = field(default_factory=Best)
    w: Flat | None = None  # the model of the best by validation; None: the last is wanted, or none

    def check(self) -> None:
        if self.w is not None and self.validation.line is None:
            raise ValueError("a model was selected at no evaluation")

    def lines(self) -> list[int]:
        """The places in the history that it names."""
        return [x.line for x in (self.validation, self.training) if x.line is not None]

    def stalled(self) -> int:
        """Evaluations without a better one: of validation, or of training where that is all."""
        return self.validation.since if self.validation.seen else self.training.since

    def restart(self) -> None:
        """The run is extended: it is given its patience anew."""
        self.validation.since = self.training.since = 0

    def look(
        self,
        history: Sequence[Mapping[str, Any]],
        away: Collection[int],
        rule: str | None,
        model: Callable[[], Tensor],
    ) -> None:
        """Judge the newest evaluation; `model` gives the vector that it was of."""
        kind = ACCURACY if rule == ACCURACY else LOSS
        better = update(self.training, history, away, TRAINING)
        better = update(self.validation, history, away, kind)
        if rule == LAST or self.validation.line is None:
            self.w = None
        elif better:
            self.w = model().detach().clone()


def update(
    best: Best, history: Sequence[Mapping[str, Any]], away: Collection[int], kind: str
) -> bool:
    """Whether the newest evaluation is the best; of equals the earlier one stays."""
    newest = figure(history[-1], away, kind)
    before = None if best.line is None else figure(history[best.line], away, kind)
    if newest is not None and (before is None or newest < before):
        best.line = len(history) - 1
        best.since = 0
        best.seen = True
        return True
    if before is None:
        best.line = None
    best.since += 1
    return False


def figure(line: Mapping[str, Any], away: Collection[int], kind: str) -> Figure | None:
    """The worst over the sites that are not away; None where one of them has no figure.

    Where the adversary works on f_j - r_j, so does this: else a site whose labels are noise, and
    whose loss is the lower the less was learned, would choose the model.
    """
    losses = present(regrets(line, "losses" if kind == TRAINING else "val_losses"), away)
    if losses is None:
        return None
    if kind != ACCURACY:
        return (max(losses),)
    accuracies = present(line["val_accuracies"], away)
    return None if accuracies is None else (-min(accuracies), max(losses))


def regrets(line: Mapping[str, Any], name: str) -> Sequence[float | None] | None:
    """The losses of that name, less the references where the line has any."""
    losses: Sequence[float | None] | None = line[name]
    references = line.get("references")
    if losses is None or references is None:
        return losses
    pairs = zip(losses, references, strict=True)
    return [None if loss is None else loss - reference for loss, reference in pairs]


def present(values: Sequence[float | None] | None, away: Collection[int]) -> list[float] | None:
    """Those of the sites that are not away, if all of them are known."""
    found = [x for j, x in enumerate(values or ()) if j not in away]
    known = [x for x in found if x is not None and math.isfinite(x)]
    return known if known and len(known) == len(found) else None
