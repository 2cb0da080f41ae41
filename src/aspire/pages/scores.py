"""What every site gets: figures by metric and part, with n and an interval where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aspire.pages.record import Record
from aspire.problem.intervals import wilson
from aspire.runs import files as rundir

ACCURACY = "accuracy"
LOSS = "loss"
PARTS = ("test", "val", "train")


@dataclass(frozen=True)
class Score:
    """A figure of a site on a part, its n and the ends of its interval; None: not known."""

    value: float
    part: str
    n: int | None = None
    low: float | None = None
    high: float | None = None


Column = Sequence[Score | None]  # one a site
Table = dict[str, dict[str, Column]]  # by metric and part


def scores(record: Record) -> Table:
    """Of the model that the run gave; while it goes on, of the newest evaluation.

    What result.json has under `metrics` counts more than the figures that every run has.
    """
    said = record.result or (record.history[-1] if record.history else {})
    found: Table = {ACCURACY: {}, LOSS: {}}
    for part in PARTS:
        counts = said.get(f"{part}_samples") or [None] * len(record.sites)
        found[LOSS][part] = _column(said.get(f"{part}_losses"), counts, part)
        found[ACCURACY][part] = [
            _share(score) for score in _column(_accuracies(said, part), counts, part)
        ]
    for metric, parts in ((record.result or {}).get("metrics") or {}).items():
        for part, column in parts.items():
            found.setdefault(metric, {})[part] = [_stored(x, part, record) for x in column]
    kept = {
        metric: {part: parts[part] for part in PARTS if any(parts.get(part, ()))}
        for metric, parts in found.items()
    }
    return {metric: parts for metric, parts in kept.items() if parts}


def judged(table: Table) -> tuple[str, Column]:
    """What sites are compared by: accuracy or else loss, on the test part or else on train."""
    metric = ACCURACY if ACCURACY in table else LOSS
    columns = table.get(metric, {})
    parts = [columns[part] for part in ("test", "train") if part in columns]
    return metric, [next((x for x in row if x), None) for row in zip(*parts, strict=True)]


def worst(metric: str, column: Column) -> int | None:
    """The place of the worst score; None where nothing is known."""
    known = [(x.value, j) for j, x in enumerate(column) if x is not None]
    if not known:
        return None
    return min(known)[1] if metric == ACCURACY else max(known)[1]


def shown(metric: str, value: float) -> str:
    """A figure as text: accuracies in percent."""
    if metric == ACCURACY:
        return f"{100 * value:.1f} %"
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"


def _accuracies(said: Mapping[str, Any], part: str) -> Sequence[float | None] | None:
    """`accuracies` is on the test parts, and on the train part of a site that has no other."""
    values = said.get("accuracies")
    if part == "val" or values is None:
        return said.get("val_accuracies") if part == "val" else None
    tests = said.get("test_losses") or [None] * len(values)
    wanted = [(loss is not None) == (part == "test") for loss in tests]
    return [x if here else None for x, here in zip(values, wanted, strict=True)]


def _column(values: Any, counts: Sequence[int | None], part: str) -> Column:
    if values is None:
        return []
    return [None if x is None else Score(x, part, n) for x, n in zip(values, counts, strict=True)]


def _share(score: Score | None) -> Score | None:
    """With its interval, which follows from n alone."""
    if score is None or not score.n:
        return score
    return Score(score.value, score.part, score.n, *wilson(round(score.value * score.n), score.n))


def _stored(said: Any, part: str, record: Record) -> Score | None:
    """As result.json has it."""
    if said is None:
        return None
    where = f"{record.path / rundir.RESULT}: metrics"
    perhaps = (int, float, type(None))
    rundir.need(said, where, value=perhaps, n=(int, type(None)), low=perhaps, high=perhaps)
    value = said["value"]
    return None if value is None else Score(value, part, said["n"], said["low"], said["high"])
