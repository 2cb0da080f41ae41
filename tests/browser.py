"""Pages in Chromium, as a reader sees them: on a desk and on a phone, in the light and in the dark.

Debian's binary is used. Where it or playwright is missing, tests skip, but with CI=true they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LOOKS = [(width, scheme) for width in (1280, 375) for scheme in ("light", "dark")]
SLOW = 60_000.0  # milliseconds that a busy machine may take


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser for the session."""
    lacks = lacking()
    if lacks and os.environ.get("CI") == "true":
        pytest.fail(lacks)
    if lacks:
        pytest.skip(lacks)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        yield launched(play)


def lacking() -> str:
    """What a browser test needs and is not here; '' where all is."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "needs playwright (make install)"
    return "" if shutil.which("chromium") else "needs Chromium (apt-get install chromium)"


def launched(play: Any) -> Any:
    return play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])


class Tab:
    """A page that is open; `said` is what the browser complained about."""

    def __init__(self, browser: Any, address: str, width: int = 1280, scheme: str = "light"):
        looks = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        self.context = browser.new_context(**looks)
        self.width = width
        self.said: list[str] = []
        self.page = self.context.new_page()
        self.page.set_default_timeout(SLOW)
        self.page.on("console", lambda message: self.said.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._asked(request.url, address))
        self.page.goto(address)

    def _asked(self, url: str, address: str) -> None:
        if not url.startswith((address.rpartition("/")[0], "data:", "blob:")):
            self.said.append(f"asked for {url}")

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def text(self) -> str:
        return str(self.page.inner_text("body"))

    def charts(self) -> list[Any]:
        """Once all of them are drawn."""
        drawn = "() => [...document.querySelectorAll('.plot')].every((plot) => plot._fullLayout)"
        self.page.wait_for_function(drawn)
        return list(self.page.query_selector_all(".plot"))

    def faults(self) -> list[str]:
        """What a reader would miss, [] where nothing."""
        found = [f"{chart}" for place in self.charts() if (chart := self._fault(place))]
        wide = self.page.evaluate("document.documentElement.scrollWidth")
        if wide > self.width:
            found.append(f"{wide} pixels wide on a screen of {self.width}")
        return found + self.said

    def _fault(self, plot: Any) -> str:
        """Axes without titles, a legend over data, no value on hover."""
        about = plot.evaluate(ABOUT)
        if not all(about["titles"]):
            return f"{about['title']}: an axis without a title"
        if about["over"]:
            return f"{about['title']}: the legend is over the data"
        plot.scroll_into_view_if_needed()
        points = plot.evaluate(POINTS)
        for pause, (x, y) in [(ms, point) for ms in (100, 2000) for point in points]:
            self.page.mouse.move(x, y, steps=3)
            self.page.wait_for_timeout(pause)
            said = plot.query_selector(".hoverlayer .hovertext")
            if said and any(letter.isdigit() for letter in said.text_content()):
                return ""
        return f"{about['title']}: no value on hover"

    def shot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.charts()
        self.page.mouse.move(0, 0)
        self.page.screenshot(path=path, full_page=True)


ABOUT = """(plot) => {
  const box = (selector) => plot.querySelector(selector)?.getBoundingClientRect();
  const legend = box(".legend"), { yaxis } = plot._fullLayout;
  const top = plot.getBoundingClientRect().top + yaxis._offset;
  return {
    title: plot.parentElement.querySelector("h3").textContent,
    titles: [".xtitle", ".ytitle"].map((axis) => plot.querySelector(axis)?.textContent),
    over: Boolean(legend && legend.top < top + yaxis._length && legend.bottom > top),
  };
}"""
POINTS = """(plot) => {
  const bars = [...plot.querySelectorAll(".bars .point path")];
  const boxes = bars.map((bar) => bar.getBoundingClientRect());
  const seen = boxes.filter((box) => box.width * box.height > 0);
  if (seen.length) return seen.map((box) => [box.x + box.width / 2, box.y + box.height / 2]);
  const { xaxis, yaxis } = plot._fullLayout;
  const box = plot.getBoundingClientRect();
  const points = plot.calcdata.flat().filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y));
  const left = box.x + xaxis._offset, top = box.y + yaxis._offset;
  const at = (point) => [left + xaxis.c2p(point.x), top + yaxis.c2p(point.y)];
  return [0.25, 0.42, 0.59, 0.76, 0.93].map((part) => at(points[Math.floor(part * points.length)]));
}"""
