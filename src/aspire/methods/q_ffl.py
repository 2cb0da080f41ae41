"""q-FFL by q-FedAvg: sites with a high loss pull harder, by the power q of their loss.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020
(Algorithm 2). Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from aspire.methods import arguments, descent, rounds, state
from aspire.methods.state import Ask, Kind, State
from aspire.methods.worker import loss_is_due, probe
from aspire.types import Array, Facts, Local, Method, Report, Task

FLOOR = 1e-10  # a loss below it counts as this: F^(q-1) needs a positive F

# ---------------------------------------------------------------- worker


def work(
    worker: None, task: Task, local: Local, *, local_steps: int, power: int
) -> tuple[None, Report]:
    """F_k(w) when it is due, then K steps from w."""
    if task.kind == "probe":
        return None, probe(task, local, power)
    w, rate, draws = task.vectors["w"], task.scalars["rate"], int(task.scalars["draws"])
    due = loss_is_due(local, draws, local_steps)
    scalars = descent.cost(local, gradients=local_steps, losses=int(due))
    if due:
        scalars["loss"] = local.loss(w)
    end = descent.iterates(w, local, draws=draws, steps=local_steps, rate=rate)[-1]
    return None, Report(task.worker, task.id, {"w": end}, scalars)


# ---------------------------------------------------------------- master: State, nothing more


def q_ffl(
    q: float = 1.0,
    local_steps: int = 5,
    rate: float | None = None,
    *,
    quorum: int | None = None,
    average: bool = False,
) -> Method:
    """The method as a value.

    q            0 is FedAvg with the plain mean; the larger, the nearer to minimax
    local_steps  K steps of each worker per round
    rate         eta, their step; None: 1 / max_j L_j from the start-up probe
    quorum       S, answers that close a round; None: all
    average      model(master) is the running mean of w
    """
    settings = arguments.check({"local_steps": local_steps, "quorum": quorum}, {"rate": rate})
    if not 0 <= q < np.inf:
        raise ValueError(f"q={q}: expected a number of at least 0")
    rules = Rules(q, local_steps, rate, quorum, average)
    worker = partial(work, local_steps=local_steps, power=arguments.POWER if rate is None else 0)
    return rounds.method("q-ffl", {"q": q, **settings}, rules, worker)


@dataclass(frozen=True)
class Rules:
    """The arguments of `q_ffl`, and the master's side of the method."""

    q: float
    local_steps: int
    rate: float | None
    quorum: int | None
    average: bool

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return {"local": Kind(self.local_steps, vectors=("w",))}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        even = arguments.prior_over(facts.sites, None)
        master = State(**state.fields(facts, seed, even, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: State) -> dict[str, float]:
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        w = {"w": state.model(master, master.w)}
        return Ask("local", state.free(master), w, dict(master.constants))

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """w <- w - sum_k F_k^q D_k / sum_k (q F_k^(q-1) |D_k|^2 + F_k^q / eta).

        D_k = (w - w_k)/eta. All F are divided by their largest, which cancels, so that no power
        overflows or vanishes.
        """
        eta, q, F = master.constants["rate"], self.q, np.maximum(master.f, FLOOR)
        scale = F[[r.worker for r in reports]].max()
        sent = state.model(master, master.w).double()
        top, bottom = torch.zeros_like(master.w), 0.0
        for report in reports:
            D = (sent - report.vectors["w"].double()) / eta
            ratio = F[report.worker] / scale
            top += ratio**q * D
            bottom += q * ratio ** (q - 1) / scale * float(D @ D) + ratio**q / eta
        master.w = master.w - top / bottom
        master.weights = self.pulls(master, F)
        return None

    def pulls(self, master: State, F: Array) -> Array:
        """F_j^q over the present, summing to one."""
        pull = np.where(master.present, F / F[master.present].max(), 0.0)
        pull[master.present] **= self.q
        share: Array = pull / pull.sum()
        return share
