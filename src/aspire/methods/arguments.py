"""Arguments of the baselines: checked where they are given, guessed where they are None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from aspire.arguments import shown, whole_number
from aspire.core.presets import FLATTEST
from aspire.core.schedules import positive, robust
from aspire.methods.baselines.state import State
from aspire.sets import checks
from aspire.types import Array, Facts, Method, RunFacts

POWER = 12  # power iterations of a probe, where a rate is to be guessed


def check(
    counts: Mapping[str, int | None], rates: Mapping[str, float | None]
) -> dict[str, int | float | None]:
    """Refuse a count below one and a rate that is not positive, by name; give all of them back."""
    for name, value in counts.items():
        if value is not None:
            whole_number(name, value)
    positive(**{name: value for name, value in rates.items() if value is not None})
    return {**counts, **rates}


def prior_over(facts: Facts, prior: Any) -> Array:
    """q over the sites; None: even."""
    n = facts.sites
    q = checks.prior_over(prior, facts.names, facts.samples)
    if q is None and prior is not None:
        raise ValueError(f"prior={shown(prior)}: expected sites whose names and sizes are known")
    if q is None:
        return np.full(n, 1.0 / n)
    if len(q) != n:
        raise ValueError(f"prior has {len(q)} entries: expected one for each of the {n} sites")
    return q


def refit(make: Callable[..., Method], rules: Any) -> Callable[[RunFacts], Method] | None:
    """`Method.fit` where the prior depends on the sites; `rules`: the arguments of `make`."""
    given = {field.name: getattr(rules, field.name) for field in fields(rules)}
    uncertainty = given.pop("uncertainty")
    if uncertainty is None or not uncertainty.pending:
        return None
    return lambda run: make(uncertainty.over(run.names, run.samples), **given)


def first_rate(master: State, rate: float | None) -> float:
    """The given rate, or 1 / max_j L_j with L_j capped at 10 times the median."""
    if rate is not None:
        return rate
    steepest = float(robust(master.curvature[master.present]).max())
    return 1.0 / max(steepest, FLATTEST) if steepest > 0 else 1.0


def first_loss(master: State) -> float:
    """f_0, the median size of the first losses; tiny where that is zero."""
    sizes = np.abs(master.f[master.present])
    return max(float(np.median(sizes)), float(np.finfo(np.float64).tiny))
