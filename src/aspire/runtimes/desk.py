"""The desk: tasks in the workers' hands, and results that are computed but not yet due.

A task's result depends on what the worker was handed and on nothing else, so all tasks in flight
can be evaluated together, whatever their arrival times. That is done when the first of them whose
result is unknown is due. Which tasks are evaluated together follows from the order of the events
alone, never from the clock or the number of threads: so a replay, which uses the same desk, makes
the same batches and gets the same bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from aspire.problem import Problem
from aspire.types import Method, Report, Task

ROWS = 16  # tasks in one call: their numbers stay in the cache of one core


class Evaluator:
    """Results of many tasks.

    exact    one task a call, so that a result cannot depend on what else was in flight
    threads  calls that may run at the same time, where that is safe; no result depends on it
    """

    def __init__(
        self, method: Method, problem: Problem, *, exact: bool = False, threads: int = 1
    ) -> None:
        self.method, self.problem, self.exact = method, problem, exact
        self._threads = ThreadPoolExecutor(threads) if threads > 1 and problem.batched else None

    @property
    def together(self) -> bool:
        return self.method.work_many is not None and not self.exact

    def __call__(self, tasks: list[Task], workers: dict[int, Any]) -> list[tuple[Any, Report]]:
        items = [(workers.get(t.worker), t, self.problem.sites[t.worker]) for t in tasks]
        many = self.method.work_many
        if many is None or self.exact:
            return [self.method.work(*item) for item in items]
        groups = _even(items, ROWS)
        if self._threads is None or len(groups) == 1 or torch.get_num_threads() > 1:
            found = [many(group) for group in groups]
        else:
            found = list(self._threads.map(many, groups))
        return [result for group in found for result in group]


@dataclass
class Desk:
    """Who holds which task, what each worker remembers, and what it will report: data only."""

    hands: dict[int, Task] = field(default_factory=dict)
    known: dict[int, tuple[Any, Report]] = field(default_factory=dict)
    workers: dict[int, Any] = field(default_factory=dict)

    def hand(self, task: Task) -> None:
        self.hands[task.worker] = task
        self.known.pop(task.worker, None)

    def forget(self, j: int) -> None:
        """The worker vanished: its task, and what it would have said, go with it."""
        self.hands.pop(j, None)
        self.known.pop(j, None)

    def holds(self, j: int, task: int) -> bool:
        return j in self.hands and self.hands[j].id == task

    def report(self, j: int, evaluate: Evaluator) -> Report:
        """What worker j says to its task, now that it is due."""
        if j not in self.known:
            due = [i for i in self.hands if i not in self.known] if evaluate.together else [j]
            results = evaluate([self.hands[i] for i in due], self.workers)
            self.known.update(zip(due, results, strict=True))
        del self.hands[j]
        self.workers[j], report = self.known.pop(j)
        return report


def _even(items: list[Any], most: int) -> list[list[Any]]:
    """As few parts as `most` items each allow, an even number of them if several, all alike."""
    parts = -(-len(items) // most)
    parts += parts > 1 and parts % 2
    size = -(-len(items) // parts)
    return [items[i : i + size] for i in range(0, len(items), size)]
