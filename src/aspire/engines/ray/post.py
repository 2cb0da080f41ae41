"""How long vectors get from the driver to its actors: once for all tasks that carry them.

Tasks of one version of the model share one tensor. On the driver's machine it is written to an
actor's memory (`shared`) when a task with another one was there before, elsewhere it is put into
Ray's store once.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import ray
import torch

from aspire.engines.ray.shared import REPORT, TASK, Layout, Segment
from aspire.engines.ray.worker import Vectors, Wire, tensors
from aspire.types import Task

LONG = 2**14  # bytes; shorter vectors go with the call itself
Held = dict[str, "weakref.ref[torch.Tensor]"]


class Post:
    """One message at a time goes to each actor, and one comes back."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}  # by actor
        self.far: set[int] = set()  # actors that cannot reach theirs
        self.lying: dict[int, tuple[Held, Layout]] = {}  # tasks' vectors in them
        self.stored: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}  # in Ray's store, by id

    def wire(self, actor: int, task: Task) -> tuple[Wire, list[Any]]:
        """A task as it travels, and references to those of its vectors that Ray's store has."""
        size = sum(x.nbytes for x in task.vectors.values())
        about = (task.worker, task.id, task.kind)
        told = dict(task.scalars)
        if size <= LONG:
            return (*about, _arrays(task.vectors), told, None, ()), []
        segment = None if actor in self.far else self._segment(actor, size)
        layout = None if segment is None else self._lay(actor, segment, task)
        if segment is None or layout is None:
            references = [self._store(x) for x in task.vectors.values()]
            return (*about, {}, told, None, tuple(task.vectors)), references
        return (*about, layout, told, segment.address, ()), []

    def take(self, actor: int, vectors: Vectors) -> dict[str, torch.Tensor]:
        """The vectors of a report."""
        return tensors(vectors, self.segments.get(actor), REPORT)

    def drop(self, actor: int) -> None:
        """The next task has a new segment: a process that was given up may still write to this."""
        self.lying.pop(actor, None)
        known = self.segments.pop(actor, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        for actor in list(self.segments):
            self.drop(actor)
        self.stored.clear()

    def _segment(self, actor: int, size: int) -> Segment | None:
        """An actor's, with room for so many bytes in each half."""
        known = self.segments.get(actor)
        if known is not None and known.address[2] >= size:
            return known
        self.drop(actor)
        made = Segment.make(2 * size)
        if made is not None:
            self.segments[actor] = made
        return made

    def _lay(self, actor: int, segment: Segment, task: Task) -> Layout | None:
        """Where the vectors lie; they may be there already."""
        held, layout = self.lying.get(actor, ({}, {}))
        there = {name: reference() for name, reference in held.items()}
        same = there.keys() == task.vectors.keys()
        if same and all(x is there[name] for name, x in task.vectors.items()):
            return layout
        self.lying.pop(actor, None)
        put = segment.put(TASK, _arrays(task.vectors))
        if put is not None:
            self.lying[actor] = ({k: weakref.ref(x) for k, x in task.vectors.items()}, put)
        return put

    def _store(self, x: torch.Tensor) -> Any:
        """Ray keeps it for as long as the driver has x."""
        held, reference = self.stored.get(id(x), (None, None))
        if held is None or held() is not x:
            reference = ray.put(x.detach().cpu().numpy())
            key = id(x)
            held = weakref.ref(x, lambda gone: self._forget(key, gone))
            self.stored[key] = (held, reference)
        return reference

    def _forget(self, key: int, gone: weakref.ref[torch.Tensor]) -> None:
        if key in self.stored and self.stored[key][0] is gone:
            del self.stored[key]


def _arrays(vectors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: x.detach().cpu().numpy() for name, x in vectors.items()}
