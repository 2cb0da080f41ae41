"""A carrier over Ray: one actor a site, on a cluster of its own or one that runs already.

An actor loads its site by itself, so the data stays on its node. Ray restarts an actor whose
process or node dies; the carrier asks it until it answers and then says `Back`. A process that is
stopped, not dead, raises nothing: that is what the driver's patience is for.

What travels is numpy arrays: they arrive in shared memory, read-only, without a copy, and messages
are never written to.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from aspire.native import keep_memory
from aspire.runtimes.driver import Arrival, Back, Gone
from aspire.runtimes.serve import Crew, NoState, serve
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
Wire = tuple[int, int, str, dict[str, np.ndarray], dict[str, float]]


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
        actors = [
            remote_worker(f"{run}:{name}", make, reserve | places[name])
            for name, make in zip(names, crew, strict=True)
        ]
        carrier = RayCarrier(actors, names, ours)
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


def remote_worker(name: str, make: Callable[[], Any], reserve: Mapping[str, Any]) -> Any:
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
    return ray.remote(Worker).options(**options, **reserve).remote(make)


class Worker:
    """The actor. It remembers w_j, and can be killed at any time."""

    def __init__(self, make: Callable[[], tuple[Method, Any]]) -> None:
        torch.set_num_threads(1)
        keep_memory()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self.make, self.state = make, None
        self.parts: tuple[Method, Any] | None = None

    def ready(self) -> int:
        """Load the site, once."""
        if self.parts is None:
            self.parts = self.make()
        return os.getpid()

    def work(self, wire: Wire) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        self.ready()
        assert self.parts is not None
        j, id, kind, vectors, scalars = wire
        task = Task(j, id, kind, _tensors(vectors), scalars)
        self.state, report = serve(*self.parts, self.state, task)
        return {k: v.numpy() for k, v in report.vectors.items()}, dict(report.scalars)


class RayCarrier:
    """Calls that are out, each by the reference of its report: the large one, waited on itself."""

    def __init__(self, actors: Sequence[Any], names: Sequence[str], ours: bool) -> None:
        self.actors, self.names, self.ours = list(actors), names, ours
        self.calls: dict[Any, tuple[int, int | None]] = {}  # worker and task; None: are you there
        self.lost: dict[int, float] = {}  # worker -> when to ask it again
        self.told: set[int] = set()  # said to be Gone
        self.idle: set[int] = set()  # up, and without a task so far: on a resumed run, the away
        with warnings.catch_warnings():  # torch warns once a process about read-only arrays
            warnings.simplefilter("ignore")
            torch.from_numpy(np.frombuffer(b"\0" * 4, dtype=np.float32))

    def wait_for_workers(self) -> None:
        """Until all have loaded their sites, or one has and others take long: they come later."""
        waiting: dict[Any, int] = {actor.ready.remote(): j for j, actor in enumerate(self.actors)}
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
                    waiting[self.actors[j].ready.remote()] = j
        if not up:
            raise ValueError(f"no site came up within {COME_UP:g} s: expected room on the cluster")
        self.calls = {reference: (j, None) for reference, j in waiting.items()}

    def send(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            j = task.worker
            if j in self.lost or (j, None) in self.calls.values():
                continue  # it is not there; when it is, Back
            vectors = {name: x.detach().cpu().numpy() for name, x in task.vectors.items()}
            wire = (j, task.id, task.kind, vectors, dict(task.scalars))
            if task.id >= 0:
                self.idle.discard(j)
            self.calls[self.actors[j].work.remote(wire)] = (j, task.id)

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
            if isinstance(error.cause, NoState):
                return [Back(j)]
            return self._lose(j, str(_cause(error)))
        except RayError:  # the process, its node or the report is lost: it may be back soon
            return self._lose(j, None)
        if task is None:
            self.told.discard(j)
            return [Back(j)]
        vectors, scalars = value
        return [Report(j, task, _tensors(vectors), scalars)]

    def _lose(self, j: int, reason: str | None) -> list[Arrival]:
        """Ask it from now on whether it is there; its other calls tell nothing more."""
        self.calls = {ref: call for ref, call in self.calls.items() if call[0] != j}
        self.lost[j] = time.monotonic() + PAUSE
        if reason is None or j in self.told:
            return []
        self.told.add(j)
        return [Gone(j, reason)]

    def _ask_the_lost(self) -> None:
        now = time.monotonic()
        for j in [j for j, when in self.lost.items() if when <= now]:
            del self.lost[j]
            self.calls[self.actors[j].ready.remote()] = (j, None)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        if self.ours:
            ray.shutdown()


def _tensors(vectors: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(x) for name, x in vectors.items()}


def _cause(error: RayTaskError) -> BaseException:
    return error.cause if isinstance(error.cause, BaseException) else error
