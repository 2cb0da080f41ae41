"""An experiment from its name to its file of finished cells."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from aspire.runs import files as rundir
from reproduction import plans, pool, results, tune
from reproduction.data import Missing, files_of
from reproduction.plans import Request


@dataclass(frozen=True)
class Done:
    """What a command did: the files of its experiments, what it had to leave out, what failed."""

    files: tuple[Path, ...]
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def reproduce(
    name: str,
    request: Request,
    *,
    out: Path,
    data: str | None = None,
    jobs: int = 1,
    tell: pool.Tell = lambda text: None,
    command: str = "",
) -> Done:
    """Run NAME, or all experiments but `tune`; finished cells are kept.

    Of `all`, the tables have the seeds that were asked for, the figures no more than their own.
    """
    chosen = plans.check(name, request)
    if jobs < 1:
        raise ValueError(f"jobs={jobs}: expected at least 1")
    here, skipped = available(request.datasets, data, tell)
    began = time.monotonic()
    made = []
    failed = []
    for experiment in chosen:
        seeds = request.seeds and request.seeds[: plans.PLANS[experiment].seeds]
        own = replace(request, seeds=seeds) if name == "all" else request
        cells, left_out = plans.cells(experiment, own, here)
        for line in left_out:
            tell(f"Left out: {line}.")
        skipped += left_out
        if cells:
            tell(f"{experiment}: {len(cells)} cells, {jobs} at a time.")
            trials = 3 if request.quick else tune.TRIALS
            more = tune.stages(cells, trials) if experiment == "tune" else ()
            failed += pool.carry_out(cells, out, data=data, jobs=jobs, tell=tell, stages=more)
            made += conclude(experiment, out, command)
    if not made:
        why = "; ".join([*skipped, *failed[:1]]) or "no such method"
        raise ValueError(f"{name}: nothing could be run ({why})")
    tell(f"Took {pool.readable(time.monotonic() - began)}.")
    return Done(tuple(made), tuple(skipped), tuple(failed))


def available(
    datasets: tuple[str, ...], data: str | None, tell: pool.Tell
) -> tuple[list[str], list[str]]:
    """The data sets that are here, and a sentence for each that is not."""
    here = []
    skipped = []
    for dataset in datasets:
        try:
            files_of(dataset, data)
        except Missing as sentence:
            tell(f"Skipped: {sentence}")
            skipped.append(str(sentence))
        else:
            here.append(dataset)
    return here, skipped


def conclude(experiment: str, out: Path, command: str) -> list[Path]:
    """The experiment's file, [] without a finished cell; after `tune` also the chosen settings."""
    path = results.path_of(out, experiment)
    records = list(results.read(path).values())
    if not records:
        return []
    if experiment == "tune":
        rundir.write_json(out / tune.FILE, tune.choose(records, command))
    return [path]
