"""Places: how many long messages are on their way at a time, each way.

A model of ten million parameters is 40 MB. If a thousand sites reported at once, or were sent a
task, the server would hold as many. So a long message needs a place, and who has none waits in
line: what it has to say stays with it, held back by the network's own flow control.

A place is not for keeps. Who makes no progress while others wait is told to call again, so that a
site that dawdles, or means to, costs the others seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from aspire.engines.carrier import Turn

MOST = 4  # long messages that are read at a time, and that are written
STALLED = 10  # looks without progress, while others wait, after which a place is lost


@dataclass(eq=False)
class Place:
    """Of one message; `give_up` is called when it is lost."""

    worker: int
    task: int
    since: float
    ready: asyncio.Future[None]
    give_up: Callable[[], None]
    looks: int = 0  # since its last progress
    whole: bool = False  # it came in; only we keep it waiting now

    def moved(self) -> None:
        self.looks = 0

    def hurry(self) -> None:
        """Do not wait any longer, though no place is free."""
        if not self.ready.done():
            self.ready.set_result(None)


class Places:
    """Touched by the loop's thread only."""

    def __init__(self, most: int, say: Callable[[Turn], None]) -> None:
        self.most = most
        self.say = say
        self.held: set[Place] = set()
        self.line: deque[Place] = deque()

    def ask(self, worker: int, task: int, give_up: Callable[[], None]) -> Place:
        """A place, when it is `ready`; `leave` it in any case."""
        ready = asyncio.get_running_loop().create_future()
        place = Place(worker, task, time.monotonic(), ready, give_up)
        if len(self.held) < self.most:
            self._hold(place)
        else:
            self.line.append(place)
        return place

    def _hold(self, place: Place) -> None:
        self.held.add(place)
        place.hurry()

    def leave(self, place: Place) -> None:
        """Whoever is next in line has its turn."""
        self.held.discard(place)
        if place in self.line:
            self.line.remove(place)
        while self.line and len(self.held) < self.most:
            turn = self.line.popleft()
            self._hold(turn)
            behind = tuple((waits.worker, waits.task) for waits in self.line)
            self.say(Turn(turn.worker, turn.task, time.monotonic() - turn.since, behind))

    def look(self) -> None:
        """Once a second of the loop's own time: it may have stood still while we computed."""
        for place in list(self.held) if self.line else ():
            if not place.whole:
                place.looks += 1
                if place.looks > STALLED:
                    place.give_up()
