"""`make screenshots`: every page as a reader sees it, into build/screenshots.

A report of one run and of two, a run watched, a frontier, the demo and the reproduction, each
on a desk and on a phone, in the light and in the dark.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from aspire.pages import Page, write
from aspire.pages.frontier import page_of
from aspire.pages.report import report
from reproduction import demo
from reproduction.page import write as write_reproduction
from tests.browser import LOOKS, Tab, lacking, launched
from tests.pages.runs import finished, stopped, watching
from tests.pages.test_frontier_page import frontier

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build" / "screenshots"


@contextmanager
def addresses(place: Path) -> Iterator[dict[str, str]]:
    """Of every page, by its name."""
    robust = finished(place / "robust")
    half = stopped(place / "half")
    pages: dict[str, Page] = {
        "report": report([robust]),
        "side-by-side": report([robust, half]),
        "frontier": page_of(frontier(), 0.75),
        "demo": demo.run(1).page(),
    }
    paths = {name: write(place / f"{name}.html", page) for name, page in pages.items()}
    paths["reproduction"] = write_reproduction(ROOT / "results", place / "reproduction.html")
    with watching(half) as (address, _):
        yield {name: path.as_uri() for name, path in paths.items()} | {"watch": address}


def main() -> None:
    """Make them, and say where they are."""
    if lacks := lacking():
        sys.exit(f"make screenshots {lacks}")
    with (
        tempfile.TemporaryDirectory() as place,
        addresses(Path(place)) as pages,
        sync_playwright() as play,
    ):
        browser = launched(play)
        for name, address in pages.items():
            for width, scheme in LOOKS:
                with Tab(browser, address, width, scheme) as tab:
                    tab.page.wait_for_selector(".plot .main-svg")
                    tab.shot(OUT / f"{name}-{width}-{scheme}.png")
        browser.close()
    sys.stdout.write(f"Screenshots: {OUT.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
