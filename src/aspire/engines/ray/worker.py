"""The actor: sites that live in one process of Ray's, and do one task at a time."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import torch

from aspire.engines.process import keep_memory
from aspire.engines.ray.shared import REPORT, TASK, Address, Layout, Segment
from aspire.engines.serve import look_ahead, serve
from aspire.problem.sites import Site
from aspire.types import Method, Task

Make = Callable[[], tuple[Method, Site]]
Vectors = dict[str, np.ndarray] | Layout  # a layout: they lie in a segment
# worker, id, kind, vectors, numbers, where the segment is, names of the vectors in Ray's store
Wire = tuple[int, int, str, Vectors, dict[str, float], Address | None, tuple[str, ...]]


class NotReady(RuntimeError):
    """A new process was handed a task before its site."""


class Worker:
    """It remembers w_j of its sites, and can be killed at any time."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        keep_memory()
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self.makes: dict[int, Make] = {}  # of sites that are not loaded yet
        self.sites: dict[int, tuple[Method, Site]] = {}
        self.states: dict[int, Any] = {}
        self.ahead = ThreadPoolExecutor(1, "ahead")
        self.coming: Future[Any] | None = None  # the state, where the next task is begun on
        self.segment: Segment | None = None

    def ready(self, j: int, group: list[Any]) -> tuple[int, tuple[str, ...]]:
        """Load site j, once; which process it is, and what was converted.

        `group` is a reference to what loads all sites of this actor. Its sites have one model
        between them, so it travels once.
        """
        if j not in self.sites:
            if j not in self.makes:
                self.makes = dict(ray.get(group[0]))
            self.sites[j] = self._beside(*self.makes.pop(j)())
        return os.getpid(), self.sites[j][1].notes

    def forget(self) -> None:
        """Its sites, which are loaded again when they are asked for."""
        self.coming = None
        for table in (self.makes, self.sites, self.states):
            table.clear()

    def _beside(self, method: Method, site: Site) -> tuple[Method, Site]:
        """A site with the model that the others have: each of its own would be a copy."""
        if not self.sites:
            return method, site
        method, other = next(iter(self.sites.values()))
        return method, replace(site, objective=other.objective)

    def work(self, wire: Wire, *stored: np.ndarray) -> tuple[Vectors, dict[str, float]]:
        j, id, kind, vectors, scalars, address, names = wire
        if j not in self.sites:
            raise NotReady
        segment = None if address is None else self._reach(address)
        given = tensors(vectors, segment, TASK)
        given |= {n: torch.from_numpy(x) for n, x in zip(names, stored, strict=True)}
        task = Task(j, id, kind, given, scalars)
        coming = self.coming
        self.coming = None
        if coming is not None:
            self.states[j] = coming.result()
        self.states[j], report = serve(*self.sites[j], self.states.get(j), task)
        if len(self.sites) == 1:  # else there is other work to do meanwhile
            self.coming = self.ahead.submit(look_ahead, *self.sites[j], self.states[j], task)
        found = {k: v.numpy() for k, v in report.vectors.items()}
        layout = None if segment is None else segment.put(REPORT, found)
        return found if layout is None else layout, dict(report.scalars)

    def _reach(self, address: Address) -> Segment:
        if self.segment is None or self.segment.address != address:
            self.segment = Segment.open(address)
        return self.segment


def tensors(
    vectors: Mapping[str, Any], segment: Segment | None, half: int
) -> dict[str, torch.Tensor]:
    """Vectors as they came, or those that a layout says are in this half of the segment."""
    if not all(isinstance(x, np.ndarray) for x in vectors.values()):
        assert segment is not None
        vectors = segment.take(half, vectors)  # type: ignore[arg-type]
    return {name: torch.from_numpy(x) for name, x in vectors.items()}
