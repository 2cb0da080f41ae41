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
- Nothing happens before `min_sites` workers have answered their first task. If they have not after
  `patience` seconds, the run ends; who is missing then is away, and may come later.
- Workers may share a process, or wait for each other on the way. That is not silence: the carrier
  says whose `Turn` it is and who waits on, and the waiting counts against nobody.
- With a `deadline`, a worker without which the next step cannot be taken is declared away when it
  takes that many times as long as the others usually do.
- A message that is refused is a breach: its worker is away until it is `Back`, and after three
  breaches it stays out of the run.
- A task with a number that is not finite, or out of range, is never sent: the run ends.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from aspire.engines.carrier import Arrival, Back, Carrier, Gone, Repeated, Turn
from aspire.engines.serve import questions
from aspire.protocol import method_objection, name_objection, out_of_range
from aspire.runs.errors import Stopped
from aspire.runs.evaluation import Away, Evaluation, FinalFigures
from aspire.runs.log import EventLog
from aspire.types import (
    Amount,
    As,
    Count,
    Event,
    Id,
    Info,
    Joined,
    Left,
    Look,
    Method,
    Refused,
    Report,
    Sized,
    Stepped,
    Task,
    Worker,
    look_at,
)

logger = logging.getLogger("aspire")
TICK = 0.2  # seconds: how soon a wish to stop, or a silence, is noticed
STRIKES = 3  # breaches after which a site stays out of the run
PROMPT = 1.0  # seconds: nobody is hurried who takes less
LATE = "was not here at the start"
REFUSED = "what it said before the start was refused"
Counts = Annotated[list[Count], Sized("N")]


@dataclass
class Drive:
    """A run in progress, as the driver knows it: data only. Lists have one entry per site."""

    master: Annotated[Any, As("master")]
    hands: dict[Worker, Task]  # the task that each worker holds
    away: dict[Worker, str]  # who is declared away, and why
    reports: Counts  # absorbed
    losses: Annotated[list[float | None], Sized("N")]  # last reported
    last: Annotated[list[Id], Sized("N")]  # t of the last step with a report of it, -1: none
    late: Counts  # reports that came again, or too late
    breaches: Counts
    dismissed: list[Worker] = field(default_factory=list)  # heard again when they are Back
    absences: list[Away] = field(default_factory=list)
    started: bool = False  # enough sites have answered
    time: Amount = 0.0  # seconds that the run has taken
    gradients: Amount = 0.0
    samples: Amount = 0.0
    asked: list[Evaluation] = field(default_factory=list)
    evaluations: Count = 0

    def check(self) -> None:
        if any(j != task.worker for j, task in self.hands.items()):
            raise ValueError("a worker holds another one's task")

    def objection(self, method: Method) -> str | None:
        """Why this is no state of such a run, or None."""
        reasons = [method_objection(method, task) for task in self.hands.values()]
        return next(filter(None, reasons), None)


def begin(method: Method, facts: Any, seed: int) -> Drive:
    """Everybody is expected."""
    master, tasks = method.init(facts, seed)
    n = facts.sites
    hands = {task.worker: task for task in tasks}
    return Drive(master, hands, {}, [0] * n, [None] * n, [-1] * n, [0] * n, [0] * n)


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
        min_sites: int | None = None,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """patience  seconds without a word after which a worker is declared away
        min_sites    that must have answered before the training starts; None: all
        deadline     how many times the others' usual time a worker may take; None: no limit
        """
        self.method = method
        self.carrier = carrier
        self.names = names
        self.state = state
        self.log = log
        self.patience = patience
        self.clock = clock
        self.min_sites = len(names) if min_sites is None else min_sites
        self.deadline = math.inf if deadline is None else deadline
        self.over = False  # no more events
        self.arrived: deque[Arrival] = deque()
        self.opened = clock()
        self.began = clock() - state.time
        self.heard = [clock()] * len(names)
        self.sent = [clock()] * len(names)  # when its task was first sent
        self.took = [math.nan] * len(names)  # seconds for its last task
        self.queued: dict[tuple[int, int], float] = {}  # when a worker's question last had to wait
        self.reasons: dict[int, str] = {}  # why one has not come that is still expected

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
            for arrival in self.receive():
                for info in self.take(arrival):
                    on_info(info)
                if done(self.state) or stop():
                    break
            for info in self.notice_silence():
                on_info(info)
            on_turn()

    def receive(self) -> Iterator[Arrival]:
        """What has arrived; what the caller leaves, such as answers, is there the next time."""
        if not self.arrived:
            self.arrived.extend(self.carrier.receive(TICK))
        while self.arrived:
            yield self.arrived.popleft()

    def send_again(self, workers: Iterable[int]) -> None:
        """What these workers hold, whole: they may be new processes."""
        tasks = [self.state.hands[j] for j in workers if j in self.state.hands]
        whole = self.look().whole
        if whole is not None:
            tasks = [whole(task) for task in tasks]
        self._send(tasks)
        self._ask_again(workers)

    def _ask_again(self, workers: Iterable[int]) -> None:
        for asked in self.state.asked:
            missing = [j for j in workers if j not in asked.answers]
            self._carry(questions(missing, asked))

    def _send(self, tasks: Sequence[Task]) -> None:
        now = self.clock()
        for task in tasks:
            held = self.state.hands.get(task.worker)
            if held is None or held.id != task.id:
                self.sent[task.worker] = now
            self.state.hands[task.worker] = task
            self.heard[task.worker] = now
        self._carry(tasks)

    def _carry(self, tasks: Sequence[Task]) -> None:
        """A worker would refuse a task that is out of range, and could not be blamed for it."""
        seen: set[int] = set()
        for task in tasks:
            new = {k: x for k, x in task.vectors.items() if id(x) not in seen}
            seen.update(map(id, new.values()))
            odd = out_of_range(replace(task, vectors=new))
            if odd is not None:
                raise Stopped(
                    f"the training has diverged after {self.state.master.t} iterations: the next "
                    f"task of site {self.names[task.worker]} has {odd}"
                )
        if tasks:
            self.carrier.send(tasks)

    # ------------------------------------------------------------ what arrives

    def take(self, arrival: Arrival) -> list[Info]:
        """One arrival: perhaps an event, perhaps nothing."""
        j = arrival.worker
        if not self._known(j):
            return []
        self.state.time = self.clock() - self.began
        if isinstance(arrival, Gone):
            if arrival.breach:
                return self.breach(j, arrival.reason, connected=False)
            return self.leave(j, arrival.reason)
        self.heard[j] = self.clock()
        if isinstance(arrival, Turn):
            return self.turn(arrival)
        if isinstance(arrival, Repeated):
            return self.drop(j)
        if isinstance(arrival, Back):
            return self.back(j)
        return self.answer(arrival) if arrival.task < 0 else self.report(arrival)

    def turn(self, arrival: Turn) -> list[Info]:
        """Time in which a worker had to wait for others counts against nobody."""
        j = arrival.worker
        now = self.clock()
        self.opened = now
        held = self.state.hands.get(j)
        if held is not None and held.id == arrival.task:
            self.sent[j] += arrival.waited
        for k, task in ((j, arrival.task), *arrival.behind):
            self.heard[k] = now
            if task < 0:
                self.queued[k, task] = now
        return []

    def _known(self, j: object) -> bool:
        known = isinstance(j, int) and 0 <= j < len(self.names)
        if not known:
            logger.warning("dropped: a message of an unknown worker %r", j)
        return known

    def report(self, report: Report) -> list[Info]:
        j = report.worker
        state = self.state
        held = state.hands.get(j)
        if held is None or held.id != report.task:
            return self.drop(j)
        took = self.clock() - self.sent[j]
        infos = self.absorb(report)
        refusal = _refusal(infos)
        if refusal is not None:
            return infos + self.breach(j, refusal)
        state.reports[j] += 1
        state.losses[j] = report.scalars.get("loss", state.losses[j])
        state.gradients += report.scalars.get("gradients", 0.0)
        state.samples += report.scalars.get("samples", 0.0)
        self.took[j] = took
        return infos + self.start_if_enough()

    def drop(self, j: int) -> list[Info]:
        """A report that came again or too late; it says that its worker is there."""
        self.state.late[j] += 1
        logger.debug("dropped: %s reports a task again or late", self.names[j])
        returns = j in self.state.away and j not in self.state.dismissed
        return self.join(j) if returns else []

    def answer(self, report: Report) -> list[Info]:
        """To an evaluation; each counts once."""
        j = report.worker
        asked = next((x for x in self.state.asked if x.id == report.task), None)
        if asked is None or j in asked.answers:
            self.state.late[j] += 1
            return []
        reason = asked.objection(report)
        asked.answers[j] = dict(report.scalars) if reason is None else {}
        return [] if reason is None else self.breach(j, reason)

    def listen(self, arrival: Arrival) -> None:
        """After the last event: only answers to evaluations count, and who can still give them."""
        self.over = True
        j = arrival.worker
        if not self._known(j):
            return
        if isinstance(arrival, Back) and j not in self.state.away:
            self._ask_again([j])
        elif isinstance(arrival, Report) and arrival.task < 0:
            self.answer(arrival)
        elif isinstance(arrival, Turn):
            self.turn(arrival)

    # ------------------------------------------------------------ who is here

    def start_if_enough(self) -> list[Info]:
        """Who is missing when enough sites have answered is away, and who was refused since."""
        state = self.state
        if state.started or sum(n > 0 for n in state.reports) < self.min_sites:
            return []
        state.started = True
        missing = [j for j, n in enumerate(state.reports) if not n]
        refused = [j for j in state.dismissed if j not in missing]
        return [
            *(info for j in refused for info in self.leave(j, REFUSED)),
            *(info for j in missing for info in self.leave(j, LATE)),
        ]

    def notice_silence(self) -> list[Info]:
        """Declare away who takes too long; before the start, end the run if too few are here."""
        now = self.clock()
        infos = []
        if not self.state.started:
            if now - self.opened > self.patience:
                self._refuse_to_start()
            return []
        for j in [j for j in self.state.hands if now - self.heard[j] > self.patience]:
            infos += self.leave(j, f"silent for {self.patience:g} s")
        for j in self.waiting() if math.isfinite(self.deadline) else ():
            usual = self._usual_time(j)
            if now - self.sent[j] > max(self.deadline * usual, PROMPT):
                infos += self.leave(
                    j, f"took {self.deadline:g} times as long as the others usually do"
                )
        return infos

    def _refuse_to_start(self) -> None:
        missing = [j for j, n in enumerate(self.state.reports) if not n]
        reasons = "".join(f"; {self.reasons[j]}" for j in missing if j in self.reasons)
        raise Stopped(
            f"min_sites={self.min_sites}: after {self.patience:g} s the first answer of "
            f"{', '.join(self.names[j] for j in missing)} is missing; start these sites, raise "
            f"patience, or lower min_sites{reasons}"
        )

    def look(self) -> Look:
        """What the method says of its master as it is now."""
        return look_at(self.method, self.state.master, len(self.names))

    def waiting(self) -> list[int]:
        """The workers with a task without whose reports the next step cannot be taken."""
        return [j for j in self.look().waiting if j in self.state.hands]

    def _usual_time(self, j: int) -> float:
        """The median of the others' last times; infinite while none is known."""
        known = [x for k, x in enumerate(self.took) if k != j and math.isfinite(x)]
        return statistics.median(known) if known else math.inf

    def breach(self, j: int, reason: str, *, connected: bool = True) -> list[Info]:
        """It is heard again when it is Back, and after three breaches not at all."""
        state = self.state
        state.breaches[j] += 1
        logger.warning("refused: site %s: %s", self.names[j], reason)
        if connected or self.expelled(j):
            self.carrier.dismiss(j, reason, for_good=self.expelled(j))
        if j not in state.dismissed:
            state.dismissed.append(j)
        much = f", {STRIKES} times, and stays out" if self.expelled(j) else ""
        infos = self.leave(j, f"what it said was refused{much}: {reason}")
        if _refusal(infos) is not None:
            raise Stopped(
                f"what site {self.names[j]} said was refused ({reason}), and "
                f"{self.method.name} cannot go on without it"
            )
        return infos

    def expelled(self, j: int) -> bool:
        return self.state.breaches[j] >= STRIKES

    def back(self, j: int) -> list[Info]:
        if self.expelled(j):
            self.carrier.dismiss(j, f"was refused {STRIKES} times", for_good=True)
            return []
        if j in self.state.dismissed:
            self.state.dismissed.remove(j)
        if j in self.state.away:
            return self.join(j)
        self.send_again([j])
        return []

    def leave(self, j: int, reason: str) -> list[Info]:
        if j in self.state.away:
            return []
        self.heard[j] = self.clock()
        logger.warning("site %s is away: %s", self.names[j], reason)
        if not self.state.started or self.over:
            self.reasons[j] = reason
            return []  # it is still expected, or no longer
        infos = self.absorb(Left(j))
        if _refusal(infos) is None:
            self.state.away[j] = reason
            self.state.hands.pop(j, None)
            t = self.state.master.t
            self.state.absences.append({"site": j, "from": t, "to": None, "reason": reason})
        return infos

    def join(self, j: int) -> list[Info]:
        logger.warning("site %s is back", self.names[j])
        del self.state.away[j]
        for absence in self.state.absences:
            if absence["site"] == j and absence["to"] is None:
                absence["to"] = self.state.master.t
        infos = self.absorb(Joined(j))
        self._ask_again([j])
        return infos

    # ------------------------------------------------------------ the method

    def absorb(self, event: Event) -> list[Info]:
        """Into the method, then into the log: what is refused changed nothing and is no event.

        Tasks are on their way before the log is written: nobody waits for it.
        """
        state = self.state
        infos = self._strange(event)
        if not infos:
            record = self.log.prepare(state.time, event)
            state.master, tasks, infos = self.method.absorb(state.master, [event])
        refusal = _refusal(infos)
        if refusal is not None:
            self.log.refuse(state.time, event, refusal)
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

    def _strange(self, event: Event) -> list[Info]:
        """A report with names that have no place in it never gets as far as the log."""
        if not isinstance(event, Report):
            return []
        reason = name_objection(event, self.method.kinds.get(self.state.hands[event.worker].kind))
        return [] if reason is None else [Refused(event, f"worker {event.worker} reports {reason}")]

    # ------------------------------------------------------------ evaluation

    def ask(self, model: Any, line: dict[str, Any]) -> None:
        """Ask every site that is here about the model; the training goes on meanwhile."""
        self.state.evaluations += 1
        asked = Evaluation(-self.state.evaluations, model, line, since=self.state.time)
        self.state.asked.append(asked)
        here = [j for j in range(len(self.names)) if j not in self.state.away]
        self._carry(questions(here, asked))

    def ask_at_the_end(self, asked: FinalFigures) -> None:
        """Of the sites that are here and answered before; no checkpoint is taken meanwhile."""
        self.state.evaluations += 1
        asked = replace(asked, id=-self.state.evaluations, since=self.clock() - self.began)
        self.state.asked.append(asked)
        here = [j for j in range(len(self.names)) if j not in asked.answers]
        self._carry(questions(here, asked))

    def answered(self) -> list[Evaluation]:
        """Evaluations that all have answered, but for the away and the silent; in their order."""
        ready = []
        while self.state.asked:
            first = self.state.asked[0]
            missing = set(range(len(self.names))) - set(first.answers) - set(self.state.away)
            began = [self.queued.get((j, first.id), self.began + first.since) for j in missing]
            if missing and self.clock() - max(began) < self.patience:
                break
            ready.append(self.state.asked.pop(0))
            self.queued = {k: when for k, when in self.queued.items() if k[1] != first.id}
        return ready


def _refusal(infos: Sequence[Info]) -> str | None:
    return next((info.reason for info in infos if isinstance(info, Refused)), None)
