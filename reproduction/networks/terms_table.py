"""The table of the setting `terms`: every method as it comes, with a val part for all."""

from __future__ import annotations

import math
from collections.abc import Iterable

from reproduction.networks.cases import CASES, NINE
from reproduction.networks.figures import (
    NOTHING,
    Cells,
    Row,
    common,
    mean_of,
    text,
    with_error,
    written,
)
from reproduction.networks.plan import Record
from reproduction.networks.terms import METHODS, TERMS

OURS = METHODS[0]


def on_equal_terms(cells: Cells) -> list[str]:
    """A table for each network."""
    return [table for name in NINE if (table := of_network(cells, name))]


def of_network(cells: Cells, name: str) -> str:
    rows = [row for method in METHODS if (row := row_of(cells, name, method))]
    title = (
        f"{CASES[name].title}: every method as it comes, a tenth of each training part held out. "
        "Worst test accuracy of the model that is best on the val parts, and of the last one; "
        "the difference is that of the direct form, paired by seed, with its standard error."
    )
    head = ["method", "selected, %", "last, %", "mean, selected, %", "worst training loss"]
    return written(title, [*head, "direct form, selected, less this", "broke down", "seeds"], rows)


def row_of(cells: Cells, name: str, method: str) -> Row:
    """A run that broke down has accuracy 0."""
    found = cells.by_seed(name, method, TERMS)
    if not found:
        return []
    ours = cells.by_seed(name, OURS, TERMS)
    seeds = sorted(found)
    both = common(found, ours)
    selected = {seed: accuracy(record, "selected_worst_accuracy") for seed, record in found.items()}
    apart = [accuracy(ours[s], "selected_worst_accuracy") - selected[s] for s in both]
    broke = sum("stopped" in record for record in found.values())
    trained = [seed for seed in seeds if found[seed].get("worst_loss") is not None]
    return [
        method,
        text(mean(selected.values())),
        text(mean(accuracy(found[s], "last_worst_accuracy") for s in seeds)),
        text(mean(accuracy(found[s], "selected_mean_accuracy") for s in seeds)),
        text(mean_of(found, trained, "worst_loss")) if trained else NOTHING,
        NOTHING if method == OURS or not both else with_error(apart),
        str(broke),
        str(len(seeds)),
    ]


def accuracy(record: Record, name: str) -> float:
    """In points."""
    return 100.0 * float(record.get(name) or 0.0)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan
