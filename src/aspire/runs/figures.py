"""Figures of all sites, from what each of them answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aspire.protocol import ALWAYS, PARTS

Answers = Sequence[Mapping[str, float]]  # one a site, {} where it did not answer


@dataclass(frozen=True)
class Figure:
    """What was measured on n samples of a site, and an interval of 95 %; None: not known."""

    value: float
    n: int
    low: float | None = None
    high: float | None = None


Table = dict[str, dict[str, list[Figure | None]]]  # by metric and part, in the order of the sites


def table(answers: Answers, metrics: Sequence[str]) -> Table:
    """The parts of a metric are those on which a site has a figure."""
    found: Table = {}
    for metric in (*ALWAYS, *metrics):
        columns = {part: [_figure(said, f"{part}.{metric}") for said in answers] for part in PARTS}
        found[metric] = {part: column for part, column in columns.items() if any(column)}
    return found


def _figure(said: Mapping[str, float], name: str) -> Figure | None:
    if f"{name}.value" not in said:
        return None
    ends = (said.get(f"{name}.{field}") for field in ("low", "high"))
    return Figure(said[f"{name}.value"], int(said[f"{name}.n"]), *ends)


def read(figures: Mapping[str, Any]) -> Table:
    """From result.json."""
    return {
        metric: {part: [x and Figure(**x) for x in xs] for part, xs in parts.items()}
        for metric, parts in figures.items()
    }


def plain(figures: Table) -> dict[str, Any]:
    """As result.json has them."""
    return {
        metric: {part: [None if x is None else asdict(x) for x in xs] for part, xs in parts.items()}
        for metric, parts in figures.items()
    }
