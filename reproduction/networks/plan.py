"""Which cells there are, in the order of what they show. Some wait for the figures of others.

end      every method at the full budget
search   the reference at several learning rates, on a seed that no table shows
half     the direct form at half of the budget: its own step, and fixed learning rates
low-far  and the like: the direct form with a clip while two of ten sites lie, see `liars`
long     the direct form for as long as the reference takes, on its clock
listed   the direct form under delays spread 1 to 5 over the sites as listed, until it has the
         worst training loss with which the reference ends; reversed: the same the other way round
noisy    one of the sites has random labels: the direct form with and without a reference, and
         without that site
terms    every method as it comes, each site with a val part: the same for all
terms-listed, terms-reversed
         the best synchronous baseline of `terms` under delays spread 1 to 5, for its clock; and the
         untouched direct form, until it has the worst training loss with which that one ends
trial    settings of every method at half of the budget, on a seed that no table shows
searched every method with its best settings, at the full budget
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reproduction.choices import SYNCHRONOUS, parent
from reproduction.networks import liars
from reproduction.networks.cases import CASES, IMAGES, MANY, NINE, PAPER
from reproduction.networks.methods import (
    CONSENSUS,
    DIRECT,
    OWN,
    REFERENCE,
    SITE_BUFFERS,
    WITHOUT,
)
from reproduction.networks.noisy import NOISY
from reproduction.networks.run import LISTED, REVERSED, Cell, diverged, reference_times
from reproduction.networks.search import Search, Settings
from reproduction.networks.terms import METHODS, MOVING, TERMS
from reproduction.networks.terms_time import ORDERS
from reproduction.networks.trials import SEARCHED, TRIAL, Trial, written

SEEDS = (0, 1, 2, 3, 4)
SEARCH_SEED = 100
RATES = (1e-3, 3e-3, 1e-2)  # of the reference, extended until the best is no edge
FIXED_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # of the direct form, likewise
LADDER = tuple(float(f"{m}e{k}") for k in range(-6, 1) for m in (1, 3))
LATEST = 1.25  # times the reference's time: then a run gives up
TIMED = (*PAPER, *IMAGES)
SHOWN = ("cnn", "vit")  # the consensus form, before the other networks
Record = Mapping[str, Any]
Key = tuple[str, ...]


def key_of(record: Record) -> Key:
    """What tells cells apart in the file."""
    names = [record[name] for name in ("size", "network", "method", "setting")]
    told = {"search": "rate", "half": "rate", TRIAL: "number"}.get(record["setting"], "")
    return (*names, f"{record['seed']:04}", f"{record.get(told) or 0:g}")


def each(
    cells: Callable[[str, int], Iterator[Cell]], names: Iterable[str], seeds: Iterable[int]
) -> Iterator[Cell]:
    """Those of every network with one seed before those with the next."""
    names = list(names)
    for seed in seeds:
        for name in names:
            yield from cells(name, seed)


def on_terms(name: str) -> tuple[str, ...]:
    """The methods that are compared on equal terms: those that can train the network."""
    return MOVING if CASES[name].normalised else METHODS


def best_baseline(ended: Mapping[str, Record | None]) -> str | None:
    """The method with the lowest worst training loss; None while one is missing."""
    found = {method: record for method, record in ended.items() if record is not None}
    losses = {m: float(r["worst_loss"]) for m, r in found.items() if not diverged(r)}
    if not losses or len(found) < len(ended):
        return None
    return min(losses, key=lambda method: losses[method])


@dataclass(frozen=True)
class Plan:
    """The cells of one size, as far as the finished ones say what they are."""

    size: str
    records: Mapping[Key, Record]
    seeds: tuple[int, ...] = SEEDS

    @property
    def small(self) -> bool:
        return self.size == "small"

    def cells(self) -> list[Cell]:
        """All that can be run or was run, each once."""
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[Cell]:
        """The most important first."""
        every = self.seeds
        first = every[:1]
        later = every[1:]
        yield from self.compared(NINE, *first)
        yield from each(self.consensus, SHOWN, first)
        yield from self.compared(NINE, *later)
        yield from each(self.consensus, SHOWN, later)
        yield from self.compared(MANY, *every)
        yield from each(self.long, MANY, every)
        yield from each(self.half, NINE, first)
        yield from self.lies()
        yield from self.compared(PAPER, *every)
        yield from each(self.timed, TIMED, every)
        yield from each(self.consensus, NINE, every)
        yield from each(self.half, NINE, later)
        for seed in every:
            yield from self.noisy(seed)
        yield from each(self.terms, NINE, every)
        yield from each(self.terms_timed, NINE, every)
        for name in NINE:
            yield from self.search_of(name).trials()
        yield from each(self.searched, NINE, every)

    def cell(self, network: str, method: str, setting: str, seed: int, **more: Any) -> Cell:
        return Cell(
            network, method, setting, seed, self.size, self.budget(network, setting), **more
        )

    def budget(self, network: str, setting: str) -> int:
        return CASES[network].gradients[self.small] // (2 if setting in ("half", TRIAL) else 1)

    # ------------------------------------------------------------ groups

    def compared(self, names: Iterable[str], *seeds: int) -> Iterator[Cell]:
        """The direct form, and the reference with the rate that its search found."""
        names = list(names)
        for seed in seeds:
            yield from (self.cell(name, DIRECT, "end", seed) for name in names)
            moving = [name for name in names if CASES[name].normalised]
            yield from (self.cell(name, SITE_BUFFERS, "end", seed) for name in moving)
            for name in names:
                yield from self.search(name)
                rate = self.reference_rate(name)
                if rate is not None:
                    yield self.cell(name, REFERENCE, "end", seed, rate=rate)

    def consensus(self, name: str, seed: int) -> Iterator[Cell]:
        if not CASES[name].normalised:
            yield self.cell(name, CONSENSUS, "end", seed)

    def search(self, name: str) -> Iterator[Cell]:
        for rate in self.tried(name, REFERENCE, "search", SEARCH_SEED, RATES):
            yield self.cell(name, REFERENCE, "search", SEARCH_SEED, rate=rate)

    def half(self, name: str, seed: int) -> Iterator[Cell]:
        yield self.cell(name, DIRECT, "half", seed)
        for rate in self.tried(name, DIRECT, "half", seed, FIXED_RATES):
            yield self.cell(name, DIRECT, "half", seed, rate=rate)

    def long(self, name: str, seed: int) -> Iterator[Cell]:
        found = self.found(name, REFERENCE, "end", seed)
        if found is not None:
            yield self.cell(name, DIRECT, "long", seed, horizon=found["virtual_seconds"])

    def noisy(self, seed: int) -> Iterator[Cell]:
        yield from (self.cell("cnn", method, NOISY, seed) for method in (DIRECT, OWN, WITHOUT))

    def terms(self, name: str, seed: int) -> Iterator[Cell]:
        for method in on_terms(name):
            yield self.cell(name, method, TERMS, seed)

    def terms_timed(self, name: str, seed: int) -> Iterator[Cell]:
        best = best_baseline({m: self.found(name, m, TERMS, seed) for m in SYNCHRONOUS})
        if best is None:
            return
        target = self.records[self.key(name, best, TERMS, seed)]["worst_loss"]
        for setting, order in ORDERS.items():
            yield self.cell(name, best, setting, seed, delays=order)
            clock = self.found(name, best, setting, seed)
            if clock is not None:
                horizon = float(f"{LATEST * clock['virtual_seconds']:.8g}")
                more = {"delays": order, "horizon": horizon, "target": target}
                yield self.cell(name, METHODS[0], setting, seed, **more)

    def search_of(self, name: str) -> Search:
        """The variants of a form have the form's settings."""

        def trial(method: str, number: int, settings: Settings) -> Trial:
            told: dict[str, Any] = {"number": number, "settings": written(settings)}
            budget = self.budget(name, TRIAL)
            return Trial(name, method, TRIAL, SEARCH_SEED, self.size, budget, **told)

        def known(wanted: Trial) -> Record | None:
            found = self.records.get(key_of(wanted.plain()))
            return found if found and found["settings"] == wanted.settings else None

        return Search([m for m in on_terms(name) if parent(m) == m], trial, known)

    def searched(self, name: str, seed: int) -> Iterator[Cell]:
        best = self.search_of(name).best()
        for method in on_terms(name) if best else ():
            settings = best[parent(method)].settings
            budget = self.budget(name, SEARCHED)
            yield Trial(name, method, SEARCHED, seed, self.size, budget, settings=settings)

    def timed(self, name: str, seed: int) -> Iterator[Cell]:
        found = self.found(name, REFERENCE, "end", seed)
        if found is None or diverged(found):
            return
        for order in (LISTED, REVERSED):
            clock = reference_times(seed, order, found["sites"], found["iterations"])
            horizon = float(f"{LATEST * clock[-1]:.8g}")
            more = {"delays": order, "horizon": horizon, "target": found["worst_loss"]}
            yield self.cell(name, DIRECT, order, seed, **more)

    def lies(self) -> Iterator[Cell]:
        for method, setting in liars.settings(self.small):
            longer = liars.LONGER if method == liars.LONG else 1
            for seed in self.seeds:
                cell = self.cell(liars.NETWORK, method, setting, seed)
                yield replace(cell, gradients=longer * cell.gradients)

    # ------------------------------------------------------------ what the records say

    def found(
        self, network: str, method: str, setting: str, seed: int, rate: float | None = None
    ) -> Record | None:
        return self.records.get(self.key(network, method, setting, seed, rate))

    def key(
        self, network: str, method: str, setting: str, seed: int, rate: float | None = None
    ) -> Key:
        wanted = {"network": network, "method": method, "setting": setting, "seed": seed}
        return key_of({**wanted, "size": self.size, "rate": rate})

    def tried(
        self, network: str, method: str, setting: str, seed: int, rates: Iterable[float]
    ) -> list[float]:
        """These rates, and while the best is at an edge the next one beyond it."""
        wanted = list(rates)
        while True:
            best = self.best(network, method, setting, seed, wanted)
            if best is None or wanted[0] < best < wanted[-1]:
                return wanted
            place = LADDER.index(best) + (-1 if best == wanted[0] else 1)
            if not 0 <= place < len(LADDER):
                return wanted
            wanted = sorted([*wanted, LADDER[place]])

    def best(
        self, network: str, method: str, setting: str, seed: int, rates: Iterable[float]
    ) -> float | None:
        """The rate with the lowest worst training loss; None while one of them is missing."""
        losses: dict[float, float] = {}
        for rate in rates:
            found = self.found(network, method, setting, seed, rate)
            if found is None:
                return None
            worst = found.get("worst_loss")
            losses[rate] = float("inf") if worst is None else worst
        return min(losses, key=lambda rate: losses[rate])

    def reference_rate(self, name: str) -> float | None:
        """None while the search is not over."""
        rates = self.tried(name, REFERENCE, "search", SEARCH_SEED, RATES)
        return self.best(name, REFERENCE, "search", SEARCH_SEED, rates)
