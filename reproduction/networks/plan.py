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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

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
from reproduction.networks.terms import METHODS, MOVING, TERMS

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
    rate = record.get("rate") if record["setting"] in ("search", "half") else None
    return (*names, f"{record['seed']:04}", f"{rate or 0:g}")


def each(
    cells: Callable[[str, int], Iterator[Cell]], names: Iterable[str], seeds: Iterable[int]
) -> Iterator[Cell]:
    """Those of every network with one seed before those with the next."""
    names = list(names)
    for seed in seeds:
        for name in names:
            yield from cells(name, seed)


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

    def cell(self, network: str, method: str, setting: str, seed: int, **more: Any) -> Cell:
        share = 2 if setting == "half" else 1
        gradients = CASES[network].gradients[self.small] // share
        return Cell(network, method, setting, seed, self.size, gradients, **more)

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
        for method in MOVING if CASES[name].normalised else METHODS:
            yield self.cell(name, method, TERMS, seed)

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
        wanted = {"network": network, "method": method, "setting": setting, "seed": seed}
        return self.records.get(key_of({**wanted, "size": self.size, "rate": rate}))

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
