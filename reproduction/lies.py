"""What the extra site of `attack` reports: a louder loss, and reports just short of being clipped.

backdoor  its loss times INFLATED, and honest gradients
adaptive  the same loss; every report is stretched or shrunk to just below the length from which a
          clip would scale it down. It sees the last reports of the honest sites
scaled    the site holds clean data and reports w_j times 1e6
gradient  clean data; it uses its gradient times -100
fixed     clean data; it always reports the same far-off model
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from aspire.problem import batches
from aspire.problem.problem import Problem
from aspire.problem.sites import Site
from aspire.types import Fast, Item, Local, Method, Report, Task
from reproduction.attack import ADAPTIVE, STAMPED

INFLATED = 3.0  # times its true loss
FAR = 10.0  # every coordinate of the far-off model is this or minus this
LIARS = 1  # sites that lie; a clip is told so, and looks at the (LIARS + 1)-th largest length
BELOW = 0.999  # of that length
SCALED = "scaled"
GRADIENT = "gradient"
FIXED = "fixed"
LIES = (SCALED, GRADIENT, FIXED)
DIRECTIONS = ("g", "move")  # reported vectors that start from nothing; the others are models

# ---------------------------------------------------------------- a site that lies


def truth(w: Tensor) -> Tensor:
    return w


@dataclass(frozen=True)
class LyingSite:
    """Wraps a site, whose loss and gradients it multiplies; of a model w_j it says `told(w_j)`.

    Everything else is the site's.
    """

    site: Site
    loss_factor: float = 1.0
    gradient_factor: float = 1.0
    told: Callable[[Tensor], Tensor] = truth

    def __getattr__(self, name: str) -> Any:
        return getattr(self.site, name)

    def loss(self, w: Tensor) -> float:
        return self.loss_factor * self.site.loss(w)

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        return self.gradient_factor * self.site.gradient(w, draw)


def lying_site(site: Site, attack: str) -> LyingSite:
    if attack in STAMPED:
        return LyingSite(site, loss_factor=INFLATED)
    if attack == GRADIENT:
        return LyingSite(site, gradient_factor=-100.0)
    if attack == SCALED:
        return LyingSite(site, told=lambda w: 1e6 * w)
    return LyingSite(site, told=far_off(site.number))


def far_off(worker: int) -> Callable[[Tensor], Tensor]:
    """Whatever the model is, this worker says the same one."""
    return lambda w: FAR * batches.signs(0, worker, 0, count=len(w)).to(w)


def corrupted(problem: Problem, attack: str) -> Problem:
    """The problem with its last site replaced by the attacker's."""
    *honest, last = problem.sites
    return replace(problem, sites=(*honest, cast(Site, lying_site(last, attack))))


# ---------------------------------------------------------------- one that knows the defence


@dataclass
class Seen:
    """What the adaptive site has seen of the honest ones: their last lengths and models.

    The length of a gradient or of a move is its norm, that of a model its distance from where it
    started: the model that the task brought or, where sites keep a copy of their own, the mean of
    the honest sites' last ones.
    """

    honest: int
    lengths: dict[int, float] = field(default_factory=dict)
    models: dict[int, Tensor] = field(default_factory=dict)

    def see(self, task: Task, report: Report) -> None:
        if "w" in report.vectors:
            self.models[report.worker] = report.vectors["w"]
        length = self.length(task, report)
        if length is not None:
            self.lengths[report.worker] = length

    def start(self, task: Task, name: str) -> Tensor | float:
        """Where a reported vector is measured from."""
        if name in DIRECTIONS:
            return 0.0
        if "w" in task.vectors and "v" not in task.vectors:
            return task.vectors["w"]
        return torch.stack(list(self.models.values())).mean(0)

    def length(self, task: Task, report: Report) -> float | None:
        for name in (*DIRECTIONS, "w"):
            if name in report.vectors:
                return float((report.vectors[name] - self.start(task, name)).norm())
        return None

    def told(self, task: Task, report: Report) -> Report:
        """The report at the length that is just not cut; true until all honest sites were seen.

        With its own length among the largest, the (LIARS + 1)-th largest of all is the LIARS-th
        largest of the honest ones.
        """
        if len(self.lengths) < self.honest:
            return report
        length = self.length(task, report)
        if not length:
            return report
        most = sorted(self.lengths.values())[-LIARS]
        factor = BELOW * most / length
        vectors = {}
        for name, vector in report.vectors.items():
            start = self.start(task, name)
            vectors[name] = start + factor * (vector - start)
        return replace(report, vectors=vectors)


# ---------------------------------------------------------------- a method with such a site

Answer = tuple[Any, Report]


def lying(method: Method, attack: str, honest: int) -> Method:
    """The method where the last of the sites may lie. What that one has seen is of one run."""
    assert method.fast is not None
    many = method.fast.many
    assert many is not None
    seen = Seen(honest)

    def told(task: Task, local: Local, answer: Answer) -> Answer:
        state, report = answer
        if not isinstance(local, LyingSite):
            return answer
        if attack == ADAPTIVE:
            return state, seen.told(task, report)
        if "w" in report.vectors:
            w = local.told(report.vectors["w"])
            report = replace(report, vectors={**report.vectors, "w": w})
        return state, report

    def work_many(items: Sequence[Item]) -> list[Answer]:
        found = many(items)
        for (_, task, local), (_, report) in zip(items, found, strict=True):
            if attack == ADAPTIVE and not isinstance(local, LyingSite):
                seen.see(task, report)
        return [
            told(task, local, answer) for (_, task, local), answer in zip(items, found, strict=True)
        ]

    def work(state: Any, task: Task, local: Local) -> Answer:
        return work_many([(state, task, local)])[0]

    return replace(method, work=work, fast=Fast(work_many))
