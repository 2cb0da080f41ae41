"""Which settings are tried on a network: the search of `tune`, with fewer of them for a method.

Setting 0 is untouched, the others are drawn from `knobs`, seeded by (method, number). If the best
of a method is near an end of a range, this range is extended there, for all that have the knob, and
every method has two settings more. The best has the lowest worst validation loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction import knobs, tune
from reproduction.networks.trials import Trial

TRIALS = 6
Record = Mapping[str, Any]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Search:
    """Of one network, as far as the finished trials say what comes next.

    make   the trial of a method with this number and these settings
    known  its record; None: it is not finished
    """

    methods: Sequence[str]
    make: Callable[[str, int, Settings], Trial]
    known: Callable[[Trial], Record | None]

    def trials(self) -> list[Trial]:
        """All that are known to be wanted."""
        within = [trial for method in self.methods for trial in self.drawn(method)]
        return [*within, *self.extension()]

    def best(self) -> dict[str, Trial]:
        """The best trial of every method; empty while the search goes on."""
        trials = self.trials()
        if not self.within() or any(self.known(trial) is None for trial in trials):
            return {}
        return {
            method: self.lowest([trial for trial in trials if trial.method == method])
            for method in self.methods
        }

    def drawn(self, method: str) -> list[Trial]:
        """Setting 0, and when that is finished those drawn from its constants."""
        untouched = self.make(method, 0, knobs.untouched(method, linear=False))
        first = self.first(method)
        if first is None:
            return [untouched]
        settings = (
            knobs.settings_of(method, tune.places(method, number), first)
            for number in range(1, TRIALS)
        )
        return [untouched, *(self.make(method, k, s) for k, s in enumerate(settings, 1))]

    def first(self, method: str) -> Record | None:
        """The record of setting 0, as `knobs` reads it."""
        found = self.known(self.make(method, 0, knobs.untouched(method, linear=False)))
        return None if found is None else {**found, "settings": json.loads(found["settings"])}

    def within(self) -> dict[str, int]:
        """The number of every method's best setting; empty before all have theirs."""
        bests: dict[str, int] = {}
        for method in self.methods:
            trials = self.drawn(method)
            if len(trials) < TRIALS or any(self.known(trial) is None for trial in trials):
                return {}
            bests[method] = self.lowest(trials).number or 0
        return bests

    def extension(self) -> list[Trial]:
        """The settings beyond the ranges, for every method if one of them wants any."""
        bests = self.within()
        wider = sorted({edge for method, k in bests.items() for edge in tune.edges(method, k)})
        made: list[Trial] = []
        for method in bests if wider else ():
            first = self.first(method)
            assert first is not None
            for number in range(TRIALS, TRIALS + tune.MORE):
                at = tune.further(method, number, bests[method], wider)
                made.append(self.make(method, number, knobs.settings_of(method, at, first)))
        return made

    def lowest(self, trials: Sequence[Trial]) -> Trial:
        """Of equals the first; all are finished."""
        return min(trials, key=lambda trial: loss_of(self.known(trial)))


def loss_of(record: Record | None) -> float:
    loss = None if record is None else record["val_loss"]
    return math.inf if loss is None else float(loss)
