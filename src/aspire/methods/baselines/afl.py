"""AFL: agnostic federated learning, stochastic ascent on the weights of the sites.

Mohri, Sivek, Suresh: Agnostic Federated Learning, ICML 2019 (Stochastic-AFL). Order of this file:
worker, master state, factory, init, absorb.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from aspire.core.equations import clip, project_simplex
from aspire.methods import arguments
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.methods.descent import GRADIENT, gradient_rows, weighted_gradient
from aspire.types import Array, Facts, Kind, Method, Report, Task

# ----------------------------------------- worker: descent.gradient_rows; master: State, no more


@spelled_out
def afl(
    rate: float | None = None,
    rate_weights: float | None = None,
    *,
    limit: float = math.inf,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    quorum: int | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    rate          g_w, the step of w; None: 1 / max_j L_j from the start-up probe
    rate_weights  g_l, the step of lam; None: 0.05 / f_0, f_0 the median first loss
    limit         |w|inf <= limit
    prior         where lam starts, and a newcomer's share; None: even
    quorum        S, answers that close a round; None: all
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    rates = {"rate": rate, "rate_weights": rate_weights}
    settings = arguments.check({"quorum": quorum}, rates)
    if not limit > 0:
        raise ValueError(f"limit={limit}: expected a positive number")
    rules = Rules(rate, rate_weights, limit, prior, quorum, Shared(**shared))
    kinds = {"gradient": gradient_rows}
    return rounds.method("afl", {**settings, "limit": limit, "prior": prior}, rules, kinds)


@dataclass(frozen=True)
class Rules:
    """The arguments of `afl`, and the master's side of the method."""

    rate: float | None
    rate_weights: float | None
    limit: float
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    quorum: int | None
    shared: Shared

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return GRADIENT

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        q = arguments.prior_over(facts, self.prior)
        master = State(**state.fields(facts, seed, q, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: State) -> dict[str, float]:
        ascent = self.rate_weights or 0.05 / arguments.first_loss(master)
        return {"rate": arguments.first_rate(master, self.rate), "rate_weights": ascent}

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        return Ask("gradient", state.free(master), {"w": state.model(master, master.w)})

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """w <- clip(w - g_w sum_j lam_j grad f_j(w));  lam <- project_simplex(lam + g_l f(w)).

        Both at the old w and lam, as in the paper.
        """
        here = master.present
        constants = master.constants
        slope = weighted_gradient(master.weights, reports)
        ascent = constants["rate_weights"] * master.f[here]
        master.w = clip(steps.against(self.shared, master, slope), self.limit)
        master.weights[here] = project_simplex(master.weights[here] + ascent)[0]
        return None
