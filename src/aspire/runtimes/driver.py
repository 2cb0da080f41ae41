"""The driver of every real runtime: tasks out, reports in, `absorb` in the middle.

A carrier brings tasks to workers and their reports back, and knows nothing of the algorithm. All
that depends on a clock or a connection becomes an event, `Left` or `Joined`, which is logged with
the reports: a replay needs neither. What the driver knows is data (`Drive`), and is checkpointed.

Rules, for every method and every carrier:
- A worker holds at most one task. A report on another task than the one in its hands is dropped.
- A worker that is silent for `patience` seconds with a task in its hands, or `Gone`, is declared
  away: Left. It returns, Joined, when the carrier says `Back` or a late report of it arrives.
- `Back` of a worker that was not declared away means a new process or connection: its task is sent
  again under the same id, whole, so that nothing is lost but the time.
- A report that the method refuses is noted, and its worker is away until it is `Back`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aspire.runtimes.evaluation import Evaluation
from aspire.runtimes.log import EventLog
from aspire.runtimes.serve import evaluation_tasks
from aspire.types import (
    Event,
    Info,
    Joined,
    Left,
    Method,
    Refused,
    Report,
    Stepped,
    Task,
)

logger = logging.getLogger("aspire")
TICK = 0.2  # seconds: how soon a wish to stop, or a silence, is noticed
REFUSED = "a report of it was refused"


@dataclass(frozen=True, slots=True)
class Gone:
    """The carrier knows that this worker will not answer its task. A short break needs no Gone."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Back:
    """This worker is connected, perhaps as a new process that remembers nothing."""

    worker: int


Arrival = Report | Gone | Back


class Carrier(Protocol):
    """Brings tasks to workers and reports back. Used from one thread."""

    def send(self, tasks: Sequence[Task]) -> None:
        """Never waits for a worker. A task for one that is not connected is dropped: when the
        worker is there, the carrier says `Back` and the driver sends it again. A worker takes its
        tasks in their order; a new task of the method replaces the one before."""

    def receive(self, timeout: float) -> list[Arrival]:
        """What has arrived, at least one thing; [] when nothing does within `timeout` seconds."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Where workers run. A dataclass: its fields are written to run.json as its settings."""

    @property
    def name(self) -> str: ...

    def open(self, crew: Any, names: Sequence[str], run: str) -> Carrier:
        """Start, or find again by the id `run`, one worker for each of `names`."""


@dataclass
class Drive:
    """A run in progress, as the driver knows it: data only. Lists have one entry per site."""

    master: Any
    hands: dict[int, Task]  # the task that each worker holds
    away: dict[int, str]  # who is declared away, and why
    reports: list[int]  # absorbed
    losses: list[float | None]  # last reported
    last: list[int]  # t of the last step with a report of it, -1: none
    time: float = 0.0  # seconds that the run has taken
    gradients: float = 0.0
    samples: float = 0.0
    dropped: int = 0
    refused: int = 0
    asked: list[Evaluation] = field(default_factory=list)
    evaluations: int = 0


def begin(method: Method, facts: Any, seed: int) -> Drive:
    """Everybody is expected; who does not come is declared away."""
    master, tasks = method.init(facts, seed)
    n = facts.sites
    hands = {task.worker: task for task in tasks}
    return Drive(master, hands, {}, [0] * n, [None] * n, [-1] * n)


class Driver:
    """One run over one carrier; `state` is all that a checkpoint must hold."""

    def __init__(
        self,
        method: Method,
        carrier: Carrier,
        names: Sequence[str],
        state: Drive,
        log: EventLog,
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.method, self.carrier, self.names, self.state = method, carrier, names, state
        self.log, self.patience, self.clock = log, patience, clock
        self.began = clock() - state.time
        self.heard = [clock()] * len(names)

    # ------------------------------------------------------------ the loop

    def run(
        self,
        done: Callable[[Drive], bool],
        *,
        stop: Callable[[], bool] = lambda: False,
        on_info: Callable[[Info], None] = lambda info: None,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """Until done, or asked to stop: both are looked at after every event."""
        self.send_again(range(len(self.names)))
        while not done(self.state) and not stop():
            for arrival in self.carrier.receive(TICK):
                for info in self.take(arrival):
                    on_info(info)
                if done(self.state) or stop():
                    break
            for info in self.notice_silence():
                on_info(info)
            on_turn()

    def send_again(self, workers: Iterable[int]) -> None:
        """What these workers hold, whole: they may be new processes."""
        tasks = [self.state.hands[j] for j in workers if j in self.state.hands]
        whole = self.method.whole
        if whole is not None:
            tasks = [whole(self.state.master, task) for task in tasks]
        self._send(tasks)
        self._ask_again(workers)

    def _ask_again(self, workers: Iterable[int]) -> None:
        for asked in self.state.asked:
            missing = [j for j in workers if j not in asked.answers]
            self.carrier.send(evaluation_tasks(missing, asked.id, asked.w))

    def _send(self, tasks: Sequence[Task]) -> None:
        now = self.clock()
        for task in tasks:
            self.state.hands[task.worker] = task
            self.heard[task.worker] = now
        if tasks:
            self.carrier.send(tasks)

    # ------------------------------------------------------------ what arrives

    def take(self, arrival: Arrival) -> list[Info]:
        """One arrival: perhaps an event, perhaps nothing."""
        j = arrival.worker
        if not (isinstance(j, int) and 0 <= j < len(self.names)):
            logger.warning("dropped: a message of an unknown worker %r", j)
            return []
        self.state.time = self.clock() - self.began
        if isinstance(arrival, Gone):
            return self.leave(j, arrival.reason)
        self.heard[j] = self.clock()
        if isinstance(arrival, Back):
            if j in self.state.away:
                return self.join(j)
            self.send_again([j])
            return []
        if arrival.task < 0:
            self.answer(arrival)
            return []
        return self.report(arrival)

    def report(self, report: Report) -> list[Info]:
        j, state = report.worker, self.state
        held = state.hands.get(j)
        if held is None or held.id != report.task:
            state.dropped += 1
            logger.debug("dropped: %s reports task %d again or late", self.names[j], report.task)
            late = j in state.away and state.away[j] != REFUSED
            return self.join(j) if late else []
        infos = self.absorb(report)
        if _refusal(infos) is None:
            state.reports[j] += 1
            state.losses[j] = report.scalars.get("loss", state.losses[j])
            state.gradients += report.scalars.get("gradients", 0.0)
            state.samples += report.scalars.get("samples", 0.0)
            return infos
        state.refused += 1
        return infos + self.leave(j, REFUSED)

    def listen(self, arrival: Arrival) -> None:
        """After the last event: only answers to evaluations count, and who can still give them."""
        if isinstance(arrival, Report):
            self.answer(arrival)
        elif isinstance(arrival, Back):
            self._ask_again([arrival.worker])

    def answer(self, report: Report) -> None:
        for asked in self.state.asked:
            if asked.id == report.task:
                asked.answers.setdefault(report.worker, dict(report.scalars))

    # ------------------------------------------------------------ who is here

    def notice_silence(self) -> list[Info]:
        """Declare away who has held a task for `patience` seconds without a word."""
        now, infos = self.clock(), []
        for j in [j for j in self.state.hands if now - self.heard[j] > self.patience]:
            infos += self.leave(j, f"silent for {self.patience:g} s")
        return infos

    def leave(self, j: int, reason: str) -> list[Info]:
        if j in self.state.away:
            return []
        self.heard[j] = self.clock()
        logger.warning("site %s is away: %s", self.names[j], reason)
        infos = self.absorb(Left(j))
        if _refusal(infos) is None:
            self.state.away[j] = reason
            self.state.hands.pop(j, None)
        return infos

    def join(self, j: int) -> list[Info]:
        logger.warning("site %s is back", self.names[j])
        del self.state.away[j]
        infos = self.absorb(Joined(j))
        self._ask_again([j])
        return infos

    # ------------------------------------------------------------ the method

    def absorb(self, event: Event) -> list[Info]:
        """Into the method, then into the log: what is refused changed nothing and is no event.

        Tasks are on their way before the log is written: nobody waits for it.
        """
        state = self.state
        record = self.log.prepare(state.time, event)
        state.master, tasks, infos = self.method.absorb(state.master, [event])
        refusal = _refusal(infos)
        if refusal is not None:
            logger.warning("refused: site %s: %s", self.names[event.worker], refusal)
            self.log.refuse(record, refusal)
            return infos
        if isinstance(event, Report):
            del state.hands[event.worker]
        for info in infos:
            if isinstance(info, Stepped):
                for j in info.workers:
                    state.last[j] = info.t
        self._send(tasks)
        self.log.write(record)
        return infos

    # ------------------------------------------------------------ evaluation

    def ask(self, model: Any, line: dict[str, Any]) -> None:
        """Ask every site that is here about the model; the training goes on meanwhile."""
        self.state.evaluations += 1
        asked = Evaluation(-self.state.evaluations, model, line, since=self.state.time)
        self.state.asked.append(asked)
        here = [j for j in range(len(self.names)) if j not in self.state.away]
        self.carrier.send(evaluation_tasks(here, asked.id, asked.w))

    def answered(self) -> list[Evaluation]:
        """Evaluations that all have answered, but for the away and the silent; in their order."""
        ready = []
        while self.state.asked:
            first = self.state.asked[0]
            missing = set(range(len(self.names))) - set(first.answers) - set(self.state.away)
            waited = self.clock() - self.began - first.since
            if missing and waited < self.patience:
                break
            ready.append(self.state.asked.pop(0))
        return ready


def _refusal(infos: Sequence[Info]) -> str | None:
    return next((info.reason for info in infos if isinstance(info, Refused)), None)
