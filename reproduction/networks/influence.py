"""The table of what liars do to the honest sites."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from reproduction.networks import liars
from reproduction.networks.figures import NOTHING, Cells, Row, common, written
from reproduction.networks.liars import CLIPPED, EVEN, FOR_ONE, HONEST, LONG, LOW, UNCLIPPED
from reproduction.networks.plan import Record

SAID = {
    HONEST: "the truth",
    "reversed": "gradient times -100",
    "far": "a fixed far vector",
    "alie": "ALIE",
    "ipm": "IPM",
    "mimic": "Mimic",
}
BOUNDS = {
    UNCLIPPED: "none",
    CLIPPED: "clip=1, liars=2",
    FOR_ONE: "clip=1, liars=1",
    LONG: f"clip=1, liars=2, {liars.LONGER} times the gradients",
}


def influence(cells: Cells) -> str:
    """Every attack in a row; differences are paired by seed."""
    rows = [found_row(cells, UNCLIPPED, HONEST)]
    for method in (CLIPPED, LONG, FOR_ONE):
        rows += [found_row(cells, method, attack) for attack in SAID]
    head = ["two of ten sites report", "bound", "liars weigh at most .2/N", "less clean"]
    head += ["even prior", "less clean", "seeds"]
    title = (
        "Lies in the direct form, CNN: worst test accuracy of the eight honest sites at the end, "
        "%, mean over seeds. Less clean: points above the clean run, in which all are honest, with "
        "the same prior and bound (for the run without bound: with clip=1, liars=2), mean of the "
        "paired differences and its standard error. Whoever lies about its gradient says 3 times "
        "the worst honest loss as well."
    )
    return written(title, head, [row for row in rows if row])


def found_row(cells: Cells, method: str, attack: str) -> Row:
    """Nothing where there is no such cell."""
    clean = CLIPPED if method == UNCLIPPED else method
    columns = []
    seeds = 0
    for prior in (LOW, EVEN):
        found = cells.by_seed(liars.NETWORK, method, f"{prior}-{attack}")
        honest = cells.by_seed(liars.NETWORK, clean, f"{prior}-{HONEST}")
        columns += [accuracy_text(found), difference(found, honest)]
        seeds = max(seeds, len(found))
    return [SAID[attack], BOUNDS[method], *columns, str(seeds)] if seeds else []


def accuracy(record: Record) -> float:
    """In points; a run without a model at its end serves nobody."""
    return 100.0 * float(record.get("honest_accuracy", 0.0))


def accuracy_text(records: Mapping[int, Record]) -> str:
    if not records:
        return NOTHING
    return f"{np.mean([accuracy(record) for record in records.values()]):.1f}"


def difference(found: Mapping[int, Record], clean: Mapping[int, Record]) -> str:
    seeds = common(found, clean)
    if not seeds or found == clean:
        return NOTHING
    points = [accuracy(found[seed]) - accuracy(clean[seed]) for seed in seeds]
    shown = f"{np.mean(points):+.1f}"
    if len(points) == 1:
        return shown
    return f"{shown} ± {np.std(points, ddof=1) / math.sqrt(len(points)):.1f}"
