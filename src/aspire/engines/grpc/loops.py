"""An event loop beside a program that is not asynchronous: in a thread of its own, or in turns.

Threads of Python pay for every change between them, and each torch call is an occasion for one: for
short messages that costs more than the messages. So the loop then runs in the program's own thread,
while that waits for something. Long messages are worth a thread where it has a processor: they come
in while the program computes.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

logger = logging.getLogger("aspire")
T = TypeVar("T")


class Loop(Protocol[T]):
    """`run`, `call`, `take` and `finish` are the program's, `put` is the loop's."""

    def run(self, main: Callable[[asyncio.Future[int]], Coroutine[Any, Any, None]]) -> int:
        """Start `main`; it says when it is ready, with a number, by the future that it gets."""

    def call(self, function: Callable[..., None], *given: Any) -> None: ...

    def put(self, thing: T) -> None: ...

    def take(self, timeout: float) -> list[T]:
        """What was put, at least one thing; [] when nothing is within `timeout` seconds."""

    def finish(self, timeout: float) -> None:
        """Wait for the end of `main`."""


async def _guarded(
    main: Callable[[asyncio.Future[int]], Coroutine[Any, Any, None]], ready: asyncio.Future[int]
) -> None:
    try:
        await main(ready)
    except Exception as error:
        if ready.done():
            logger.exception("the federation's connections ended")
        else:
            ready.set_exception(error)


class InTurns(Generic[T]):
    """The loop runs while the program takes."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.things: deque[T] = deque()
        self.taking = False

    def run(self, main: Callable[[asyncio.Future[int]], Coroutine[Any, Any, None]]) -> int:
        ready: asyncio.Future[int] = self.loop.create_future()
        self.main = self.loop.create_task(_guarded(main, ready))
        return self.loop.run_until_complete(ready)

    def call(self, function: Callable[..., None], *given: Any) -> None:
        """And what it set off begins at once: the program may have more to do before it takes."""
        function(*given)
        if not self.loop.is_closed():
            self.loop.stop()
            self.loop.run_forever()

    def put(self, thing: T) -> None:
        self.things.append(thing)
        if self.taking:
            self.loop.stop()

    def take(self, timeout: float) -> list[T]:
        if self.loop.is_closed():
            return []
        end = self.loop.call_later(0.0 if self.things else timeout, self.loop.stop)
        self.taking = True
        try:
            self.loop.run_forever()
        finally:
            self.taking = False
            end.cancel()
        # one at a time: the answer to it goes out when the loop runs next
        return [self.things.popleft()] if self.things else []

    def finish(self, timeout: float) -> None:
        if self.loop.is_closed():
            return
        self.loop.run_until_complete(asyncio.wait({self.main}, timeout=timeout))
        self.loop.close()


class Beside(Generic[T]):
    """The loop runs in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.things: queue.SimpleQueue[T] = queue.SimpleQueue()

    def run(self, main: Callable[[asyncio.Future[int]], Coroutine[Any, Any, None]]) -> int:
        ready = self.loop.create_future()
        told: queue.SimpleQueue[asyncio.Future[int]] = queue.SimpleQueue()
        ready.add_done_callback(told.put)

        def turn() -> None:
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(_guarded(main, ready))
            finally:
                self.loop.close()

        self.thread = threading.Thread(target=turn, name="federation", daemon=True)
        self.thread.start()
        return told.get().result()

    def call(self, function: Callable[..., None], *given: Any) -> None:
        self.loop.call_soon_threadsafe(function, *given)

    def put(self, thing: T) -> None:
        self.things.put(thing)

    def take(self, timeout: float) -> list[T]:
        found: list[T] = []
        try:
            found.append(self.things.get(timeout=timeout))
            while True:
                found.append(self.things.get_nowait())
        except queue.Empty:
            return found

    def finish(self, timeout: float) -> None:
        self.thread.join(timeout)
