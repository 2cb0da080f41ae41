"""A site's end: it dials out, does the tasks it is handed, and reports, until the run is over.

A lost line is dialled again, with growing pauses. The server then hands out the task in the site's
hands once more: if its report was lost on the way, that report is sent again, not computed again.
A server that was restarted counts tasks afresh, so the site forgets what it remembered.
What a server may ask for is in `policy`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from grpc import aio

from aspire.engines.grpc.kits import Kit, renewed
from aspire.engines.grpc.messages import (
    CHUNK,
    HELLO,
    MAJOR,
    METHOD,
    MINOR,
    OVERHEAD,
    Message,
    Refusal,
    Shape,
    frames,
    next_message,
    quoted,
    to_site,
)
from aspire.engines.grpc.meter import MINUTE
from aspire.engines.grpc.policy import Guard, Policy, TooOften, check_method, check_welcome
from aspire.engines.grpc.wire_pb2 import Hello, Over, Settings, ToSite, Welcome
from aspire.engines.serve import AT_THE_END, NoState, look_ahead, serve
from aspire.problem.failures import Failed, failed
from aspire.problem.sites import Site
from aspire.types import Method, Report, Task

logger = logging.getLogger("aspire")
FIRST = 0.25  # seconds between two attempts: doubling, and by chance a bit less
LONGEST = 5.0
SHORT = 0.05  # seconds of work for which no thread is worth its while
OVER = ToSite(over=Over()).SerializeToString()[:1]  # how such a message begins
WAITING = 4  # tasks in the inbox; nothing more is read while there are as many
ANSWER = 20.0  # seconds until a server must have said Welcome
FINAL = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
OPTIONS = (
    ("grpc.max_receive_message_length", CHUNK + OVERHEAD),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
Make = Callable[[Settings], tuple[Method, Site]]
Answer = Callable[[Task], Awaitable[None]]


@dataclass
class Memory:
    """What outlives a connection: whose tasks these were, w_j, and the last report."""

    server: bytes = b""
    worker: Any = None
    report: Report | None = None


class Dialler:
    """One site. `make` loads its data when the server has said what the work depends on."""

    def __init__(
        self,
        kit: Kit,
        address: str,
        shape: Shape,
        file: bytes,
        make: Make,
        *,
        give_up: float,
        policy: Policy | None = None,
    ) -> None:
        self.kit = kit
        self.address = address
        self.shape = shape
        self.file = file
        self.make = make
        self.give_up = give_up
        self.policy = policy or Policy()
        self.guard = Guard(self.policy, shape)
        self.memory = Memory()
        self.known: tuple[bytes, Method, Site] | None = None
        self.heard = time.monotonic()
        self.attempts = 0
        self.hands = ThreadPoolExecutor(1, "work")
        self.took = SHORT  # seconds for the last task
        self.idle = True

    async def run(self) -> None:
        """Until the server says that the run is over."""
        self.loop = asyncio.get_running_loop()
        while True:
            try:
                await self.connect()
                return
            except Refusal as refusal:
                raise ValueError(f"the server at {self.address} {refusal}") from None
            except TooOften as refusal:
                logger.warning("the server at %s %s: refused for a minute", self.address, refusal)
                await asyncio.sleep(MINUTE)
            except aio.AioRpcError as error:
                self.consider(error.code(), error.details() or "")
            except (TimeoutError, ConnectionError):
                self.consider(grpc.StatusCode.UNAVAILABLE, "it ended, or there was no answer")
            await asyncio.sleep(pause(self.attempts))
            self.attempts += 1

    def consider(self, code: grpc.StatusCode, said: str) -> None:
        """Raise what no further attempt will change."""
        short = quoted(said)
        if code in FINAL:
            raise ValueError(f"the server at {self.address} refused: {short}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in said:
            raise ValueError(f"the server at {self.address} sent too much: {short}")
        if "CERTIFICATE_VERIFY_FAILED" in said or "Peer name" in said:
            raise ValueError(
                f"the server at {self.address} has no certificate of this federation for that "
                "name: expected the server whose kit was made with ours"
            )
        logger.warning("no connection to %s: %s", self.address, short)
        if time.monotonic() - self.heard > self.give_up:
            raise ValueError(f"no connection to {self.address} for {self.give_up:g} s: {short}")

    async def connect(self) -> None:
        """One connection, from Hello to its end."""
        self.kit = renewed(self.kit)
        credentials = grpc.ssl_channel_credentials(self.kit.ca, self.kit.key, self.kit.certificate)
        async with aio.secure_channel(self.address, credentials, options=OPTIONS) as channel:
            call = channel.stream_stream(METHOD)(metadata=((HELLO, self.hello()),))
            method, local = await self.greet(call)
            inbox: asyncio.Queue[Task] = asyncio.Queue(WAITING)
            answer = partial(self.answer, call, method, local)
            reading = asyncio.create_task(self.read(call, inbox, answer))
            working = asyncio.create_task(self.work(inbox, answer))
            try:
                await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
                done = reading if reading.done() else working
                done.result()
            except asyncio.InvalidStateError:  # a write on a line that has just ended
                raise ConnectionError from None
            finally:
                reading.cancel()
                working.cancel()

    def part(self, reason: str) -> None:
        """The run is over, unless there is a reason: then only our part in it."""
        if reason:
            self.consider(grpc.StatusCode.PERMISSION_DENIED, reason)

    def hello(self) -> bytes:
        return Hello(
            major=MAJOR,
            minor=MINOR,
            site=self.kit.name,
            parameters=self.shape.parameters,
            dtype=self.shape.dtype,
            file=self.file,
        ).SerializeToString()

    async def greet(self, call: Any) -> tuple[Method, Site]:
        received = await asyncio.wait_for(call.read(), ANSWER)
        if received is aio.EOF:
            raise ConnectionError
        first = to_site(received)
        if not first.HasField("welcome"):
            raise Refusal("does not speak our protocol")
        return await self.enter(first.welcome)

    async def enter(self, welcome: Welcome) -> tuple[Method, Site]:
        """Our data under the server's settings, if our policy allows them; loaded once."""
        check_welcome(self.policy, welcome, self.file)
        if welcome.file != self.file:
            logger.warning("the server runs another FILE.py (%s)", welcome.file.hex()[:16])
        if self.memory.server != welcome.server:
            self.memory = Memory(welcome.server)
        settings = welcome.settings.SerializeToString(deterministic=True)
        if self.known is None or self.known[0] != settings:
            self.known = (settings, *await self.prepared(welcome.settings))
        logger.warning("connected to %s as %s", self.address, self.kit.name)
        self.heard = time.monotonic()
        return self.known[1:]

    async def prepared(self, settings: Settings) -> tuple[Method, Site]:
        """Our own data was looked at before we called, so what fails now is the server's doing."""
        try:
            method, site = await self.loop.run_in_executor(self.hands, self.make, settings)
        except Exception as error:
            reason = quoted(f"{type(error).__name__}: {error}")
            raise Refusal(f"sends settings that cannot be used: {reason}") from error
        check_method(self.policy, method)
        return method, site

    async def read(self, call: Any, inbox: asyncio.Queue[Task], answer: Answer) -> None:
        """Tasks into the inbox until the run is over; while we work, too. Short ones need none."""
        assert self.known is not None
        _, method, local = self.known
        message: Message | None = None
        while (received := await call.read()) is not aio.EOF:
            self.heard = time.monotonic()
            self.attempts = 0
            if received[:1] == OVER:
                self.part(to_site(received).over.reason)
                return
            message = next_message(message, received, self.shape)
            if message.whole:
                task = task_of(message, local.number)
                message = None
                self.guard.check(task, method.kinds)
                if self.brief and self.idle and inbox.empty():
                    await answer(task)
                else:
                    await inbox.put(task)
        raise ConnectionError

    async def work(self, inbox: asyncio.Queue[Task], answer: Answer) -> None:
        while True:
            await answer(await inbox.get())

    async def answer(self, call: Any, method: Method, local: Site, task: Task) -> None:
        """One task. One that we have answered already was sent again for its report."""
        memory = self.memory
        self.idle = False
        here = self.brief and task.kind != AT_THE_END  # which may take many seconds
        try:
            report = memory.report
            if report is not None and report.task == task.id:
                await send(call, report)
                return
            began = time.monotonic()
            done = await self.do(serve, here, method, local, memory.worker, task)
            memory.worker, report = done
            if task.id >= 0:
                memory.report = report
            ahead = self.do(look_ahead, here, method, local, memory.worker, task)
            # in this order: the report is out before we do anything else
            _, memory.worker = await asyncio.gather(send(call, report), ahead)
            self.took = time.monotonic() - began
        except NoState:
            pass  # we are new, and the server sends it again, whole, since we called
        finally:
            self.idle = True

    @property
    def brief(self) -> bool:
        """Whether no thread is worth its while; a report of several parts leaves bit by bit."""
        return self.took < SHORT and self.shape.bytes <= CHUNK

    async def do(self, work: Callable[..., Any], here: bool, *given: Any) -> Any:
        """Long work in a thread, so that the connection stays alive; short work here, where it is.

        A thread whose line was lost works on. `took` stays as it was then, so that what comes next
        waits for that thread: a model serves one at a time.
        """
        try:
            if here:
                return work(*given)
            return await self.loop.run_in_executor(self.hands, work, *given)
        except (NoState, Failed):
            raise
        except Exception as error:
            raise failed("the work on a task", error) from error


async def send(call: Any, report: Report) -> None:
    for frame in frames(report.task, report.vectors, report.scalars, announce=True):
        await call.write(frame)


def task_of(message: Message, number: int) -> Task:
    return Task(number, message.id, message.kind, message.vectors(), message.scalars)


def pause(attempts: int) -> float:
    """Seconds before the next attempt; by chance, so that many sites do not come at once."""
    return min(LONGEST, FIRST * 2.0 ** min(attempts, 10)) * random.uniform(0.5, 1.0)
