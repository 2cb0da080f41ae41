"""A carrier over Ray: one actor a site, on a cluster of its own or one that runs already.

An actor loads its site by itself, so the data stays on its node. Ray restarts an actor whose
process or node dies; the carrier asks it until it answers and then says `Back`. A process that is
stopped, not dead, raises nothing: that is what the driver's patience is for.

What travels is numpy arrays, and messages are never written to. Long ones go through memory that
the driver shares with an actor on its machine (`shared`), to other machines through Ray's store.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from aspire.clusters.shared import REPORT, TASK, Address, Layout, Segment, Unreachable
from aspire.native import keep_memory
from aspire.runtimes.driver import Arrival, Back, Gone
from aspire.runtimes.serve import Crew, NoState, look_ahead, serve
from aspire.types import Method, Report, Task

try:
    import ray
    from ray.exceptions import RayActorError, RayError, RayTaskError
except ImportError:
    raise ImportError("engine 'ray' needs Ray: pip install 'aspire-ease[ray]'") from None

logger = logging.getLogger("aspire")
NAMESPACE = "aspire"
COME_UP, FOLLOW = 120.0, 20.0  # seconds until the first worker is up, and all others
PAUSE = 0.5  # seconds between two questions whether an actor is there again
LONG = 2**14  # bytes; shorter vectors go with the call itself
Vectors = dict[str, np.ndarray] | Layout  # a layout: they lie in a segment
Wire = tuple[int, int, str, Vectors, dict[str, float], Address | None]


@dataclass(frozen=True)
class Ray:
    """Where the sites' actors run.

    address   None: a cluster of its own on this machine, for as long as the run takes;
              'auto', 'HOST:PORT' or 'ray://HOST:PORT': one that `ray start` made
    num_gpus, num_cpus   what each site's actor reserves
    """

    address: str | None = None
    num_gpus: float = 0.0
    num_cpus: float = 0.0
    name: ClassVar[str] = "ray"

    def open(self, crew: Crew | None, names: Sequence[str], run: str) -> RayCarrier:
        if crew is None:
            raise ValueError("crew=None: expected one worker for each site")
        ours = connect(self.address)
        reserve = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        places = placement(names)
        actors = [remote_worker(f"{run}:{name}", reserve | places[name]) for name in names]
        carrier = RayCarrier(actors, [ray.put(make) for make in crew], names, ours)
        try:
            carrier.wait_for_workers()
        except BaseException:
            carrier.close()
            raise
        return carrier


def connect(address: str | None) -> bool:
    """Whether the connection is ours to close."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": 1}  # actors reserve none of it
    with our_signals():
        try:
            ray.init(address or "local", namespace=NAMESPACE, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"address={address!r}: expected a Ray cluster ({error})") from None
    return True


@contextmanager
def our_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself and aborts on it; a run that is asked to stop shall stop."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def placement(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The node that a site's data is on: one labelled site=NAME, or with a resource site:NAME."""
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    labelled = {node.get("Labels", {}).get("site") for node in nodes}
    stocked = {resource for node in nodes for resource in node["Resources"]}
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in labelled:
            found[name] = {"label_selector": {"site": name}}
        elif f"site:{name}" in stocked:
            found[name] = {"resources": {f"site:{name}": 0.001}}
    missing = [name for name in names if name not in found]
    if found and missing:
        raise ValueError(
            f"no node of the cluster has the label site={missing[0]} or the resource "
            f"site:{missing[0]}, and other sites have theirs: expected a node for each or for none"
        )
    return {name: found.get(name, {}) for name in names}


def remote_worker(name: str, reserve: Mapping[str, Any]) -> Any:
    """Detached and named: a new driver of the same run finds it again. Ray restarts it for ever."""
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
        "enable_task_events": False,  # a line in Ray's own books for every step
    }
    return ray.remote(Worker).options(**options, **reserve).remote()


class NotReady(RuntimeError):
    """A new process was handed a task before its site."""


class Worker:
    """The actor. It remembers w_j, and can be killed at any time."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_memory()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self.state: Any = None
        self.hands = ThreadPoolExecutor(1, "ahead")
        self.coming: Future[Any] | None = None  # the state, where the next task is begun on
        self.parts: tuple[Method, Any] | None = None
        self.segment: Segment | None = None

    def ready(self, make: Callable[[], tuple[Method, Any]]) -> int:
        """Load the site, once."""
        if self.parts is None:
            self.parts = make()
        return os.getpid()

    def work(self, wire: Wire) -> tuple[Vectors, dict[str, float]]:
        if self.parts is None:
            raise NotReady
        j, id, kind, vectors, scalars, address = wire
        segment = None if address is None else self._reach(address)
        task = Task(j, id, kind, _tensors(vectors, segment, TASK), scalars)
        coming, self.coming = self.coming, None
        if coming is not None:
            self.state = coming.result()
        self.state, report = serve(*self.parts, self.state, task)
        self.coming = self.hands.submit(look_ahead, *self.parts, self.state, task)
        found = {k: v.numpy() for k, v in report.vectors.items()}
        layout = None if segment is None else segment.put(REPORT, found)
        return found if layout is None else layout, dict(report.scalars)

    def _reach(self, address: Address) -> Segment:
        if self.segment is None or self.segment.address != address:
            self.segment = Segment.open(address)
        return self.segment


class RayCarrier:
    """Calls that are out, each by the reference of its report; it is that which is waited on."""

    def __init__(
        self, actors: Sequence[Any], makes: Sequence[Any], names: Sequence[str], ours: bool
    ) -> None:
        """`makes`: references to what loads each site, for a worker that starts again as well."""
        self.actors, self.makes, self.names, self.ours = actors, makes, names, ours
        self.calls: dict[Any, tuple[int, int | None]] = {}  # worker and task; None: are you there
        self.lost: dict[int, float] = {}  # worker -> when to ask it again
        self.told: set[int] = set()  # said to be Gone
        self.idle: set[int] = set()  # up, and without a task so far: on a resumed run, the away
        self.segments: dict[int, Segment] = {}
        self.far: set[int] = set()  # who cannot reach theirs
        with warnings.catch_warnings():  # torch warns once a process about read-only arrays
            warnings.simplefilter("ignore")
            torch.from_numpy(np.frombuffer(b"\0" * 4, dtype=np.float32))

    def wake(self, j: int) -> Any:
        """Worker j's process, when it has its site."""
        return self.actors[j].ready.remote(self.makes[j])

    def wait_for_workers(self) -> None:
        """Until all have loaded their sites, or one has and others take long: they come later."""
        waiting: dict[Any, int] = {self.wake(j): j for j in range(len(self.actors))}
        until, up = time.monotonic() + COME_UP, 0
        while waiting and time.monotonic() < until:
            for reference in ray.wait(list(waiting), timeout=1.0)[0]:
                j = waiting.pop(reference)
                try:
                    ray.get(reference)
                    up += 1
                    until = min(until, time.monotonic() + FOLLOW)
                    self.idle.add(j)
                except RayTaskError as error:
                    raise ValueError(f"site {self.names[j]!r}: {_cause(error)}") from None
                except RayActorError:  # it died while it was asked, and comes again
                    time.sleep(PAUSE)
                    waiting[self.wake(j)] = j
        if not up:
            raise ValueError(f"no site came up within {COME_UP:g} s: expected room on the cluster")
        self.calls = {reference: (j, None) for reference, j in waiting.items()}

    def send(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            j = task.worker
            if j in self.lost or (j, None) in self.calls.values():
                continue  # it is not there; when it is, Back
            if task.id >= 0:
                self.idle.discard(j)
            self.calls[self.actors[j].work.remote(self._wire(task))] = (j, task.id)

    def _wire(self, task: Task) -> Wire:
        """With its long vectors in the worker's segment, unless it has another call in its hands,
        whose task or report may lie there."""
        j, told = task.worker, dict(task.scalars)
        vectors = {name: x.detach().cpu().numpy() for name, x in task.vectors.items()}
        size = sum(x.nbytes for x in vectors.values())
        busy = any(worker == j for worker, _ in self.calls.values())
        segment = None if size <= LONG or busy or j in self.far else self._segment(j, size)
        layout = None if segment is None else segment.put(TASK, vectors)
        if segment is None or layout is None:
            return j, task.id, task.kind, vectors, told, None
        return j, task.id, task.kind, layout, told, segment.address

    def _segment(self, j: int, size: int) -> Segment | None:
        """Worker j's, with room for so many bytes in each half."""
        known = self.segments.get(j)
        if known is not None and known.address[2] >= size:
            return known
        self._drop(j)
        made = Segment.make(2 * size)
        if made is not None:
            self.segments[j] = made
        return made

    def _drop(self, j: int) -> None:
        """The next task has a new segment: a process that was given up may still write to this."""
        known = self.segments.pop(j, None)
        if known is not None:
            known.close()

    def receive(self, timeout: float) -> list[Arrival]:
        found: list[Arrival] = [Back(j) for j in sorted(self.idle)]
        self.idle = set()
        if found:
            return found
        self._ask_the_lost()
        if not self.calls:
            time.sleep(min(timeout, PAUSE))
            return []
        if self.lost:
            timeout = min(timeout, PAUSE)
        for reference in ray.wait(list(self.calls), timeout=timeout)[0]:
            found += self._open(reference, *self.calls.pop(reference))
        return found

    def _open(self, reference: Any, j: int, task: int | None) -> list[Arrival]:
        try:
            value = ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, Unreachable):
                self.far.add(j)
            if isinstance(error.cause, NoState | Unreachable):
                self._drop(j)
                return [Back(j)]
            reason = None if isinstance(error.cause, NotReady) else str(_cause(error))
            return self._lose(j, reason)
        except RayError:  # the process, its node or the report is lost: it may be back soon
            return self._lose(j, None)
        if task is None:
            self.told.discard(j)
            self.far.discard(j)
            return [Back(j)]
        vectors, scalars = value
        return [Report(j, task, _tensors(vectors, self.segments.get(j), REPORT), scalars)]

    def _lose(self, j: int, reason: str | None) -> list[Arrival]:
        """Ask it from now on whether it is there; its other calls tell nothing more."""
        self.calls = {ref: call for ref, call in self.calls.items() if call[0] != j}
        self._drop(j)
        self.lost[j] = time.monotonic() + PAUSE
        if reason is None or j in self.told:
            return []
        self.told.add(j)
        return [Gone(j, reason)]

    def _ask_the_lost(self) -> None:
        now = time.monotonic()
        for j in [j for j, when in self.lost.items() if when <= now]:
            del self.lost[j]
            self.calls[self.wake(j)] = (j, None)

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()
        for actor in self.actors:
            ray.kill(actor)
        if self.ours:
            ray.shutdown()


def _tensors(vectors: Any, segment: Segment | None, half: int) -> dict[str, torch.Tensor]:
    """Vectors as they came, or those that a layout says are in this half of the segment."""
    if not all(isinstance(x, np.ndarray) for x in vectors.values()):
        assert segment is not None
        vectors = segment.take(half, vectors)
    return {name: torch.from_numpy(x) for name, x in vectors.items()}


def _cause(error: RayTaskError) -> BaseException:
    return error.cause if isinstance(error.cause, BaseException) else error
