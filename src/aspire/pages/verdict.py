"""What a page says first: who is worst off and by how much, and whether the run is done."""

from __future__ import annotations

from collections.abc import Sequence

from aspire.pages.record import Record
from aspire.pages.scores import ACCURACY, Score, judged, scores, shown, worst


def verdict(records: Sequence[Record]) -> str:
    """Two sentences."""
    if len(records) > 1:
        return _of_several(records)
    record = records[0]
    metric, column = judged(scores(record))
    j = worst(metric, column)
    if j is None:
        return f"No site has been evaluated yet. {_standing(record)}"
    known = [x.value for x in column if x is not None]
    mean = shown(metric, sum(known) / len(known))
    return (
        f"The worst-served site, {record.sites[j]}, has {_said(metric, column[j])}; the mean of "
        f"{_count(len(known), 'site')} is {mean}. {_standing(record)}"
    )


def _of_several(records: Sequence[Record]) -> str:
    """Which run serves its worst site best, and what the others' worst sites have."""
    found = []
    for record in records:
        metric, column = judged(scores(record))
        j = worst(metric, column)
        score = None if j is None else column[j]
        if j is not None and score is not None:
            found.append((metric, score, record.sites[j], record.name))
    metrics = {metric for metric, *_ in found}
    if len(found) < len(records) or len(metrics) > 1:
        return (
            "These runs have no figure of every worst site in common. The table has what is known."
        )
    metric = metrics.pop()
    found.sort(key=lambda one: one[1].value, reverse=metric == ACCURACY)
    _, best, site, name = found[0]
    first = (
        f"Of {len(found)} runs {name} serves its worst site best: {site} has {_said(metric, best)}."
    )
    others = [f"{shown(metric, x.value)} in {run} ({worst})" for _, x, worst, run in found[1:]]
    return f"{first} The worst site has {', '.join(others)}."


def _said(metric: str, score: Score | None) -> str:
    """A figure with its part, n and interval."""
    assert score is not None
    about = [] if score.n is None else [f"n = {score.n:,}"]
    if score.low is not None and score.high is not None:
        ends = f"{shown(metric, score.low)} to {shown(metric, score.high)}"
        about.append(f"95 % interval {ends}")
    more = f" ({', '.join(about)})" if about else ""
    what = "accuracy" if metric == ACCURACY else "a loss of"
    value = shown(metric, score.value)
    figure = f"{value} {what}" if metric == ACCURACY else f"{what} {value}"
    return f"{figure} on its {score.part} part{more}"


def _standing(record: Record) -> str:
    if record.result is None:
        last = record.history[-1]["t"] if record.history else 0
        now = (record.status or {}).get("iteration", last)
        return f"The run has not ended: it is at iteration {now:,}, last evaluated at {last:,}."
    ended = f"The run ended after {_count(record.result['iterations'], 'iteration')}"
    loss = record.result.get("worst_case_loss")
    trend = record.result.get("trend")
    if loss is None:
        return f"{ended}."
    state = (
        f", and its loss {'has settled' if trend == 'settled' else f'is {trend}'}" if trend else ""
    )
    return f"{ended} with a worst-case training loss of {loss:.4g} over the set{state}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
