"""What each site gets: the table, the dots with their intervals, the certificate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aspire.pages.blocks import Block, Heading, Table, Text
from aspire.pages.charts import dots
from aspire.pages.figures import Interval
from aspire.pages.record import Record
from aspire.pages.scores import ACCURACY, PARTS, Column, Score, judged, scores, shown, worst

ROWS = 200  # of a table
NOTE = (
    "In brackets: intervals of 95 % for each site alone. They take a site's samples for "
    "independent draws, and cover less often than 95 % where n is small. "
    "Of many sites one looks bad by chance."
)
UNKNOWN = "-"
Cells = tuple[str, dict[str, str]]  # the head of a column, and its text by site


def site_blocks(records: Sequence[Record]) -> list[Block]:
    """The table, and where there are intervals the picture of them."""
    columns = [column for record in records for column in _columns(record, len(records) > 1)]
    bad = {record.sites[j] for record in records if (j := _worst(record)) is not None}
    names = _names(records)
    note = NOTE
    if len(names) > ROWS:
        note = f"The worst {ROWS} of {len(names)} sites are shown. {NOTE}"
    names = names[:ROWS]
    rows = [[name, *(cells.get(name, UNKNOWN) for _, cells in columns)] for name in names]
    marked = [place for place, name in enumerate(names) if name in bad]
    mark = "worst" if len(records) == 1 else "worst of a run"
    table = Table(["site", *(head for head, _ in columns)], rows, marked, mark, note)
    return [Heading("Sites"), table, *_picture(records), *_certificates(records)]


def _names(records: Sequence[Record]) -> list[str]:
    """Every site once, as the runs have them; of too many for a table the worst come first."""
    names = list(dict.fromkeys(name for record in records for name in record.sites))
    if len(names) <= ROWS:
        return names
    metric, column = judged(scores(records[0]))
    sign = 1 if metric == ACCURACY else -1
    value = {name: sign * x.value for name, x in zip(records[0].sites, column, strict=False) if x}
    return sorted(names, key=lambda name: value.get(name, float("inf")))


def _worst(record: Record) -> int | None:
    return worst(*judged(scores(record)))


def _columns(record: Record, several: bool) -> list[Cells]:
    """State while it runs, weight, and every metric; of several runs the first part of each."""
    found = [*_standing(record), _weights(record)]
    table = scores(record)
    parts = [part for part in PARTS if any(part in columns for columns in table.values())]
    for part in parts[:1] if several else parts:
        columns = {metric: columns[part] for metric, columns in table.items() if part in columns}
        for metric, column in columns.items():
            unit = " (%)" if metric == ACCURACY else ""
            texts = [_text(metric, score) for score in column]
            found.append((f"{part} {metric}{unit}", dict(zip(record.sites, texts, strict=True))))
        found += _sizes(record, part, list(columns.values()))
    if several:
        found = [(f"{record.name}: {head}", cells) for head, cells in found]
    return found


def _standing(record: Record) -> list[Cells]:
    """What the status says of each site while the run goes on."""
    rows = (record.status or {}).get("sites", [])
    if record.result is not None or not any(row.get("alive") is not None for row in rows):
        return []
    state = {row["name"]: "here" if row.get("alive") else "away" for row in rows}
    found = [("state", state)]
    for key, head in (("staleness", "steps behind"), ("reports", "reports"), ("late", "late")):
        found.append((head, {row["name"]: str(row.get(key, UNKNOWN)) for row in rows}))
    return found


def _weights(record: Record) -> Cells:
    said = record.result or (record.history[-1] if record.history else {})
    weights = said.get("weights") or [None] * len(record.sites)
    texts = [UNKNOWN if x is None else f"{x:.3f}" for x in weights]
    return "weight", dict(zip(record.sites, texts, strict=True))


def _sizes(record: Record, part: str, columns: Sequence[Column]) -> list[Cells]:
    """How many samples the figures on a part are of."""
    sizes = {
        name: f"{score.n:,}"
        for column in columns
        for name, score in zip(record.sites, column, strict=True)
        if score is not None and score.n is not None
    }
    return [(f"{part} n", sizes)] if sizes else []


def _text(metric: str, score: Score | None) -> str:
    if score is None:
        return UNKNOWN

    def number(value: float) -> str:
        return shown(metric, value).removesuffix(" %")

    if score.low is None or score.high is None:
        return number(score.value)
    return f"{number(score.value)} ({number(score.low)} to {number(score.high)})"


def _picture(records: Sequence[Record]) -> list[Block]:
    """The score that sites are judged by, of all runs that have it."""
    found = {record.name: (record, *judged(scores(record))) for record in records}
    metric = next(iter(found.values()))[1]
    names = _names(records)
    groups: dict[str, list[Interval | None]] = {}
    for name, (record, own, column) in found.items():
        if own == metric and any(column):
            by_site = dict(zip(record.sites, column, strict=True))
            groups[name] = [_interval(metric, by_site.get(site)) for site in names]
    if not groups:
        return []
    parts = {x.part for _, _, column in found.values() for x in column if x is not None}
    title = f"{metric.capitalize()} at each site, on its {' or '.join(sorted(parts))} part"
    if metric == ACCURACY:
        axis = "accuracy (%)"
        return [dots(title, x=axis, names=names, groups=groups, limits=(0, 100), worst="low")]
    return [dots(title, x="loss (mean per sample)", names=names, groups=groups, worst="high")]


def _interval(metric: str, score: Score | None) -> Interval | None:
    if score is None:
        return None
    factor = 100.0 if metric == ACCURACY else 1.0
    low, high = (None if end is None else factor * end for end in (score.low, score.high))
    return factor * score.value, low, high


def _certificates(records: Sequence[Record]) -> list[Block]:
    """What is promised of the worst site, where a run has a certificate."""
    found: list[Block] = []
    for record in records:
        said = (record.result or {}).get("certificate")
        if isinstance(said, dict):
            run = f" of {record.name}" if len(records) > 1 else ""
            found += [Heading(f"Certificate{run}"), Text(_promise(said))]
    return found


def _promise(said: dict[str, Any]) -> str:
    """The bounds, and what they rest on."""
    parts = []
    if said.get("accuracy") is not None:
        parts.append(f"no site's accuracy is below {100 * said['accuracy']:.1f} % ({said['site']})")
    if said.get("loss") is not None:
        cut = f"each sample's loss cut off at {said['loss_bound']:.4g}"
        parts.append(f"the worst-case test loss over the set is at most {said['loss']:.4g}, {cut}")
    if not parts:
        return "Nothing can be promised: there are no test figures of every site."
    level = f"With confidence {100 * (1 - said['alpha']):.4g} %"
    return (
        f"{level}, each for itself: {'; '.join(parts)}. Assumed: {'; '.join(said['assumptions'])}."
    )
