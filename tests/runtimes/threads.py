"""A carrier over threads and queues: the smallest real one. Workers can be made to misbehave."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aspire.engines.carrier import Arrival, Back, Gone
from aspire.engines.serve import Crew, NoState, look_ahead, serve
from aspire.types import Report, Task

# Work draws from torch's one generator. Two threads that save its state can wait for each other
# for ever: one for the generator, which holds the interpreter, the other the other way round.
ALONE = threading.Lock()


class Threads:
    """One thread a worker. `changed` sees each report and says what arrives instead."""

    def __init__(self, crew: Crew, changed: Callable[[Report], Sequence[Arrival]] | None = None):
        self.crew, self.changed = crew, changed or (lambda report: [report])
        self.arrivals: queue.Queue[Arrival] = queue.Queue()
        self.inboxes: dict[int, queue.Queue[Task | None]] = {}
        self.threads: list[threading.Thread] = []
        self.sent: list[Task] = []
        self.dismissed: list[tuple[int, bool]] = []
        for j in range(len(crew)):
            self.start(j)

    def start(self, j: int) -> None:
        """A new worker that remembers nothing; an old one ends after its task, unheard."""
        inbox: queue.Queue[Task | None] = queue.Queue()
        if j in self.inboxes:
            self.inboxes[j].put(None)
        self.inboxes[j] = inbox
        thread = threading.Thread(target=self.work, args=(j, inbox), daemon=True)
        self.threads.append(thread)
        thread.start()

    def restart(self, j: int) -> None:
        self.start(j)
        self.arrivals.put(Back(j))

    def work(self, j: int, inbox: queue.Queue[Task | None]) -> None:
        with ALONE:
            method, local = self.crew[j]()
        worker: Any = None
        while (task := inbox.get()) is not None:
            try:
                with ALONE:
                    worker, report = serve(method, local, worker, task)
                    worker = look_ahead(method, local, worker, task)
                heard = self.changed(report)
            except NoState:
                heard = [Back(j)]
            except Exception as error:
                heard = [Gone(j, str(error))]
            if self.inboxes[j] is inbox:
                for arrival in heard:
                    self.arrivals.put(arrival)

    def send(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.sent.append(task)
            self.inboxes[task.worker].put(task)

    def receive(self, timeout: float) -> list[Arrival]:
        found: list[Arrival] = []
        try:
            found.append(self.arrivals.get(timeout=timeout))
            while True:
                found.append(self.arrivals.get_nowait())
        except queue.Empty:
            return found

    def dismiss(self, worker: int, reason: str, *, for_good: bool) -> None:
        self.dismissed.append((worker, for_good))

    def close(self) -> None:
        for inbox in self.inboxes.values():
            inbox.put(None)
        for thread in self.threads:
            thread.join(10)


@dataclass
class ThreadEngine:
    """As `train(..., engine=)` takes it."""

    changed: Callable[[Report], Sequence[Arrival]] | None = None
    carriers: list[Threads] = field(default_factory=list)
    name: str = "threads"

    def open(self, crew: Crew, names: Sequence[str], run: str) -> Threads:
        self.carriers.append(Threads(crew, self.changed))
        return self.carriers[-1]
