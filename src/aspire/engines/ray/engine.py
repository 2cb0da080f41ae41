"""Ray as an engine: actors with a site or several each, on a cluster of its own or another.

An actor loads its sites by itself, so the data stays on its node. `carrier` says what becomes of
its tasks, and of one that dies.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from aspire.arguments import whole_number
from aspire.engines.ray.watch import Watch, answers
from aspire.engines.serve import Crew

try:
    import ray
    from ray.exceptions import RayError

    from aspire.engines.ray.carrier import RayCarrier
    from aspire.engines.ray.worker import Worker
except ImportError:
    raise ImportError("engine 'ray' needs Ray: pip install 'aspire-ease[ray]'") from None

NAMESPACE = "aspire"
MANY = 16  # sites: up to so many have an actor each, whatever the machine


@dataclass(frozen=True)
class Ray:
    """Where the sites' actors run.

    address   None: a cluster of its own on this machine, for as long as the run takes;
              'auto', 'HOST:PORT' or 'ray://HOST:PORT': one that `ray start` made
    num_gpus, num_cpus   what each actor reserves
    actors    how many processes share the sites; None: one for each site, but no more than 16
              or, if that is more, the number of processors. Sites with a node of their own never
              share one
    """

    address: str | None = None
    num_gpus: float = 0.0
    num_cpus: float = 0.0
    actors: int | None = None
    name: ClassVar[str] = "ray"

    def __post_init__(self) -> None:
        if self.actors is not None:
            whole_number("actors", self.actors)

    def open(self, crew: Crew | None, names: Sequence[str], run: str) -> RayCarrier:
        if crew is None:
            raise ValueError("crew=None: expected one worker for each site")
        ours, watch = connect(self.address)
        reserve = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        places = placement(names)
        groups = groups_of(names, places, self.actors)
        called = [f"{run}:{names[group[0]]}" for group in groups]
        end_others(run, called)
        actors = [
            remote_worker(name, reserve | places[names[group[0]]])
            for name, group in zip(called, groups, strict=True)
        ]
        makes = [ray.put({j: crew[j] for j in group}) for group in groups]
        carrier = RayCarrier(actors, groups, makes, names, ours, watch)
        try:
            carrier.wait_for_workers()
        except BaseException:
            carrier.close()
            raise
        return carrier


def connect(address: str | None) -> tuple[bool, Watch]:
    """Whether the connection is ours to close, and whom to watch."""
    if ray.is_initialized():
        return False, watch_of(ray.init(ignore_reinit_error=True))
    place = (address or "auto").removeprefix("ray://")
    if place not in ("auto", "local") and not answers(place):  # Ray would try for minutes
        raise ValueError(f"address={address!r}: expected a Ray cluster, and nobody answers there")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"include_dashboard": False, "num_cpus": 1}  # actors reserve none of it
    with our_signals():
        try:
            made = ray.init(address or "local", namespace=NAMESPACE, **options)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise ValueError(
                f"address={address!r}: expected a Ray cluster, and RAY_AUTH_TOKEN_PATH if it has a "
                f"token ({error})"
            ) from None
    return True, watch_of(made)


def watch_of(made: Any) -> Watch:
    """A Ray client has no node of its own."""
    return Watch(getattr(made, "address_info", {}))


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


def groups_of(
    names: Sequence[str], places: Mapping[str, Mapping[str, Any]], actors: int | None
) -> list[list[int]]:
    """The sites of each actor."""
    placed = any(places.values())
    if placed and actors is not None:
        raise ValueError(f"actors={actors}: expected None, since sites have nodes of their own")
    most = len(names) if placed else actors or max(MANY, processors())
    count = min(len(names), most)
    return [list(range(k, len(names), count)) for k in range(count)]


def processors() -> int:
    """Of the cluster, or of this machine if it says more: our own cluster promises one only."""
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return max(int(sum(node["Resources"].get("CPU", 0) for node in nodes)), os.cpu_count() or 1)


def end_others(run: str, called: Sequence[str]) -> None:
    """Actors of an earlier driver of this run, where it had other groups."""
    for found in ray.util.list_named_actors(all_namespaces=True):
        name = found["name"]
        if found["namespace"] == NAMESPACE and name.startswith(f"{run}:") and name not in called:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))


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
