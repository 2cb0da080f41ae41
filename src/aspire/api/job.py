"""A run that is ready to start: every argument checked, every piece in place, nothing done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aspire.api import memory
from aspire.api.options import (
    SEEDS,
    absences_of,
    check_judged,
    check_method,
    check_uncertainty,
    delays_of,
    device_of,
    optional,
)
from aspire.api.selection import check_select
from aspire.api.stopping import GRADIENTS, ITERATIONS, Stopping, check_stopping
from aspire.arguments import whole_number
from aspire.core.preset_names import preset_of
from aspire.core.schedules import Preset
from aspire.engines.driver import Drive
from aspire.methods.aspire_ease.forms import aspire, form_of
from aspire.methods.aspire_ease.optimisers import Make, Schedule
from aspire.problem.problem import Loss, Problem, build, is_linear
from aspire.runs import files as rundir
from aspire.runs.decode import Expected
from aspire.sets import CDNorm, UncertaintySet
from aspire.simulator import simulator
from aspire.simulator.delays import Absence, Delays
from aspire.types import Method

SMALL = 1e8  # parameters times samples of one gradient


class Interrupted(RuntimeError):
    """The run was asked to stop between two events; its folder holds all that `resume` needs."""


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


def prepare(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    loss: str | Loss = "cross_entropy",
    uncertainty: UncertaintySet | None = None,
    method: Method | None = None,
    iterations: int | None = None,
    gradients: int | None = None,
    form: str | None = None,
    quorum: int | None = None,
    staleness: int | None = None,
    local_steps: int = 1,
    accumulate: int | None = None,
    optimizer: Make | None = None,
    schedule: Schedule | None = None,
    learning_rate: float | None = None,
    clip: float | None = None,
    reference: Any = None,
    buffers: str = "average",
    precision: str = "float32",
    execution: str = "auto",
    batch_size: int | None = 64,
    preset: str | Preset | None = None,
    pull_bound: float | None = None,
    weight_decay: float = 0.0,
    delays: Delays | None = None,
    absences: Iterable[Absence] = (),
    device: str = "cpu",
    seed: int = 0,
    evaluate_every: int | None = None,
    select: str | None = None,
    patience_evaluations: int | None = None,
    max_seconds: float | None = None,
    elsewhere: bool = False,
) -> Job:
    """Check every argument of `train` and put the pieces together.

    With `elsewhere` a site may be None: its data stays where its worker is.
    """
    if iterations is None and gradients is None:
        raise ValueError("iterations is missing: expected a number of master steps")
    iterations = optional("iterations", iterations)
    gradients = optional("gradients", gradients)
    seed = whole_number("seed", seed, least=0, most=SEEDS)
    if evaluate_every is None:
        evaluate_every = max(1, -(-(iterations or gradients or 1) // 20))
    evaluate_every = whole_number("evaluate_every", evaluate_every, least=0)
    limits = check_stopping(patience_evaluations, max_seconds, evaluate_every)
    patience_evaluations, max_seconds = limits
    check_uncertainty(uncertainty)
    own: dict[str, Any] = {"quorum": quorum, "staleness": staleness, "accumulate": accumulate}
    own |= {"optimizer": optimizer, "schedule": schedule, "learning_rate": learning_rate}
    own |= {"clip": clip, "reference": reference, "pull_bound": pull_bound}
    own |= {"preset": None if preset is None else preset_of(preset)}
    own |= {"local_steps": whole_number("local_steps", local_steps)}
    if own["local_steps"] == 1:
        del own["local_steps"]
    own = {name: value for name, value in own.items() if value is not None}
    linear = is_linear(model) if isinstance(model, nn.Module) else True
    if method is None:
        form = form_of(form, own, linear=linear)
        if form == "direct" and weight_decay:
            own["weight_decay"] = weight_decay
            weight_decay = 0.0
        method = aspire(uncertainty, form=form, **own)
    else:
        check_method(method)
        refuse_arguments_of_method({**own, **({} if form is None else {"form": form})})
        uncertainty = uncertainty or method.settings.get("uncertainty")
        method = method if method.choose is None else method.choose(linear)
    device = device_of(device)
    problem = build(
        model,
        sites,
        loss=loss,
        batch_size=batch_size,
        weight_decay=weight_decay,
        device=device,
        seed=seed,
        elsewhere=elsewhere,
        buffers=buffers,
        precision=precision,
        judged=method.judged,
        judged_on=method.judged_on,
        execution=execution if method.any_execution or execution != "auto" else None,
    )
    if problem.flat.buffers and not method.buffers:
        raise ValueError(
            f"model has buffers that change while it trains ({problem.flat.buffers[0].name}), such "
            f"as batch-norm statistics, and {method.name} has no place for these: use "
            "form='direct', buffers='site', GroupNorm or LayerNorm, or freeze them with "
            "model.eval()"
        )
    check_select(select, problem)
    check_judged(method, problem)
    n = len(problem.names)
    if method.budgeted is not None:
        method = method.budgeted(n, iterations, gradients)
    uncertainty = (uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)
    delays = delays_of(delays, n, seed)
    absences = absences_of(absences, n)
    settings = {
        "sites": problem.names,
        "parameters": len(problem.flat.start),
        "method": method.name,
        **{name: value for name, value in method.settings.items() if name != "uncertainty"},
        "uncertainty": uncertainty,
        "loss": loss,
        "iterations": iterations,
        "gradients": gradients,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
        "delays": delays,
        "absences": absences,
        "device": device,
        "buffers": buffers,
        "precision": precision,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "versions": rundir.versions(),
    }
    later: dict[str, Any] = {"select": select, "max_seconds": max_seconds}
    later["patience_evaluations"] = patience_evaluations
    settings |= {name: value for name, value in later.items() if value is not None}
    if problem.execution is not None:
        settings["execution"] = problem.execution
    job = Job(
        problem=problem,
        method=method,
        uncertainty=uncertainty,
        iterations=math.inf if iterations is None else iterations,
        gradients=math.inf if gradients is None else gradients,
        delays=delays,
        absences=absences,
        seed=seed,
        evaluate_every=evaluate_every,
        settings=settings,
        **later,
    )
    refuse_too_large(job)
    return job


def refuse_arguments_of_method(given: Mapping[str, Any]) -> None:
    for name in given:
        raise ValueError(
            f"method is given, so {name} belongs to it: expected {name} in aspire(...), or "
            "wherever the method comes from"
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
