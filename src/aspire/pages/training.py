"""What happened while a run trained: losses, weights, planes, staleness and absences as charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aspire.pages.blocks import Block, Text
from aspire.pages.charts import curves, spans
from aspire.pages.figures import Limits, Series
from aspire.pages.record import Record
from aspire.pages.trail import gaps

STEPS = "iteration (master steps)"
EACH = (  # of every site: key, title, axis, which end is worst
    ("accuracies", "Accuracy of every site", "accuracy (%)", "low"),
    ("train_losses", "Training loss of every site", "training loss (mean per sample)", "high"),
    ("weights", "Weight of every site", "weight (share of the sum)", "high"),
    ("test_losses", "Test loss of every site", "test loss (mean per sample)", "high"),
    ("val_losses", "Validation loss of every site", "validation loss (mean per sample)", "high"),
    ("val_accuracies", "Validation accuracy of every site", "validation accuracy (%)", "low"),
)
PERCENT: Limits = (0, 100)
SHARE: Limits = (0, 1)
FREE: Limits = (None, None)


def trained(record: Record) -> list[Block]:
    """The charts of one run."""
    if not record.history:
        return [Text("There are no charts before the first evaluation.")]
    charts = [_each(record, *row) for row in EACH if record.has(row[0])]
    return [*charts, *_overall(record), *_staleness(record), *_absences(record)]


def compared(records: Sequence[Record]) -> list[Block]:
    """A line for each run."""
    clocks = {record.clock for record in records}
    other = f"{clocks.pop()} time (s)" if len(clocks) == 1 else None
    found: list[Block] = []
    for key, title, y, limits in (
        ("worst_case_loss", "Worst case over the set", "training loss (mean per sample)", FREE),
        ("worst_accuracy", "Accuracy of the worst site", "accuracy (%)", PERCENT),
        ("planes", "Cutting planes", "planes (count)", (0, None)),
    ):
        series = [
            _series(record, record.name, _scaled(record.column(key), limits))
            for record in records
            if record.has(key)
        ]
        if series:
            steps = key == "planes"
            found.append(
                curves(title, x=STEPS, y=y, series=series, other=other, limits=limits, steps=steps)
            )
    return found


def _each(record: Record, key: str, title: str, y: str, worst: str) -> Block:
    limits = PERCENT if "%" in y else SHARE if key == "weights" else FREE
    if key == "accuracies" and (record.result or {}).get("evaluated_on"):
        part = record.result["evaluated_on"]  # type: ignore[index]
        y = f"accuracy on {'test or train' if part == 'mixed' else part} (%)"
    series = [
        _series(record, name, _scaled(record.of_site(key, j), limits))
        for j, name in enumerate(record.sites)
    ]
    return _curves(record, title, y, series, worst=worst, limits=limits)


def _overall(record: Record) -> list[Block]:
    """The worst case, and how many planes there are."""
    keys = {
        "worst_case_loss": "worst case, training",
        "worst_loss": "largest, training",
        "worst_val_loss": "largest, validation",
    }
    series = [
        _series(record, name, record.column(key)) for key, name in keys.items() if record.has(key)
    ]
    found = [
        _curves(
            record,
            "Worst-case loss over the set, and largest loss",
            "loss (mean per sample)",
            series,
        )
    ]
    if record.has("planes"):
        planes = [_series(record, "planes", record.column("planes"))]
        axis = "planes (count)"
        found.append(_curves(record, "Cutting planes", axis, planes, limits=(0, None), steps=True))
    return found


def _staleness(record: Record) -> list[Block]:
    """How long each site's reports were out, where the log has its events."""
    if not any(record.trail.reports):
        return [Text("How old reports were is not known: the run's log has no events.")]
    times, steps = record.column("time"), record.column("t")
    found = gaps(record.trail, times, steps)  # type: ignore[arg-type]
    series = [_series(record, name, line) for name, line in zip(record.sites, found, strict=True)]
    bound = record.settings.get("staleness")
    note = "The longest since the evaluation before" + (
        f"; the bound is {bound}." if bound else "."
    )
    title = "Staleness: steps between two reports of a site"
    y = "staleness (master steps)"
    return [_curves(record, title, y, series, worst="high", limits=(0, None), note=note)]


def _absences(record: Record) -> list[Block]:
    """Who was away, from when until when."""
    away = record.absences()
    if not away:
        return [Text("No site was away.")]
    end = float(record.history[-1]["t"])
    found = [
        (x.site, x.since, max(end, x.since) if x.until is None else x.until, x.reason) for x in away
    ]
    return [spans("Who was away", x=STEPS, y="site", found=found, note=f"{len(away)} absences.")]


# ---------------------------------------------------------------- pieces


def _curves(record: Record, title: str, y: str, series: Sequence[Series], **more: Any) -> Block:
    """Over iterations or the run's clock, with the evaluation that the model is of."""
    chosen = (record.result or {}).get("selected") or {}
    marks = None
    if chosen.get("t", record.history[-1]["t"]) != record.history[-1]["t"]:
        marks = {"model kept": float(chosen["t"])}
    other = f"{record.clock} time (s)"
    return curves(title, x=STEPS, y=y, series=series, other=other, marks=marks, **more)


def _series(record: Record, name: str, values: Sequence[float | None]) -> Series:
    return Series(name, record.column("t"), values, other_x=record.column("time"))


def _scaled(values: Sequence[float | None], limits: Limits) -> Sequence[float | None]:
    """Shares as percent."""
    return [None if x is None else 100 * x for x in values] if limits == PERCENT else values
