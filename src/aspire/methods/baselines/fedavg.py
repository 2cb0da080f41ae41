"""FedAvg: local steps at every worker, then the mean of their models.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. Order of this file: worker, master state, factory, init,
absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Unpack

from aspire.methods import arguments, descent
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.types import Array, Facts, Kind, Local, Method, Report, Task

# ---------------------------------------------------------------- worker


def ends(tasks: Sequence[Task], locals_: Sequence[Local], *, local_steps: int) -> list[Report]:
    """K steps w_j <- w_j - rate grad f_j(w_j) from the master's w."""
    found = descent.descend(tasks, locals_, local_steps)[-1]
    return [
        Report(task.worker, task.id, {"w": w}, descent.cost(local, gradients=local_steps))
        for task, local, w in zip(tasks, locals_, found, strict=True)
    ]


# ---------------------------------------------------------------- master: State, nothing more


@spelled_out
def fedavg(
    local_steps: int = 5,
    rate: float | None = None,
    *,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    quorum: int | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    local_steps  K steps of each worker per round
    rate         their step; None: 1 / max_j L_j from the start-up probe
    prior        weights of the mean; None: the plain mean
    quorum       S, answers that close a round; None: all
    shared       see `Shared`
    """
    settings = arguments.check({"local_steps": local_steps, "quorum": quorum}, {"rate": rate})
    rules = Rules(local_steps, rate, prior, quorum, Shared(**shared))
    kinds = {"local": partial(ends, local_steps=local_steps)}
    return rounds.method("fedavg", {**settings, "prior": prior}, rules, kinds)


@dataclass(frozen=True)
class Rules:
    """The arguments of `fedavg`, and the master's side of the method."""

    local_steps: int
    rate: float | None
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    quorum: int | None
    shared: Shared

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        return {"local": Kind(self.local_steps, vectors=("w",), numbers=("rate",))}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        q = arguments.prior_over(facts, self.prior)
        master = State(**state.fields(facts, seed, q, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: State) -> dict[str, float]:
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def ask(self, master: State) -> Ask:
        w = {"w": state.model(master, master.w)}
        return Ask("local", state.free(master), w, {"rate": steps.rate(self.shared, master)})

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        """w <- sum_j q_j w_j / sum_j q_j over those who answered."""
        share = [float(master.weights[r.worker]) for r in reports]
        if sum(share) > 0:
            new = descent.weighted(share, [r.vectors["w"] for r in reports])
            master.w = steps.toward(self.shared, master, new)
        return None
