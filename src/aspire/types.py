"""The messages and the one abstraction: what travels between a master and its workers.

A *method* is a value with functions that depend on their arguments alone; a runtime only carries
the messages below between `work` and `absorb`. Nothing here does any I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is handed: named flat vectors and named numbers. `id` is never reused."""

    worker: int
    id: int
    kind: str
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What comes back for the task with the id `task`.

    Every report carries `gradients` and `samples` (what the work cost); the rest is the method's.
    """

    worker: int
    task: int
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    finite: bool = False  # somebody has seen that the vectors are


@dataclass(frozen=True, slots=True)
class Left:
    """The runtime declares a worker away: it is no longer waited for."""

    worker: int


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker arrives for the first time, or returns."""

    worker: int


Event = Report | Left | Joined


@dataclass(frozen=True, slots=True)
class Stepped:
    """Master iteration t -> t + 1 was taken with the reports of `workers` (Q, in worker order)."""

    t: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """An event that changed nothing, and why."""

    event: Event
    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A change that is not a step: constants formed or raised, planes added or dropped."""

    t: int
    text: str


Info = Stepped | Refused | Noted


@dataclass(frozen=True)
class Facts:
    """What a method may know of the problem before it starts."""

    sites: int
    start: Tensor
    present: tuple[int, ...] | None = None  # None: all of them
    linear: bool = True  # the model is one linear layer, so a convex loss stays convex
    whole: bool = True  # gradients are of whole sites, without the noise of mini-batches

    def __post_init__(self) -> None:
        if self.sites < 1:
            raise ValueError(f"sites={self.sites}: expected at least one site")
        if self.start.ndim != 1 or not self.start.is_floating_point():
            raise ValueError(
                f"start of shape {tuple(self.start.shape)} and type {self.start.dtype}: "
                "expected one flat floating-point vector"
            )


class Local(Protocol):
    """A worker's private data, as `work` sees it: losses and gradients, never samples."""

    @property
    def batch_samples(self) -> int:
        """Samples in one gradient."""

    @property
    def loss_samples(self) -> int:
        """Samples in one reported loss."""

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        """Gradient of f_j at w on mini-batch number `draw` (of the whole site without batches)."""

    def loss(self, w: Tensor) -> float:
        """f_j(w) on the whole site, or on a fixed sample of it where the site is large."""


Item = tuple[Any, Task, Local]  # a worker's state, its task, its data


@dataclass(frozen=True)
class Method:
    """An algorithm: four pure functions, plus what a report about it needs to read.

    init(facts, seed)          -> (master, tasks)         what the workers get first
    work(worker, task, local)  -> (worker, report)        runs where the data is; worker None: new
    absorb(master, events)     -> (master, tasks, infos)  one master step per quorum met
    model(master)              -> flat vector             what evaluation scores
    weights(master)            -> array                   weight of each site, summing to one
    planes(master)             -> int                     cutting planes held
    gap(master, gradient, loss)-> float                   stationarity gap; None: not defined
    work_many(items)           -> list                    work on many (worker, task, local), each
                                                          as `work` up to rounding; None: no gain
    whole(master, task)        -> task                    a task in a worker's hands with all that a
                                                          new process needs; None: tasks are so
    ahead(worker, task, local) -> worker                  after the report on a task: what the next
                                                          one needs and is known already; None:
                                                          nothing is

    `work` and `absorb` consume their state: the caller gives it up. `snapshot` copies one.
    """

    name: str
    settings: Mapping[str, Any]
    init: Callable[[Facts, int], tuple[Any, list[Task]]]
    work: Callable[[Any, Task, Local], tuple[Any, Report]]
    absorb: Callable[[Any, Sequence[Event]], tuple[Any, list[Task], list[Info]]]
    model: Callable[[Any], Tensor]
    weights: Callable[[Any], Array]
    planes: Callable[[Any], int]
    gap: (
        Callable[[Any, Callable[[int, Tensor], Tensor], Callable[[int, Tensor], float]], float]
        | None
    ) = None
    work_many: Callable[[Sequence[Item]], list[tuple[Any, Report]]] | None = None
    whole: Callable[[Any, Task], Task] | None = None
    ahead: Callable[[Any, Task, Local], Any] | None = None
