"""The order of events ahead of time: who reports when, and which S of them make each step.

Delays are a function of (seed, worker, n) and of no number that training computes, so the order can
be laid out in blocks before the numbers are known. It is the order of the simulator's heap: by
time, then by worker. Everybody is present, and nobody waits for the slow ones (no staleness bound),
so the next step takes the S earliest reports of the N tasks in flight.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aspire.simulator.delays import Delays, many
from aspire.types import Array

Integers = NDArray[np.int64]
AHEAD = 64  # delays of each worker that are known ahead
FEW = 32  # reports of a step: with fewer a heap is faster than arrays
PIECE = 16384  # of them are computed at once: they stay in the cache


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

    after: Clock
    workers: Integers  # Q, in worker order
    numbers: Integers  # of the task that each of Q is handed: 0 was a worker's first
    arrived: Integers  # Q, in the order of arrival, and so the rest
    times: Array
    tasks: Integers  # ids of the absorbed tasks
    answered: Integers  # their numbers
    places: Integers  # arrived[places] = workers

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
        self.known = np.zeros((n, AHEAD))
        self.first = np.full(n, -AHEAD)
        self._heap: list[tuple[float, int]] = []

    def block(self, count: int) -> Block:
        """The next `count` steps; the clock moves on."""
        if self.quorum <= FEW:
            return self._by_heap(count)
        columns: Any = [np.empty((count, self.quorum), dtype=np.int64) for _ in range(7)]
        columns[3] = np.empty((count, self.quorum))  # times
        for i in range(count):
            for table, found in zip(columns, self._step(), strict=True):
                table[i] = found
        return Block(self.clock(), *columns)

    def _by_heap(self, count: int) -> Block:
        """The same with a heap of (time, worker)."""
        if not self._heap:
            self._heap = list(zip(self.due.tolist(), range(len(self.due)), strict=True))
            heapq.heapify(self._heap)
        rows = [self._step_by_heap() for _ in range(count)]
        columns: Any = [np.array(column) for column in zip(*rows, strict=True)]
        return Block(self.clock(), *columns)

    def _step_by_heap(self) -> tuple[list[Any], ...]:
        got = [heapq.heappop(self._heap) for _ in range(self.quorum)]
        times = [time for time, _ in got]
        arrived = [j for _, j in got]
        workers = sorted(arrived)
        seen = [self.task.item(j) for j in arrived], [self.number.item(j) for j in arrived]
        self.time = times[-1]
        for j in workers:
            self.number[j] += 1
            self.task[j] = self.next_id
            self.next_id += 1
            due = self.time + self._delay(j)
            self.due[j] = due
            heapq.heappush(self._heap, (due, j))
        numbers = [self.number.item(j) for j in workers]
        places = [arrived.index(j) for j in workers]
        return workers, numbers, arrived, times, *seen, places

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
            arrived = early[turns]
            early = np.sort(arrived)
            turns = early.searchsorted(arrived)
        workers = early
        arrived = early[turns]
        places = np.empty(S, dtype=np.int64)
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
        column = numbers - self.first[workers]
        if (column >= AHEAD).any():
            self._ask(np.flatnonzero(self.number - self.first >= AHEAD // 2))
            column = numbers - self.first[workers]
        found: Array = self.known[workers, column]
        return found

    def _delay(self, j: int) -> float:
        """Of the task that worker j has now."""
        if self.number.item(j) - self.first.item(j) >= AHEAD:
            self._ask(np.flatnonzero(self.number - self.first >= AHEAD // 2))
        return self.known.item(j, self.number.item(j) - self.first.item(j))

    def _ask(self, short: Integers) -> None:
        """The next delays of these workers."""
        self.first[short] = self.number[short]
        for some in np.array_split(short, -(-len(short) * AHEAD // PIECE)):
            numbers = self.number[some][:, None] + np.arange(AHEAD)
            found = many(self.delays, self.seed, some.repeat(AHEAD), numbers.ravel())
            self.known[some] = found.reshape(-1, AHEAD)
