"""The methods of the experiments by name: each a plain function of (number of sites, settings).

`PAPERS` are the paper's own algorithms: equations (11) to (15) as printed, scored at z. The names
`aspire-consensus`, `aspire-direct` and `aspire-central` are what this package adds. Settings that
are left out are the method's own defaults; every baseline scores the running mean of its iterates,
as ours do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from aspire.core.presets import Auto, Paper
from aspire.methods import (
    afl,
    central,
    consensus,
    cover,
    direct,
    drfa_prox,
    fedavg,
    fedbuff,
    gcivr,
    gda,
    gdmax,
    ind,
    q_ffl,
)
from aspire.sets import CDNorm
from aspire.types import Method

Settings = Mapping[str, Any]
Make = Callable[[int, Settings], Method]
LOCAL_STEPS = 5  # of ASPIRE-EASE_per; FedAvg, DRFA-Prox and q-FFL have the same by default
SET = ("prior", "reach", "budget")


def uncertainty(n: int, settings: Settings) -> CDNorm:
    """q = prior (even), r_j = reach q_j (1), Gamma = budget (N): untouched it is no site above 2/N.

    The prior's names: `prior` (a list), `reach` (a factor), `budget` (Gamma itself).
    """
    prior = settings.get("prior")
    q = np.full(n, 1.0 / n) if prior is None else np.asarray(prior, dtype=float)
    budget = float(settings.get("budget", n))
    return CDNorm(prior=q, radius=float(settings.get("reach", 1.0)) * q, budget=budget)


def split(settings: Settings, preset: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that belong to a preset, and the others but for those of the set."""
    names = {f.name for f in fields(preset) if f.init}
    own = {name: x for name, x in settings.items() if name in names}
    rest = {name: x for name, x in settings.items() if name not in names and name not in SET}
    return own, rest


def printed(n: int, settings: Settings, **fixed: Any) -> Method:
    """The paper's algorithm: its constants are those of `Paper`."""
    own, rest = split(settings, Paper)
    return consensus(uncertainty(n, settings), preset=Paper(**own), **{**fixed, **rest})


def copies(n: int, settings: Settings, **fixed: Any) -> Method:
    """Our consensus form: rates from the problem's own scale."""
    own, rest = split(settings, Auto)
    return consensus(uncertainty(n, settings), preset=Auto(**own), **{**fixed, **rest})


def common(n: int, settings: Settings) -> Method:
    """Our direct form: one model, a torch optimiser at the master."""
    rest = {name: x for name, x in settings.items() if name not in (*SET, "settle", "optimizer")}
    settle = settings.get("settle")
    if settings.get("optimizer") == "momentum":
        rest["optimizer"] = partial(SGD, lr=rest.pop("learning_rate"), momentum=0.9)
    usual = settle == SETTLE[False] and not rest.keys() & {"optimizer", "learning_rate"}
    if settle is not None and not usual:  # the usual one is the method's default
        rest["schedule"] = partial(LambdaLR, lr_lambda=lambda t: (1.0 + t / settle) ** -0.5)
    return direct(uncertainty(n, settings), **rest)


def together(n: int, settings: Settings) -> Method:
    """Our rates on the paper's centralised algorithm."""
    own, rest = split(settings, Auto)
    return central(uncertainty(n, settings), preset=Auto(**own), **rest)


def synchronous(n: int, settings: Settings, make: Make) -> Method:
    return make(n, {"quorum": n, **settings})


def fixed_weights(n: int, settings: Settings, make: Make) -> Method:
    """Gamma = 0: every weight stays at its prior."""
    return make(n, {**settings, "budget": 0.0})


def baseline(function: Callable[..., Method]) -> Make:
    """A method that takes its settings as they are."""
    return lambda n, settings: function(**{"average": True, **settings})


def on_set(function: Callable[..., Method]) -> Make:
    """A method on the same uncertainty set as ours; the rest of its settings as they are."""

    def make(n: int, settings: Settings) -> Method:
        rest = {name: x for name, x in settings.items() if name not in SET}
        return function(uncertainty(n, settings), **{"average": True, **rest})

    return make


CP: dict[str, Any] = {"drop": False, "max_planes": None}
PAPERS: dict[str, Make] = {
    "aspire-ease": printed,
    "aspire-ease-sync": partial(synchronous, make=printed),
    "aspire-cp": partial(printed, **CP),
    "aspire-ease-per": partial(printed, local_steps=LOCAL_STEPS),
    "mix-even": partial(fixed_weights, make=printed),
}
OURS: dict[str, Make] = {
    "aspire-consensus": copies,
    "aspire-consensus-gamma0": partial(fixed_weights, make=copies),
    "aspire-consensus-sync": partial(synchronous, make=copies),
    "aspire-consensus-cp": partial(copies, **CP),
    "aspire-direct": common,
    "aspire-direct-gamma0": partial(fixed_weights, make=common),
    "aspire-central": together,
}
FUNCTIONS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "fedbuff": fedbuff,
    "afl": afl,
    "drfa-prox": drfa_prox,
    "q-ffl": q_ffl,
    "ind": ind,  # with settings["site"]; the cell trains one for every site
    "gda": gda,
    "gdmax": gdmax,
    "cover": cover,
    "gcivr": gcivr,
}
BASELINES = {
    name: (on_set if "uncertainty" in signature(function).parameters else baseline)(function)
    for name, function in FUNCTIONS.items()
}
MAKERS: dict[str, Make] = {**PAPERS, **OURS, **BASELINES}
SYNCHRONOUS = ("fedavg", "afl", "drfa-prox", "q-ffl", "gda", "gdmax")
ELSEWHERE = ("aspire-consensus-sync", "aspire-consensus-cp")  # rows of `time` and `planes`
TABLE1 = tuple(name for name in MAKERS if name not in ELSEWHERE)
FORMS = ("aspire-consensus", "aspire-direct")
SETTLE = {True: 20.0, False: 2000.0}  # T of the step decay where the model is linear, or is not


def parent(maker: str) -> str:
    """The form that a variant of ours is of; of all else its own name."""
    return next((form for form in FORMS if maker.startswith(form)), maker)


SEARCHED = tuple(name for name in TABLE1 if parent(name) == name)


def make(name: str, n: int, settings: Settings) -> Method:
    """The method `name` over n sites."""
    return MAKERS[name](n, settings)


def expect(what: str, given: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """A name from the command line, or one sentence."""
    if given not in known:
        raise ValueError(f"{what}={given!r}: expected one of {', '.join(known)}")
    return given
