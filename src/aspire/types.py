"""The messages and the one abstraction: what travels between a master and its workers.

A *method* is a value with functions that depend on their arguments alone; a runtime only carries
the messages below between `work` and `absorb`. Nothing here does any I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

    @property
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
    waiting(master)            -> workers                 without whose reports the next step cannot
                                                          be taken; None: not known
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
    choose(linear)             -> method                  the method for a model that is one linear
                                                          layer, or is not; None: this one
    budgeted(sites, iterations, gradients) -> method      the method for a run of that length; None:
                                                          this one, whatever its length
    under(master)              -> master                  the state of a run of this method with
                                                          another set, which goes on under this
                                                          one's; None: it cannot
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
    weights: Callable[[Any], Array]
    planes: Callable[[Any], int]
    gap: (
        Callable[[Any, Callable[[int, Tensor], Tensor], Callable[[int, Tensor], float]], float]
        | None
    ) = None
    work_many: Callable[[Sequence[Item]], list[tuple[Any, Report]]] | None = None
    whole: Callable[[Any, Task], Task] | None = None
    ahead: Callable[[Any, Task, Local], Any] | None = None
    waiting: Callable[[Any], Sequence[int]] | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    states: tuple[type, ...] = ()
    memory: Any = None
    buffers: bool = False
    judged: int = 8192
    judged_on: str = "train"
    any_execution: bool = False
    choose: Callable[[bool], Method] | None = None
    budgeted: Callable[[int, int | None, int | None], Method] | None = None
    under: Callable[[Any], Any] | None = None
    site_arguments: Mapping[str, Plain] | None = None
