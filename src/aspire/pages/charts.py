"""Charts with the defaults of a scientific page: named axes, few lines, hover with values.

A legend is below its chart and never over data. Colours tell apart for the colour-blind, and their
names ("@c0") become those of the light or the dark page in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from aspire.pages import figures
from aspire.pages.blocks import Chart
from aspire.pages.figures import (
    COLOURS,
    Drawn,
    Interval,
    Limits,
    Series,
    Value,
    hover,
    known,
    shortened,
)


def curves(
    title: str,
    *,
    x: str,
    y: str,
    series: Sequence[Series],
    other: str | None = None,
    limits: Limits = (None, None),
    worst: str = "",
    log: str = "",
    steps: bool = False,
    markers: bool = False,
    marks: Mapping[str, float] | None = None,
    note: str = "",
) -> Chart:
    """Lines over x. With more than eight, seven are named and the others become one band.

    x, y     titles of the axes, each with its unit
    other    title of the axis of `other_x`
    limits   what y can be: bands and the axis end there
    worst    'high' or 'low': which lines are named, by their last value; '': the first
    log      'x', 'y' or 'xy': axes that are logarithmic
    steps    the values hold until the next point
    markers  show the points
    marks    places on the x axis that are named above the lines, such as a knee
    """
    named, others = figures.parted(series, worst)
    names = shortened([line.name for line in named])
    drawn = [Drawn(figures.band_of(others), "", "@faint")] if others else []
    for place, line in enumerate(named):
        number = place % COLOURS if line.colour is None else line.colour
        drawn.append(Drawn(line, names[place], f"@c{number}"))
    traces = [trace for one in drawn for trace in one.traces(hover(x, y), limits)]
    data = [trace for trace, _ in traces]
    for trace in data:
        trace["mode"] = "lines+markers" if markers or len(trace["x"]) == 1 else "lines"
        if steps and "fill" not in trace:
            trace["line"]["shape"] = "hv"
    layout = figures.layout(x, y, showlegend=len(data) > 1)
    for axis in ("x", "y"):
        if axis in log:
            layout[f"{axis}axis"] |= {"type": "log", "exponentformat": "power"}
    if "y" not in log:
        figures.within(layout["yaxis"], limits, [v for trace in data for v in trace["y"]])
    for name, at in (marks or {}).items():
        figures.mark(layout, escape(name, quote=False), at)
    elsewhere = None if other is None else (other, [at for _, at in traces])
    return Chart(title, {"data": data, "layout": layout}, elsewhere, note)


def dots(
    title: str,
    *,
    x: str,
    y: str = "site",
    names: Sequence[str],
    groups: Mapping[str, Sequence[Interval | None]],
    limits: Limits = (None, None),
    worst: str = "",
    note: str = "",
) -> Chart:
    """A row for each name, with a dot and its interval for each group.

    Of more than thirty names the worst thirty are shown, in the last group's order.

    x, y     titles of the axes: of the values, with the unit, and of the names
    limits   what a value can be
    worst    'high' or 'low': the worst value of a lone group is marked
    """
    shown = figures.worst_first(list(groups.values())[-1], worst)[:30]
    if len(names) > 30:
        note = f"{note} The worst 30 of {len(names)} are shown.".strip()
    rows = shortened([names[j] for j in shown])
    data = []
    for place, (name, values) in enumerate(groups.items()):
        found = [values[j] for j in shown]
        marks = [f"@c{place % COLOURS}"] * len(found)
        if worst and len(groups) == 1 and found and found[0] is not None:
            marks[0] = "@bad"
        data.append(figures.interval_dots(place, name, rows, found, marks, x))
    layout = figures.layout(x, y, showlegend=len(groups) > 1)
    layout |= {"height": 96 + len(rows) * max(24, 14 * len(groups)), "scattermode": "group"}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "dtick": 1}
    ends = [end for one in groups.values() for found in one for end in found or ()]
    figures.within(layout["xaxis"], limits, ends)
    return Chart(title, {"data": data, "layout": layout}, note=note)


def bars(
    title: str, *, y: str, names: Sequence[str], groups: Mapping[str, Sequence[Value]], x: str
) -> Chart:
    """A bar for each name and group, from 0."""
    rows = shortened(names)
    data = [
        {
            "type": "bar",
            "name": escape(name, quote=False),
            "x": rows,
            "y": known(values),
            "marker": {"color": f"@c{place % COLOURS}"},
            "hovertemplate": hover(x, y, "%{x}"),
        }
        for place, (name, values) in enumerate(groups.items())
    ]
    layout = figures.layout(x, y, showlegend=len(data) > 1)
    layout["xaxis"]["type"] = "category"
    return Chart(title, {"data": data, "layout": layout})


def spans(
    title: str, *, x: str, y: str, found: Sequence[tuple[str, float, float, str]], note: str = ""
) -> Chart:
    """A bar from a begin to an end in the row of each name; the text is said on hover."""
    names = list(dict.fromkeys(name for name, *_ in found))
    row = dict(zip(names, shortened(names), strict=True))
    data = {
        "type": "bar",
        "orientation": "h",
        "y": [row[name] for name, *_ in found],
        "base": [begin for _, begin, _, _ in found],
        "x": [end - begin for _, begin, end, _ in found],
        "customdata": [[end, escape(text, quote=False)] for _, _, end, text in found],
        "marker": {"color": "@c1"},
        "showlegend": False,
        "hovertemplate": "<b>%{y}</b><br>from %{base:.6~g} to %{customdata[0]:.6~g}<br>"
        "%{customdata[1]}<extra></extra>",
    }
    layout = figures.layout(x, y, showlegend=False)
    layout |= {"height": 110 + 26 * len(names), "barmode": "overlay"}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "dtick": 1}
    return Chart(title, {"data": [data], "layout": layout}, note=note)
