"""Ind_j: worker j alone, plain stochastic gradient descent on its own data.

The yardstick of the paper's tables, not a published method: what a site gets without the others.
Order of this file: worker, master state, factory, init, absorb.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Unpack

import numpy as np

from aspire.methods import arguments
from aspire.methods.baselines import rounds, state, steps
from aspire.methods.baselines.fedavg import ends  # the worker: K steps from the master's w
from aspire.methods.baselines.shared import Shared, StepArguments, spelled_out
from aspire.methods.baselines.state import Ask, State
from aspire.types import Event, Facts, Info, Kind, Method, Report, Task

# ---------------------------------------------------------------- master: State, nothing more


@spelled_out
def ind(
    site: int,
    *,
    local_steps: int = 1,
    rate: float | None = None,
    **shared: Unpack[StepArguments],
) -> Method:
    """Return the method as a value.

    site         the worker that trains; the others are never asked
    local_steps  K steps per report
    rate         their step; None: 1 / L_site from the start-up probe
    optimizer, learning_rate, schedule, settle, average  see `Shared`

    There is no clip and no liars: the only site would bound itself. A prior would be of one site.
    """
    if site != int(site) or site < 0:
        raise ValueError(f"site={site}: expected the number of a site, from 0")
    settings = arguments.check({"local_steps": local_steps}, {"rate": rate})
    rules = Rules(site, local_steps, rate, Shared(**shared))
    kinds = {"local": partial(ends, local_steps=local_steps)}
    made = rounds.method("ind", {"site": site, **settings}, rules, kinds)
    needed = {"site": site, **(made.site_arguments or {})}
    return replace(made, absorb=rules.absorb, site_arguments=needed)


@dataclass(frozen=True)
class Rules:
    """The arguments of `ind`, and the master's side of the method."""

    site: int
    local_steps: int
    rate: float | None
    shared: Shared

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        return {"local": Kind(self.local_steps, vectors=("w",), numbers=("rate",))}

    # ------------------------------------------------------------ init

    def init(self, facts: Facts, seed: int) -> tuple[State, list[Task]]:
        if self.site >= facts.sites:
            raise ValueError(f"site={self.site}: expected 0 to {facts.sites - 1}")
        alone = np.zeros(facts.sites)
        alone[self.site] = 1.0
        master = State(**state.fields(facts, seed, alone))
        here = facts.present is None or self.site in facts.present
        return master, state.probes(master, replace(facts, present=(self.site,) if here else ()))

    def constants(self, master: State) -> dict[str, float]:
        return {"rate": arguments.first_rate(master, self.rate)}

    # ------------------------------------------------------------ absorb

    def absorb(
        self, master: State, events: Sequence[Event]
    ) -> tuple[State, list[Task], list[Info]]:
        """The other sites may come and go: that is nothing to this method."""
        everybody = range(len(master.f))
        mine = [
            e
            for e in events
            if isinstance(e, Report) or e.worker == self.site or e.worker not in everybody
        ]
        return rounds.absorb(self, master, mine)

    def ask(self, master: State) -> Ask:
        w = {"w": state.model(master, master.w)}
        return Ask("local", state.free(master), w, {"rate": steps.rate(self.shared, master)})

    def close(self, master: State, reports: list[Report]) -> Ask | None:
        master.w = steps.toward(self.shared, master, reports[0].vectors["w"].double())
        return None
