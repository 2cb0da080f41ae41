"""`select`: which evaluation's model a run gives back, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aspire.arguments import near, shown
from aspire.problem.problem import Problem
from aspire.runs.selection import ACCURACY, LAST, LOSS, RULES, Watched

logger = logging.getLogger("aspire")
TOLD = (  # of an evaluation, in result.json
    *("t", "time", "gradients", "worst_val_loss", "worst_val_accuracy"),
    *("worst_loss", "worst_case_loss", "worst_accuracy", "worst_test_loss"),
)


@dataclass(frozen=True)
class Selected:
    """The evaluation whose model is given back."""

    rule: str  # by which it was found
    line: Mapping[str, Any]  # of the history
    w: Tensor | None = None  # None: the model of the end

    def figures(self) -> dict[str, Any]:
        return {"rule": self.rule, **figures(self.line)}


def selected(
    rule: str | None, watched: Watched | None, history: Sequence[Mapping[str, Any]]
) -> Selected:
    """The best by validation where one was eligible, else the last."""
    watched = watched or Watched()
    best = watched.validation.line
    if watched.w is not None and best is not None:
        return Selected(rule or LOSS, history[best], watched.w)
    if rule in (LOSS, ACCURACY):
        logger.warning(
            "select=%r: no evaluation has a validation figure of every site that was present, so "
            "the last model is taken",
            rule,
        )
    return Selected(LAST, history[-1])


def figures(line: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation says of the worst site."""
    tests = [x for x in line.get("test_losses") or () if x is not None]
    known = {**line, "worst_test_loss": max(tests) if tests else None}
    return {name: known.get(name) for name in TOLD}


def check_select(select: Any, problem: Problem) -> None:
    """ValueError where it is no rule, or where a site whose data is here has no figure for it."""
    if select is None or select == LAST:
        return
    if select not in RULES:
        known = ", ".join(map(repr, RULES))
        raise ValueError(f"select={shown(select)}: expected {known} or None{near(select, RULES)}")
    for name, site in zip(problem.names, problem.sites, strict=True):
        if site is not None and site.val is None:
            raise ValueError(
                f"select={select!r}: site {shown(name)} has no val part: expected one at every "
                "site, or select='last'"
            )
    here = [site for site in problem.sites if site is not None]
    if select == ACCURACY and here and here[0].accuracy(problem.flat.start, here[0].val) is None:
        raise ValueError(
            f"select={select!r}: the model's outputs are no class scores: expected 'worst_loss' or "
            "'last'"
        )
