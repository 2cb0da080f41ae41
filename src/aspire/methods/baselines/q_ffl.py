"""q-FFL by q-FedAvg: sites with a high loss pull harder, by the power q of their loss.

Li, Sanjabi, Beirami, Smith: Fair Resource Allocation in Federated Learning, ICLR 2020
(Algorithm 2). Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Unpack

import numpy as np
import torch

from aspire.methods import arguments, descent
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.types import Array, Facts, Kind, Local, Method, Report, Task

FLOOR = 1e-10  # a loss below it counts as this: F^(q-1) needs a positive F

# ---------------------------------------------------------------- worker


def ends(tasks: Sequence[Task], locals_: Sequence[Local], *, local_steps: int) -> list[Report]:
    """F_k(w) when it is due, then K steps from w."""
    found = descent.descend(tasks, locals_, local_steps)[-1]
    return [
        Report(task.worker, task.id, {"w": w}, descent.told(task, local, local_steps))
        for task, local, w in zip(tasks, locals_, found, strict=True)
    ]


# ---------------------------------------------------------------- master: State, nothing more


@spelled_out
def q_ffl(
    q: float = 1.0,
    local_steps: int = 5,
    rate: float | None = None,
    *,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    quorum: int | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    q            0 is FedAvg with the plain mean; the larger, the nearer to minimax
    local_steps  K steps of each worker per round
    rate         eta, their step; None: 1 / max_j L_j from the start-up probe
    prior        q_k, multiplies F_k^q; None: even
    quorum       S, answers that close a round; None: all
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    settings = arguments.check({"local_steps": local_steps, "quorum": quorum}, {"rate": rate})
    if not 0 <= q < np.inf:
        raise ValueError(f"q={q}: expected a number of at least 0")
    rules = Rules(q, local_steps, rate, prior, quorum, Shared(**shared))
    kinds = {"local": partial(ends, local_steps=local_steps)}
    return rounds.method("q-ffl", {"q": q, **settings, "prior": prior}, rules, kinds)


@dataclass(frozen=True)
class Rules:
    """The arguments of `q_ffl`, and the master's side of the method."""

    q: float
    local_steps: int
    rate: float | None
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    quorum: int | None
    shared: Shared

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        return {
            "local": Kind(self.local_steps, vectors=("w",), optional=("loss",), numbers=("rate",))
        }

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        prior = arguments.prior_over(facts, self.prior)
        master = State(**state.fields(facts, seed, prior, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: State) -> dict[str, float]:
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        w = {"w": state.model(master, master.w)}
        return Ask("local", state.free(master), w, {"rate": steps.rate(self.shared, master)})

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """w <- w - sum_k q_k F_k^q D_k / sum_k q_k (q F_k^(q-1) |D_k|^2 + F_k^q / eta).

        D_k = (w - w_k)/eta. All F are divided by their largest, which cancels, so that no power
        overflows or vanishes.
        """
        eta = steps.rate(self.shared, master)
        q = self.q
        F = np.maximum(master.f, FLOOR)
        share = self.shares(master)
        master.weights = self.pulls(master, F, share)
        reports = [r for r in reports if share[r.worker] > 0]
        if not reports:
            return None
        members = [r.worker for r in reports]
        told = F[members]
        ratio = told / told.max()
        power = share[members] * ratio**q
        sent = state.model(master, master.w).double()
        D = (sent - torch.stack([r.vectors["w"] for r in reports]).double()) / eta
        squares = D.square().sum(1).cpu().numpy()
        slopes = share[members] * (q * ratio ** (q - 1) / told.max() * squares)
        bottom = (slopes + power / eta).sum()
        new = master.w - torch.from_numpy(power / bottom).to(D.device) @ D
        master.w = steps.toward(self.shared, master, new)
        return None

    def shares(self, master: State) -> Array:
        """n q_k over the present; 1 without a prior."""
        if self.prior is None:
            return np.ones(len(master.f))
        return state.restricted(master.prior, master.present) * float(master.present.sum())

    def pulls(self, master: State, F: Array, share: Array) -> Array:
        """q_j F_j^q over the present, summing to one."""
        counted = master.present & (share > 0)
        pull = np.where(counted, F / F[counted].max(), 0.0)
        pull[counted] **= self.q
        pull *= share
        found: Array = pull / pull.sum()
        return found
