"""The messages and the one abstraction: what travels between a master and its workers.

A *method* is a value with functions that depend on their arguments alone; a runtime only carries
the messages below between `work` and `absorb`. Nothing here does any I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Plain = bool | int | float | str | list[float] | None  # a value that can travel as data

# ---------------------------------------------------------------- what a state is made of
#
# A state is dataclasses of tensors, arrays and plain values. Their annotations say what a
# checkpoint of it may hold, and a class with a method check() says what its fields must have in
# common. N is the number of sites and p that of parameters; other sizes are one object's own.


@dataclass(frozen=True)
class Sized:
    """The size of a tensor, array or list, as names and numbers: 'N p'; 'p|0': p or nothing."""

    dims: str
    dtype: str = "model"  # of a tensor: the model's own number type, or 'float64'


@dataclass(frozen=True)
class Between:
    """The range of a number; `most` may be the name of a size, which is itself outside."""

    least: float
    most: float | str


@dataclass(frozen=True)
class As:
    """Stands for this kind: a type, or the name of one that the method knows."""

    kind: Any


EXACT = 2.0**53  # whole numbers up to here are exact in float64
Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]
Count = Annotated[int, Between(0, EXACT)]
Id = Annotated[int, Between(-EXACT, EXACT)]
Amount = Annotated[float, Between(0, EXACT)]
Worker = Annotated[int, Between(0, "N")]  # the number of a site
Flat = Annotated[Tensor, Sized("p")]  # all parameters of a model
Precise = Annotated[Tensor, Sized("p", "float64")]
Rows = Annotated[Tensor, Sized("N p")]  # one vector a site
PerSite = Annotated[Array, Sized("N")]
SiteMask = Annotated[Mask, Sized("N")]
SiteCounts = Annotated[Indices, Sized("N"), Between(-1, EXACT)]
Tensors = tuple[tuple[str, tuple[int, ...]], ...]  # names and shapes of a model's parameters


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is handed: named flat vectors and named numbers. `id` is never reused."""

    worker: Worker
    id: Id
    kind: str
    vectors: Mapping[str, Flat] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What comes back for the task with the id `task`.

    Every report carries `gradients` and `samples` (what the work cost); the rest is the method's.
    """

    worker: Worker
    task: Id
    vectors: Mapping[str, Flat] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of task: what it may cost, and the names in it and in its report.

    batches    mini-batches that it draws
    gradients  that it may cost at most; None: as many as batches
    vectors    in the report
    scalars    in the report, besides what the work cost
    optional   scalars that the report may have
    given      vectors in the task
    resent     vectors in the task for a worker that has not got them itself
    numbers    scalars in the task, besides the number of the next batch
    delays     of one gradient that it lasts in virtual time; a probe takes none
    """

    batches: int = 0
    gradients: int | None = None
    vectors: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    given: tuple[str, ...] = ("w",)
    resent: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    delays: int = 1

    @cached_property
    def most_gradients(self) -> int:
        return self.batches if self.gradients is None else self.gradients


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
class Buffer:
    """A part of the model's vector that is no parameter: it changes while the model trains.

    role  'mean' and 'variance' of the inputs, 'newest': a counter, 'average': anything else
    """

    name: str
    shape: tuple[int, ...]
    role: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Facts:
    """What a method may know of the problem before it starts.

    start is all parameters, and behind them the buffers that change while the model trains.
    """

    sites: int
    start: Tensor
    present: tuple[int, ...] | None = None  # None: all of them
    linear: bool = True  # the model is one linear layer, so a convex loss stays convex
    whole: bool = True  # gradients are of whole sites, without the noise of mini-batches
    tensors: Tensors = ()  # the parameters in `start`; (): one tensor
    buffers: tuple[Buffer, ...] = ()  # what lies behind them
    names: tuple[str, ...] = ()  # of the sites; (): not known
    samples: tuple[int, ...] | None = None  # in their training parts; None: not known

    def __post_init__(self) -> None:
        if self.sites < 1:
            raise ValueError(f"sites={self.sites}: expected at least one site")
        if self.start.ndim != 1 or not self.start.is_floating_point():
            raise ValueError(
                f"start of shape {tuple(self.start.shape)} and type {self.start.dtype}: "
                "expected one flat floating-point vector"
            )


@dataclass(frozen=True)
class RunFacts:
    """What a method may know of a run before there is a problem; None: no such limit."""

    linear: bool  # the model is one linear layer
    sites: int
    iterations: int | None = None
    gradients: int | None = None
    names: tuple[str, ...] = ()
    samples: tuple[int, ...] | None = None  # in the sites' training parts


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


GradientAt = Callable[[int, Tensor], Tensor]  # of a site's f_j at w, on all of its data
LossAt = Callable[[int, Tensor], float]  # the same of f_j


@dataclass(frozen=True)
class Look:
    """What can be read off a master, besides its model.

    weights             of each site, summing to one; empty: the sites count alike
    planes              cutting planes held
    waiting             workers without whose reports the next step cannot be taken
    whole(task)         -> a task in a worker's hands with all that a new process needs;
                        None: tasks are so
    gap(gradient, loss) -> the stationarity gap; None: not defined
    references          r_j of each site, which the adversary takes off f_j; empty: it does not
    """

    weights: Array = field(default_factory=lambda: np.empty(0))
    planes: int = 0
    waiting: Sequence[int] = ()
    whole: Callable[[Task], Task] | None = None
    gap: Callable[[GradientAt, LossAt], float] | None = None
    references: Array = field(default_factory=lambda: np.empty(0))

    def line(self) -> dict[str, Any]:
        """What a line of history has of it."""
        line = {"weights": self.weights.tolist(), "planes": self.planes}
        return line | ({"references": self.references.tolist()} if len(self.references) else {})


@dataclass(frozen=True)
class Fast:
    """What makes `work` faster; results are those of `work`, up to rounding.

    many(items)               -> (worker, report) of many (worker, task, local)
    ahead(worker, task, local)-> the worker, when the report on a task is out: with what the next
                              task needs and is known already
    """

    many: Callable[[Sequence[Item]], list[tuple[Any, Report]]] | None = None
    ahead: Callable[[Any, Task, Local], Any] | None = None


@dataclass(frozen=True)
class Method:
    """An algorithm: four pure functions, three more that it may have, and what it says of itself.

    init(facts, seed)          -> (master, tasks)         what the workers get first
    work(worker, task, local)  -> (worker, report)        runs where the data is; worker None: new
    absorb(master, events)     -> (master, tasks, infos)  one master step per quorum met
    model(master)              -> flat vector             what evaluation scores
    look(master)               -> Look                    what runtimes and tables read off a master
    fit(run)                   -> method                  the method for this model and length of
                                                          run; None: this one. ValueError where it
                                                          needs a length and there is none
    fast                                                  `Fast`: faster ways to `work`; None: none
    kinds                                                 what its tasks and reports may say, by the
                                                          kind of task; a runtime refuses the rest
    states                                                the dataclass of a master, and those that
                                                          stand for an abstract class in it; (): its
                                                          runs cannot be resumed
    memory                                                the type of what a worker remembers
    buffers                                               whether it trains models whose buffers
                                                          change, such as batch norm
    judged                                                samples of a site, at most, on which its
                                                          loss is reported
    judged_on                                             'train', or 'val': the part of a site on
                                                          which its loss is reported
    any_execution                                         whether execution='auto' may choose how
                                                          its gradients are computed; else they are
                                                          computed as they ever were
    site_arguments                                        those of its arguments that `work` and
                                                          `kinds` depend on: a site that has them
                                                          and the name makes the same workers.
                                                          None: its code must be at the site

    `work` and `absorb` consume their state: the caller gives it up. `snapshot` copies one.
    """

    name: str
    settings: Mapping[str, Any]
    init: Callable[[Facts, int], tuple[Any, list[Task]]]
    work: Callable[[Any, Task, Local], tuple[Any, Report]]
    absorb: Callable[[Any, Sequence[Event]], tuple[Any, list[Task], list[Info]]]
    model: Callable[[Any], Tensor]
    look: Callable[[Any], Look] | None = None
    fit: Callable[[RunFacts], Method] | None = None
    fast: Fast | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    states: tuple[type, ...] = ()
    memory: Any = None
    buffers: bool = False
    judged: int = 8192
    judged_on: str = "train"
    any_execution: bool = False
    site_arguments: Mapping[str, Plain] | None = None


def look_at(method: Method, master: Any, sites: int) -> Look:
    """What a method says of its master; where it says no weights, the sites count alike."""
    found = Look() if method.look is None else method.look(master)
    return found if len(found.weights) else replace(found, weights=np.full(sites, 1 / sites))
