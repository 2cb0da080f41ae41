"""Few long messages are on their way at a time: who has no place waits, and nobody keeps one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.engines.carrier import Turn
from aspire.engines.driver import Driver, begin
from aspire.engines.grpc import kits, places, traffic
from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.messages import ANNOUNCED, frames, shape_of
from aspire.engines.grpc.places import MOST, Places
from aspire.engines.grpc.server import Server
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.methods import direct
from aspire.runs.log import EventLog
from aspire.types import Facts, Report, Stepped
from tests.federation.enemy import Enemy, Given
from tests.test_memory import long_storages

CROWD = Path(__file__).parents[2] / "benchmarks" / "crowd.py"
LONG = 10**5  # parameters: their reports need a place


def nothing() -> None:
    """What a place's owner does when it loses it."""


def test_places_go_round_in_order() -> None:
    said: list[Turn] = []

    async def go() -> None:
        few = Places(2, said.append)
        a, b, c, d, e = (few.ask(j, 10 + j, nothing) for j in range(5))
        assert [x.ready.done() for x in (a, b, c, d, e)] == [True, True, False, False, False]
        assert said == []  # nobody had to wait for these
        few.leave(d)  # its connection ended
        few.leave(a)
        assert c.ready.done()
        assert not e.ready.done()
        few.leave(b)
        assert e.ready.done()
        assert few.held == {c, e}

    asyncio.run(go())
    assert [(x.worker, x.task, x.behind) for x in said] == [(2, 12, ((4, 14),)), (4, 14, ())]
    assert all(x.waited >= 0 for x in said)


def test_who_stands_still_while_others_wait_loses_its_place() -> None:
    lost: list[str] = []

    async def go() -> None:
        few = Places(3, lambda turn: None)
        slow, quick, ours = (few.ask(j, j, partial(lost.append, f"{j}")) for j in range(3))
        ours.whole = True  # it came in: the driver has yet to read it
        for _ in range(50):
            few.look()
        assert lost == []  # nobody waits
        few.ask(3, 3, nothing)
        for _ in range(places.STALLED):
            few.look()
            quick.moved()
        assert lost == []
        few.look()
        assert lost == ["0"]
        few.leave(slow)

    asyncio.run(go())


# ---------------------------------------------------------------- a real server


class Run:
    """A server with the direct form and sites that a client of the benchmarks speaks for."""

    def __init__(self, folder: Path, sites: int, parameters: int, **arguments: Any) -> None:
        self.folder, self.names = folder, [f"s{j:03d}" for j in range(sites)]
        kits.init(folder, self.names, ["localhost", "127.0.0.1"], 2)
        start = torch.zeros(parameters)
        terms = Terms(shape_of(start), Settings(), b"crowd")
        self.server = Server(kits.read(folder / "server"), self.names, "127.0.0.1:0", terms)
        self.method = direct(loss_tasks=False, **arguments)
        self.state = begin(self.method, Facts(sites, start), 0)
        self.driver = Driver(
            self.method, self.server, self.names, self.state, EventLog("off"), patience=60.0
        )

    def go(
        self, steps: int, look: Callable[[Any], None] = lambda info: None, without: int = 0
    ) -> None:
        """So many steps; the crowd does not speak for the first `without` sites."""
        words = [str(CROWD), str(self.folder), str(self.server.port), str(len(self.state.master.z))]
        crowd = subprocess.Popen([sys.executable, *words, *self.names[without:]])
        try:
            self.driver.run(lambda state: state.master.t >= steps, on_info=look)
            self.server.close()
            assert crowd.wait(60) == 0
        finally:
            crowd.kill()
            crowd.wait()


def test_no_more_long_reports_are_read_than_there_are_places(tmp_path: Path) -> None:
    run = Run(tmp_path / "kits", 24, LONG)
    seen: list[int] = []
    queue = run.server.loop.put

    def put(arrival: Any) -> None:
        reading = run.server.traffic.reading
        seen.append(len(reading.held))
        if isinstance(arrival, Report) and arrival.vectors:
            assert len(run.server.traffic.unread) <= MOST
        queue(arrival)

    run.server.loop.put = run.server.traffic.loop.put = put  # type: ignore[method-assign]
    run.go(4)
    assert run.state.master.t == 4
    assert not run.state.absences
    assert 1 <= max(seen) <= MOST


def most_held(folder: Path, sites: int, parameters: int) -> int:
    """Bytes of all long vectors that the server held after a step."""
    run, most = Run(folder, sites, parameters), 0
    before = long_storages(4 * parameters)

    def look(info: Any) -> None:
        nonlocal most
        if isinstance(info, Stepped):
            most = max(most, long_storages(4 * parameters) - before)

    run.go(4, look)
    assert sum(run.state.reports) >= 2 * sites
    return most


@pytest.mark.slow
def test_a_server_of_many_sites_holds_what_one_of_few_does(tmp_path: Path) -> None:
    few = most_held(tmp_path / "few", 10, 2 * 10**5)
    many = most_held(tmp_path / "many", 200, 2 * 10**5)
    assert many <= 1.3 * few


def peak(sites: int) -> int:
    """Bytes of a server's process that takes a report of 4 MB from each of so many sites."""
    given = ["--child", "federation", "--sites", f"{sites}", "--parameters", f"{10**6}"]
    words = [sys.executable, str(CROWD.with_name("memory.py")), *given]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["absences"]
    assert found["gradients"] >= sites - 1
    return int(found["peak"])


@pytest.mark.slow
def test_a_connection_keeps_no_buffer_for_what_it_once_carried() -> None:
    """Without the limit each new site costs 0.85 MiB, with it 0.35 MiB."""
    assert peak(210) - peak(10) <= 200 * 0.6 * 2**20


def test_a_site_that_dawdles_costs_the_others_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It announces long reports and says no more: with one place, all others wait for it."""
    monkeypatch.setattr(traffic, "MOST", 1)
    monkeypatch.setattr(places, "STALLED", 1)
    run = Run(tmp_path / "kits", 4, LONG, quorum=3)

    def say(enemy: Enemy, task: Given) -> list[bytes]:
        loss = {"loss": 1.0, "loss_samples": 4.0}
        if task.kind in ("probe", "loss"):
            return list(frames(task.id, {}, {"gradients": 0.0, "samples": 4.0, **loss}))
        cost = {"gradients": 1.0, "samples": 12.0} | (loss if task.kind == "both" else {})
        announced, _whole = frames(task.id, {"g": enemy.start}, cost, announce=True)
        return [announced]

    enemy = Enemy(tmp_path / "kits", "s000", run.server.port, torch.zeros(LONG), say)
    enemy.begin()
    try:
        run.go(3, without=1)
    finally:
        enemy.end()
    assert run.state.master.t == 3
    assert any("no progress" in said for said in enemy.ended)
    assert run.state.breaches == [0, 0, 0, 0]


def test_the_bound_is_what_the_docs_say() -> None:
    text = (CROWD.parents[1] / "docs" / "security.md").read_text()
    assert ANNOUNCED == 256 * 2**10
    assert "256 KiB" in text
    assert f"{MOST} at a time" in text
