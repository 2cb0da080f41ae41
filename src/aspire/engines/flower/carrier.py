"""The carrier over Flower's grid: tasks are pushed as messages, replies are pulled.

A node says which site it is when it is asked (a query message), so the ServerApp needs no list of
nodes. Flower starts a process for every message, which remembers nothing: a task that needs the
worker's w therefore brings it along, as it was last reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from aspire.engines.carrier import Arrival, Back, Gone
from aspire.engines.flower.messages import PROTOCOL, from_task, to_report
from aspire.engines.serve import ASKED, Crew
from aspire.problem.standardization import Standardization
from aspire.types import Kind, Report, Task

logger = logging.getLogger("aspire")
POLL = 0.1  # seconds between two questions for replies
LOOK = 2.0  # seconds between two looks at who is connected
TRIES = 3  # failures in a row until a site is given up
NODE_UNAVAILABLE = 5  # Flower's code of the error that it writes itself for a node that left


@dataclass
class GridCarrier:
    """One run's messages. A site is the first node online that gives its name."""

    grid: Grid
    names: Sequence[str]
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of the method's tasks
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    nodes: dict[int, int] = field(default_factory=dict)  # worker -> node
    claims: dict[int, int | None] = field(default_factory=dict)  # node -> worker, None: not known
    asked: dict[str, int] = field(default_factory=dict)  # message -> node, who-are-you
    sent: dict[str, Task] = field(default_factory=dict)  # message -> task
    last: dict[int, Tensor] = field(default_factory=dict)  # worker -> w, as last reported
    failures: dict[int, int] = field(default_factory=dict)
    looked: float = float("-inf")
    by: Standardization | None = None  # of the sites' inputs

    # ------------------------------------------------------------ the carrier's three functions

    def send(self, tasks: Sequence[Task]) -> None:
        tasks = [self._whole(task) for task in tasks if task.worker in self.nodes]
        messages = [
            Message(from_task(task, self.by), self.nodes[task.worker], _message_type(task.kind))
            for task in tasks
        ]
        for task, message in zip(tasks, self._push(messages), strict=True):
            self.sent[message] = task

    def receive(self, timeout: float) -> list[Arrival]:
        deadline = self.clock() + timeout
        while True:
            arrivals = [*self._look(), *self._pull()]
            left = deadline - self.clock()
            if arrivals or left <= 0:
                return arrivals
            self.sleep(min(POLL, left))

    def dismiss(self, worker: int, reason: str, *, for_good: bool) -> None:
        """Its node stays; unless the site stays out, it is taken for new at the next look."""
        if not for_good:
            self.nodes.pop(worker, None)

    def standardize(self, by: Standardization, crew: Crew | None) -> None:
        """Every task says so, since the process that does it is a new one."""
        self.by = by

    def close(self) -> None:
        """Messages that nobody pulls any more expire with the run."""

    # ------------------------------------------------------------ who is connected

    def _look(self) -> list[Arrival]:
        """Ask new nodes for their name; notice those that left."""
        if self.clock() - self.looked < LOOK:
            return []
        self.looked = self.clock()
        online = set(self.grid.get_node_ids())
        new = sorted(online - set(self.claims))
        for node, message in zip(new, self._push([_question(n) for n in new]), strict=True):
            self.claims[node] = None
            self.asked[message] = node
        arrivals = [a for node in set(self.claims) - online for a in self._lost(node)]
        return arrivals + self._settle()

    def _lost(self, node: int) -> list[Arrival]:
        j = self.claims.pop(node, None)
        if j is None or self.nodes.get(j) != node:
            return []
        del self.nodes[j]
        return [Gone(j, "its SuperNode left")]

    def _settle(self) -> list[Arrival]:
        """Sites without a node take one that gives their name."""
        arrivals: list[Arrival] = []
        for node, j in self.claims.items():
            if j is not None and j not in self.nodes:
                self.nodes[j] = node
                self.failures[j] = 0
                arrivals.append(Back(j))
        return arrivals

    # ------------------------------------------------------------ replies

    def _pull(self) -> list[Arrival]:
        waiting = [*self.asked, *self.sent]
        arrivals: list[Arrival] = []
        for reply in self.grid.pull_messages(waiting) if waiting else ():
            message = reply.metadata.reply_to_message_id
            if message in self.asked:
                arrivals += self._named(self.asked.pop(message), reply)
            elif message in self.sent:
                arrivals += self._answered(self.sent.pop(message), reply)
        return arrivals

    def _named(self, node: int, reply: Message) -> list[Arrival]:
        about = reply.content.get("about") if reply.has_content() else None
        name = about.get("site") if isinstance(about, ConfigRecord) else None
        if name not in self.names:
            logger.warning("node %d says it is site %r: expected one of ours", node, name)
            return []
        self.claims[node] = self.names.index(str(name))
        return self._settle()

    def _answered(self, task: Task, reply: Message) -> list[Arrival]:
        j = task.worker
        if reply.has_error():
            return self._failed(task, reply.error.code, reply.error.reason or "no reason given")
        try:
            report = to_report(reply.content)
        except ValueError as error:
            return [Gone(j, str(error), breach=True)]
        if (report.worker, report.task) != (j, task.id):
            reason = f"it answers task {report.task}, not {task.id}"
            return [Gone(j, reason, breach=True)]
        self.failures[j] = 0
        self._remember(task, report)
        return [report]

    def _failed(self, task: Task, code: int, reason: str) -> list[Arrival]:
        """A process that died costs one task: it is sent again, but not for ever."""
        j = task.worker
        if code == NODE_UNAVAILABLE:
            return self._lost(self.nodes[j]) if j in self.nodes else []
        self.failures[j] = self.failures.get(j, 0) + 1
        logger.warning("site %s failed task %d: %s", self.names[j], task.id, reason)
        if self.failures[j] < TRIES:
            return [Back(j)]
        return [Gone(j, f"{TRIES} failures in a row, the last: {reason}")]

    # ------------------------------------------------------------ small things

    def _whole(self, task: Task) -> Task:
        kind = self.kinds.get(task.kind)
        needs = kind is not None and "w" in kind.resent
        if not needs or "w" in task.vectors or task.worker not in self.last:
            return task
        return replace(task, vectors={**task.vectors, "w": self.last[task.worker]})

    def _remember(self, task: Task, report: Report) -> None:
        """What the worker would remember if its process lived on, where a task will need it."""
        needed = any("w" in kind.resent for kind in self.kinds.values())
        known = report.vectors.get("w", task.vectors.get("w"))
        if needed and known is not None and task.kind not in ASKED:
            self.last[task.worker] = known

    def _push(self, messages: list[Message]) -> list[str]:
        ids = list(self.grid.push_messages(messages)) if messages else []
        if len(ids) != len(messages) or None in ids:
            raise RuntimeError(f"the SuperLink took {len(ids)} of {len(messages)} messages")
        return ids


def _message_type(kind: str) -> str:
    return "evaluate" if kind in ASKED else "train"


def _question(node: int) -> Message:
    content = RecordDict({"about": ConfigRecord({"protocol": PROTOCOL})})
    return Message(content, node, "query")
