"""GDA: simultaneous gradient descent on the model and projected ascent on the weights.

Lin, Jin, Jordan: On Gradient Descent Ascent for Nonconvex-Concave Minimax Problems, ICML 2020.
Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Unpack

from aspire.methods import arguments
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.projection import project, refuse_unknown
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.methods.descent import GRADIENT, gradient_rows, weighted_gradient
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import Facts, Kind, Method, Report, Task

# ----------------------------------------- worker: descent.gradient_rows; master: State, no more


@spelled_out
def gda(
    uncertainty: UncertaintySet | None = None,
    rate: float | None = None,
    rate_weights: float | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    uncertainty   P, whose prior is where p starts; None: CDNorm(radius=1/N, budget=N). A simplex,
                  box, CVaR, CD-norm or l1 ball
    rate          e_w, the step of w; None: 1 / max_j L_j from the start-up probe
    rate_weights  e_p, the step of p; None: 0.05 / f_0, f_0 the median first loss
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    settings = arguments.check({}, {"rate": rate, "rate_weights": rate_weights})
    refuse_unknown(uncertainty)
    rules = Rules(uncertainty, rate, rate_weights, Shared(**shared))
    kinds = {"gradient": gradient_rows}
    return rounds.method("gda", {"uncertainty": uncertainty, **settings}, rules, kinds)


@lru_cache(maxsize=16)
def base(uncertainty: UncertaintySet | None, n: int) -> UncertaintySet:
    """The set over all n sites."""
    return (uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)


def over_present(uncertainty: UncertaintySet | None, master: State) -> UncertaintySet:
    whole = base(uncertainty, len(master.f))
    return whole if master.present.all() else whole.restrict(master.present)


@dataclass(frozen=True)
class Rules:
    """The arguments of `gda`, and the master's side of the method."""

    uncertainty: UncertaintySet | None
    rate: float | None
    rate_weights: float | None
    shared: Shared

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return GRADIENT

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        q = base(self.uncertainty, facts.sites).nominal()
        master = State(**state.fields(facts, seed, q))
        return master, state.probes(master, facts)

    def constants(self, master: State) -> dict[str, float]:
        ascent = self.rate_weights or 0.05 / arguments.first_loss(master)
        return {"rate": arguments.first_rate(master, self.rate), "rate_weights": ascent}

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        return Ask("gradient", state.free(master), {"w": state.model(master, master.w)})

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """w <- w - e_w sum_j p_j grad f_j(w);  p <- project_P(p + e_p f(w)), both at the old."""
        here = master.present
        constants = master.constants
        slope = weighted_gradient(master.weights, reports)
        master.w = steps.against(self.shared, master, slope)
        raised = master.weights[here] + constants["rate_weights"] * master.f[here]
        master.weights[here] = project(over_present(self.uncertainty, master), raised)
        return None
