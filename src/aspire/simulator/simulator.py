"""The simulator: real algorithm, real gradients, virtual clock.

A heap of (time, priority, worker, ...) orders what happens; ties are broken by kind and worker, so
the order never depends on chance. Results of tasks in flight are computed together, ahead of their
time (see `desk`). Probes take no virtual time: the clock starts when the constants are
formed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import torch

from aspire.problem.problem import Problem
from aspire.runs.errors import Stopped
from aspire.runs.evaluation import Away
from aspire.runs.log import EventLog
from aspire.simulator.delays import Absence, Delays
from aspire.simulator.in_flight import Desk, Evaluator
from aspire.types import (
    Amount,
    As,
    Between,
    Count,
    Event,
    Id,
    Info,
    Joined,
    Left,
    Method,
    Noted,
    Refused,
    Report,
    Stepped,
    Task,
    Worker,
)

LEAVE, REPORT, JOIN = range(3)  # what comes first at one instant
PLANNED = "as `absences` says"
Due = tuple[float, Annotated[int, Between(LEAVE, JOIN)], Worker, Id]


@dataclass
class Standing:
    """Where a simulation stands: data only, with the names that they have in one."""

    master: Annotated[Any, As("master")]
    desk: Desk
    time: Amount
    gradients: Amount
    samples: Amount
    heap: list[Due]
    started: dict[Worker, Count]
    absences: list[Away]

    def objection(self, method: Method) -> str | None:
        """Why this is no state of such a run, or None."""
        return self.desk.objection(method)


@dataclass
class Simulation:
    """A run in progress: the master, the workers, the clock and what is in flight."""

    method: Method
    problem: Problem
    delays: Delays
    seed: int
    master: Any
    evaluate: Evaluator
    desk: Desk = field(default_factory=Desk)
    log: EventLog = field(default_factory=lambda: EventLog("off"))
    time: float = 0.0
    gradients: float = 0.0
    samples: float = 0.0
    heap: list[Due] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)  # worker -> timed tasks so far
    absences: list[Away] = field(default_factory=list)  # as a driver's

    def standing(self) -> Standing:
        """All that a new simulation of the same job needs, when nothing is being evaluated."""
        self.desk.settle(self.evaluate)
        return Standing(**{f.name: getattr(self, f.name) for f in fields(Standing)})

    def stand(self, where: Standing) -> None:
        """Go on from there."""
        for f in fields(where):
            setattr(self, f.name, getattr(where, f.name))

    def dispatch(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self.desk.hand(task)
            due = self.time + self.duration(task)
            heapq.heappush(self.heap, (due, REPORT, task.worker, task.id))

    def duration(self, task: Task) -> float:
        """The virtual time of a task that starts now: one delay, or as many as its kind says."""
        kind = self.method.kinds.get(task.kind)
        count = 1 if kind is None else kind.delays
        if task.kind == "probe" or not count:
            return 0.0
        first = self.started.get(task.worker, 0)
        self.started[task.worker] = first + count
        if count == 1:
            return self.delays(self.seed, task.worker, first)
        return sum(self.delays(self.seed, task.worker, first + k) for k in range(count))

    def next_event(self) -> Event:
        """The next thing that happens."""
        self.desk.begin_if_many(self.evaluate)
        while self.heap:
            self.time, kind, j, task = heapq.heappop(self.heap)
            if kind == LEAVE:
                self.desk.forget(j, self.evaluate)
                return Left(j)
            if kind == JOIN:
                return Joined(j)
            if not self.desk.holds(j, task):
                continue  # the worker vanished with it
            report = self.desk.report(j, self.evaluate)
            self.gradients += report.scalars["gradients"]
            self.samples += report.scalars["samples"]
            return report
        raise Stopped("every worker is away for good and the iterations are not done")

    def absorb(self, event: Event) -> list[Info]:
        self.log.add(self.time, event)
        self.master, tasks, infos = self.method.absorb(self.master, [event])
        for info in infos:
            if isinstance(info, Refused):
                name = self.problem.names[event.worker]
                raise Stopped(
                    f"a report of site {name!r} was refused after {self.master.t} iterations: "
                    f"{info.reason}"
                )
        if not isinstance(event, Report):
            self.note_absence(event)
        self.dispatch(tasks)
        return infos

    def note_absence(self, event: Left | Joined) -> None:
        """Who was away from which iteration to which."""
        t = self.master.t
        j = event.worker
        if isinstance(event, Left):
            self.absences.append({"site": j, "from": t, "to": None, "reason": PLANNED})
        for absence in self.absences if isinstance(event, Joined) else ():
            if absence["site"] == j and absence["to"] is None:
                absence["to"] = t


def begin(
    method: Method,
    problem: Problem,
    *,
    delays: Delays,
    absences: Iterable[Absence] = (),
    seed: int = 0,
) -> Simulation:
    """Everything up to the first event."""
    away = list(absences)
    late = set()
    for absence in away:
        if not 0 <= absence.worker < len(problem.sites):
            raise ValueError(
                f"absence of worker {absence.worker}: expected 0 to {len(problem.sites) - 1}"
            )
        if absence.leaves == 0:
            late.add(absence.worker)
    present = tuple(j for j in range(len(problem.sites)) if j not in late)
    if not present:
        raise ValueError("every worker is absent at the start: expected at least one present")
    facts = problem.facts(present)
    master, tasks = method.init(facts, seed)
    evaluate = Evaluator(method, problem, threads=torch.get_num_threads())
    simulation = Simulation(method, problem, delays, seed, master, evaluate)
    for j in sorted(late):
        simulation.note_absence(Left(j))
    for absence in away:
        if absence.leaves > 0:
            heapq.heappush(simulation.heap, (absence.leaves, LEAVE, absence.worker, 0))
        if math.isfinite(absence.returns):
            heapq.heappush(simulation.heap, (absence.returns, JOIN, absence.worker, 0))
    simulation.dispatch(tasks)
    return simulation


def run(
    simulation: Simulation,
    done: Callable[[Simulation], bool],
    *,
    on_step: Callable[[Simulation], None] = lambda simulation: None,
    on_note: Callable[[Noted], None] = lambda note: None,
) -> Simulation:
    """Until `done` says so, which is asked after each event. `on_step` may look, not touch."""
    while not done(simulation):
        for info in simulation.absorb(simulation.next_event()):
            if isinstance(info, Stepped):
                on_step(simulation)
            elif isinstance(info, Noted):
                on_note(info)
    return simulation
