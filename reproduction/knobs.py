"""What a search may turn: the shared knobs, each for every method that can take it, and its own.

A method can take a knob if its factory has the argument. The paper's rows have the constants that
the paper leaves open, its set, and the prior's lean. Numbers are drawn evenly in their logarithm.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aspire.core.presets import Auto, Paper
from aspire.methods import central, consensus, direct
from reproduction.choices import FUNCTIONS, PAPERS, SETTLE, parent

BEHIND = 0.1  # of accuracy: a site that is so much behind has exp(lean) times the weight


@dataclass(frozen=True)
class Log:
    """A number between low and high; `times`: that many times the method's own value."""

    low: float
    high: float
    times: bool = False

    def at(self, place: float, own: float) -> float:
        """The value at a place, 0 at low and 1 at high; places beyond these are values beyond."""
        value = self.low * (self.high / self.low) ** place
        return float(own * value if self.times else value)


@dataclass(frozen=True)
class OneOf:
    """One of these values."""

    values: tuple[Any, ...]

    def at(self, place: float, own: float) -> Any:
        return self.values[int(place * len(self.values))]


Knob = Log | OneOf
Knobs = Mapping[str, Knob]
SHARED: dict[str, Knob] = {
    "lean": Log(0.1, 3.0),  # of the prior towards the sites that setting 0 served worst
    "optimizer": OneOf((None, "adam", "momentum")),
    "learning_rate": Log(3e-4, 3e-2),  # of AdamW
    "rate": Log(0.1, 3.0, times=True),
    "settle": Log(0.1, 10.0, times=True),
    "average": OneOf((True, False)),
    "clip": OneOf((None, None, 1.0, 3.0)),
}
ARGUMENTS: dict[str, tuple[str, ...]] = {  # of a factory or a preset, that a shared knob turns
    "lean": ("prior", "uncertainty"),
    "optimizer": ("optimizer", "momentum"),
    "learning_rate": ("learning_rate",),
    "rate": ("rate", "stride"),
    "settle": ("settle", "schedule"),
    "average": ("average", "forget"),
    "clip": ("clip", "pull_bound"),
}
SET: Knobs = {"reach": Log(0.05, 2.0), "gamma": Log(0.1, 1.0)}  # r_j / q_j; Gamma / N
LOCAL: Knobs = {"local_steps": OneOf((1, 2, 5, 10))}
ASCENT: Knobs = {"rate_weights": Log(0.1, 10.0, times=True)}
TEMPERATURE: Knobs = {"temperature": Log(0.1, 10.0, times=True)}
STEPS: Knobs = {
    name: Log(0.1, 10.0, times=True)
    for name in ("eta_w", "eta_z", "eta_h", "kappa", "rho1", "rho2")
}
OWN: dict[str, Knobs] = {
    "aspire-ease": {**STEPS, **SET},
    "aspire-ease-sync": {**STEPS, **SET},
    "aspire-cp": {**STEPS, **SET},
    "aspire-ease-per": {**STEPS, **SET, "local_steps": OneOf((2, 5, 10))},
    "mix-even": STEPS,
    "aspire-consensus": {
        **SET,
        "coupling": Log(0.5, 2.0, times=True),
        "dual": Log(0.3, 3.0, times=True),
        "ascent": Log(0.1, 10.0, times=True),
    },
    "aspire-direct": SET,
    "aspire-central": {**SET, "ascent": Log(0.1, 10.0, times=True)},
    "fedavg": LOCAL,
    "afl": ASCENT,
    "drfa-prox": {**ASCENT, **LOCAL, "regularisation": Log(0.1, 10.0, times=True)},
    "q-ffl": {**LOCAL, "q": Log(0.1, 10.0)},
    "ind": {},
    "gda": {**ASCENT, **SET},
    "gdmax": SET,
    "cover": {**TEMPERATURE, "momentum": Log(0.03, 1.0)},
    "gcivr": {**TEMPERATURE, "period": OneOf((2, 4, 8))},
    "fedbuff": {**LOCAL, "server_rate": Log(0.1, 3.0)},
}
PRESET = {  # fields of `Auto` that have an effect
    "aspire-consensus": ("coupling", "dual", "ascent", "settle", "stride", "momentum", "forget"),
    "aspire-central": ("ascent", "forget"),
}
FACTORIES: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "aspire-consensus": consensus,
    "aspire-direct": direct,
    "aspire-central": central,
}
MOMENTUM = {None: 0.0, "adam": 0.0, "momentum": 0.5}  # of the consensus form


def accepted(maker: str) -> set[str]:
    """The arguments that a method can take."""
    return {*inspect.signature(FACTORIES[maker]).parameters, *PRESET.get(maker, ())}


def knobs_of(maker: str) -> Knobs:
    """Everything that a search turns for a method."""
    if maker in PAPERS:
        return {"lean": SHARED["lean"], **OWN[maker]}
    own = OWN[maker]
    known = accepted(maker) - own.keys()
    shared = {name: knob for name, knob in SHARED.items() if known & set(ARGUMENTS[name])}
    return {**shared, **own}


def untouched(maker: str, linear: bool) -> dict[str, Any]:
    """The settings of a row that nobody searched: the step decay, for all that can take it."""
    maker = parent(maker)
    if maker in PAPERS or "settle" not in knobs_of(maker):
        return {}
    return {"settle": SETTLE[linear]}


def settings_of(
    maker: str, places: Mapping[str, float], first: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings at these places of the knobs, given the record of setting 0; four digits."""
    own = own_values(first)
    knobs = knobs_of(maker)
    drawn = {name: knobs[name].at(place, own.get(name, 1.0)) for name, place in places.items()}
    made = {**first["settings"], **as_arguments(maker, drawn)}
    if "gamma" in made:
        made["budget"] = made.pop("gamma") * len(first["accuracies"])
    lean = made.pop("lean", None)
    short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in made.items()}
    return short if lean is None else short | {"prior": leaning(first["accuracies"], lean)}


def own_values(first: Mapping[str, Any]) -> dict[str, float]:
    """What a method has by itself: of its presets, of its probe and of setting 0."""
    paper = {name: getattr(Paper(), name) for name in STEPS}
    found = {"ascent": Auto().ascent, **paper, **first.get("constants", {}), **first["settings"]}
    return {"rate": found.get("stride"), **found}


def as_arguments(maker: str, drawn: dict[str, Any]) -> dict[str, Any]:
    """The knobs by the names of the method's own arguments."""
    made = dict(drawn)
    if maker == "aspire-consensus":
        turned = {
            "momentum": MOMENTUM.get(made.pop("optimizer", None)),
            "stride": made.pop("rate", None),
            "forget": Auto().forget if made.pop("average", True) else 0.0,
            "pull_bound": made.pop("clip", None),
        }
        return made | {name: x for name, x in turned.items() if x is not None}
    if maker == "aspire-central":
        forget = Auto().forget if made.pop("average", True) else 0.0
        return {**made, "forget": forget}
    for name in idle(maker, made.get("optimizer")):
        made.pop(name, None)
    return made


def idle(maker: str, optimizer: str | None) -> set[str]:
    """The knobs that turn nothing beside this optimizer: AdamW has a learning rate of its own."""
    if maker not in FUNCTIONS:
        return set()
    if optimizer != "adam":
        return {"learning_rate"}
    return set() if "local_steps" in accepted(maker) else {"rate"}


def leaning(accuracies: Sequence[float], lean: float) -> list[float]:
    """q_j ~ exp(lean b_j), b_j how far j is behind the best site, in tens of points.

    Rounded, its sum put right at the largest.
    """
    behind = (max(accuracies) - np.asarray(accuracies)) / BEHIND
    q = np.exp(lean * (behind - behind.max()))
    short = np.round(q / q.sum(), 4)
    short[np.argmax(short)] += 1.0 - short.sum()
    return [round(float(value), 4) for value in short]
