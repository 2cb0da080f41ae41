"""A site whose line is lost while a thread works; one that looks ahead when its report is out; one
beside its server."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.cli import federation as cli
from aspire.cli.certificates import init_command
from aspire.engines.grpc import site
from aspire.engines.grpc.site import SHORT, Dialler
from aspire.engines.serve import EVALUATE
from aspire.types import Fast, Report, Task
from tests.federation.parties import SHAPE

METHOD: Any = SimpleNamespace(fast=None)


class Call:
    """A line on which nothing is lost."""

    def __init__(self) -> None:
        self.sent = 0

    async def write(self, frame: bytes) -> None:
        self.sent += 1


def test_one_task_at_a_time_though_the_line_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, busy, most = threading.Event(), threading.Event(), [0], [0]

    def serve(method: Any, local: Any, worker: Any, task: Task) -> Any:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        if task.id == 0:
            began.set()
            assert go.wait(30.0)
        busy[0] -= 1
        return None, Report(0, task.id, {}, {"loss": 1.0})

    async def lose_it_and_go_on() -> tuple[int, int]:
        kit: Any = SimpleNamespace(name="a")
        dialler = Dialler(kit, "", SHAPE, b"f", lambda _: None, give_up=1.0)
        dialler.loop, old, new = asyncio.get_running_loop(), Call(), Call()
        first = asyncio.create_task(dialler.answer(old, METHOD, None, Task(0, 0, "step")))
        await asyncio.to_thread(began.wait, 30.0)
        first.cancel()
        await asyncio.wait({first})
        assert dialler.idle
        assert dialler.took >= SHORT  # so what comes next goes to the thread, too
        second = asyncio.create_task(dialler.answer(new, METHOD, None, Task(0, 1, "step")))
        await asyncio.sleep(0.05)
        go.set()
        await second
        return old.sent, new.sent

    monkeypatch.setattr(site, "serve", serve)
    assert asyncio.run(lose_it_and_go_on()) == (0, 1)
    assert most == [1]


@pytest.mark.parametrize("took", [0.0, 2 * SHORT])
def test_the_report_is_out_before_the_site_looks_ahead(
    took: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and in a thread; a report that is asked for again sets nothing off."""
    call, seen = Call(), []

    def ahead(worker: Any, task: Task, local: Any) -> str:
        seen.append((call.sent, worker, task.id))
        return f"{worker} and on"

    async def answer() -> Any:
        kit: Any = SimpleNamespace(name="a")
        dialler = Dialler(kit, "", SHAPE, b"f", lambda _: None, give_up=1.0)
        dialler.loop, dialler.took = asyncio.get_running_loop(), took
        method: Any = SimpleNamespace(fast=Fast(ahead=ahead))
        for id in (0, 0, 1, -1):
            kind = "step" if id >= 0 else EVALUATE
            await dialler.answer(call, method, None, Task(0, id, kind))
        return dialler.memory.worker

    def serve(method: Any, local: Any, worker: Any, task: Task) -> Any:
        state = worker if task.id < 0 else f"state {task.id}"
        return state, Report(0, task.id, {}, {"loss": 1.0})

    monkeypatch.setattr(site, "serve", serve)
    assert asyncio.run(answer()) == "state 1 and on"
    assert seen == [(1, "state 0", 0), (3, "state 1", 1)]
    assert call.sent == 4


# ---------------------------------------------------------------- beside its server

FILE = """
import torch

def model():
    return torch.nn.Linear({inputs}, 1)

def site(name):
    return torch.ones(8, {inputs}), torch.ones(8, 1)
"""


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1:1", True), ("localhost:1", True), ("[::1]:1", True), ("127.8.0.1:1", True),
        ("10.0.0.1:1", False), ("train.example.org:1", False), ("[fe80::1]:1", False),
    ],
)  # fmt: skip
def test_an_address_on_this_machine_is_known(address: str, here: bool) -> None:
    assert cli.is_here(address) is here


@pytest.mark.parametrize(
    ("inputs", "address", "later"),
    [(2**17, "127.0.0.1:1", True), (2**17, "10.0.0.1:1", False), (3, "127.0.0.1:1", False)],
)
def test_a_site_beside_its_server_lets_it_go_first(
    inputs: int, address: str, later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server's step takes long; far from it a site works as it is."""

    class Idle:
        def __init__(self, *given: Any, **named: Any) -> None: ...

        async def run(self) -> None: ...

    levels: list[int] = []
    monkeypatch.setattr(os, "nice", levels.append, raising=False)
    monkeypatch.setattr(site, "Dialler", Idle)
    (tmp_path / "file.py").write_text(FILE.format(inputs=inputs), encoding="utf-8")
    asked = CliRunner().invoke(init_command, [str(tmp_path / "kits"), "--sites", "a"])
    kit = str(tmp_path / "kits" / "sites" / "a")
    given = [str(tmp_path / "file.py"), "--kit", kit, "--connect", address]
    done = CliRunner().invoke(cli.site_command, given)
    assert (asked.exit_code, done.exit_code) == (0, 0), done.output
    assert levels == [cli.LATER] * later
