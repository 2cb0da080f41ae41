"""The carrier over Ray: actors with a site or several each.

Ray restarts an actor whose process or node dies; the carrier asks it until it answers and then
says `Back` of its sites. A process that is stopped, not dead, raises nothing: that is what the
driver's patience is for.

An actor does one task at a time, and is handed the next one when its report was taken: however many
sites there are, no more reports are unread than there are actors. What travels is numpy arrays, and
messages are never written to; `post` says how long ones travel.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayError, RayTaskError

from aspire.engines.carrier import Arrival, Back, Gone, Turn
from aspire.engines.ray.post import Post
from aspire.engines.ray.shared import Unreachable
from aspire.engines.ray.watch import Watch
from aspire.engines.ray.worker import NotReady
from aspire.engines.serve import Crew, NoState, say_conversions
from aspire.problem.failures import Failed, trace_of
from aspire.problem.standardization import Standardization
from aspire.runs.errors import Lost
from aspire.types import Report, Task

logger = logging.getLogger("aspire")
COME_UP = 120.0  # seconds until the first worker is up
FOLLOW = 20.0  # and from one to the next
PAUSE = 0.5  # seconds between two questions whether an actor is there again
TRIES = 3  # of work that raises


@dataclass(frozen=True)
class Call:
    """That is out: a task of a site, or the question whether it is there (None)."""

    worker: int
    task: int | None
    void: bool = False  # its report counts no more


class RayCarrier:
    """Calls that are out, each by the reference of its report; it is that which is waited on."""

    def __init__(
        self,
        actors: Sequence[Any],
        groups: Sequence[Sequence[int]],
        makes: Sequence[Any],
        names: Sequence[str],
        ours: bool,
        watch: Watch,
    ) -> None:
        """`makes`: references to what loads each actor's sites, for one that starts again, too."""
        self.actors = actors
        self.groups = groups
        self.makes = makes
        self.names = names
        self.ours = ours
        self.watch = watch
        self.gone = False
        self.homes = {j: a for a, group in enumerate(groups) for j in group}
        self.calls: dict[Any, Call] = {}
        self.busy: set[int] = set()  # actors with a task
        self.queues: list[deque[tuple[Task, float]]] = [deque() for _ in actors]  # and since when
        self.turns: list[Arrival] = []
        self.waking: set[int] = set()  # workers that are being asked whether they are there
        self.lost: dict[int, float] = {}  # worker -> when to ask it again
        self.told: set[int] = set()  # said to be Gone
        self.failed: dict[int, int] = {}  # worker -> how often its work raised since its report
        self.idle: set[int] = set()  # up, and without a task so far: on a resumed run, the away
        self.post = Post()
        with warnings.catch_warnings():  # torch warns once a process about read-only arrays
            warnings.simplefilter("ignore")
            torch.from_numpy(np.frombuffer(b"\0" * 4, dtype=np.float32))

    def wake(self, j: int) -> Any:
        """Worker j's process, when it has its site."""
        a = self.homes[j]
        return self.actors[a].ready.remote(j, [self.makes[a]])

    def wait_for_workers(self) -> None:
        """Until all have loaded their sites, or none for a while: the others come later."""
        waiting: dict[Any, int] = {self.wake(j): j for j in self.homes}
        until = time.monotonic() + COME_UP
        notes: list[str] = []
        while waiting and time.monotonic() < until:
            for reference in ray.wait(list(waiting), timeout=1.0)[0]:
                j = waiting.pop(reference)
                try:
                    notes += ray.get(reference)[1]
                    until = time.monotonic() + FOLLOW
                    self.idle.add(j)
                except RayTaskError as error:
                    raise failure(self.names[j], _cause(error)) from None
                except RayActorError:  # it died while it was asked, and comes again
                    time.sleep(PAUSE)
                    waiting[self.wake(j)] = j
        if not self.idle:
            raise ValueError(f"no site came up within {COME_UP:g} s: expected room on the cluster")
        say_conversions(notes)
        self.calls = {reference: Call(j, None) for reference, j in waiting.items()}
        self.waking = set(waiting.values())

    # ------------------------------------------------------------ out

    def send(self, tasks: Sequence[Task]) -> None:
        now = time.monotonic()
        for task in tasks:
            j = task.worker
            if j in self.lost or j in self.waking:
                continue  # it is not there; when it is, Back
            a = self.homes[j]
            if task.id >= 0:
                self.idle.discard(j)
                self._unqueue(j)
            self.queues[a].append((task, now))
        for a in {self.homes[task.worker] for task in tasks}:
            self._hand(a)

    def _unqueue(self, j: int, *, evaluations: bool = False) -> None:
        """A new task of the method replaces the one before; evaluations queue up."""
        queue = self.queues[self.homes[j]]
        kept = [x for x in queue if x[0].worker != j or (x[0].id < 0 and not evaluations)]
        queue.clear()
        queue.extend(kept)

    def _hand(self, a: int) -> None:
        """The next task, if the last one's report was taken."""
        if a in self.busy or not self.queues[a]:
            return
        task, since = self.queues[a].popleft()
        wire, stored = self.post.wire(a, task)
        self.busy.add(a)
        self.calls[self.actors[a].work.remote(wire, *stored)] = Call(task.worker, task.id)
        if len(self.groups[a]) > 1:
            behind = tuple((waits.worker, waits.id) for waits, _ in self.queues[a])
            self.turns.append(Turn(task.worker, task.id, time.monotonic() - since, behind))

    # ------------------------------------------------------------ in

    def receive(self, timeout: float) -> list[Arrival]:
        """Lost where the cluster is gone."""
        try:
            self.watch.look()
            return self._receive(timeout)
        except Lost:
            self.gone = True
            raise
        except ConnectionError as error:  # of a Ray client
            self.gone = True
            raise Lost(f"the Ray cluster is gone: {error}") from None

    def _receive(self, timeout: float) -> list[Arrival]:
        found: list[Arrival] = [*(Back(j) for j in sorted(self.idle)), *self.turns]
        self.idle = set()
        self.turns = []
        if found:
            return found
        self._ask_the_lost()
        if not self.calls:
            time.sleep(min(timeout, PAUSE))
            return []
        if self.lost:
            timeout = min(timeout, PAUSE)
        for reference in ray.wait(list(self.calls), timeout=timeout)[0]:
            found += self._open(reference, self.calls.pop(reference))
        return found

    def _open(self, reference: Any, call: Call) -> list[Arrival]:
        a = self.homes[call.worker]
        if call.task is None:
            self.waking.discard(call.worker)
        else:
            self.busy.discard(a)
        try:
            found = self._arrived(call, ray.get(reference))
        except RayTaskError as error:
            found = [] if call.void else self._raised(call.worker, error)
        except RayError:  # the process, its node or the report is lost: it may be back soon
            return self._lose_actor(a)
        self._hand(a)
        return found

    def _arrived(self, call: Call, value: Any) -> list[Arrival]:
        j = call.worker
        a = self.homes[call.worker]
        if call.void:
            return []
        if call.task is None:
            self.told.discard(j)
            self.post.far.discard(a)
            return [Back(j)]
        self.failed.pop(j, None)
        vectors, scalars = value
        return [Report(j, call.task, self.post.take(a, vectors), scalars)]

    def _raised(self, j: int, error: RayTaskError) -> list[Arrival]:
        if isinstance(error.cause, Unreachable):
            self.post.far.add(self.homes[j])
        if isinstance(error.cause, NoState | Unreachable):
            self.post.drop(self.homes[j])
            return [Back(j)]
        if isinstance(error.cause, NotReady):
            return self._lose(j, None)
        return self._fail(j, _cause(error))

    def _fail(self, j: int, error: BaseException) -> list[Arrival]:
        """It may have been chance; what is raised every time ends the run."""
        logger.info("%s", trace_of(error))
        self.failed[j] = self.failed.get(j, 0) + 1
        if self.failed[j] >= TRIES:
            raise failure(self.names[j], error)
        return self._lose(j, str(error))

    def _lose(self, j: int, reason: str | None) -> list[Arrival]:
        """Ask it from now on whether it is there; its other calls tell nothing more."""
        for reference, call in self.calls.items():
            if call.worker == j:
                self.calls[reference] = replace(call, void=True)
        self.waking.discard(j)
        self._unqueue(j, evaluations=True)
        self.lost[j] = time.monotonic() + PAUSE
        if reason is None or j in self.told:
            return []
        self.told.add(j)
        return [Gone(j, reason)]

    def _lose_actor(self, a: int) -> list[Arrival]:
        """A new process will know none of its sites."""
        self.calls = {ref: call for ref, call in self.calls.items() if self.homes[call.worker] != a}
        self.busy.discard(a)
        self.queues[a].clear()
        self.post.drop(a)
        for j in self.groups[a]:
            self._lose(j, None)
        return []

    def _ask_the_lost(self) -> None:
        now = time.monotonic()
        for j in [j for j, when in self.lost.items() if when <= now]:
            del self.lost[j]
            self.waking.add(j)
            self.calls[self.wake(j)] = Call(j, None)

    def dismiss(self, worker: int, reason: str, *, for_good: bool) -> None:
        """It keeps its process; unless it stays out, it is asked whether it is there again."""
        if not for_good:
            self._lose(worker, None)

    def standardize(self, by: Standardization, crew: Crew | None) -> None:
        """The actors load their sites again."""
        assert crew is not None
        self.makes = [ray.put({j: crew[j] for j in group}) for group in self.groups]
        for actor in self.actors:
            with suppress(RayActorError):  # it knows nothing then anyway
                ray.get(actor.forget.remote())
        self.busy.clear()
        for queue in self.queues:
            queue.clear()
        self.wait_for_workers()

    def close(self) -> None:
        self.post.close()
        self.watch.close()
        if self.gone:
            return  # nobody is left to tell
        for actor in self.actors:
            ray.kill(actor)
        if self.ours:
            ray.shutdown()


def _cause(error: RayTaskError) -> BaseException:
    return error.cause if isinstance(error.cause, BaseException) else error


def failure(name: str, error: BaseException) -> Failed:
    """Why a site did not load, with its name and what its process has to say."""
    sentence = str(error) if str(error).startswith("site ") else f"site {name!r}: {error}"
    return Failed(sentence, trace_of(error))
