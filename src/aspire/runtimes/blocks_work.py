"""What the workers compute for blocks of steps on the CPU: results in flight, a group at a time.

All that the result of a task needs is known when it is handed out, and the gradient of the task
after it needs the result alone. A row's numbers do not depend on the rows beside it (`stacks_cpu`),
so groups may be formed as suits the cache and the threads: no byte depends on them.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire import batches
from aspire.methods.aspire_state import Master
from aspire.methods.worker import checked_step
from aspire.problem import Problem
from aspire.runtimes import digest
from aspire.runtimes.blocks_native import at, compiled
from aspire.runtimes.order import Integers
from aspire.types import Array, Task

ROWS = 16  # in one group: their numbers stay in the cache of one core
NUMBER = 8  # bytes of an int64
DRAWN = 4096  # batches whose indices are computed at once


@dataclass
class Flight:
    """The results in flight: what each worker will report to the task in its hands."""

    w: Tensor  # (N, p)
    loss: Array  # the last known one where none is reported
    curvature: Array  # 0 where none was revealed


@dataclass(frozen=True)
class Handed:
    """Tasks in the order in which they were handed out."""

    workers: Integers
    draws: Integers  # the batch of each
    checks: Integers  # 1 where the step is checked
    losses: Integers  # 1 where the loss is reported

    @cached_property
    def places(self) -> tuple[int, int, int]:
        """Where workers, checks and losses lie."""
        return at(self.workers), at(self.checks), at(self.losses)


@dataclass(eq=False)
class Group:
    """Tasks that are worked on together."""

    tasks: Handed
    rows: slice  # of `tasks`
    workers: list[int]
    indices: Any  # (rows, B): samples in the batches after the tasks from number `drawn` on
    drawn: int
    call: Future[None] | None = None


class Bench:
    """Works ahead of the master, on `threads` threads, the caller's among them."""

    def __init__(self, problem: Problem, master: Master, flight: Flight, threads: int) -> None:
        first = problem.sites[0]
        assert first.objective.stack is not None
        assert first.pool is not None
        self.sites, self.master, self.flight = problem.sites, master, flight
        self.stack, self.decay = first.objective.stack, first.objective.weight_decay
        self.inputs, self.targets = first.pool.inputs.flatten(1).numpy(), first.pool.targets.numpy()
        self.batch, self.seed = first.batch_samples, first.seed
        self.sizes = np.array([site.train.size for site in problem.sites])
        self.starts = np.array([site.start for site in problem.sites])
        n = len(problem.sites)
        self.G = torch.zeros_like(flight.w)  # at flight.w, on the next task's batch
        self.g, self.w = self.G.numpy(), flight.w.numpy()
        self.digests = np.zeros(n, dtype=np.int64)
        self.pi, self.rate = np.zeros(n), np.zeros(n)  # of the tasks in flight
        self.pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self.ahead: list[Group | bool] = [False] * n  # True: handed out, and in no group yet
        self.queue: deque[Group] = deque()
        self.compiled = compiled(problem, self, master)
        self.since = self.until = 0  # numbers of the first task in no group, and of the next one

    # ------------------------------------------------------------ groups

    def load(self, tasks: Handed) -> None:
        """The tasks of the next steps, all of them."""
        self.group()
        self.tasks, self.names = tasks, tasks.workers.tolist()
        self.since = self.until = self.drawn = 0
        self._draw(0, 0)

    def _draw(self, first: int, count: int) -> None:
        """The batches after the tasks from `first` on."""
        rows = slice(first, first + max(count, DRAWN))
        workers, draws = self.tasks.workers[rows], self.tasks.draws[rows] + 1
        self.drawn, self.indices = first, self._indices(workers, draws)

    def _indices(self, workers: Integers, draws: Integers) -> Any:
        sizes, starts = self.sizes[workers], self.starts[workers]
        found: Any = batches.rows(
            self.seed, workers.tolist(), draws.tolist(), sizes, starts, count=self.batch
        )  # fmt: skip
        return found.numpy()

    def hand(self, until: int) -> None:
        """All tasks before number `until` are handed out, their w_j written to flight.w."""
        for j in self.names[self.until : until]:
            self.ahead[j] = True
        self.until = until
        if self.pool is not None and self.until - self.since >= ROWS:
            self.group()

    def group(self) -> None:
        """What was handed out and is in no group."""
        count = self.until - self.since
        if not count:
            return
        if self.until > self.drawn + len(self.indices):
            self._draw(self.since, count)
        size = -(-count // -(-count // ROWS))
        for first in range(self.since, self.until, size):
            rows = slice(first, min(first + size, self.until))
            group = Group(self.tasks, rows, self.names[rows], self.indices, self.drawn)
            for j in group.workers:
                self.ahead[j] = group
            self.queue.append(group)
            if self.pool is not None:
                group.call = self.pool.submit(self._work, group)
        self.since = self.until

    def need(self, workers: list[int]) -> None:
        """These workers' results, and their next gradients, are there."""
        for j in workers:
            if self.ahead[j] is True:
                self.group()
            group = self.ahead[j]
            if isinstance(group, Group):
                self._finish(group)

    def _finish(self, group: Group) -> None:
        """Work on it, or on others while somebody else does."""
        while self.ahead[group.workers[0]] is group:
            other = group
            if not _done(group) and not _mine(group):
                other = next((g for g in self.queue if _mine(g)), group)
            if other.call is None or other.call.cancelled():
                self._work(other)
            else:
                other.call.result()
            self.queue.remove(other)
            for j in other.workers:
                self.ahead[j] = False

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()

    # ------------------------------------------------------------ work

    def _work(self, group: Group) -> None:
        """Steps that are checked, then losses, gradients and digests."""
        tasks, rows = group.tasks, group.rows
        due = np.flatnonzero(tasks.checks[rows])
        again = None
        if len(due):
            workers, draws = tasks.workers[rows][due], tasks.draws[rows][due]
            again = self._indices(workers, draws)
        if self.compiled is not None:
            first = group.indices.ctypes.data + NUMBER * self.batch * (rows.start - group.drawn)
            columns = [place + NUMBER * rows.start for place in tasks.places]
            self.compiled.work(len(group.workers), columns, first, again)
            return
        if again is not None:
            self._check(workers, again)
        self._work_alone(
            tasks.workers[rows], tasks.losses[rows],
            group.indices[rows.start - group.drawn : rows.stop - group.drawn],
        )  # fmt: skip

    def _work_alone(self, workers: Integers, losses: Integers, index: Any) -> None:
        """Without rows.c."""
        R = len(workers)
        with self.stack.room(ROWS, self.batch, self.G.dtype) as room:
            np.take(self.w, workers, 0, out=room.w[:R], mode="clip")
            for row in np.flatnonzero(losses).tolist():
                j = int(workers[row])
                self.flight.loss[j] = self.sites[j].loss(room.W[row])
            self._gradients(room, R, index)
            self.g[workers] = room.g[:R]
            told = self.flight.loss[workers], self.flight.curvature[workers]
            self.digests[workers] = reported(room.W[:R], *told)

    def _gradients(self, room: Any, R: int, index: Any) -> None:
        np.take(self.inputs, index, 0, out=room.x[:R], mode="clip")
        np.take(self.targets, index, 0, out=room.y[:R], mode="clip")
        room.gradients(R, self.decay)

    def _check(self, workers: Integers, index: Any) -> None:
        """(11) goes no further than it should: `methods.worker.checked_step`."""
        rows, kappa = len(workers), self.master.constants["kappa"]
        with self.stack.room(ROWS, self.batch, self.G.dtype) as room:
            np.take(self.w, workers, 0, out=room.w[:rows], mode="clip")
            self._gradients(room, rows, index)
            for row, j in enumerate(workers.tolist()):
                said = {"pi": self.pi[j], "kappa": kappa, "rate": self.rate[j]}
                self.flight.w[j], self.flight.curvature[j] = checked_step(
                    self.master.w[j], self.flight.w[j], self.G[j], room.G[row],
                    Task(j, 0, "step", {}, said),
                )  # fmt: skip


def _done(group: Group) -> bool:
    return group.call is not None and group.call.done()


def _mine(group: Group) -> bool:
    """Whether nobody has begun on it; then nobody else will."""
    return group.call is None or group.call.cancel()


def reported(w: Tensor, loss: Array, curvature: Array) -> Integers:
    """The digests of many reports: the vector and the two numbers that training computed."""
    numbers = torch.from_numpy(np.stack([loss, curvature], axis=1))
    found: Integers = (digest.rows(w) + digest.rows(numbers)).numpy()
    return found
