"""The methods of the experiments by name: each a plain function of (number of sites, settings).

Settings that are left out are the method's own defaults. Every baseline scores the running mean of
its iterates, as ASPIRE does (SPEC: same evaluation for all).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aspire.core.presets import Auto
from aspire.methods import afl, aspire, central, cover, drfa_prox, fedavg, gcivr, gda, gdmax, q_ffl
from aspire.methods import ind as ind_method
from aspire.sets import CDNorm
from aspire.types import Method

Settings = Mapping[str, Any]
LOCAL_STEPS = 5  # of ASPIRE-EASE_per; FedAvg, DRFA-Prox and q-FFL have the same by default


def uncertainty(n: int, settings: Settings) -> CDNorm:
    """q = prior (even), r_j = reach q_j (1), Gamma = budget (N): untouched it is no site above 2/N.

    The prior's names: `prior` (a list), `reach` (a factor), `budget` (Gamma itself).
    """
    prior = settings.get("prior")
    q = np.full(n, 1.0 / n) if prior is None else np.asarray(prior, dtype=float)
    budget = float(settings.get("budget", n))
    return CDNorm(prior=q, radius=float(settings.get("reach", 1.0)) * q, budget=budget)


def preset(settings: Settings) -> Auto:
    names = ("coupling", "dual", "ascent", "settle", "stride", "momentum")
    return Auto(**{name: settings[name] for name in names if name in settings})


def family(**fixed: Any) -> Callable[[int, Settings], Method]:
    """ASPIRE-EASE and the variants that differ from it in an argument of `aspire`."""

    def make(n: int, settings: Settings) -> Method:
        own: dict[str, Any] = {
            name: n if value == "all" else value for name, value in fixed.items()
        }
        for name in ("local_steps", "pull_bound", "coordinate_bound"):
            if name in settings:
                own[name] = settings[name]
        return aspire(uncertainty(n, settings), preset=preset(settings), **own)

    return make


def mix_even(n: int, settings: Settings) -> Method:
    """Gamma = 0: every weight stays at its prior."""
    return family()(n, {**settings, "budget": 0.0})


def centralised(n: int, settings: Settings) -> Method:
    return central(uncertainty(n, settings), preset=preset(settings))


def baseline(function: Callable[..., Method]) -> Callable[[int, Settings], Method]:
    """A method that takes its settings as they are."""
    return lambda n, settings: function(**{"average": True, **settings})


def on_set(function: Callable[..., Method]) -> Callable[[int, Settings], Method]:
    """A method on the same uncertainty set as ASPIRE; the rest of its settings as they are."""

    def make(n: int, settings: Settings) -> Method:
        own = {k: v for k, v in settings.items() if k not in ("prior", "reach", "budget")}
        return function(uncertainty(n, settings), **{"average": True, **own})

    return make


MAKERS: dict[str, Callable[[int, Settings], Method]] = {
    "aspire-ease": family(),
    "aspire-ease-sync": family(quorum="all"),
    "aspire-cp": family(drop=False, max_planes=None),
    "aspire-ease-per": family(local_steps=LOCAL_STEPS),
    "aspire-ease-central": centralised,
    "mix-even": mix_even,
    "fedavg": baseline(fedavg),
    "afl": baseline(afl),
    "drfa-prox": baseline(drfa_prox),
    "q-ffl": baseline(q_ffl),
    "ind": baseline(ind_method),  # with settings["site"]; the cell trains one for every site
    "gda": on_set(gda),
    "gdmax": on_set(gdmax),
    "cover": baseline(cover),
    "gcivr": baseline(gcivr),
}


def make(name: str, n: int, settings: Settings) -> Method:
    """The method `name` over n sites."""
    return MAKERS[name](n, settings)


def expect(what: str, given: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """A name from the command line, or one sentence."""
    if given not in known:
        raise ValueError(f"{what}={given!r}: expected one of {', '.join(known)}")
    return given
