"""A run that is ready to start: every piece in place, nothing done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from aspire.api import memory
from aspire.api.stopping import GRADIENTS, ITERATIONS, Stopping
from aspire.engines.driver import Drive
from aspire.problem.problem import Problem
from aspire.runs.decode import Expected
from aspire.sets import UncertaintySet
from aspire.simulator import simulator
from aspire.simulator.delays import Absence, Delays
from aspire.types import Method

SMALL = 1e8  # parameters times samples of one gradient


@dataclass(frozen=True)
class Job:
    """A run that is ready to start: everything checked, nothing done."""

    problem: Problem
    method: Method
    uncertainty: UncertaintySet
    iterations: float
    gradients: float
    delays: Delays
    absences: tuple[Absence, ...]
    seed: int
    evaluate_every: int
    settings: dict[str, Any]
    select: str | None = None
    patience_evaluations: int | None = None
    max_seconds: float | None = None
    metrics: tuple[str, ...] | None = None  # besides loss and accuracy; None: none were asked for
    loss_bound: float | None = None

    def stopping(self) -> Stopping:
        """What may end a run before its limits."""
        return Stopping(self.patience_evaluations, self.max_seconds)

    def ended_by(self, run: simulator.Simulation | Drive, stopping: Stopping) -> str | None:
        """The name of the argument that ended the run; None: it has not ended."""
        if not self.done(run):
            return stopping.reason
        return ITERATIONS if run.master.t >= self.iterations else GRADIENTS

    def done(self, run: simulator.Simulation | Drive) -> bool:
        return bool(run.master.t >= self.iterations or run.gradients >= self.gradients)

    def expected(self, state: type) -> Expected:
        """What a checkpoint of this job may hold, with such a state of its runtime."""
        start = self.problem.flat.start
        sizes = {"N": len(self.problem.names), "p": len(start)}
        return Expected(state, self.method, sizes, start.dtype, str(start.device))

    def begin(self) -> simulator.Simulation:
        return simulator.begin(
            self.method,
            self.problem,
            delays=self.delays,
            absences=self.absences,
            seed=self.seed,
        )


def refuse_too_large(job: Job, *, kept: bool = False) -> None:
    """Say no to a run that will not fit in memory; `kept`: it will have a folder."""
    n = len(job.problem.names)
    start = job.problem.flat.start
    steps = job.settings["iterations"]
    needed = memory.predict(
        n,
        len(start),
        bytes_each=start.element_size(),
        planes=job.method.settings.get("max_planes"),
        quorum=job.method.settings.get("quorum"),
        form="direct" if job.method.name == "direct" else "consensus",
        simulated=job.problem.sites[0] is not None,
        lines=1 + (steps or 20) // (job.evaluate_every or steps or 20),
        kept=kept,
        tested=any(site is not None and site.test is not None for site in job.problem.sites),
        validated=any(site is not None and site.val is not None for site in job.problem.sites),
    )
    memory.refuse_too_large(n, len(start), needed, memory.free(start.device))


@contextmanager
def few_threads(job: Job, *, one: bool = False) -> Iterator[None]:
    """One torch thread while the work of one task is small: more would only wait for each other.

    `one`: one thread in any case, as the workers of an engine have it.
    """
    threads = torch.get_num_threads()
    site = job.problem.sites[0]
    if one or len(job.problem.flat.start) * site.batch_samples < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
