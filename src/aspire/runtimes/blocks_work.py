"""What the workers compute for blocks of steps on the CPU: results in flight, a group at a time.

All that the result of a task needs is known when it is handed out, and the gradient of the task
after it needs the result alone. A row's numbers do not depend on the rows beside it (`stacks_cpu`),
so what is handed out waits until the first of it is needed: no byte depends on the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire import batches
from aspire.methods.aspire_state import Master
from aspire.methods.worker import checked_step
from aspire.problem import Problem
from aspire.runtimes import digest
from aspire.runtimes.order import Integers
from aspire.types import Array, Task

ROWS = 16  # in one group: their numbers stay in the cache of one core
DRAWN = 4096  # batches whose indices are computed at once


@dataclass(frozen=True)
class Plan:
    """What steps need to know beside the state; row i belongs to the i-th step, S columns."""

    workers: Integers  # Q, in worker order
    draws: Integers  # of the task that each is handed
    checks: Integers  # 1 where its step is checked
    losses: Integers  # 1 where its loss is reported

    def flat(self) -> Plan:
        """The tasks in the order in which they are handed out."""
        columns = self.workers, self.draws, self.checks, self.losses
        return Plan(*(column.reshape(-1) for column in columns))


@dataclass
class Flight:
    """The results in flight: what each worker will report to the task in its hands."""

    w: Tensor  # (N, p)
    loss: Array  # the last known one where none is reported
    curvature: Array  # what the check found; -1 where there was none
    own: Tensor | None = None  # (2, p) of the site that lies about w_j: its w_j before and after


class Bench:
    """Works ahead of the master."""

    def __init__(self, problem: Problem, master: Master, flight: Flight) -> None:
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
        self.pi, self.rate, self.kappa = np.zeros((3, n))  # of the tasks in flight
        self.waits = [False] * n  # handed out, and not worked on
        self.since = self.until = 0  # numbers of the first task that waits, and of the next one

    def load(self, tasks: Plan) -> None:
        """The tasks of the next steps, in a row."""
        self.work()
        self.tasks, self.names = tasks, tasks.workers.tolist()
        self.since = self.until = 0
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
        )
        return found.numpy()

    def hand(self, until: int) -> None:
        """All tasks before number `until` are handed out, their w_j written to flight.w."""
        for j in self.names[self.until : until]:
            self.waits[j] = True
        self.until = until

    def need(self, workers: list[int]) -> None:
        """These workers' results, and their next gradients, are there."""
        if any(self.waits[j] for j in workers):
            self.work()

    def work(self) -> None:
        """All that waits."""
        count = self.until - self.since
        if not count:
            return
        if self.until > self.drawn + len(self.indices):
            self._draw(self.since, count)
        size = -(-count // -(-count // ROWS))
        for first in range(self.since, self.until, size):
            self._group(first, min(first + size, self.until))
        for j in self.names[self.since : self.until]:
            self.waits[j] = False
        self.since = self.until

    def _group(self, first: int, end: int) -> None:
        """Steps that are checked, then losses, gradients and digests."""
        tasks, rows, R = self.tasks, slice(first, end), end - first
        workers, due = tasks.workers[rows], np.flatnonzero(tasks.checks[rows])
        if len(due):
            self._check(workers[due], self._indices(workers[due], tasks.draws[rows][due]))
        with self.stack.room(ROWS, self.batch, self.G.dtype) as room:
            np.take(self.w, workers, 0, out=room.w[:R], mode="clip")
            for row in np.flatnonzero(tasks.losses[rows]).tolist():
                j = int(workers[row])
                self.flight.loss[j] = self.sites[j].loss(room.W[row])
            self._gradients(room, self.indices[first - self.drawn : end - self.drawn])
            self.g[workers] = room.g[:R]
            told = self.flight.loss[workers], self.flight.curvature[workers]
            self.digests[workers] = reported(room.W[:R], *told)

    def _gradients(self, room: Any, index: Any) -> None:
        R = len(index)
        np.take(self.inputs, index, 0, out=room.x[:R], mode="clip")
        np.take(self.targets, index, 0, out=room.y[:R], mode="clip")
        room.gradients(R, self.decay)

    def _check(self, workers: Integers, index: Any) -> None:
        """(11) goes no further than it should: `methods.worker.checked_step`."""
        with self.stack.room(ROWS, self.batch, self.G.dtype) as room:
            np.take(self.w, workers, 0, out=room.w[: len(workers)], mode="clip")
            self._gradients(room, index)
            for row, j in enumerate(workers.tolist()):
                said = {"pi": self.pi[j], "kappa": self.kappa[j], "rate": self.rate[j]}
                self.flight.w[j], self.flight.curvature[j] = checked_step(
                    self.master.w[j], self.flight.w[j], self.G[j], room.G[row],
                    Task(j, 0, "step", {}, said),
                )  # fmt: skip


def reported(w: Tensor, loss: Array, curvature: Array) -> Integers:
    """The digests of many reports: the vector and the two numbers that training computed."""
    numbers = torch.from_numpy(np.stack([loss, curvature], axis=1))
    found: Integers = (digest.rows(w) + digest.rows(numbers)).numpy()
    return found
