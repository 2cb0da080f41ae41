"""The page of a frontier: what it says, and that a reader can see it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("plotly", reason="needs aspire-ease[report]")
from aspire.api.frontier import Frontier, Setting
from aspire.pages import Table, Text, write
from aspire.pages.frontier import page_of
from tests.browser import LOOKS, Tab


def frontier(sites: int = 12) -> Frontier:
    """The last site gains 10 points with every setting, the others pay two."""
    settings = []
    for k in range(4):
        test = np.full(sites, 0.9 - 0.02 * k)
        test[-1] = 0.5 + 0.1 * k
        settings.append(Setting(float(k), test, test, np.full(sites, 1 / sites)))
    samples = np.full(sites, 100.0)
    names = tuple(f"hospital number {j}" for j in range(sites))
    return Frontier("budget", names, tuple(settings), samples, samples, 1000)


def test_the_page_says_the_answer_first():
    blocks = page_of(frontier(), 0.75).blocks
    said = "Floor 75.0 %: on val every site reaches it from budget 3."
    assert blocks[0] == Text(said, verdict=True)
    table = [block for block in blocks if isinstance(block, Table)][-1]
    assert [table.rows[place][0] for place in table.worst] == ["hospital number 11"]
    assert table.rows[11][2:4] == ["50.0 %", "80.0 %"]
    assert [row[-1] for row in table.rows] == ["0"] * 11 + ["3"]


def test_a_floor_that_nobody_keeps_and_no_floor():
    closest = page_of(frontier(), 0.95).blocks[0]
    assert "no setting brings every site there; the closest is budget 3" in closest.text
    assert page_of(frontier()).blocks[0].text.startswith("Knee: budget 3")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_reader_sees_it(chromium, tmp_path, width, scheme):
    path = write(tmp_path / "frontier.html", page_of(frontier(), 0.75))
    with Tab(chromium, path.as_uri(), width, scheme) as tab:
        assert tab.faults() == []
        assert len(tab.charts()) == 4
        assert "every site reaches it from budget 3" in tab.text()
