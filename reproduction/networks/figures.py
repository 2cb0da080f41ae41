"""What tables are made of: finished cells, means over their seeds, numbers as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.networks.plan import Key, Record

NOTHING = "-"
Row = list[str]


@dataclass(frozen=True)
class Cells:
    """The finished cells of one size."""

    size: str
    records: Mapping[Key, Record]

    def by_seed(
        self, network: str, method: str, setting: str, rate: float | None = None
    ) -> dict[int, Record]:
        wanted = {"size": self.size, "network": network, "method": method, "setting": setting}
        found = {}
        for record in self.records.values():
            fits = all(record[name] == value for name, value in wanted.items())
            if fits and (setting != "half" or record.get("rate") == rate):
                found[record["seed"]] = record
        return found


def written(title: str, head: Row, rows: Sequence[Row]) -> str:
    """A title and a table; nothing where there is no row."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return f"{title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def mean_loss(records: Mapping[int, Record], seeds: Sequence[int]) -> float:
    """The mean over seeds of the worst training loss; infinite where a run has none."""
    found = [records[seed].get("worst_loss") for seed in seeds]
    return float(np.mean([math.inf if worst is None else worst for worst in found]))


def mean_of(records: Mapping[int, Record], seeds: Sequence[int], name: str) -> float:
    found = [records[seed].get(name) for seed in seeds]
    return float(np.mean([math.nan if value is None else value for value in found]))


def common(*several: Mapping[int, Record]) -> list[int]:
    """The seeds that all of them have."""
    return sorted(set.intersection(*(set(records) for records in several)))


def text(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return NOTHING
    return f"{value:.{digits}g}" if math.isfinite(value) else "diverged"


def factor(value: float) -> str:
    return NOTHING if not math.isfinite(value) else f"{value:.2f}"


def geometric(ratios: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(ratios)))) if ratios else math.nan


def share_text(shares: Sequence[float]) -> str:
    if not shares:
        return NOTHING
    three = (float(np.median(shares)), min(shares), max(shares))
    middle, least, most = (f"{x:.2f}" if math.isfinite(x) else "not reached" for x in three)
    return middle if len(shares) == 1 else f"{middle} ({least} to {most})"


def with_error(values: Sequence[float]) -> str:
    """The mean, and its standard error where there are several."""
    mean = f"{np.mean(values):+.1f}"
    if len(values) < 2:
        return mean
    return f"{mean} ({np.std(values, ddof=1) / math.sqrt(len(values)):.1f})"
