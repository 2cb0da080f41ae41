"""What charts are made of: lines, bands, dots, axes and names, as plotly.js takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

LINES = 8  # with more, the worst are named and the others are one band
COLOURS = 8
NAME = 26  # letters of a name in a chart
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot")
Value = float | None
Interval = tuple[Value, Value, Value]  # a figure, and the ends of its interval where it has one
Limits = tuple[float | None, float | None]  # of what is possible, such as (0, 100)


@dataclass(frozen=True)
class Series:
    """A line: y over x, None where it is not known.

    low, high   the edges of its band
    other_x     the same points over something else, for `curves(other=)`
    dash        0 to 3: solid, dashed, dotted, both
    colour      0 to 7; None: the next
    """

    name: str
    x: Sequence[Value]
    y: Sequence[Value]
    low: Sequence[Value] | None = None
    high: Sequence[Value] | None = None
    other_x: Sequence[Value] | None = None
    dash: int = 0
    colour: int | None = None


def known(values: Sequence[Value]) -> list[Value]:
    """Plain numbers, None for what is not finite."""
    return [float(v) if v is not None and math.isfinite(v) else None for v in values]


def shortened(names: Sequence[str]) -> list[str]:
    """Names that fit into a chart, no two alike, and no part of them is read as a tag."""
    short = [name if len(name) <= NAME else f"{name[: NAME - 3]}..." for name in names]
    unique = [
        name if short.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(short)
    ]
    return [escape(name, quote=False) for name in unique]


def parted(series: Sequence[Series], worst: str) -> tuple[list[Series], list[Series]]:
    """The lines that are named, and those that become a band."""
    if len(series) <= LINES:
        return list(series), []
    order = list(range(len(series)))
    if worst:
        order = worst_first([(_last(line.y), None, None) for line in series], worst)
    named, others = order[: LINES - 1], sorted(order[LINES - 1 :])
    return [series[place] for place in named], [series[place] for place in others]


def worst_first(values: Sequence[Interval | None], worst: str) -> list[int]:
    """Places by value, the worst first and the unknown last; as they are where nothing is worst."""
    if not worst:
        return list(range(len(values)))
    sign = -1.0 if worst == "high" else 1.0

    def rank(place: int) -> float:
        found = values[place]
        return math.inf if found is None or found[0] is None else sign * found[0]

    return sorted(range(len(values)), key=rank)


def _last(values: Sequence[Value]) -> Value:
    return next((v for v in reversed(known(values)) if v is not None), None)


def band_of(lines: Sequence[Series]) -> Series:
    """From the least to the largest of the lines, on the x of the longest."""
    longest = max(lines, key=lambda line: len(line.x))
    at = np.array(longest.x, dtype=float)
    rows = [
        np.interp(
            at,
            np.array(line.x, dtype=float),
            np.array(line.y, dtype=float),
            left=math.nan,
            right=math.nan,
        )
        for line in lines
        if len(line.x)
    ]
    found = np.array(rows).reshape(-1, len(at))
    low = np.fmin.reduce(found, axis=0)
    high = np.fmax.reduce(found, axis=0)
    name = f"the other {len(lines)}, from least to largest"
    return Series(name, longest.x, [None] * len(at), low.tolist(), high.tolist(), longest.other_x)


@dataclass(frozen=True)
class Drawn:
    """A line with its name and colour in the chart."""

    line: Series
    name: str
    shade: str

    def traces(self, hover: str, limits: Limits) -> list[tuple[dict[str, Any], list[Value]]]:
        """Its band, its line, or both; each with its other x."""
        line = self.line
        name = self.name or line.name
        made = []
        common = {"type": "scatter", "name": name, "legendgroup": name, "hovertemplate": hover}
        other = known(line.x if line.other_x is None else line.other_x)
        values = known(line.y)
        alone = all(value is None for value in values)
        if line.low is not None and line.high is not None:
            low, high = known(line.low), known(line.high)
            kept = [j for j in range(len(low)) if low[j] is not None and high[j] is not None]
            ends = [*kept, *reversed(kept)]
            edge = [_clipped(low[j], limits) for j in kept]
            edge += [_clipped(high[j], limits) for j in reversed(kept)]
            at = known(line.x)
            band = {"x": [at[j] for j in ends], "y": edge, "fill": "toself", "hoveron": "points"}
            fill = {"fillcolor": f"{self.shade}/0.18", "line": {"color": self.shade, "width": 0}}
            made.append(({**common, **band, **fill, "showlegend": alone}, [other[j] for j in ends]))
        if not alone or not made:
            look = {"color": self.shade, "width": 2, "dash": DASHES[line.dash]}
            marker = {"color": self.shade, "size": 6}
            whole: dict[str, Any] = {
                "x": known(line.x),
                "y": values,
                "line": look,
                "marker": marker,
            }
            made.append(({**common, **whole, "showlegend": True}, other))
        return made


def interval_dots(
    place: int,
    name: str,
    rows: Sequence[str],
    found: Sequence[Interval | None],
    marks: list[str],
    x: str,
) -> dict[str, Any]:
    """The dots of a group, with what an interval adds to each side."""
    values = known([None if one is None else one[0] for one in found])
    low = known([None if one is None else one[1] for one in found])
    high = known([None if one is None else one[2] for one in found])
    above = [_less(end, value) for end, value in zip(high, values, strict=True)]
    below = [_less(value, end) for end, value in zip(low, values, strict=True)]
    said = [
        "" if a is None or b is None else f"<br>interval {a:.4g} to {b:.4g}"
        for a, b in zip(low, high, strict=True)
    ]
    colour = f"@c{place % COLOURS}"
    return {
        "type": "scatter",
        "mode": "markers",
        "orientation": "h",
        "name": escape(name, quote=False),
        "offsetgroup": str(place),
        "x": values,
        "y": list(rows),
        "text": said,
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "color": colour,
            "thickness": 1.5,
            "width": 4,
        },
        "marker": {"color": marks, "size": 9, "symbol": SYMBOLS[place % len(SYMBOLS)]},
        "hovertemplate": f"<b>%{{y}}</b>, %{{fullData.name}}<br>{escape(x)} %{{x:.4~g}}%{{text}}"
        "<extra></extra>",
    }


def _less(a: Value, b: Value) -> Value:
    return None if a is None or b is None else a - b


def _clipped(value: Value, limits: Limits) -> Value:
    low, high = limits
    if value is None:
        return None
    return min(max(value, -math.inf if low is None else low), math.inf if high is None else high)


def hover(x: str, y: str, at: str = "%{x:.6~g}") -> str:
    """What a point says; nothing of it comes from a run but its numbers and its name."""
    lines = ["<b>%{fullData.name}</b>", f"{escape(x)}: {at}", f"{escape(y)}: %{{y:.4~g}}"]
    return "<br>".join(lines) + "<extra></extra>"


def layout(x: str, y: str, *, showlegend: bool) -> dict[str, Any]:
    axis = {
        "gridcolor": "@line",
        "linecolor": "@line",
        "zerolinecolor": "@line",
        "automargin": True,
        "fixedrange": False,
    }
    return {
        "xaxis": {**axis, "title": {"text": escape(x), "standoff": 8}, "nticks": 6},
        "yaxis": {**axis, "title": {"text": escape(y), "standoff": 8}, "nticks": 6},
        "font": {"color": "@ink", "size": 12.5, "family": "system-ui, sans-serif"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@ink", "font": {"color": "@ink"}},
        "hovermode": "closest",
        "showlegend": showlegend,
        "legend": {
            "orientation": "h",
            "x": 0,
            "xref": "container",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "font": {"color": "@ink"},
        },
        "margin": {"t": 12, "r": 16, "b": 40, "l": 48},
        "height": 300,
        "dragmode": False,
    }


def mark(layout: dict[str, Any], name: str, at: float) -> None:
    """A dotted line across the chart, named above it."""
    line = {"color": "@faint", "width": 1.5, "dash": "dot"}
    common = {"xref": "x", "yref": "paper"}
    layout.setdefault("shapes", []).append(
        {**common, "type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}
    )
    layout.setdefault("annotations", []).append(
        {**common, "x": at, "y": 1, "yanchor": "bottom", "text": name, "showarrow": False}
    )
    layout["margin"]["t"] = 28


def within(axis: dict[str, Any], limits: Limits, values: Sequence[Value]) -> None:
    """An axis around the values with some air, that does not go beyond what is possible."""
    found = [value for value in values if value is not None]
    if not found or limits == (None, None):
        return
    air = 0.05 * (max(found) - min(found)) or 0.05 * abs(max(found)) or 1.0
    low, high = min(found) - air, max(found) + air
    axis["range"] = [_clipped(low, limits), _clipped(high, limits)]
