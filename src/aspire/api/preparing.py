"""`prepare`: every argument of a run checked, and the pieces put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from aspire.api.job import Job, refuse_too_large
from aspire.api.options import (
    SEEDS,
    absences_of,
    check_judged,
    check_loss_bound,
    check_method,
    check_uncertainty,
    delays_of,
    device_of,
    only_given,
)
from aspire.api.selection import check_select
from aspire.api.stopping import limits_of
from aspire.arguments import flag, whole_number
from aspire.core.preset_names import preset_of
from aspire.core.schedules import Preset
from aspire.methods.aspire_ease.forms import aspire, form_of
from aspire.methods.optimisers import Make, Schedule
from aspire.problem.metrics import metrics_of
from aspire.problem.problem import AUTO, Loss, Problem, build, is_linear
from aspire.problem.samples import named
from aspire.problem.sources import Collate
from aspire.problem.standardization import WHEN_ASKED, Standardization
from aspire.runs import files as rundir
from aspire.sets import CDNorm, UncertaintySet
from aspire.simulator.delays import Absence, Delays
from aspire.types import Method, RunFacts


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
    batch_size: int | str | None = AUTO,
    collate_fn: Collate | None = None,
    standardize: bool | str | Standardization = False,
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
    metrics: Any = None,
    loss_bound: float | None = None,
    elsewhere: bool = False,
) -> Job:
    """Check the arguments and put the pieces together; they are as in `train`.

    Returns what `resume` and `replay` take. With `elsewhere` a site may be None: its data stays
    where its worker is.
    """
    limits = limits_of(iterations, gradients, evaluate_every, patience_evaluations, max_seconds)
    seed = whole_number("seed", seed, least=0, most=SEEDS)
    check_uncertainty(uncertainty)
    if not (standardize == WHEN_ASKED or isinstance(standardize, Standardization)):
        flag("standardize", standardize)
    asked = metrics_of(metrics)
    check_loss_bound(loss_bound)
    local_steps = whole_number("local_steps", local_steps)
    of_method = only_given(
        quorum=quorum,
        staleness=staleness,
        accumulate=accumulate,
        optimizer=optimizer,
        schedule=schedule,
        learning_rate=learning_rate,
        clip=clip,
        reference=reference,
        pull_bound=pull_bound,
        preset=None if preset is None else preset_of(preset),
        local_steps=None if local_steps == 1 else local_steps,
    )
    known = named(sites)
    n = len(known)
    linear = is_linear(model) if isinstance(model, nn.Module) else True
    names = tuple(map(str, known))
    run = RunFacts(linear, n, limits.iterations, limits.gradients, names)
    if method is None:
        form = form_of(form, of_method, linear=linear)
        if form == "direct" and weight_decay:
            of_method["weight_decay"] = weight_decay
            weight_decay = 0.0
        method = aspire(uncertainty, form=form, **of_method)
    else:
        check_alone(method, of_method | only_given(form=form))
        uncertainty = uncertainty or method.settings.get("uncertainty")
    method = method if method.fit is None else method.fit(run)
    of_problem: dict[str, Any] = {
        "loss": loss,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
        "device": device_of(device),
        "buffers": buffers,
        "precision": precision,
    }
    problem = build(
        model,
        known,
        seed=seed,
        elsewhere=elsewhere,
        judged=method.judged,
        judged_on=method.judged_on,
        metrics=asked,
        collate_fn=collate_fn,
        standardize=standardize,
        execution=execution if method.any_execution or execution != "auto" else None,
        **of_problem,
    )
    if not elsewhere:  # else some data is elsewhere, and has a say in it
        of_problem["batch_size"] = problem.batch_size
    samples = problem.facts().samples
    method = sized(method, replace(run, samples=samples))
    check_problem(problem, method, select)
    job = Job(
        problem=problem,
        method=method,
        uncertainty=set_over(uncertainty, names, samples),
        iterations=math.inf if limits.iterations is None else limits.iterations,
        gradients=math.inf if limits.gradients is None else limits.gradients,
        delays=delays_of(delays, n, seed),
        absences=absences_of(absences, n),
        seed=seed,
        evaluate_every=limits.evaluate_every,
        settings={},
        select=select,
        patience_evaluations=limits.patience_evaluations,
        max_seconds=limits.max_seconds,
        metrics=None if metrics is None else tuple(metric.name for metric in asked),
        loss_bound=loss_bound,
    )
    if standardize:
        of_problem["standardize"] = True
    job = replace(job, settings=settings_of(job, of_problem))
    refuse_too_large(job)
    return job


def is_pending(method: Method) -> bool:
    """Whether its set has a prior by size, which is not known yet."""
    uncertainty = method.settings.get("uncertainty")
    return isinstance(uncertainty, UncertaintySet) and uncertainty.pending


def sized(method: Method, run: RunFacts) -> Method:
    """The method for sites of these sizes, where it waits for them."""
    return method if method.fit is None or not is_pending(method) else method.fit(run)


def set_over(
    uncertainty: UncertaintySet | None, names: Sequence[str], samples: Sequence[int] | None
) -> UncertaintySet:
    """The set over these sites; a prior by size waits where the sizes are not known."""
    n = len(names)
    found = (uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).over(names, samples)
    return found if found.pending else found.for_sites(n)


def check_alone(method: Any, others: Mapping[str, Any]) -> None:
    """ValueError where this is no method, or arguments of one are given beside it."""
    check_method(method)
    for name in others:
        raise ValueError(
            f"method is given, so {name} belongs to it: expected {name} in aspire(...), or "
            "wherever the method comes from"
        )


def check_problem(problem: Problem, method: Method, select: Any) -> None:
    """ValueError where the model or the sites lack what the method or `select` needs."""
    if problem.flat.buffers and not method.buffers:
        raise ValueError(
            f"model has buffers that change while it trains ({problem.flat.buffers[0].name}), such "
            f"as batch-norm statistics, and {method.name} has no place for these: use "
            "form='direct', buffers='site', GroupNorm or LayerNorm, or freeze them with "
            "model.eval()"
        )
    check_select(select, problem)
    check_judged(method, problem)


def settings_of(job: Job, of_problem: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json holds of a job."""
    problem = job.problem
    method = job.method
    return {
        "sites": problem.names,
        "parameters": len(problem.flat.start),
        "method": method.name,
        **{name: value for name, value in method.settings.items() if name != "uncertainty"},
        "uncertainty": job.uncertainty,
        "iterations": finite(job.iterations),
        "gradients": finite(job.gradients),
        **of_problem,
        "delays": job.delays,
        "absences": job.absences,
        "seed": job.seed,
        "evaluate_every": job.evaluate_every,
        "versions": rundir.versions(),
        **only_given(
            select=job.select,
            max_seconds=job.max_seconds,
            patience_evaluations=job.patience_evaluations,
            execution=problem.execution,
            metrics=job.metrics,
            loss_bound=job.loss_bound,
        ),
    }


def finite(limit: float) -> float | None:
    return None if limit == math.inf else limit
