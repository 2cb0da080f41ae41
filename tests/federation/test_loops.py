"""The event loop beside the driver: in a thread and in turns alike."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from aspire.engines.driver import Driver, begin
from aspire.engines.grpc import kits, server
from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.loops import Beside, InTurns
from aspire.engines.grpc.method import sent
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.methods import aspire
from aspire.runs.log import EventLog
from aspire.types import Facts
from tests.federation import parties

KINDS = pytest.mark.parametrize("kind", [InTurns, Beside])


@KINDS
def test_what_is_put_is_taken_in_its_order(kind: Any) -> None:
    loop, stop = kind(), asyncio.Event()
    asked: asyncio.Queue[int] = asyncio.Queue()

    async def main(ready: asyncio.Future[int]) -> None:
        ready.set_result(7)
        while not stop.is_set():
            loop.put(await asked.get())
        loop.put("the end")

    assert loop.run(main) == 7
    assert loop.take(0.0) == []
    for n in range(3):
        loop.call(asked.put_nowait, n)
    found: list[int] = []
    while len(found) < 3:
        found += loop.take(10.0)
    assert found == [0, 1, 2]
    loop.call(stop.set)
    loop.call(asked.put_nowait, 3)
    loop.finish(10.0)


def test_what_a_call_sets_off_in_turns_begins_before_anything_is_taken() -> None:
    loop: InTurns[int] = InTurns()
    asked, begun = asyncio.Event(), []

    async def main(ready: asyncio.Future[int]) -> None:
        ready.set_result(0)
        await asked.wait()
        begun.append(True)

    loop.run(main)
    assert loop.take(0.0) == []
    loop.call(asked.set)
    assert begun == [True]
    loop.finish(10.0)
    loop.call(asked.set)  # a loop that has ended is left alone


@KINDS
def test_a_failed_start_is_raised(kind: Any) -> None:
    async def main(ready: asyncio.Future[int]) -> None:
        raise ValueError("no port")

    with pytest.raises(ValueError, match="no port"):
        kind().run(main)


@KINDS
def test_a_later_failure_is_logged(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    loop: Any = kind()

    async def main(ready: asyncio.Future[int]) -> None:
        ready.set_result(1)
        raise ValueError("later")

    loop.run(main)
    loop.finish(10.0)
    assert "later" in caplog.text


@pytest.mark.parametrize("long", [0, 2**16])
def test_a_federation_trains_either_way(
    long: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, folder = ("b", "c"), tmp_path / "f"
    monkeypatch.setattr(server, "LONG", long)
    monkeypatch.setattr(server, "CORES", 1)
    kits.init(folder, names, ["localhost", "127.0.0.1"], 2)
    work = Settings(batch_size=64, **sent(aspire(pull_bound=parties.BOUND), own=False))
    terms = Terms(parties.SHAPE, work, b"f")
    carrier = server.Server(kits.read(folder / "server"), names, "127.0.0.1:0", terms)
    sites = parties.Sites(folder, names, partial(parties.local, names), parties.SHAPE, carrier.port)
    method = aspire(pull_bound=parties.BOUND)
    state = begin(method, Facts(2, parties.linear_start()), 0)
    Driver(method, carrier, names, state, EventLog("off"), patience=30.0).run(
        lambda s: s.master.t >= 30
    )
    carrier.close()
    carrier.close()
    assert state.master.t == 30
    assert sites.join() == {"b": "over", "c": "over"}
