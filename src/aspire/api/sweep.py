"""`aspire.frontier`: a model for each of several sets, in much less than as many whole runs.

The smallest set is trained for the whole length. On the way its state is kept once, and each other
set goes on from there for the rest, so that all models have been trained for equally long. The
direct form goes on under the other set with its optimiser and planes; the consensus form, whose
constants are made for a set, begins anew from the model.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from aspire.api.frontier import Frontier, Setting, check_floor
from aspire.api.job import Job, few_threads
from aspire.api.options import check_names
from aspire.api.preparing import prepare
from aspire.api.run import Run
from aspire.api.stopping import GRADIENTS, ITERATIONS, limits_of
from aspire.api.train import finish
from aspire.arguments import one_of, real_number, shown
from aspire.methods.aspire_ease.direct import under
from aspire.problem.samples import named
from aspire.runs import files as rundir
from aspire.sets import UncertaintySet
from aspire.simulator import simulator

DIALS = ("budget", "radius", "beta")  # arguments of sets that say how far weights may move
STEPS = 6  # settings, where none are given
KNOWN = [name for name in inspect.signature(prepare).parameters if name != "elsewhere"]


def frontier(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    dial: str | None = None,
    values: Sequence[float] | None = None,
    share: float = 1 / 3,
    floor: float | None = None,
    out: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    **arguments: Any,
) -> Frontier:
    """Train under one set after another, and compare what every site gets.

    model, sites  as `train` takes them; every site needs train, val and test parts, and the model
                  gives class scores
    dial          the argument of the uncertainty set that is swept: 'budget', 'radius' or 'beta';
                  None: the first of these that the set has
    values        what it takes; of radii that differ by site it is the largest. None: six values
                  from 0 to that of the set
    share         of each run that is its own; the rest is trained once, under the smallest value
    floor         in frontier.json: the answer to this accuracy, see `Frontier.answer`
    out           a new folder for frontier.json and the runs
    progress      called with the number of settings that are done, and of all
    stop          asked between events; True raises Interrupted
    arguments     of `train`, such as uncertainty, iterations and seed, on the simulator

    Returns all points: what every site gets under each set.
    """
    check_names(arguments, [*KNOWN, *inspect.signature(frontier).parameters], "frontier")
    check_given(arguments, share, floor)
    sites = named(sites)
    job = prepare(model, sites, **arguments)
    check_parts(job)
    dial = dial_of(job.uncertainty, dial)
    values = values_of(job, dial, values)
    if out is not None:
        rundir.new_folder(Path(out))
    trunk = Trunk(model, sites, arguments, share, stop)
    runs: list[Run] = []
    for run in trunk.branches([set_at(job.uncertainty, dial, value) for value in values]):
        runs.append(run)
        if progress is not None:
            progress(len(runs), len(values))
    found = Frontier(
        dial=dial,
        sites=job.problem.names,
        settings=tuple(map(setting_of, values, runs)),
        val_samples=runs[0].val_samples,
        test_samples=runs[0].test_samples,
        gradients=trunk.gradients,
    )
    if out is not None:
        found.save(out, floor)
    return found


def check_given(arguments: Mapping[str, Any], share: Any, floor: Any) -> None:
    """ValueError for what no set or site is needed to see."""
    if arguments.get("method") is not None:
        raise ValueError("method is given: expected none, since the set of ASPIRE-EASE is swept")
    if real_number("share", share, "a number between 0 and 1", above=0.0) >= 1:
        raise ValueError(f"share={share:g}: expected a number between 0 and 1")
    if floor is not None:
        check_floor(floor)


def setting_of(value: float, run: Run) -> Setting:
    assert run.val_accuracies is not None
    assert run.accuracies is not None
    return Setting(value, run.val_accuracies, run.accuracies, run.weights, run)


def check_parts(job: Job) -> None:
    """ValueError where a site lacks a part, or where there are no accuracies."""
    problem = job.problem
    for name, site in zip(problem.names, problem.sites, strict=True):
        for part in ("val", "test"):
            if getattr(site, part) is None:
                raise ValueError(
                    f"site {shown(name)} has no {part} part: expected train, val and test at "
                    "every site, since settings are chosen on val and reported on test"
                )
    first = problem.sites[0]
    if first.accuracy(problem.flat.start, first.val) is None:
        raise ValueError("the model's outputs are no class scores: expected a classifier")


# ---------------------------------------------------------------- the dial


def dial_of(uncertainty: UncertaintySet, dial: str | None) -> str:
    """The argument of the set that is swept."""
    known = [name for name in DIALS if hasattr(uncertainty, name)]
    if not known:
        raise ValueError(
            f"uncertainty={uncertainty}: expected a set with a {', '.join(DIALS[:-1])} or "
            f"{DIALS[-1]}, such as CDNorm(radius=0.2, budget=5.0)"
        )
    if dial is None:
        return known[0]
    one_of("dial", dial, known)
    return dial


def values_of(job: Job, dial: str, values: Sequence[float] | None) -> list[float]:
    """Rising; None: from 0 to what the set has, for a budget no more than there are sites."""
    if values is None:
        most = float(np.max(getattr(job.uncertainty, dial)))
        most = min(most, len(job.problem.names)) if dial == "budget" else most
        if most == 0:
            raise ValueError(f"uncertainty={job.uncertainty}: expected a {dial} above 0")
        return np.linspace(0.0, most, STEPS).tolist()
    expected = "two or more different numbers of at least 0"
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"values={shown(values)}: expected {expected}")
    found = sorted(real_number("values", value, expected, least=0.0) for value in values)
    if len(set(found)) < max(2, len(found)):
        raise ValueError(f"values={shown(found)}: expected {expected}")
    return found


def set_at(uncertainty: UncertaintySet, dial: str, value: float) -> UncertaintySet:
    """The same set with another value; radii that differ by site keep their ratios."""
    old = np.asarray(getattr(uncertainty, dial))
    new = value * old / old.max() if old.ndim and old.max() > 0 else value
    return replace(uncertainty, **{dial: new})  # type: ignore[type-var]


# ---------------------------------------------------------------- the runs


@dataclass
class Trunk:
    """What all runs of a sweep have in common; `gradients` is what they cost so far."""

    model: nn.Module
    sites: Mapping[str, Any]
    arguments: Mapping[str, Any]
    share: float
    stop: Callable[[], bool]
    gradients: int = 0

    def branches(self, sets: Sequence[UncertaintySet]) -> Iterator[Run]:
        """One run for each set."""
        job = self.job(self.model, sets[0])
        simulation = job.begin()
        early = self.early(job)
        with few_threads(job):
            simulator.run(simulation, lambda s: early.done(s) or self.stop())
        kept = copy.deepcopy(simulation.standing())
        start = job.problem.flat.module(job.method.model(kept.master))
        yield self.finished(job, simulation, 0)
        goes_on = job.method.name == "direct"
        for uncertainty in sets[1:]:
            if goes_on:
                job = self.job(self.model, uncertainty)
                simulation = job.begin()
                simulation.stand(copy.deepcopy(kept))
                under(job.uncertainty, simulation.master)
                yield self.finished(job, simulation, int(kept.gradients))
            else:
                job = self.job(start, uncertainty, **self.rest())
                yield self.finished(job, job.begin(), 0)

    def job(self, model: nn.Module, uncertainty: UncertaintySet, **limits: int) -> Job:
        given = {**self.arguments, "evaluate_every": self.every(), **limits}
        job = prepare(model, self.sites, **{**given, "uncertainty": uncertainty})
        job.settings["log"] = "off"
        return job

    def early(self, job: Job) -> Job:
        """The part that is trained once."""
        common = 1 - self.share
        return replace(job, iterations=common * job.iterations, gradients=common * job.gradients)

    def rest(self) -> dict[str, int]:
        """The limits of a run that begins anew where the common part ended."""
        given = {name: self.arguments.get(name) for name in (ITERATIONS, GRADIENTS)}
        return {
            name: max(1, round(self.share * limit))
            for name, limit in given.items()
            if limit is not None
        }

    def every(self) -> int:
        """Steps between two evaluations: as `train` has it, in each run's own part."""
        limits = self.rest()
        given = self.arguments.get("evaluate_every")
        found = limits_of(limits.get(ITERATIONS), limits.get(GRADIENTS), given, None, None)
        return found.evaluate_every

    def finished(self, job: Job, simulation: simulator.Simulation, before: int) -> Run:
        run = finish(job, simulation, self.stop)
        self.gradients += run.worker_gradients - before
        return run
