"""What a run on an engine must know of all sites before it starts; its folder keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from aspire.api.job import Job
from aspire.api.preparing import is_pending, set_over, sized
from aspire.engines import survey
from aspire.engines.carrier import Carrier, Crew
from aspire.engines.serve import say_conversions
from aspire.problem.standardization import Standardization, combined
from aspire.runs import files as rundir
from aspire.runs.folder import RunFolder
from aspire.sets.checks import waits
from aspire.types import RunFacts


def is_needed(job: Job) -> bool:
    """Whether something in the job depends on data that is elsewhere."""
    unknown = job.problem.standardization is None and standardizes(job)
    prior = job.method.settings.get("prior")
    unsized = waits(prior) and job.problem.samples is None
    return unknown or unsized or job.uncertainty.pending or is_pending(job.method)


def standardizes(job: Job) -> bool:
    return bool(job.settings.get("standardize"))


def surveyed(
    job: Job, carrier: Carrier, crew: Crew | None, folder: RunFolder | None, patience: float
) -> Job:
    """The job with the answers of all sites, which the folder keeps."""
    if not is_needed(job):
        return job
    problem = job.problem
    try:
        answers = survey.ask(
            carrier,
            problem.names,
            problem.flat.start,
            moments=standardizes(job),
            patience=patience,
        )
        by = combined([answer.moments for answer in answers]) if standardizes(job) else None
        if by is not None:
            say_conversions(by.notes)
            carrier.standardize(by, standardized(crew, by))
    except BaseException:
        if folder is not None:
            folder.forget_settings()
        raise
    samples = tuple(answer.samples for answer in answers)
    if folder is not None:
        found = {} if by is None else {"mean": by.mean, "std": by.std}
        rundir.write_json(folder.path / rundir.SURVEY, {"samples": samples, **found}, sealed=True)
    return with_answers(job, samples, by)


def recalled(job: Job, folder: Path) -> Job:
    """The job with the answers that a run's folder has kept."""
    if not is_needed(job):
        return job
    path = folder / rundir.SURVEY
    found = rundir.read_record(path, sealed=True)
    n = len(job.problem.names)
    rundir.need(found, str(path), samples=list)
    if len(found["samples"]) != n or not all(isinstance(x, int) for x in found["samples"]):
        raise ValueError(f"{path}: samples={found['samples']!r}: expected {n} whole numbers")
    by = None
    if standardizes(job):
        rundir.need(found, str(path), mean=list, std=list)
        dtype = job.problem.flat.start.dtype
        mean, std = (torch.tensor(found[name], dtype=dtype) for name in ("mean", "std"))
        by = Standardization(mean, std)
    return with_answers(job, tuple(found["samples"]), by)


def with_answers(job: Job, samples: Sequence[int], by: Standardization | None) -> Job:
    """The job with everything that depends on all sites."""
    problem = replace(job.problem, samples=tuple(samples), standardization=by)
    names = problem.names
    run = RunFacts(problem.flat.linear, len(names), names=names, samples=problem.samples)
    method = sized(job.method, run)
    uncertainty = set_over(job.uncertainty, names, samples)
    settings = job.settings | {"uncertainty": uncertainty}
    return replace(job, problem=problem, method=method, uncertainty=uncertainty, settings=settings)


def standardized(crew: Crew | None, by: Standardization) -> Crew | None:
    """Workers whose sites' inputs are standardised so."""
    return None if crew is None else [partial(make, standardize=by) for make in crew]
