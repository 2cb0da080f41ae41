"""The order of events ahead of time: who reports when, and which S of them make each step.

Delays are a function of (seed, worker, n) and of no number that training computes, so the order can
be laid out in blocks before the numbers are known. It is the order of the simulator's heap: by
time, then by worker. Everybody is present, and nobody waits for the slow ones (no staleness bound),
so the next step takes the S earliest reports of the N tasks in flight.
"""

from __future__ import annotations

import ctypes
import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aspire import native
from aspire.runtimes.delays import Delays, many
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
        self._upcoming: list[list[float]] = [[] for _ in range(n)]

    def block(self, count: int) -> Block:
        """The next `count` steps; the clock moves on."""
        if self.quorum <= FEW:
            functions = native.library(torch.float32)
            return self._by_heap(count) if functions is None else self._compiled(functions, count)
        columns: Any = [np.empty((count, self.quorum), dtype=np.int64) for _ in range(7)]
        columns[3] = np.empty((count, self.quorum))  # times
        for i in range(count):
            for table, found in zip(columns, self._step(), strict=True):
                table[i] = found
        return Block(self.clock(), *columns)

    def _compiled(self, functions: Any, count: int) -> Block:
        """The same heap in order.c."""
        columns: Any = [np.zeros((count, self.quorum), dtype=np.int64) for _ in range(7)]
        columns[3] = np.zeros((count, self.quorum))  # times
        done = 0
        while done < count:
            arrays = self.due, self.number, self.task, self.known, self.first, *columns
            due, number, task, *rest = map(native.at, arrays)
            given = native.Order(
                len(self.due), self.quorum, AHEAD, due, number, task, self.next_id, *rest
            )
            done = functions.lay_out(ctypes.byref(given), done, count)
            if done < 0:
                raise MemoryError("order.c found no memory for its heap")
            self.next_id = given.next_id
            if done < count:
                self._ask(np.flatnonzero(self.number - self.first >= AHEAD // 2))
        self.time = float(columns[3][-1, -1])
        return Block(self.clock(), *columns)

    def _by_heap(self, count: int) -> Block:
        """The same with a heap of (time, worker), where there is no compiler."""
        heap = list(zip(self.due.tolist(), range(len(self.due)), strict=True))
        heapq.heapify(heap)
        number, task, delays = self.number.tolist(), self.task.tolist(), self._upcoming
        rows: list[tuple[Any, ...]] = []
        for _ in range(count):
            got = [heapq.heappop(heap) for _ in range(self.quorum)]
            arrived = [j for _, j in got]
            workers, last = sorted(arrived), got[-1][0]
            seen = [task[j] for j in arrived], [number[j] for j in arrived]
            for j in workers:
                number[j] += 1
                task[j] = self.next_id
                self.next_id += 1
                queue = delays[j]
                heapq.heappush(
                    heap, (last + (queue.pop() if queue else self._more(j, number[j])), j)
                )
            numbers, places = [number[j] for j in workers], [arrived.index(j) for j in workers]
            rows.append((workers, numbers, arrived, [time for time, _ in got], *seen, places))
        self.time = last
        self.number, self.task = np.array(number), np.array(task)
        for time, j in heap:
            self.due[j] = time
        columns: Any = [np.array(column) for column in zip(*rows, strict=True)]
        return Block(self.clock(), *columns)

    def _more(self, j: int, number: int) -> float:
        """The delay of this task, and those of worker j's next ones in its queue."""
        ahead = np.arange(number, number + AHEAD)
        found = many(self.delays, self.seed, np.full(AHEAD, j), ahead)
        self._upcoming[j] = found[:0:-1].tolist()
        return float(found[0])

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
        column = numbers - self.first[workers]
        if (column >= AHEAD).any():
            self._ask(np.flatnonzero(self.number - self.first >= AHEAD // 2))
            column = numbers - self.first[workers]
        found: Array = self.known[workers, column]
        return found

    def _ask(self, short: Integers) -> None:
        """The next delays of these workers."""
        self.first[short] = self.number[short]
        for some in np.array_split(short, -(-len(short) * AHEAD // PIECE)):
            numbers = self.number[some][:, None] + np.arange(AHEAD)
            found = many(self.delays, self.seed, some.repeat(AHEAD), numbers.ravel())
            self.known[some] = found.reshape(-1, AHEAD)
