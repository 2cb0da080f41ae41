"""Settings by random search, on the same terms for every method.

12 settings a method and data set, half of the gradients, one seed that no table reports, judged by
the worst site's accuracy on a tenth of each training part, at the look where that is best. Setting
0 is the untouched row's; 1 to 11 are drawn from `knobs`, seeded by (method, number).

If the best of them lies within a tenth of the range from an end of a number's range, that knob's
range is longer by half beyond this end, for every method that has the knob. Then every method has
two more settings: its best one with one such knob in the new part, one that its own best asked for
if there is one. That happens once for a data set, when all methods have their 12.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reproduction import knobs
from reproduction.cells import Cell
from reproduction.choices import SEARCHED, parent

TRIALS = 12
MORE = 2
SEED = 100
EDGE = 0.1  # of a range
BEYOND = 0.5  # of a range
FILE = "tuned.json"
Record = Mapping[str, Any]
Edge = tuple[str, int]  # a knob and its end: 0 the lower, 1 the upper
Known = Callable[[Cell], Record | None]  # the record of a finished cell
Stage = Callable[[Known], list[Cell]]

# ---------------------------------------------------------------- drawing


def places(maker: str, number: int) -> dict[str, float]:
    """Where in their ranges setting `number` has its knobs; setting 0 turns none."""
    rng = np.random.default_rng([number, *maker.encode()])
    return {name: float(rng.random()) for name in knobs.knobs_of(maker)} if number else {}


def drawn(cell: Cell, number: int, first: Record) -> Cell:
    """Setting `number` of a search, given the record of setting 0."""
    settings = knobs.settings_of(cell.maker, places(cell.maker, number), first)
    return replace(cell, settings=settings, trial=number)


def numbers_of(maker: str, number: int) -> list[str]:
    """The knobs with a range that turn something in setting `number`."""
    known = knobs.knobs_of(maker)
    place = places(maker, number).get("optimizer")
    optimizer: Any = None if place is None else known["optimizer"].at(place, 1.0)
    idle = knobs.idle(maker, optimizer)
    return [name for name, x in known.items() if isinstance(x, knobs.Log) and name not in idle]


def edges(maker: str, number: int) -> list[Edge]:
    """The ends of ranges that setting `number` is near."""
    at = places(maker, number)
    numbers = {name: at[name] for name in numbers_of(maker, number) if at}
    near = [(name, 0) for name, u in numbers.items() if u < EDGE]
    return near + [(name, 1) for name, u in numbers.items() if u > 1.0 - EDGE]


def beyond(cell: Cell, number: int, best: int, wider: Sequence[Edge], first: Record) -> Cell:
    """One more setting of a method whose best one is known."""
    at = further(cell.maker, number, best, wider)
    return replace(cell, settings=knobs.settings_of(cell.maker, at, first), trial=number)


def further(maker: str, number: int, best: int, wider: Sequence[Edge]) -> dict[str, float]:
    """The places of the best setting, with a knob in the new part of its range.

    A method with no such knob has one more setting within the ranges.
    """
    rng = np.random.default_rng([number, *maker.encode()])
    mine = edges(maker, best) or [e for e in wider if e[0] in numbers_of(maker, best)]
    if not mine:
        return places(maker, number)
    name, end = mine[int(rng.random() * len(mine))]
    far = BEYOND * float(rng.random())
    return {**places(maker, best), name: 1.0 + far if end else -far}


def stages(cells: Sequence[Cell], trials: int) -> tuple[Stage, Stage]:
    """What follows on setting 0 of `cells`: the drawn settings, then those beyond the ranges."""

    def numbered(known: Known) -> list[Cell]:
        first = [(cell, known(cell)) for cell in cells]
        return [drawn(c, k, one) for c, one in first if one is not None for k in range(1, trials)]

    def wider(known: Known) -> list[Cell]:
        made: list[Cell] = []
        for dataset in dict.fromkeys(cell.dataset for cell in cells):
            made += extension([cell for cell in cells if cell.dataset == dataset], known, trials)
        return made

    return numbered, wider


def extension(cells: Sequence[Cell], known: Known, trials: int) -> list[Cell]:
    """Two more settings for each method of one data set; none while a setting is missing."""
    firsts = {cell.maker: known(cell) for cell in cells}
    bests = {}
    for cell in cells:
        first = firsts[cell.maker]
        more = () if first is None else (known(drawn(cell, k, first)) for k in range(1, trials))
        found = [record for record in (first, *more) if record is not None]
        if len(found) == trials:
            bests[cell.maker] = int(best(found)["trial"])
    if bests.keys() != set(SEARCHED):
        return []
    wider = sorted({edge for maker, number in bests.items() for edge in edges(maker, number)})
    return [
        beyond(cell, number, bests[cell.maker], wider, first)
        for cell in cells
        if wider and (first := firsts[cell.maker]) is not None
        for number in range(trials, trials + MORE)
    ]


# ---------------------------------------------------------------- choosing


def best(trials: Sequence[Record]) -> Record:
    """The setting with the best worst site on the validation parts; of equals the first."""
    return max(trials, key=lambda record: float(record["worst_accuracy"]))


def grouped(records: Sequence[Record]) -> dict[tuple[str, str], list[Any]]:
    """The trials of every data set and method, in their order."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for record in sorted(records, key=lambda record: record["trial"]):
        groups.setdefault((record["dataset"], record["method"]), []).append(record)
    return dict(sorted(groups.items()))


def choose(records: Sequence[Record], command: str) -> dict[str, Any]:
    """dataset -> method -> the chosen settings, with what they were chosen by."""
    chosen: dict[str, Any] = {"command": command, "datasets": {}}
    for (dataset, method), trials in grouped(records).items():
        found = best(trials)
        chosen["datasets"].setdefault(dataset, {})[method] = {
            "settings": found["settings"],
            "trial": found["trial"],
            "trials": len(trials),
            "validation": found["worst_accuracy"],
            "untouched": trials[0]["worst_accuracy"],
            "gradients": found["budget"],
        }
    return chosen


def best_of(records: Sequence[Record]) -> list[Record]:
    """The chosen trial of every method and data set: what a summary of the search shows."""
    return [best(trials) for trials in grouped(records).values()]


def committed() -> dict[str, Any]:
    """The chosen settings that are committed."""
    file = Path(__file__).with_name(FILE)
    if not file.is_file():
        return {"command": None, "datasets": {}}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def tuned_settings(dataset: str, maker: str) -> dict[str, Any] | None:
    """The committed settings of a method on a data set; None: not tuned.

    A variant of one of our forms has the settings of the form.
    """
    found = committed()["datasets"].get(dataset, {}).get(parent(maker))
    return None if found is None else dict(found["settings"])
