"""The order of events ahead of time: who reports when, and which S of them make each step.

Delays are a function of (seed, worker, n) and of no number that training computes, so the order can
be laid out in blocks before the numbers are known. It is the order of the simulator's heap: by
time, then by worker. Everybody is present, and nobody waits for the slow ones (no staleness bound),
so the next step takes the S earliest reports of the N tasks in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aspire.runtimes.delays import Delays, many
from aspire.types import Array

Integers = NDArray[np.int64]
AHEAD = 2048  # delays that are asked for at once, at least 16 a worker


@dataclass(frozen=True)
class Clock:
    """Where the order stands: what is in flight, one entry per worker."""

    due: Array  # when its report arrives
    number: Integers  # of its task
    task: Integers  # id of its task
    time: float
    next_id: int


@dataclass(frozen=True)
class Block:
    """Consecutive steps; row i belongs to the i-th of them, S columns."""

    workers: Integers  # Q, in worker order
    numbers: Integers  # of the task that each of Q is handed: 0 was a worker's first
    arrived: Integers  # Q, in the order of arrival, and so the rest
    times: Array
    tasks: Integers  # ids of the absorbed tasks
    answered: Integers  # their numbers
    places: Integers  # arrived[places] = workers
    after: Clock

    def __len__(self) -> int:
        return len(self.workers)


@dataclass
class Order:
    """The clock as it runs ahead."""

    delays: Delays
    seed: int
    quorum: int
    due: Array
    number: Integers
    task: Integers
    time: float
    next_id: int
    known: Array = field(init=False)  # (N, ...) delays of the next tasks
    first: Integers = field(init=False)  # the number that column 0 of `known` belongs to

    def __post_init__(self) -> None:
        n = len(self.due)
        self.known = np.zeros((n, max(16, AHEAD // n)))
        self.first = np.full(n, -self.known.shape[1])

    def block(self, count: int) -> Block:
        """The next `count` steps; the clock moves on."""
        rows = [self._step() for _ in range(count)]
        columns = (np.stack(column) for column in zip(*rows, strict=True))
        return Block(*columns, self.clock())

    def clock(self) -> Clock:
        arrays = self.due.copy(), self.number.copy(), self.task.copy()
        return Clock(*arrays, self.time, self.next_id)

    def _step(self) -> tuple[NDArray[np.generic], ...]:
        S = self.quorum
        last = np.partition(self.due, S - 1)[S - 1]
        early = np.flatnonzero(self.due <= last)  # more than S where several arrive at once
        times = self.due[early]
        turns = times.argsort()
        if len(early) > S or (np.diff(times[turns]) == 0).any():
            turns = times.argsort(kind="stable")[:S]  # at one instant by worker
            early, turns = np.sort(early[turns]), early[turns]
            turns = early.searchsorted(turns)
        workers, arrived, places = early, early[turns], np.empty(S, dtype=np.int64)
        places[turns] = np.arange(S)
        seen = arrived, self.due[arrived], self.task[arrived], self.number[arrived], places
        self.time = float(last)
        numbers = self.number[workers] + 1
        self.number[workers] = numbers
        self.task[workers] = np.arange(self.next_id, self.next_id + S)
        self.next_id += S
        self.due[workers] = last + self._delays(workers, numbers)
        return workers, numbers, *seen

    def _delays(self, workers: Integers, numbers: Integers) -> Array:
        wide = self.known.shape[1]
        column = numbers - self.first[workers]
        if (column >= wide).any():
            short = np.flatnonzero(self.number - self.first >= wide // 2)
            self.first[short] = self.number[short]
            ahead = self.number[short][:, None] + np.arange(wide)
            each = np.repeat(short, wide)
            found = many(self.delays, self.seed, each, ahead.ravel())
            self.known[short] = found.reshape(-1, wide)
            column = numbers - self.first[workers]
        found: Array = self.known[workers, column]
        return found
