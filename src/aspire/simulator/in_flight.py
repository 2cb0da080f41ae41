"""The desk: tasks in the workers' hands, and results that are computed but not yet due.

A task's result depends on what the worker was handed and on nothing else, so tasks in flight can
be evaluated together, ahead of their arrival. That is done as soon as enough of them wait, on
another thread where there is one, or else when the first of those that wait is due. Which tasks
are evaluated together follows from the order of the events alone, never from the clock or the
number of threads: so a replay, which uses the same desk, makes the same groups and gets the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from aspire.problem.problem import Problem
from aspire.protocol import method_objection, name_objection
from aspire.runs import digest
from aspire.runs.hashes import SHORT
from aspire.types import As, Method, Report, Task, Worker

ROWS = 16  # tasks in one call: their numbers stay in the cache of one core
Results = list[tuple[Any, Report] | None]
Memory = Annotated[Any, As("memory")]  # what a worker remembers


class Evaluator:
    """Results of many tasks.

    alone    one task a call, as on an engine
    threads  how many may work at the same time, the caller's among them, where that is safe; no
             result depends on it
    """

    def __init__(
        self, method: Method, problem: Problem, *, alone: bool = False, threads: int = 1
    ) -> None:
        self.method = method
        self.problem = problem
        self.alone = alone
        self.threads = threads
        aside = threads - 1 if problem.batched else 0
        self._threads = ThreadPoolExecutor(aside) if aside > 0 else None
        self._flying: dict[int, tuple[Future[Results] | Results, int]] = {}  # by task: call, row

    @property
    def many(self) -> Callable[[list[Any]], list[tuple[Any, Report]]] | None:
        """The work on many tasks in one call, where the method has it and it is wanted."""
        return None if self.alone or self.method.fast is None else self.method.fast.many

    def send(self, tasks: list[Task], workers: dict[int, Any]) -> None:
        """Begin on these tasks, which consume the workers' states; `fetch` waits for one."""
        items = [(workers.pop(t.worker, None), t, self.problem.sites[t.worker]) for t in tasks]
        for group in _even(items, ROWS):
            call: Future[Results] | Results
            if self._threads is not None and torch.get_num_threads() == 1:
                call = self._threads.submit(self._work, group)
            else:
                call = self._work(group)
            for row, (_, task, _) in enumerate(group):
                self._flying[task.id] = (call, row)

    def _work(self, items: list[Any]) -> Results:
        if self.many is None:
            return [self.method.work(*item) for item in items]
        found: Results = list(self.many(items))
        digested_together(report for _, report in filter(None, found))
        return found

    def fetch(self, task: Task) -> tuple[Any, Report] | None:
        """The result of a task that was sent; None where it was not."""
        if task.id not in self._flying:
            return None
        call, row = self._flying.pop(task.id)
        results = call.result() if isinstance(call, Future) else call
        found = results[row]
        results[row] = None  # the rest of the call may wait for long
        return found

    def drop(self, task: Task) -> None:
        """Nobody will ask for this one."""
        self._flying.pop(task.id, None)


def digested_together(reports: Iterable[Report]) -> None:
    """Take the digests of long vectors on a GPU, which the log wants one by one, in one call."""
    alike: dict[tuple[Any, ...], list[Tensor]] = {}
    for report in reports:
        for x in report.vectors.values():
            if x.device.type != "cpu" and x.numel() > SHORT:
                alike.setdefault((x.numel(), x.dtype), []).append(x)
    for vectors in alike.values():
        digest.ahead(vectors)


@dataclass
class Desk:
    """Who holds which task, what each worker remembers, and what it will report: data only."""

    hands: dict[Worker, Task] = field(default_factory=dict)
    known: dict[Worker, tuple[Memory, Report]] = field(default_factory=dict)
    workers: dict[Worker, Memory] = field(default_factory=dict)
    waiting: dict[Worker, None] = field(default_factory=dict)  # who holds a task not yet begun

    def check(self) -> None:
        """Of a desk that is settled: each task waits, or its report is known."""
        if any(j != task.worker for j, task in self.hands.items()):
            raise ValueError("a worker holds another one's task")
        if self.hands.keys() ^ (self.known.keys() ^ self.waiting.keys()):
            raise ValueError("a task is neither waiting nor known, or both")

    def objection(self, method: Method) -> str | None:
        """Why the tasks and reports here are none of this method's."""
        reasons = [method_objection(method, self.hands[j]) for j in self.waiting]
        for j, (_, report) in self.known.items():
            kind = method.kinds.get(self.hands[j].kind)
            odd = (report.worker, report.task) != (j, self.hands[j].id)
            reasons.append("another task's report" if odd else name_objection(report, kind))
        return next(filter(None, reasons), None)

    def hand(self, task: Task) -> None:
        """A new task; whoever gets it has no other."""
        self.hands[task.worker] = task
        self.waiting[task.worker] = None

    def begin_if_many(self, evaluate: Evaluator) -> None:
        """Begin on what waits once it fills a call; to be asked before every event."""
        if len(self.waiting) >= ROWS and evaluate.many:
            self._begin(evaluate)

    def _begin(self, evaluate: Evaluator) -> None:
        evaluate.send([self.hands[i] for i in self.waiting], self.workers)
        self.waiting.clear()

    def forget(self, j: int, evaluate: Evaluator) -> None:
        """The worker vanished: its task, and what it would have said, go with it."""
        task = self.hands.pop(j, None)
        self.known.pop(j, None)
        self.waiting.pop(j, None)
        if task is not None:
            evaluate.drop(task)

    def holds(self, j: int, task: int) -> bool:
        return j in self.hands and self.hands[j].id == task

    def report(self, j: int, evaluate: Evaluator) -> Report:
        """What worker j says to its task, now that it is due."""
        if j in self.waiting:
            if evaluate.many:
                self._begin(evaluate)
            else:
                del self.waiting[j]
                evaluate.send([self.hands[j]], self.workers)
        task = self.hands.pop(j)
        self.workers[j], report = evaluate.fetch(task) or self.known.pop(j)
        return report

    def settle(self, evaluate: Evaluator) -> None:
        """Wait for what is being evaluated, so that the desk holds all there is to save."""
        for j, task in self.hands.items():
            found = evaluate.fetch(task)
            if found is not None:
                self.known[j] = found


def _even(items: list[Any], most: int) -> list[list[Any]]:
    """As few parts as `most` items each allow, an even number of them if several, all alike."""
    parts = -(-len(items) // most)
    parts += parts > 1 and parts % 2
    size = -(-len(items) // parts)
    return [items[i : i + size] for i in range(0, len(items), size)]
