"""Whether a run has converged: a rule over its history, stated in docs/guide.md.

The figure is the worst-case training loss over the set, or the worst validation loss where every
evaluation has one. A line is fitted to it over the last quarter and over the last half of the
evaluations, at least 5 each. What the line falls from the first of them to the last is the fall of
that stretch, and the standard error of that its noise.

The figure is still falling when the last quarter falls, and one of these holds:
- the fall of the last quarter, or that of the last half, is more than twice its noise;
- the last quarter's is more than its noise and more than SHARE of all that the figure fell before.
A fall of at most SHARE of the fall before and of at most FLAT of the figure itself does not count.
It is rising when the last quarter rises by more than twice its noise and more than FLAT of it.
Otherwise it has settled: the run has converged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aspire.types import Array

WINDOW = 5  # evaluations that a line is fitted to, at least
FEWEST = 2 * WINDOW  # evaluations with which anything is said
SHARE = 0.02  # of the fall before
FLAT = 0.001  # of the figure itself
SETTLED = "settled"
FALLING = "still falling"
RISING = "rising"
TRAINING = "worst-case training loss"
VALIDATION = "worst validation loss"


def figure(history: Sequence[Mapping[str, Any]]) -> tuple[str, Array, Array]:
    """What the rule is about, its iterations and its values."""
    validated = all(line.get("worst_val_loss") is not None for line in history)
    name, key = (VALIDATION, "worst_val_loss") if validated else (TRAINING, "worst_case_loss")
    rows = [(line["t"], line[key]) for line in history if line.get(key) is not None]
    steps, values = np.array(rows, dtype=float).reshape(-1, 2).T
    known = np.isfinite(values)
    return name, steps[known], values[known]


def trend(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Settled, still falling or rising; None: too few evaluations to say."""
    _, steps, values = figure(history)
    if len(values) < FEWEST:
        return None
    quarter, half = (max(WINDOW, -(-len(values) // parts)) for parts in (4, 2))
    fall, noise = fitted_fall(steps[-quarter:], values[-quarter:])
    longer, its_noise = fitted_fall(steps[-half:], values[-half:])
    level = float(values[-quarter:].mean())
    share = SHARE * max(values[0] - level, 0.0)
    flat = FLAT * abs(level)
    if fall > 0 and not (fall <= share and fall <= flat):
        clear = fall > 2 * noise or longer > 2 * its_noise
        return FALLING if clear or (fall > noise and fall > share) else SETTLED
    return RISING if -fall > max(2 * noise, flat) else SETTLED


def fitted_fall(steps: Array, values: Array) -> tuple[float, float]:
    """What the least-squares line falls from the first step to the last; its standard error."""
    x = steps - steps.mean()
    spread = float((x**2).sum())
    if not spread:
        return 0.0, 0.0
    slope = float((x * values).sum()) / spread
    residuals = values - values.mean() - slope * x
    error = np.sqrt(float((residuals**2).sum()) / (len(values) - 2) / spread)
    span = float(steps[-1] - steps[0])
    return -slope * span, float(error) * span
