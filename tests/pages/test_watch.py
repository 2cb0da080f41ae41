"""`aspire watch`: live, for whoever has the address, and without a trace in the run."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

pytest.importorskip("plotly", reason="needs aspire-ease[report]")
pytest.importorskip("uvicorn", reason="needs aspire-ease[report]")
from aspire.api import train
from aspire.cli import main
from aspire.pages.watch import watched
from tests.browser import LOOKS, Tab
from tests.helpers import linear
from tests.pages.runs import EVIL, finished, sites, stopped, watching
from tests.runtimes.threads import ThreadEngine

STEPS = {"iterations": 200, "evaluate_every": 20, "batch_size": 8}
SLOW = 120.0  # seconds that a busy machine may take


class Paused:
    """A training in a thread that waits at every 50th iteration until it is let go."""

    def __init__(self, out: Path, **arguments: Any) -> None:
        self.arrived = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._train, args=(out,), kwargs=arguments)
        self.thread.start()

    def _train(self, out: Path, **arguments: Any) -> None:
        train(linear(), sites(4), out=out, progress=self._wait, **STEPS, **arguments)

    def _wait(self, t: int) -> None:
        if t % 50 == 0:
            self.arrived.release()
            assert self.go.acquire(timeout=SLOW)


def bytes_of(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}


def answer(address: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, str]:
    parts = urlsplit(address)
    line = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SLOW)
    line.request(method, path or parts.path, headers=headers)
    said = line.getresponse()
    text = said.read().decode()
    line.close()
    return said.status, text


@pytest.mark.parametrize("engine", [None, ThreadEngine()], ids=["simulator", "engine"])
def test_numbers_change_while_the_run_goes_on(
    chromium: Any, tmp_path: Path, engine: ThreadEngine | None
) -> None:
    run = tmp_path / "run"
    training = Paused(run, engine=engine)
    assert training.arrived.acquire(timeout=SLOW)
    try:
        with watching(run) as (address, _), Tab(chromium, address) as tab:
            at = state_of(tab, lambda found: found >= (0 if engine else 40))
            for _ in range(3):
                training.go.release()
                assert training.arrived.acquire(timeout=SLOW)
            later = state_of(tab, lambda found: found > at)
            assert EVIL in tab.text()
            training.go.release()
            training.thread.join(SLOW)
            assert state_of(tab, lambda found: found == 200) > later
            tab.page.wait_for_function(
                "document.body.innerText.includes('The run ended after 200')"
            )
            assert tab.faults() == []
    finally:
        training.go.release(4)
        training.thread.join(SLOW)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a run that was stopped."""
    with watching(stopped(tmp_path_factory.mktemp("served") / "run")) as (address, _):
        yield address


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_it_looks_as_a_report_does(chromium: Any, served: str, width: int, scheme: str) -> None:
    with Tab(chromium, served, width, scheme) as tab:
        tab.page.wait_for_selector(".plot .main-svg")
        assert tab.faults() == []
        assert "The run has not ended: it is at iteration 200" in tab.text()


def state_of(tab: Tab, enough: Callable[[int], bool]) -> int:
    """The iteration that the page shows, when it is one that is waited for."""
    for _ in range(600):
        found = re.search(r"iteration (\d+)", tab.page.inner_text("#state"))
        if found and enough(int(found[1])):
            return int(found[1])
        tab.page.wait_for_timeout(200)
    raise AssertionError(tab.page.inner_text("#state"))


def test_who_does_not_have_the_address_gets_nothing(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    before = bytes_of(run)
    with watching(run) as (address, process):
        host = urlsplit(address).netloc
        assert answer(address)[0] == 200
        assert answer(address, Host=host.replace("127.0.0.1", "localhost"))[0] == 200
        path = urlsplit(address).path
        for wrong in ("/", "/x/", f"/{path[1:-2]}x/", f"//{path}", "/%ff/", "/../etc/passwd"):
            assert answer(address, wrong)[0] == 403
            assert answer(address, f"{wrong}news")[0] == 403
        for name in ("evil.example", "", f"evil.example:{urlsplit(address).port}", "127.0.0.1:1"):
            assert answer(address, Host=name)[0] == 403
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert answer(address, method=method)[0] == 405
        assert answer(address, f"{path}run.json")[0] == 404
        news = json.loads(answer(address, f"{path}news?have=x")[1])
        assert (news["ended"], news["number"]) == (True, 1)
        assert "page" not in json.loads(answer(address, f"{path}news?have=1")[1])
        process.send_signal(signal.SIGINT)
        assert process.wait(SLOW) == 0
        assert process.stderr.read() == "Stopped watching.\n"
    assert bytes_of(run) == before


def test_killing_it_changes_no_byte_of_the_run(tmp_path: Path) -> None:
    training = Paused(tmp_path / "seen", seed=1)
    assert training.arrived.acquire(timeout=SLOW)
    with watching(tmp_path / "seen") as (address, process):
        assert answer(address, f"{urlsplit(address).path}news")[0] == 200
        os.kill(process.pid, signal.SIGKILL)
    training.go.release(4)
    training.thread.join(SLOW)
    train(linear(), sites(4), out=tmp_path / "alone", seed=1, **STEPS)
    seen, alone = (bytes_of(tmp_path / name) for name in ("seen", "alone"))
    assert seen.keys() == alone.keys()
    different = {name for name in seen if seen[name] != alone[name]}
    assert different <= {
        "result.json",
        *(n for n in seen if n.startswith("checkpoints")),
    }  # seconds


def test_damage_is_said_and_the_page_stays(tmp_path: Path) -> None:
    run = stopped(tmp_path / "run")
    found = watched(run)
    assert "page" in found.news(-1)
    history = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(history + '{"t": 1')
    assert "page" in found.news(1)  # a half-written line
    (run / "history.jsonl").write_text("[]\n" + history)
    news = found.news(2)
    assert news["state"].startswith("The run cannot be read now: ")
    assert "page" not in news
    (run / "history.jsonl").write_text(history)
    assert found.news(2)["page"]["blocks"]


def test_it_needs_a_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["watch", str(tmp_path)])
    assert done.exit_code == 2
    assert "run.json" in done.output
