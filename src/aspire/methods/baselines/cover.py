"""COVER: recursive-momentum estimates for KL-regularised robust training.

Qi, Guo, Xu, Jin, Yang: An Online Method for a Class of Distributionally Robust Optimization with
Non-Convex Objectives, NeurIPS 2021 (Algorithm 1). Order of this file: worker, master state,
factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from aspire.methods import arguments
from aspire.methods.baselines import composite, draws, rounds, state
from aspire.methods.baselines.composite import ROWS, Master
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask
from aspire.types import Array, Facts, Kind, Method, Report, Task

# ------------------------------------------- worker: composite.rows; master: composite.Master


@spelled_out
def cover(
    temperature: float | None = None,
    rate: float | None = None,
    *,
    momentum: float = 0.1,
    sampled: int = 1,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    temperature  T: small is nearer to the worst site; None: 0.1 f_0, f_0 the median first loss
    rate         eta, the step of w; None: 0.1 / max_j L_j from the start-up probe
    momentum     a, the weight of the newest evaluation in u and V, in (0, 1]
    sampled      workers drawn a round, with replacement, by the prior
    prior        q; None: even
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    settings = arguments.check({"sampled": sampled}, {"temperature": temperature, "rate": rate})
    if not 0 < momentum <= 1:
        raise ValueError(f"momentum={momentum}: expected a number above 0 and at most 1")
    rules = Rules(temperature, rate, momentum, sampled, prior, Shared(**shared))
    return rounds.method(
        "cover", {**settings, "momentum": momentum, "prior": prior}, rules, ROWS, Master
    )


@dataclass(frozen=True)
class Rules:
    """The arguments of `cover`, and the master's side of the method."""

    temperature: float | None
    rate: float | None
    momentum: float
    sampled: int
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    shared: Shared

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return composite.KINDS

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
        q = arguments.prior_over(facts, self.prior)
        master = Master(**state.fields(facts, seed, q), slope=np.zeros(facts.sites))
        return master, state.probes(master, facts)

    def constants(self, master: Master) -> dict[str, float]:
        return composite.constants(master, self.temperature, self.rate)

    # ------------------------------------------------------------ absorb

    def ask(self, master: Master) -> Ask:
        """Workers drawn by q; the first of all gives u and V their first values."""
        q = state.restricted(master.prior, master.present)
        workers, counts = draws.weighted(master.seed, master.t, state.free(master), q, self.sampled)
        kind = "checkpoint" if composite.stale(master) else "difference"
        return composite.ask(master, kind, workers, counts)

    def close(self, master: Master, reports: list[Report]) -> Ask | None:
        """u <- g_i(w) + (1 - a)(u - g_i(w_before)), V likewise;  w <- w - eta T V/u."""
        composite.step(
            self.shared, master, reports, 1.0 if master.phase == "checkpoint" else self.momentum
        )
        return None
