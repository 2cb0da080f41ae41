"""What the demo says of its runs, from figures of our own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aspire.pages import write
from reproduction import demo
from reproduction.demo import EVEN, ROBUST, Result
from tests.browser import LOOKS, Tab


def made(*accuracies):
    return [SimpleNamespace(accuracies=np.array(row)) for row in accuracies]


def test_what_the_others_pay_is_counted_and_gamma_bounds_weights():
    """The others change by -0.1 and 0; in the second seed, where site 0 is worst, by -0.1, 0.2."""
    one = Result({EVEN: made([0.9, 0.8, 0.5]), ROBUST: made([0.8, 0.8, 0.7])})
    first, second = one.sentences().split("\n")
    assert "the worst-served site has 50.0 % " in first
    assert "the worst-served site has 70.0 %, +20.0 points" in first
    assert "the mean of the other sites changes by -5.0 points" in second
    assert second.endswith("Gamma bounds how far weights may move, not what that costs.")
    even = made([0.9, 0.8, 0.5], [0.3, 0.8, 0.6])
    robust = made([0.8, 0.8, 0.7], [0.6, 0.7, 0.8])
    two = Result({EVEN: even, ROBUST: robust}).sentences()
    assert "the worst-served site has 40.0 % " in two
    assert "65.0 %, +25.0 points, after as many steps (means over 2 seeds)" in two
    assert "changes by +0.0 points" in two


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a demo that is over too early."""
    pytest.importorskip("sklearn", reason="needs aspire-ease[demo]")
    change = pytest.MonkeyPatch()
    change.setattr(demo, "ITERATIONS", 400)
    result = demo.run(1)
    change.undo()
    return write(tmp_path_factory.mktemp("demo") / "demo.html", result.page())


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_in_a_browser(chromium, page: Path, width: int, scheme: str) -> None:
    with Tab(chromium, page.as_uri(), width, scheme) as tab:
        assert tab.faults() == []
        assert len(tab.charts()) == 3
        assert "With even weights the worst-served site has" in tab.text()
