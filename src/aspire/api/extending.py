"""More of a run: its limits raised, whether it has ended or was stopped on the way.

run.json keeps the arguments that the run began with, and a list of what it was given later: the
last number of each limit is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aspire.api.job import Job
from aspire.api.stopping import GRADIENTS, ITERATIONS, PATIENCE, SECONDS, check_stopping
from aspire.arguments import shown, whole_number
from aspire.runs.checkpoint import Saved
from aspire.runs.folder import EXTENDED, RunFolder
from aspire.runs.log import EventLog

LIMITS = (ITERATIONS, GRADIENTS, PATIENCE, SECONDS)


def checked(limits: Mapping[str, Any], evaluate_every: int) -> dict[str, Any]:
    """Those limits that are given, each in its range."""
    strange = [name for name in limits if name not in LIMITS]
    if strange:
        raise ValueError(f"{EXTENDED} has {shown(strange[0])}: expected {', '.join(LIMITS)}")
    given = {name: value for name, value in limits.items() if value is not None}
    for name in (ITERATIONS, GRADIENTS):
        if name in given:
            given[name] = whole_number(name, given[name])
    check_stopping(given.get(PATIENCE), given.get(SECONDS), evaluate_every)
    return given


def in_force(job: Job, settings: Mapping[str, Any]) -> Job:
    """The job with the limits that its run was given later."""
    more = settings.get(EXTENDED) or []
    for limits in more:
        job = replace(job, **checked(limits, job.evaluate_every))
    return replace(job, settings={**job.settings, EXTENDED: more}) if more else job


def extended(job: Job, limits: Mapping[str, Any], settings: Mapping[str, Any]) -> Job:
    """The job with new limits, if there are any, in place of those that the run had."""
    if not limits:
        return job
    if GRADIENTS in limits and settings.get(GRADIENTS) is None and settings["log"] == "digest":
        raise ValueError(
            f"gradients={limits[GRADIENTS]}: the run has no such limit, and with log='digest' one "
            "cannot be added: expected iterations"
        )
    more = [*job.settings.get(EXTENDED, []), dict(limits)]
    return replace(job, **limits, settings={**job.settings, EXTENDED: more})


def check_more(
    job: Job, limits: Mapping[str, Any], t: int, gradients: float, seconds: float
) -> None:
    """ValueError where the extended job has nothing to do beyond what was done."""
    done = {ITERATIONS: t, GRADIENTS: int(gradients), SECONDS: seconds}
    wanted = {ITERATIONS: job.iterations, GRADIENTS: job.gradients, SECONDS: job.max_seconds}
    for name, was in done.items():
        most = wanted[name]
        if most is None or most > was:
            continue
        if name in limits:
            raise ValueError(f"{name}={most:g}: the run has done {was:g}: expected more than that")
        raise ValueError(
            f"the run has reached its limit of {name}={most:g}: expected a larger {name} with it"
        )


def extend(folder: RunFolder, log: EventLog, saved: Saved, limits: Mapping[str, Any]) -> None:
    """From here on the run has not ended, and the log says that it goes on."""
    folder.extend(dict(limits))
    saved.watched.restart()
    log.mark(EXTENDED, saved.state.master.t, None, **limits)
