"""Settings by random search: the same budget for every method, validation instead of test parts.

20 trials per method and data set, half the gradient budget, the mean of five seeds
(`cells.folded`). Trial 0 has the method's own defaults; trials 1 to 19 are drawn around it, seeded
by (method, trial). A trial is scored by the worst site's accuracy on a tenth of each training part,
less the spread over sites, in the mean over its seeds.
`TIMED` settings are the same trials' best by the mean of that accuracy over the logarithm of
virtual time, for the experiment `time`: who is twice as soon everywhere gains equally everywhere.

Where a default comes from the start-up probe (a step of 1/L), trial 0 tells its value, so that a
factor means the same on every data set. Half of the sets are wide, around the even prior. The other
half are narrow, around the weights p_j that trial 0 ended with, and lean towards the sites that it
served worst: q_j ~ (p_j + 0.1/N) exp(tilt b_j), b_j how far a site is behind the best one by trial
0's validation accuracies, in tens of points. Equal losses are not equal accuracies; the tilt is for
that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aspire.core.presets import Auto
from reproduction.cells import Cell

TRIALS = 20
BEHIND = 0.1  # of accuracy: a site that is so much behind has exp(tilt) times the weight
TUNED = "settings"
TIMED = "settings_for_time"
FILE = "tuned.json"
OURS = "aspire-consensus"


# ---------------------------------------------------------------- the space, all of it


@dataclass(frozen=True)
class Times:
    """The default times a factor between low and high, even in its logarithm."""

    low: float
    high: float

    def draw(self, u: float, default: float) -> float:
        return float(default * self.low * (self.high / self.low) ** u)


@dataclass(frozen=True)
class Span:
    """A number between low and high, whatever the default."""

    low: float
    high: float

    def draw(self, u: float, default: float) -> float:
        return self.low + u * (self.high - self.low)


@dataclass(frozen=True)
class OneOf:
    """One of these values."""

    values: tuple[Any, ...]

    def draw(self, u: float, default: float) -> Any:
        return self.values[int(u * len(self.values))]


Space = Mapping[str, Times | Span | OneOf]
STEPS: Space = {
    "coupling": Times(0.5, 2.0),
    "dual": Times(0.3, 3.0),
    "ascent": Times(0.2, 3.0),
    "settle": Times(0.2, 20.0),
    "stride": Times(0.8, 1.3),
}
SET: Space = {"reach": Times(0.02, 0.5), "gamma": Span(0.3, 1.0), "tilt": Span(0.0, 0.5)}
# drawn last, so that all else is as in a search without them
MOMENTUM: Space = {"momentum": Span(0.0, 0.7)}
WIDE: Space = {"even": OneOf((False, True)), "wide": Times(0.5, 2.5)}
LOCAL: Space = {"local_steps": OneOf((1, 2, 5, 10))}
RATE: Space = {"rate": Times(0.2, 10.0)}
WEIGHTS: Space = {"rate_weights": Times(0.1, 10.0)}
SPACES: dict[str, Space] = {
    "aspire-consensus": {**STEPS, **SET, **MOMENTUM, **WIDE},
    "aspire-central": {**STEPS, **SET},
    "fedavg": {**RATE, **LOCAL},
    "afl": {**RATE, **WEIGHTS},
    "drfa-prox": {**RATE, **WEIGHTS, **LOCAL, "regularisation": Times(0.1, 10.0)},
    "q-ffl": {**RATE, **LOCAL, "q": OneOf((0.1, 0.5, 1.0, 2.0, 5.0))},
    "ind": RATE,
    "gda": {**RATE, **WEIGHTS, **SET},
    "gdmax": {**RATE, **SET},
    "cover": {**RATE, "temperature": Times(0.1, 10.0), "momentum": Span(0.05, 0.5)},
    "gcivr": {**RATE, "temperature": Times(0.1, 10.0), "period": OneOf((2, 4, 8))},
}


# ---------------------------------------------------------------- drawing


def trial(cell: Cell, number: int, first: Mapping[str, Any]) -> Cell:
    """Trial `number` of a cell, given the record of trial 0."""
    space = SPACES[cell.maker]
    rng = np.random.default_rng([number, *cell.maker.encode()])
    known = {"ascent": Auto().ascent} | {
        name: value for name, value in first["constants"].items() if value is not None
    }
    drawn = {
        name: how.draw(float(rng.random()), known.get(name, 1.0)) for name, how in space.items()
    }
    return replace(cell, settings=_as_settings(drawn, first), trial=number)


def _as_settings(drawn: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """gamma, a share of N, becomes the budget; tilt the prior itself; four digits."""
    made = dict(drawn)
    if "gamma" in made:
        made["budget"] = made.pop("gamma") * len(first["accuracies"])
    tilt, even, wide = (made.pop(name, None) for name in ("tilt", "even", "wide"))
    if even:
        made["reach"] = wide
    elif tilt is not None:
        made["prior"] = leaning(first["weights"], first["accuracies"], tilt)
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in made.items()}


def leaning(weights: Sequence[float], accuracies: Sequence[float], tilt: float) -> list[float]:
    """The prior that a tilt stands for, rounded, its sum put right at the largest."""
    behind = (max(accuracies) - np.asarray(accuracies)) / BEHIND
    q = (np.asarray(weights) + 0.1 / len(weights)) * np.exp(tilt * behind)
    short = np.round(q / q.sum(), 4)
    short[np.argmax(short)] += 1.0 - short.sum()
    return [round(float(value), 4) for value in short]


# ---------------------------------------------------------------- choosing


def best(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The trial with the highest score."""
    return max(trials, key=score)


def score(trial: Mapping[str, Any]) -> float:
    """How well the worst site is served, less the spread over sites: the table shows both.

    Half-way between the mean over seeds of the worst site's accuracy and the worst site's mean. The
    first is the table's own figure, but small validation parts bias it: some site is always
    unlucky. The second does not see seeds in which now this site fails and now another.
    """
    worst = 0.5 * float(trial["worst_accuracy"] + min(trial["accuracies"]))
    return worst - float(trial["std_accuracy"])


def over_time(record: Mapping[str, Any]) -> float:
    """Mean of the worst accuracy over the logarithm of virtual time, from the first look on."""
    times = np.log(np.maximum(record["history"]["time"], 1e-9))
    worst = np.asarray(record["history"]["worst_accuracy"])
    area = float(np.diff(times) @ (worst[1:] + worst[:-1])) / 2.0
    length = float(times[-1] - times[0])
    return area / length if length > 0 else 0.0


def grouped(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Any]]:
    """The trials of every data set and method, in their order."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for record in sorted(records, key=lambda record: record["trial"]):
        groups.setdefault((record["dataset"], record["method"]), []).append(record)
    return dict(sorted(groups.items()))


def choose(records: Sequence[Mapping[str, Any]], command: str) -> dict[str, Any]:
    """dataset -> method -> the chosen settings, with what they were chosen by."""
    chosen: dict[str, Any] = {"command": command, "datasets": {}}
    for (dataset, method), trials in grouped(records).items():
        found = best(trials)
        soonest = max(trials, key=over_time)
        chosen["datasets"].setdefault(dataset, {})[method] = {
            TUNED: found["settings"],
            TIMED: soonest["settings"],
            "trial": found["trial"],
            "trial_for_time": soonest["trial"],
            "trials": len(trials),
            "validation_score": score(found),
            "default_score": score(trials[0]),
            "gradients": found["budget"],
        }
    return chosen


def best_of(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The chosen trial of every method and data set: what a summary of the search shows."""
    return [best(trials) for trials in grouped(records).values()]


def committed() -> dict[str, Any]:
    """The chosen settings that are committed."""
    file = Path(__file__).with_name(FILE)
    if not file.is_file():
        return {"command": None, "datasets": {}}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def tuned_settings(dataset: str, maker: str, kind: str = TUNED) -> dict[str, Any] | None:
    """The committed settings of a method on a data set; None: not tuned.

    Variants of ours that were not searched on their own have its settings.
    """
    searched = committed()["datasets"].get(dataset, {})
    found = searched.get(maker) or (searched.get(OURS) if maker.startswith(OURS) else None)
    return None if found is None else dict(found[kind])
