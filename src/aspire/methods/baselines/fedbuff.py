"""FedBuff: local steps at every worker, whose moves count as soon as a buffer of them is full.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous
Aggregation, AISTATS 2022. Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Unpack

import numpy as np
import torch

from aspire.arguments import real_number
from aspire.methods import arguments, descent
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.types import Array, Facts, Kind, Local, Method, Report, SiteCounts, Task

# ---------------------------------------------------------------- worker


def moves(tasks: Sequence[Task], locals_: Sequence[Local], *, local_steps: int) -> list[Report]:
    """How far K steps w_j <- w_j - rate grad f_j(w_j) lead from the w that was handed out."""
    found = descent.descend(tasks, locals_, local_steps)[-1] - descent.points(tasks)
    return [
        Report(task.worker, task.id, {"move": move}, descent.cost(local, gradients=local_steps))
        for task, local, move in zip(tasks, locals_, found, strict=True)
    ]


# ---------------------------------------------------------------- master


@dataclass
class Master(State):
    """Reports wait among `answers`, the buffer; `asked` are all who work or wait."""

    sent: SiteCounts = field(kw_only=True)  # t of the w that j works from


@spelled_out
def fedbuff(
    local_steps: int = 5,
    rate: float | None = None,
    *,
    buffer: int | None = None,
    server_rate: float = 1.0,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    staleness_power: float = 0.5,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    local_steps      K steps of each worker per report
    rate             their step; None: 1 / max_j L_j from the start-up probe
    buffer           reports that make a step of w; None: half of the present workers
    server_rate      of that step; an optimizer gets server_rate times the mean, with its sign
                     turned
    prior            q; None: even
    staleness_power  a: a report that is s steps late counts (1 + s)^-a
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    counts = {"local_steps": local_steps, "buffer": buffer}
    settings = arguments.check(counts, {"rate": rate, "server_rate": server_rate})
    expected = "a number of at least 0"
    real_number("staleness_power", staleness_power, expected, least=0.0)
    rules = Rules(local_steps, rate, buffer, server_rate, prior, staleness_power, Shared(**shared))
    kinds = {"local": partial(moves, local_steps=local_steps)}
    own = {"prior": prior, "staleness_power": staleness_power}
    return rounds.method("fedbuff", {**settings, **own}, rules, kinds, Master)


@dataclass(frozen=True)
class Rules:
    """The arguments of `fedbuff`, and the master's side of the method."""

    local_steps: int
    rate: float | None
    buffer: int | None
    server_rate: float
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    staleness_power: float
    shared: Shared

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        return {"local": Kind(self.local_steps, vectors=("move",), numbers=("rate",))}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
        n = facts.sites
        if self.buffer is not None and self.buffer > n:
            raise ValueError(f"buffer={self.buffer}: expected at most the {n} sites")
        q = arguments.prior_over(facts, self.prior)
        master = Master(**state.fields(facts, seed, q), sent=np.zeros(n, dtype=np.int64))
        return master, state.probes(master, facts)

    def constants(self, master: Master) -> dict[str, float]:
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def ask(self, master: Master) -> Ask:
        """Who is free gets the w of now. Who works goes on, and its report will count."""
        workers = state.free(master)
        master.sent[workers] = master.t
        master.quorum = self.buffer or max(1, int(np.count_nonzero(master.present)) // 2)
        master.asked[[j for j, (_, kind) in master.hands.items() if kind == "local"]] = True
        w = {"w": state.model(master, master.w)}
        return Ask("local", workers, w, {"rate": steps.rate(self.shared, master)})

    def close(self, master: Master, reports: list[Report]) -> Ask | None:
        """w <- w + (r/|B|) sum_{j in B} n q_j (1 + s_j)^-a m_j over the buffer B.

        m_j = w_j - w^(t - s_j) is the move of j, which has missed s_j steps.
        """
        members = [r.worker for r in reports]
        late = 1.0 + (master.t - master.sent[members])
        counts = master.weights[members] * np.count_nonzero(master.present)
        share = counts * late**-self.staleness_power / len(reports)
        rows = torch.stack([r.vectors["move"] for r in reports]).double()
        mean = torch.from_numpy(share).to(rows.device) @ rows
        master.w = steps.toward(self.shared, master, master.w + self.server_rate * mean)
        return None
