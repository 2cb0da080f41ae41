"""The parts of pages: what charts show, and that no text becomes markup."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

pytest.importorskip("plotly", reason="needs aspire-ease[report]")
from aspire.pages import Chart, Heading, Page, Series, Table, Text, bars, curves, dots, spans, write
from aspire.pages.document import document, embedded
from tests.browser import LOOKS, Tab

EVIL = "<img src=x onerror=alert(1)>&amp;</script><script>alert(2)</script>"
X = list(range(0, 1000, 100))


def falling(count: int, times: float = 1.0) -> list[Series]:
    """Lines that end at 1, 2, ... times `times`."""
    return [
        Series(f"site {j}", X, [times * (j + 1) * (2 - x / 900) for x in X], other_x=X)
        for j in range(count)
    ]


def everything() -> Page:
    names = ["north", EVIL, *(f"site {j}" for j in range(10))]
    values = [(60.0 + j, 50.0 + j, 70.0 + j) for j in range(12)]
    lines = [Series(name, line.x, line.y) for name, line in zip(names, falling(12), strict=True)]
    x = "iteration (master steps)"
    blocks = [
        Text(EVIL, verdict=True),
        Table(["site", EVIL], [[EVIL, "1"], ["b", EVIL]], worst=[0], note=EVIL),
        Heading(EVIL),
        curves(EVIL, x=x, y="loss (per sample)", series=lines, worst="high", note=EVIL),
        curves("Log", x=x, y="gap (squared)", series=falling(2), log="xy", other="time (s)"),
        dots("Dots", x="accuracy (%)", names=names, groups={"a": values, EVIL: values}),
        spans("Away", x=x, y="site", found=[(EVIL, 10, 90, EVIL), ("b", 0, 5, "silent")]),
        bars("Bars", x="site", y="weight (fraction)", names=names, groups={EVIL: range(12)}),
    ]
    return Page(EVIL, blocks)


def traces(chart: Chart) -> dict[str, dict]:
    return {trace["name"]: trace for trace in chart.figure["data"]}


def test_more_than_eight_lines_are_seven_named_ones_and_a_band() -> None:
    eight = curves("a", x="x (1)", y="y (1)", series=falling(8), worst="high")
    assert list(traces(eight)) == [f"site {j}" for j in range(8)]
    found = traces(curves("a", x="x (1)", y="y (1)", series=falling(12), worst="high"))
    others = "the other 5, from least to largest"
    assert set(found) == {others, *(f"site {j}" for j in range(5, 12))}
    assert found[others]["y"][0] == 2.0  # of site 0
    assert max(found[others]["y"]) == 10.0  # of site 4
    low = traces(curves("a", x="x (1)", y="y (1)", series=falling(12), worst="low"))
    assert {"site 0", "site 6"} < set(low)
    assert "site 7" not in low


def test_bands_and_axes_end_at_what_is_possible() -> None:
    line = Series("a", [0, 1, 2], [90.0, 99.0, 5.0], [80.0, 95.0, -3.0], [101.0, 103.0, 13.0])
    chart = curves("a", x="x (1)", y="accuracy (%)", series=[line], limits=(0, 100))
    band, _ = chart.figure["data"]
    assert band["y"] == [80.0, 95.0, 0.0, 13.0, 100.0, 100.0]
    assert chart.figure["layout"]["yaxis"]["range"] == [0, 100]
    row = [(99.0, 93.0, 100.0), (50.0, 40.0, 60.0), None]
    chart = dots("a", x="accuracy (%)", names=["a", "b", "c"], groups={"": row}, limits=(0, 100))
    low, high = chart.figure["layout"]["xaxis"]["range"]
    assert (low < 40.0, high) == (True, 100)


def test_unknown_values_are_gaps() -> None:
    line = Series("a", [0, 1, 2], [1.0, None, math.nan], [None, 0.0, 1.0], [2.0, 2.0, math.inf])
    band, trace = curves("a", x="x (1)", y="y (1)", series=[line]).figure["data"]
    assert trace["y"] == [1.0, None, None]
    assert band["x"] == [1.0, 1.0]
    json.dumps([band, trace], allow_nan=False)


def test_names_in_a_chart_are_short_and_no_two_alike() -> None:
    names = ["a" * 40, "a" * 41, "b"]
    found = traces(curves("a", x="x", y="y", series=[Series(n, X, X) for n in names]))
    assert [len(name) <= 30 for name in found] == [True] * 3


def test_no_text_becomes_markup() -> None:
    page = document(everything())
    body = page[page.index("<main>") : page.index("</main>")]
    assert "<img" not in page.replace(document(Page("")), "")
    assert not re.search(r"<(img|script)", body)
    data = page[page.index('id="page">') : page.index("</script>", page.index('id="page">'))]
    assert "<" not in data
    assert json.loads(embedded({"a": EVIL})) == {"a": EVIL}


def test_a_page_is_written_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "new" / "page.html", everything())
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_in_a_browser(chromium, tmp_path: Path, width: int, scheme: str) -> None:
    path = write(tmp_path / "page.html", everything())
    with Tab(chromium, path.as_uri(), width, scheme) as tab:
        assert tab.faults() == []
        assert EVIL in tab.text()
        paper = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        tab.page.click("text=over time (s)")
        assert tab.charts()[1].evaluate("(plot) => plot.layout.xaxis.title.text") == "time (s)"
        assert tab.said == []
