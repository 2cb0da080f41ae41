"""What the server knows of its sites: who is on the line, and what is on its way to them."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from aspire.engines.grpc.messages import HELLO, Refusal, Shape
from aspire.engines.grpc.places import Place
from aspire.engines.grpc.wire_pb2 import Hello, Over, Settings
from aspire.types import Task

WAITING = 16  # tasks for one site that are not sent yet: evaluations, and one of the method
REMEMBERED = 256  # ids of tasks that a connection was given


@dataclass
class Connection:
    """One stream of one site, from its Hello to its end. Touched by the loop's thread only."""

    context: Any
    ended: asyncio.Future[tuple[grpc.StatusCode, str]]
    outbox: deque[Task | Over] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    given: dict[int, bool] = field(default_factory=dict)  # task -> answered
    repeats: int = 0  # reports on tasks that were answered
    place: Place | None = None  # for what is written to it

    def hand(self, task: Task) -> None:
        """A new task of the method replaces one that was not sent yet; evaluations queue up."""
        if self.ended.done():
            return
        if task.id >= 0:
            self.outbox = deque(x for x in self.outbox if isinstance(x, Task) and x.id < 0)
        if len(self.outbox) < WAITING:
            self.outbox.append(task)
        self.wake.set()

    def give(self, task: Task) -> None:
        """From now on it may be answered, once."""
        self.given[task.id] = False
        while len(self.given) > REMEMBERED:
            del self.given[next(iter(self.given))]

    def say_over(self, reason: str = "") -> None:
        self.outbox = deque([Over(reason=reason)])
        self.wake.set()
        if self.place is not None:
            self.place.hurry()

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result((code, reason))


@dataclass
class Line:
    """A site of the run: its number, and its connection if it has one."""

    number: int
    connection: Connection | None = None
    out: bool = False  # for the rest of the run
    seen: bool = False
    told: bool = False  # that the run is over


@dataclass(frozen=True)
class Terms:
    """What the server tells and expects at the door; the same for all sites."""

    shape: Shape
    settings: Settings
    file: bytes


def hello_of(context: Any) -> Hello:
    """What a call's metadata says of who calls."""
    said = [value for key, value in context.invocation_metadata() if key == HELLO]
    if len(said) != 1 or not isinstance(said[0], bytes):
        raise Refusal("said no Hello")
    try:
        return Hello.FromString(said[0])
    except DecodeError:
        raise Refusal("said a Hello that is no message") from None


def certified_name(context: Any) -> str:
    """The common name of the certificate that the connection was made with."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if len(names) == 1 else "a nameless certificate"
