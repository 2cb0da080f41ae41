"""What goes over the sites' connections: reports in, each once, and tasks out.

Of long messages a few are on their way at a time, see `places`. A report keeps its place until the
driver has absorbed it, so that those which nobody has read yet are few as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

import grpc
from grpc import aio

from aspire.engines.carrier import Arrival, Back, Repeated
from aspire.engines.grpc.connections import Connection, Line
from aspire.engines.grpc.loops import Loop
from aspire.engines.grpc.messages import ANNOUNCED, Message, Refusal, Shape, frames, next_message
from aspire.engines.grpc.places import MOST, STALLED, Place, Places
from aspire.engines.grpc.wire_pb2 import Over, ToSite
from aspire.types import Report, Task

REPEATS = 16  # reports on answered tasks that a connection may send; a proper site sends none
LOOK = 1.0  # seconds between two looks at who dawdles
SLOW = f"no progress in {STALLED * LOOK:g} s while others wait: call again"


class Traffic:
    """Touched by the loop's thread only."""

    def __init__(self, loop: Loop[Arrival], shape: Shape) -> None:
        self.loop = loop
        self.shape = shape
        self.reading = Places(MOST, loop.put)
        self.writing = Places(MOST, loop.put)
        self.unread: deque[Place] = deque()  # of long reports that the driver has yet to absorb

    def absorbed(self, reports: int) -> None:
        """The driver is through with so many long reports."""
        for _ in range(reports):
            self.reading.leave(self.unread.popleft())

    def look(self) -> None:
        self.reading.look()
        self.writing.look()

    # ------------------------------------------------------------ in

    async def read(self, line: Line, connection: Connection) -> None:
        """Reports into the queue, each once."""
        self.loop.put(Back(line.number))
        message: Message | None = None
        place: Place | None = None
        try:
            while (received := await connection.context.read()) is not aio.EOF:
                if connection.ended.done():
                    continue
                message = next_message(message, received, self.shape)
                received = None  # a connection that waits keeps nothing
                if message.long:
                    place = await self._placed(place, line, connection, message)
                if message.whole:
                    self._accept(line, connection, message, place)
                    message = place = None
        finally:
            if place is not None:
                self.reading.leave(place)

    async def _placed(
        self, place: Place | None, line: Line, connection: Connection, message: Message
    ) -> Place:
        """The place of a message that goes on, or one for a message that begins."""
        if place is not None:
            place.moved()
            return place
        place = self.reading.ask(line.number, message.id, partial(_hang_up, connection))
        try:
            await place.ready
        except asyncio.CancelledError:
            self.reading.leave(place)
            raise
        return place

    def _accept(
        self, line: Line, connection: Connection, message: Message, place: Place | None
    ) -> None:
        answered = connection.given.get(message.id)
        if answered is None:
            raise Refusal(f"reports task {message.id}: it was never given it")
        if answered:
            connection.repeats += 1
            if connection.repeats > REPEATS:
                raise Refusal(f"reported {REPEATS + 1} tasks twice")
            self.loop.put(Repeated(line.number))
            if place is not None:
                self.reading.leave(place)
            return
        connection.given[message.id] = True
        if place is not None:
            place.whole = True
            self.unread.append(place)
        self.loop.put(Report(line.number, message.id, message.vectors(), message.scalars))

    # ------------------------------------------------------------ out

    async def write(self, line: Line, connection: Connection) -> None:
        while True:
            await connection.wake.wait()
            connection.wake.clear()
            while connection.outbox:
                await self._deliver(line, connection)

    async def _deliver(self, line: Line, connection: Connection) -> None:
        """What is first in the outbox, once there is a place for it: that may be another task."""
        first = connection.outbox[0]
        if isinstance(first, Task) and is_long(first):
            hang_up = partial(_hang_up, connection)
            connection.place = self.writing.ask(line.number, first.id, hang_up)
        del first
        try:
            if connection.place is not None:
                await connection.place.ready
            await self._post(line, connection, connection.outbox.popleft())
        finally:
            if connection.place is not None:
                self.writing.leave(connection.place)
            connection.place = None

    async def _post(self, line: Line, connection: Connection, task: Task | Over) -> None:
        if isinstance(task, Over):
            await connection.context.write(ToSite(over=task).SerializeToString())
            line.told = not task.reason
            return
        connection.give(task)
        for frame in frames(task.id, task.vectors, task.scalars, task.kind):
            await connection.context.write(frame)
            if connection.place is not None:
                connection.place.moved()


def is_long(message: Task | Report) -> bool:
    return sum(x.nbytes for x in message.vectors.values()) > ANNOUNCED


def _hang_up(connection: Connection) -> None:
    connection.end(grpc.StatusCode.UNAVAILABLE, SLOW)
