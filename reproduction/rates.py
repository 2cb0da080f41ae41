"""How fast the stationarity gap falls: slopes that are fitted, beside those that are guaranteed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import paper

Line = dict[str, Any]
Record = Mapping[str, Any]
Records = Mapping[tuple[str, str, str], Sequence[Record]]


def slope_of(history: Mapping[str, Any]) -> float | None:
    """Least squares of log gap on log t over the second half of the curve, half by log t.

    None where fewer than two points are left.
    """
    t = np.asarray(history["t"], dtype=float)
    gap = np.array([np.nan if v is None else v for v in history["gap"]], dtype=float)
    kept = (t > 0) & (gap > 0)
    x = np.log(t[kept])
    y = np.log(gap[kept])
    if not len(x):
        return None
    late = x >= (x[0] + x[-1]) / 2
    if np.count_nonzero(late) < 2:
        return None
    return float(np.polyfit(x[late], y[late], 1)[0])


def add_slopes(lines: Sequence[Line], records: Records) -> list[Line]:
    """To each line its slope over seeds and the one that is guaranteed."""
    found = []
    for line in lines:
        several = records[line["dataset"], line["method"], line["variant"]]
        fits = [slope_of(record["history"]) for record in several]
        slopes = [one for one in fits if one is not None]
        more: Line = {}
        if slopes:
            std = float(np.std(slopes, ddof=1)) if len(slopes) > 1 else 0.0
            more["slope"] = {"mean": float(np.mean(slopes)), "std": std}
        guaranteed = paper.SLOPES.get(line["method"])
        if guaranteed is not None:
            more["guaranteed"] = guaranteed
        found.append({**line, **more})
    return found
