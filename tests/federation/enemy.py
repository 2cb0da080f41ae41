"""A scripted site with a valid certificate: it speaks the protocol by hand, and lies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc import aio

from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import (
    HELLO,
    MAJOR,
    METHOD,
    MINOR,
    Refusal,
    frames,
    next_message,
    shape_of,
)
from aspire.engines.grpc.wire_pb2 import Hello, ToSite
from aspire.methods import aspire
from aspire.protocol import report_objection
from aspire.types import Report

COST = {"gradients": 1.0, "samples": 64.0}
EVALUATE = "evaluate"
FIGURES = "figures"


@dataclass
class Given:
    """A task as it came."""

    id: int
    kind: str
    scalars: dict[str, float]
    vectors: dict[str, Any]

    @property
    def w(self) -> Any:
        """Where a harmless worker would stand: at the master's model."""
        if "v" in self.vectors:  # a site that comes again gets its own w as well, which is old
            return self.vectors["v"] / max(self.scalars["kappa"], 1e-30)
        return self.vectors["w"]


@dataclass
class Enemy:
    """Answers every task by `say`, which is harmless unless it is replaced."""

    folder: Path  # of the federation
    name: str
    port: int
    start: Any  # a vector like the model's
    say: Callable[[Enemy, Given], list[bytes]]
    connections: int = 0
    tasks: int = 0
    ended: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def hello(self) -> bytes:
        shape = shape_of(self.start)
        return Hello(
            major=MAJOR,
            minor=MINOR,
            site=self.name,
            parameters=shape.parameters,
            dtype=shape.dtype,
            file=b"",
        ).SerializeToString()

    async def converse(self) -> None:
        """One connection, until it ends."""
        kit = kits.read(self.folder / "sites" / self.name)
        trust = grpc.ssl_channel_credentials(kit.ca, kit.key, kit.certificate)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        address = f"127.0.0.1:{self.port}"
        async with aio.secure_channel(address, trust, options=options) as channel:
            call = channel.stream_stream(METHOD)(metadata=((HELLO, self.hello()),))
            self.connections += 1
            try:
                async for task in self.received(call):
                    self.tasks += 1
                    for raw in self.say(self, task):
                        await call.write(raw)
                call.cancel()
            except (aio.AioRpcError, asyncio.InvalidStateError):
                self.ended.append(f"{(await call.code()).name}: {await call.details()}")

    async def received(self, call: Any) -> AsyncIterator[Given]:
        message, shape = None, shape_of(self.start)
        while (raw := await call.read()) is not aio.EOF:
            said = ToSite.FromString(raw)
            if said.HasField("over"):
                self.ended.append(said.over.reason or "over")
                return
            if said.HasField("task"):
                message = next_message(message, raw, shape)
                if message.whole:
                    yield Given(message.id, message.kind, message.scalars, message.vectors())
                    message = None

    async def live(self) -> None:
        """Come back until the run is over, the server has had enough, or the test has."""
        while not self.stop.is_set():
            await self.converse()
            if self.ended[-1] == "over" or "stays out" in self.ended[-1]:
                return
            await asyncio.sleep(0.05)

    def begin(self) -> None:
        self.thread = threading.Thread(target=lambda: asyncio.run(self.live()), daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(20)


# ---------------------------------------------------------------- what it may say


def report(task: Given, scalars: dict[str, float], w: Any = None, name: str = "w") -> list[bytes]:
    """The parts of a report."""
    return list(frames(task.id, {} if w is None else {name: w}, scalars))


def harmless(enemy: Enemy, task: Given) -> list[bytes]:
    """Properly shaped, and of no use to anybody: it stands still and has the loss of chance."""
    return report(task, *plain(task))


def plain(task: Given) -> tuple[dict[str, float], Any]:
    """The numbers and the vector of a harmless report."""
    if task.kind == EVALUATE:
        return {"loss": 1.0, "samples": 100.0, "accuracy": 0.5, "test": 1.0}, None
    if task.kind == FIGURES:
        return {"train.loss.value": 1.0, "train.loss.n": 100.0}, None
    if task.kind == "probe":
        found = {"loss": 1.0, "curvature": 0.3, "slope": 0.3}
        return {**found, "gradients": 13.0, "samples": 2496.0}, None
    return {"loss": 1.0, **COST}, task.w


Say = Callable[[Enemy, Given], list[bytes]]


def later(say: Say) -> Say:
    """Harmless until it has its place in the run."""
    return lambda enemy, task: (say if task.kind == "step" else harmless)(enemy, task)


def is_let_in(say: Say) -> bool:
    """Whether its answer to the first probe is in order, so that it takes part from the start."""
    start = torch.zeros(3)
    enemy = Enemy(Path(), "enemy", 0, start, say)
    probe = Given(0, "probe", {"draws": 0.0}, {"w": start})
    kind = aspire(pull_bound=10.0).kinds["probe"]
    try:
        message = next_message(None, say(enemy, probe)[0], shape_of(start))
    except Refusal:
        return False
    said = Report(0, message.id, message.vectors(), message.scalars)
    return report_objection(said, kind, parameters=3, dtype=torch.float32) is None


def lying(**lies: Callable[[Enemy, Given], float]) -> Say:
    """A harmless report with these numbers in the place of its own, wherever it has them."""

    def say(enemy: Enemy, task: Given) -> list[bytes]:
        scalars, w = plain(task)
        found = {name: lie(enemy, task) for name, lie in lies.items() if name in scalars}
        return report(task, scalars | found, w)

    return say
