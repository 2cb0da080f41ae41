"""The page of a frontier: the answer, the price over the dial, and every site at one setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aspire.api.frontier import Answer, Band, Frontier
from aspire.api.frontier_words import answer_lines, at, knee_line, setting_rows, site_rows
from aspire.pages.blocks import Block, Chart, Heading, Page, Table, Text
from aspire.pages.charts import curves, dots
from aspire.pages.figures import Interval, Series
from aspire.types import Array

PERCENT = (0, 100)
ACCURACY = "test accuracy (%)"
UNITS = {"budget": "budget Gamma (sites)", "radius": "radius (weight)", "beta": "beta (share)"}
NOTE = (
    "Accuracies are on test parts, with Wilson's 95 % intervals; with few samples these hold the "
    "truth a little less often than that."
)
PRICES = (
    "Newcombe's 95 % intervals of a difference of two independent proportions. Both models are "
    "scored on the same samples, so that they are rather too wide."
)
CHOICE = "The setting was chosen by accuracies on val parts."


def page_of(frontier: Frontier, floor: float | None = None) -> Page:
    """The page, with the answer to `floor` where one is given."""
    answer = None if floor is None else frontier.answer(floor)
    k = frontier.knee if answer is None else answer.setting
    sites, worst = site_rows(frontier, k, answer)
    settings = setting_rows(frontier)
    return Page(
        f"The price of robustness, by {frontier.dial}",
        [
            *verdict(frontier, answer),
            Heading(f"From {at(frontier, 0)} to {at(frontier, len(frontier.settings) - 1)}"),
            price_chart(frontier, answer),
            sites_chart(frontier),
            Table(settings[0], settings[1:], worst=[frontier.knee], mark="knee"),
            Heading(f"Every site at {at(frontier, k)}"),
            *setting_charts(frontier, k),
            Table(sites[0], sites[1:], worst=worst, note=CHOICE),
        ],
    )


def verdict(frontier: Frontier, answer: Answer | None) -> list[Block]:
    lines = [] if answer is None else answer_lines(frontier, answer)
    lines = [f"{line[0].upper()}{line[1:]}." for line in (*lines, knee_line(frontier))]
    return [Text(line, verdict=not place) for place, line in enumerate(lines)]


def price_chart(frontier: Frontier, answer: Answer | None) -> Chart:
    """The worst site and the mean over the dial."""
    x = values(frontier)
    worst = [int(setting.test.argmin()) for setting in frontier.settings]
    bands = [frontier.intervals(k) for k in range(len(x))]
    lines = [
        Series(
            "worst site",
            x,
            [100 * s.test[j] for s, j in zip(frontier.settings, worst, strict=True)],
            [100 * low[j] for (low, _), j in zip(bands, worst, strict=True)],
            [100 * high[j] for (_, high), j in zip(bands, worst, strict=True)],
        ),
        Series("mean of the sites", x, [100 * s.test.mean() for s in frontier.settings]),
    ]
    marks = {"knee": frontier.settings[frontier.knee].value}
    if answer is not None and answer.setting != frontier.knee:
        name = "closest" if answer.chosen is None else "floor"
        marks[name] = frontier.settings[answer.setting].value
    return curves(
        "What the worst site gains, and what the mean pays",
        x=UNITS[frontier.dial],
        y=ACCURACY,
        series=lines,
        limits=PERCENT,
        markers=True,
        marks=marks,
        note=f"{NOTE} The worst site may be another one at each setting.",
    )


def sites_chart(frontier: Frontier) -> Chart:
    x = values(frontier)
    test = 100 * np.array([setting.test for setting in frontier.settings])
    return curves(
        "Every site",
        x=UNITS[frontier.dial],
        y=ACCURACY,
        series=[
            Series(name, x, column.tolist())
            for name, column in zip(frontier.sites, test.T, strict=True)
        ],
        limits=PERCENT,
        worst="low",
        markers=True,
    )


def setting_charts(frontier: Frontier, k: int) -> list[Chart]:
    """Accuracies at the smallest setting and at this one, and what is between them."""
    groups = {at(frontier, 0): intervals(frontier.settings[0].test, frontier.intervals(0))}
    groups[at(frontier, k)] = intervals(frontier.settings[k].test, frontier.intervals(k))
    change, band = frontier.price(k)
    return [
        dots(
            "Accuracy of every site",
            x=ACCURACY,
            names=frontier.sites,
            groups=groups,
            limits=PERCENT,
            worst="low",
            note=NOTE,
        ),
        dots(
            f"Change from {at(frontier, 0)} to {at(frontier, k)}",
            x="change (points)",
            names=frontier.sites,
            groups={"change": intervals(change, band)},
            limits=(-100, 100),
            worst="low",
            note=PRICES,
        ),
    ]


def values(frontier: Frontier) -> list[float]:
    return [setting.value for setting in frontier.settings]


def intervals(middle: Array, band: Band) -> Sequence[Interval]:
    """In percent, or in points."""
    rows = 100 * np.array([middle, *band]).T
    return [(row[0], row[1], row[2]) for row in rows.tolist()]
