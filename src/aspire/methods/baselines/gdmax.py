"""GDmax: the exact worst case of the current losses, then one gradient step against it.

Jin, Netrapalli, Jordan: What is Local Optimality in Nonconvex-Nonconcave Minimax Optimization?,
ICML 2020 (gradient descent with max-oracle). Order of this file: worker, master state, factory,
init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from aspire.methods import arguments
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.gda import base, over_present
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.methods.descent import GRADIENT, gradient_rows, weighted_gradient
from aspire.sets import UncertaintySet
from aspire.types import Facts, Kind, Method, Report, Task

# ----------------------------------------- worker: descent.gradient_rows; master: State, no more


@spelled_out
def gdmax(
    uncertainty: UncertaintySet | None = None,
    rate: float | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    uncertainty  P, any set, with its prior; None: CDNorm(radius=1/N, budget=N)
    rate         the step of w; None: 1 / max_j L_j from the start-up probe
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    settings = arguments.check({}, {"rate": rate})
    rules = Rules(uncertainty, rate, Shared(**shared))
    kinds = {"gradient": gradient_rows}
    return rounds.method("gdmax", {"uncertainty": uncertainty, **settings}, rules, kinds)


@dataclass(frozen=True)
class Rules:
    """The arguments of `gdmax`, and the master's side of the method."""

    uncertainty: UncertaintySet | None
    rate: float | None
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
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        return Ask("gradient", state.free(master), {"w": state.model(master, master.w)})

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """p <- argmax over P of p . f(w);  w <- w - rate sum_j p_j grad f_j(w)."""
        worst = over_present(self.uncertainty, master).worst_case(master.f[master.present])
        master.weights[master.present] = worst
        slope = weighted_gradient(master.weights, reports)
        master.w = steps.against(self.shared, master, slope)
        return None
