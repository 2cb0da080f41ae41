"""DRFA-Prox: distributionally robust federated averaging with a strongly concave regulariser.

Deng, Kamani, Mahdavi: Distributionally Robust Federated Averaging, NeurIPS 2020 (Algorithm 2).
Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from aspire.core.equations import project_simplex
from aspire.methods import arguments, descent, draws, rounds, state
from aspire.methods.state import Ask, Kind, State
from aspire.methods.worker import probe
from aspire.types import Array, Facts, Local, Method, Report, Task

# ---------------------------------------------------------------- worker


def work(
    worker: None, task: Task, local: Local, *, local_steps: int, power: int
) -> tuple[None, Report]:
    """'local': K steps from w, the end and the iterate at step s. 'snapshot': the loss at w_s."""
    if task.kind == "probe":
        return None, probe(task, local, power)
    w, scalars = task.vectors["w"], task.scalars
    if task.kind == "snapshot":
        numbers = {"loss": local.loss(w), **descent.cost(local, losses=1)}
        return None, Report(task.worker, task.id, {}, numbers)
    path = descent.iterates(
        w, local, draws=int(scalars["draws"]), steps=local_steps, rate=scalars["rate"]
    )
    vectors = {"w": path[-1], "w_s": path[int(scalars["s"]) - 1]}
    return None, Report(task.worker, task.id, vectors, descent.cost(local, gradients=local_steps))


# ---------------------------------------------------------------- master: State, nothing more


def drfa_prox(
    local_steps: int = 5,
    rate: float | None = None,
    rate_weights: float | None = None,
    *,
    regularisation: float | None = None,
    sampled: int | None = None,
    prior: Sequence[float] | Array | None = None,
    quorum: int | None = None,
    average: bool = False,
) -> Method:
    """The method as a value.

    local_steps     K steps of each worker per round
    rate            their step; None: 1 / max_j L_j from the start-up probe
    rate_weights    g_l, the step of lam; None: 0.05 / (K f_0), f_0 the median first loss
    regularisation  mu: lam is drawn to q by mu/2 |lam - q|^2; None: 0.1 f_0
    sampled         m, draws in each phase; None: as many as there are workers
    prior           q, where lam starts and what it is drawn to; None: even
    quorum          S, answers that close a phase; None: all
    average         model(master) is the running mean of w
    """
    counts = {"local_steps": local_steps, "sampled": sampled, "quorum": quorum}
    rates = {"rate": rate, "rate_weights": rate_weights}
    settings = arguments.check(counts, rates)
    if regularisation is not None and not 0 <= regularisation < np.inf:
        raise ValueError(f"regularisation={regularisation}: expected a number of at least 0")
    rules = Rules(local_steps, rate, rate_weights, regularisation, sampled, prior, quorum, average)
    worker = partial(work, local_steps=local_steps, power=arguments.POWER if rate is None else 0)
    return rounds.method(
        "drfa-prox", {**settings, "regularisation": regularisation, "prior": prior}, rules, worker
    )


@dataclass(frozen=True)
class Rules:
    """The arguments of `drfa_prox`, and the master's side of the method."""

    local_steps: int
    rate: float | None
    rate_weights: float | None
    regularisation: float | None
    sampled: int | None
    prior: Sequence[float] | Array | None
    quorum: int | None
    average: bool

    @property
    def kinds(self) -> Mapping[str, Kind]:
        local = Kind(self.local_steps, vectors=("w", "w_s"))
        return {"local": local, "snapshot": Kind(scalars=("loss",))}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        q = arguments.prior_over(facts.sites, self.prior)
        master = State(**state.fields(facts, seed, q, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: State) -> dict[str, float]:
        f0, mu = arguments.first_loss(master), self.regularisation
        return {
            "rate": arguments.first_rate(master, self.rate),
            "rate_weights": self.rate_weights or 0.05 / (self.local_steps * f0),
            "regularisation": 0.1 * f0 if mu is None else mu,
        }

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        """m draws with replacement by lam, and s uniform in 1..K."""
        m = self.sampled or int(master.present.sum())
        workers, counts = draws.weighted(
            master.seed, master.t, state.free(master), master.weights, m
        )
        s = draws.step(master.seed, master.t, self.local_steps)
        scalars = {"rate": master.constants["rate"], "s": float(s)}
        return Ask("local", workers, {"w": state.model(master, master.w)}, scalars, counts)

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """w <- mean of the ends, then the losses of m others at w_s, the mean of the iterates."""
        if master.phase == "snapshot":
            self.lam_step(master, reports)
            return None
        master.w = mean(master, reports, "w")
        w_s = {"w": state.model(master, mean(master, reports, "w_s"))}
        m = self.sampled or int(master.present.sum())
        others = draws.even(master.seed, master.t, state.free(master), m)
        return Ask("snapshot", others, w_s)

    def lam_step(self, master: State, reports: list[Report]) -> None:
        """lam <- project_simplex((lam + g_l K v + g_l K mu q) / (1 + g_l K mu)).

        v_j = (n/m) f_j(w_s) for the m who answered, else 0.
        """
        here, step = master.present, self.local_steps * master.constants["rate_weights"]
        v = np.zeros(len(master.f))
        for report in reports:
            v[report.worker] = report.scalars["loss"] * int(here.sum()) / len(reports)
        q = state.restricted(master.prior, here)
        drawn = step * master.constants["regularisation"]
        target = (master.weights + step * v + drawn * q) / (1.0 + drawn)
        master.weights[here] = project_simplex(target[here])[0]


def mean(master: State, reports: list[Report], name: str) -> Tensor:
    """Mean of a reported vector; who was drawn twice counts twice."""
    times = torch.tensor([master.counts[r.worker] for r in reports], dtype=torch.float64)
    rows = torch.stack([r.vectors[name].double() for r in reports])
    return (times / times.sum()).to(rows.device) @ rows
