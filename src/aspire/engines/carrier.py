"""What a driver needs of an engine: a carrier, and what arrives from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aspire.problem.sites import Site
from aspire.problem.standardization import Standardization
from aspire.types import Method, Report, Task

# one a site, called where its data is; with `standardize` if its inputs are to be standardised
Crew = Sequence[Callable[..., tuple[Method, Site]]]


@dataclass(frozen=True, slots=True)
class Gone:
    """The carrier knows that this worker will not answer its task. A short break needs no Gone."""

    worker: int
    reason: str
    breach: bool = False  # it broke the carrier's own protocol


@dataclass(frozen=True, slots=True)
class Back:
    """This worker is connected, perhaps as a new process that remembers nothing."""

    worker: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """This worker answered a task once more, which the carrier has dropped."""

    worker: int


@dataclass(frozen=True, slots=True)
class Turn:
    """It is this worker's turn: until now its task, or its report, had to wait for others'.

    waited  seconds that it could not use
    behind  the workers that wait on, and their tasks: they are not silent either
    """

    worker: int
    task: int
    waited: float
    behind: tuple[tuple[int, int], ...] = ()


Arrival = Report | Gone | Back | Repeated | Turn


class Carrier(Protocol):
    """Brings tasks to workers and reports back. Used from one thread."""

    def send(self, tasks: Sequence[Task]) -> None:
        """Never waits for a worker. A task for one that is not connected is dropped: when the
        worker is there, the carrier says `Back` and the driver sends it again. A worker takes its
        tasks in their order; a new task of the method replaces the one before."""

    def receive(self, timeout: float) -> list[Arrival]:
        """What has arrived, at least one thing; [] when nothing does within `timeout` seconds."""

    def dismiss(self, worker: int, reason: str, *, for_good: bool) -> None:
        """What this worker said was refused: hang up, where there is a line to hang up."""

    def standardize(self, by: Standardization, crew: Crew | None) -> None:
        """From now on the sites' inputs are standardised so; `crew` makes such sites, where the
        engine was given one. Sites may have to come again."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Where workers run. A dataclass: its fields are written to run.json as its settings."""

    @property
    def name(self) -> str: ...

    def open(self, crew: Any, names: Sequence[str], run: str) -> Carrier:
        """Start, or find again by the id `run`, one worker for each of `names`."""
