"""DRFA-Prox: distributionally robust federated averaging with a strongly concave regulariser.

Deng, Kamani, Mahdavi: Distributionally Robust Federated Averaging, NeurIPS 2020 (Algorithm 2).
Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Unpack

import numpy as np
from torch import Tensor

from aspire.core.equations import project_simplex
from aspire.methods import arguments, descent
from aspire.methods.baselines import draws, rounds, state, steps
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.methods.worker import PASSES
from aspire.types import Array, Count, Facts, Kind, Local, Method, Report, Task

# ---------------------------------------------------------------- worker


def paths(tasks: Sequence[Task], locals_: Sequence[Local], *, local_steps: int) -> list[Report]:
    """K steps from w: the end, and the iterate at step s."""
    path = descent.descend(tasks, locals_, local_steps)
    made = []
    for r, (task, local) in enumerate(zip(tasks, locals_, strict=True)):
        vectors = {"w": path[-1][r], "w_s": path[int(task.scalars["s"]) - 1][r]}
        cost = descent.cost(local, gradients=local_steps)
        made.append(Report(task.worker, task.id, vectors, cost))
    return made


def snapshots(tasks: Sequence[Task], locals_: Sequence[Local]) -> list[Report]:
    """The loss at w_s, when it is due."""
    made = []
    for task, local in zip(tasks, locals_, strict=True):
        loss = {"loss": local.loss(task.vectors["w"])} if snapshot_is_due(task, local) else {}
        cost = descent.cost(local, losses=len(loss))
        made.append(Report(task.worker, task.id, {}, loss | cost))
    return made


def snapshot_is_due(task: Task, local: Local) -> bool:
    """Losses cost at most as many sample passes as gradients, also where a few workers take most
    of the steps: so by the batches that a worker drew on average, at the last snapshot and now."""
    every = local.loss_samples / (PASSES * local.batch_samples)
    return task.scalars["drawn"] // every > task.scalars["drawn_before"] // every


# ---------------------------------------------------------------- master


@dataclass
class Master(State):
    snapshot: Count = 0  # batches that all workers had drawn at the last snapshot


@spelled_out
def drfa_prox(
    local_steps: int = 5,
    rate: float | None = None,
    rate_weights: float | None = None,
    *,
    regularisation: float | None = None,
    sampled: int | None = None,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    quorum: int | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    local_steps     K steps of each worker per round
    rate            their step; None: 1 / max_j L_j from the start-up probe
    rate_weights    g_l, the step of lam; None: 0.05 / (K f_0), f_0 the median first loss
    regularisation  mu: lam is drawn to q by mu/2 |lam - q|^2; None: 0.1 f_0
    sampled         m, draws in each phase; None: as many as there are workers
    prior           q, where lam starts and what it is drawn to; None: even
    quorum          S, answers that close a phase; None: all
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    counts = {"local_steps": local_steps, "sampled": sampled, "quorum": quorum}
    rates = {"rate": rate, "rate_weights": rate_weights}
    settings = arguments.check(counts, rates)
    if regularisation is not None and not 0 <= regularisation < np.inf:
        raise ValueError(f"regularisation={regularisation}: expected a number of at least 0")
    rules = Rules(
        local_steps, rate, rate_weights, regularisation, sampled, prior, quorum, Shared(**shared)
    )
    kinds: dict[str, descent.Rows] = {
        "local": partial(paths, local_steps=local_steps),
        "snapshot": snapshots,
    }
    own = {"regularisation": regularisation, "prior": prior}
    return rounds.method("drfa-prox", {**settings, **own}, rules, kinds, Master)


@dataclass(frozen=True)
class Rules:
    """The arguments of `drfa_prox`, and the master's side of the method."""

    local_steps: int
    rate: float | None
    rate_weights: float | None
    regularisation: float | None
    sampled: int | None
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    quorum: int | None
    shared: Shared

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        local = Kind(self.local_steps, vectors=("w", "w_s"), numbers=("rate", "s"))
        snapshot = Kind(optional=("loss",), numbers=("drawn", "drawn_before"))
        return {"local": local, "snapshot": snapshot}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
        q = arguments.prior_over(facts, self.prior)
        master = Master(**state.fields(facts, seed, q, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: Master) -> dict[str, float]:
        f0 = arguments.first_loss(master)
        mu = self.regularisation
        return {
            "rate": arguments.first_rate(master, self.rate),
            "rate_weights": self.rate_weights or 0.05 / (self.local_steps * f0),
            "regularisation": 0.1 * f0 if mu is None else mu,
        }

    # ------------------------------------------------------------ absorb

    def ask(self, master: Master) -> Ask:
        """m draws with replacement by lam, and s uniform in 1..K."""
        m = self.sampled or int(master.present.sum())
        workers, counts = draws.weighted(
            master.seed, master.t, state.free(master), master.weights, m
        )
        s = draws.step(master.seed, master.t, self.local_steps)
        scalars = {"rate": steps.rate(self.shared, master), "s": float(s)}
        return Ask("local", workers, {"w": state.model(master, master.w)}, scalars, counts)

    def close(self, master: Master, reports: list[Report]) -> Ask | None:
        """w <- mean of the ends, then the losses of m others at w_s, the mean of the iterates."""
        if master.phase == "snapshot":
            self.lam_step(master, reports)
            return None
        new = mean(master, reports, "w")
        w_s = {"w": state.model(master, mean(master, reports, "w_s"))}
        master.w = steps.toward(self.shared, master, new)
        m = self.sampled or int(master.present.sum())
        others = draws.even(master.seed, master.t, state.free(master), m)
        before = master.snapshot
        master.snapshot = int(master.draws.sum())
        n = len(master.f)
        drawn = {"drawn": master.snapshot / n, "drawn_before": before / n}
        return Ask("snapshot", others, w_s, drawn)

    def lam_step(self, master: Master, reports: list[Report]) -> None:
        """lam <- project_simplex((lam + g_l K v + g_l K mu q) / (1 + g_l K mu)).

        v_j = (n/m) f_j for the m who answered, else 0; f_j is the last known where none was due.
        """
        here = master.present
        step = self.local_steps * master.constants["rate_weights"]
        v = np.zeros(len(master.f))
        told = [report.worker for report in reports]
        v[told] = master.f[told] * int(here.sum()) / len(told)
        q = state.restricted(master.prior, here)
        drawn = step * master.constants["regularisation"]
        target = (master.weights + step * v + drawn * q) / (1.0 + drawn)
        master.weights[here] = project_simplex(target[here])[0]


def mean(master: State, reports: list[Report], name: str) -> Tensor:
    """Mean of a reported vector; who was drawn twice counts twice."""
    times = [master.counts[r.worker] for r in reports]
    return descent.weighted(times, [r.vectors[name] for r in reports])
