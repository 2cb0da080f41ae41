"""FedAvg: local steps at every worker, then the mean of their models.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. Order of this file: worker, master state, factory, init,
absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Unpack

import torch
from torch import Tensor

from aspire.arguments import one_of, real_number
from aspire.methods import aggregations, arguments, descent
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.shared import Shared, SharedArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.types import Array, Facts, Kind, Local, Method, Report, Sized, Task

ROBUST = ("median", "trimmed_mean", "norm_clipping", "centred_clipping")

# ---------------------------------------------------------------- worker


def ends(tasks: Sequence[Task], locals_: Sequence[Local], *, local_steps: int) -> list[Report]:
    """K steps w_j <- w_j - rate grad f_j(w_j) from the master's w."""
    found = descent.descend(tasks, locals_, local_steps)[-1]
    return [
        Report(task.worker, task.id, {"w": w}, descent.cost(local, gradients=local_steps))
        for task, local, w in zip(tasks, locals_, found, strict=True)
    ]


# ---------------------------------------------------------------- master


@dataclass
class Master(State):
    centre: Annotated[Tensor, Sized("p|0", "float64")] = field(  # of centred clipping
        default_factory=lambda: torch.zeros(0, dtype=torch.float64)
    )


@spelled_out
def fedavg(
    local_steps: int = 5,
    rate: float | None = None,
    *,
    prior: Sequence[float] | Mapping[str, float] | Array | str | None = None,
    quorum: int | None = None,
    aggregation: str | None = None,
    trimmed: float = 0.2,
    radius: float | None = None,
    **shared: Unpack[SharedArguments],
) -> Method:
    """Return the method as a value.

    local_steps  K steps of each worker per round
    rate         their step; None: 1 / max_j L_j from the start-up probe
    prior        weights of the mean; None: the plain mean
    quorum       S, answers that close a round; None: all
    aggregation  of the moves w_j - w: None: the weighted mean, or 'median', 'trimmed_mean',
                 'norm_clipping' or 'centred_clipping', see `aspire.methods.aggregations`
    trimmed      of 'trimmed_mean': the share left out on each side
    radius       of 'centred_clipping'; None: the median distance from the centre
    optimizer, learning_rate, schedule, settle, average, clip, liars  see `Shared`
    """
    settings = arguments.check({"local_steps": local_steps, "quorum": quorum}, {"rate": rate})
    if aggregation is not None:
        one_of("aggregation", aggregation, ROBUST)
    if not 0 < trimmed < 0.5:
        raise ValueError(f"trimmed={trimmed}: expected a number above 0 and below 0.5")
    if radius is not None:
        real_number("radius", radius, "a positive number or None", above=0.0)
    rules = Rules(local_steps, rate, prior, quorum, aggregation, trimmed, radius, Shared(**shared))
    kinds = {"local": partial(ends, local_steps=local_steps)}
    own = {"prior": prior, "aggregation": aggregation, "trimmed": trimmed, "radius": radius}
    return rounds.method("fedavg", {**settings, **own}, rules, kinds, Master)


@dataclass(frozen=True)
class Rules:
    """The arguments of `fedavg`, and the master's side of the method."""

    local_steps: int
    rate: float | None
    prior: Sequence[float] | Mapping[str, float] | Array | str | None
    quorum: int | None
    aggregation: str | None
    trimmed: float
    radius: float | None
    shared: Shared

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        return {"local": Kind(self.local_steps, vectors=("w",), numbers=("rate",))}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
        q = arguments.prior_over(facts, self.prior)
        master = Master(**state.fields(facts, seed, q, self.quorum))
        return master, state.probes(master, facts)

    def constants(self, master: Master) -> dict[str, float]:
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def ask(self, master: Master) -> Ask:
        w = {"w": state.model(master, master.w)}
        return Ask("local", state.free(master), w, {"rate": steps.rate(self.shared, master)})

    def close(self, master: Master, reports: list[Report]) -> Ask | None:
        """w <- sum_j q_j w_j / sum_j q_j over those who answered, or a robust aggregate."""
        share = [float(master.weights[r.worker]) for r in reports]
        if sum(share) > 0:
            models = [r.vectors["w"] for r in reports]
            mean = descent.weighted if self.aggregation is None else partial(self.robust, master)
            master.w = steps.toward(self.shared, master, mean(share, models))
        return None

    def robust(self, master: Master, share: Sequence[float], models: Sequence[Tensor]) -> Tensor:
        """w plus the aggregate of the moves w_j - w of those with weight."""
        here = state.model(master, master.w).double()
        kept = [r for r, weight in enumerate(share) if weight > 0]
        rows = torch.stack([models[r] for r in kept]).double() - here
        weights = torch.tensor([share[r] for r in kept], dtype=rows.dtype, device=rows.device)
        if self.aggregation == "median":
            return here + aggregations.median(rows, weights)
        if self.aggregation == "trimmed_mean":
            return here + aggregations.trimmed_mean(rows, weights, share=self.trimmed)
        if self.aggregation == "norm_clipping":
            return here + aggregations.norm_clipping(rows, weights)
        centre = master.centre if len(master.centre) else torch.zeros_like(here)
        master.centre = aggregations.centred_clipping(
            rows, weights, centre=centre, radius=self.radius
        )
        return here + master.centre
