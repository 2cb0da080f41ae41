"""GCIVR: checkpoints over all workers, and mean differences between them.

Haddadpour, Kamani, Mahdavi, Karbasi: Learning Distributionally Robust Models at Scale via
Composite Optimization, ICLR 2022. Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

import math
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
def gcivr(
    temperature: float | None = None,
    rate: float | None = None,
    *,
    period: int | None = None,
    sampled: int | None = None,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    temperature  T: small is nearer to the worst site; None: 0.1 f_0, f_0 the median first loss
    rate         eta, the step of w; None: 0.1 / max_j L_j from the start-up probe
    period       rounds from one checkpoint to the next; None: sqrt(N), rounded up
    sampled      workers drawn in the rounds between, with replacement, by the prior; None: same
    prior        q; None: even
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    counts = {"period": period, "sampled": sampled}
    settings = arguments.check(counts, {"temperature": temperature, "rate": rate})
    rules = Rules(temperature, rate, period, sampled, prior, Shared(**shared))
    return rounds.method("gcivr", {**settings, "prior": prior}, rules, ROWS, Master)


@dataclass(frozen=True)
class Rules:
    """The arguments of `gcivr`, and the master's side of the method."""

    temperature: float | None
    rate: float | None
    period: int | None
    sampled: int | None
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
        """All workers at a checkpoint, else a few drawn by q."""
        q = state.restricted(master.prior, master.present)
        workers = state.free(master)
        root = math.ceil(math.sqrt(len(workers)))
        if master.t % (self.period or root) == 0 or composite.stale(master):
            carrying = workers[q[workers] > 0]
            return composite.ask(master, "checkpoint", carrying, q[carrying])
        some, counts = draws.weighted(master.seed, master.t, workers, q, self.sampled or root)
        return composite.ask(master, "difference", some, counts)

    def close(self, master: Master, reports: list[Report]) -> Ask | None:
        """Checkpoint: u = g(w), V = grad g(w). Else u <- u + mean_i (g_i(w) - g_i(w_before)).

        V likewise; then w <- w - eta T V/u.
        """
        composite.step(self.shared, master, reports, 1.0 if master.phase == "checkpoint" else 0.0)
        return None
