"""One cell of a table: a method on a data set with a seed, trained and scored. No files here."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from aspire.api import Job, prepare
from aspire.runs import files as rundir
from aspire.simulator.delays import Delays, LogNormal
from aspire.types import Method
from reproduction import attack, choices, lies, scores, theorem
from reproduction.data import Federation, load
from reproduction.threads import one_thread

BATCH = 100
HELD_OUT = 0.1
SPREAD, REVERSED = "spread", "reversed"  # who is slow: the last sites, or the first
PAPER = "paper"  # the protocol of the tables
UNBOUNDED = 10**12  # gradients, where virtual time is the end
MEANS = (1.0, 5.0)  # of the fastest and the slowest site
SYNTHETIC = "synthetic"  # the data set of a cell that reads none


@dataclass(frozen=True)
class Cell:
    """What a cell computes; nothing else may change its figures.

    method     its name in the tables; maker: its name in choices.MAKERS
    budget     worker gradients; points: lines of history
    delays     'even': LN(1, 0.4) for all; 'spread': per-site means spread from 1 to 5, LN(0, 0.4),
               for each gradient of a task, a loss-only task counting as one, and the run ends when
               the slowest site has had the time for its share of the budget, however many
               gradients that is; 'reversed': the same from 5 to 1
    attack     '', or what the extra site does; 'clean': no such site, but both stamps are scored
    validation a tenth of each training part is held out. Looks are at it; the best of them by the
               worst site is `selected`. A trial has no test part, and else that is scored at
               the end, at the last and at the selected model
    full       gradients on whole sites, and the stationarity gap in the history
    protocol   how the data set is divided into parts
    """

    experiment: str
    dataset: str
    method: str
    seed: int
    maker: str
    budget: int
    variant: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    points: int = 20
    delays: str = "even"
    attack: str = ""
    validation: bool = False
    full: bool = False
    trial: int | None = None
    protocol: str = PAPER

    def plain(self) -> dict[str, Any]:
        """As it comes back from JSON, so that a finished cell can be recognised."""
        plain: dict[str, Any] = rundir.plain(asdict(self))
        if self.protocol == PAPER:
            del plain["protocol"]
        return plain

    @property
    def timed(self) -> bool:
        """Whether virtual time is the end."""
        return self.delays in (SPREAD, REVERSED)


def run(cell: Cell, data: str | None) -> dict[str, Any]:
    """The record of a cell: its fields, then those of a run's result.json, then its history."""
    began = time.perf_counter()
    with one_thread():
        if cell.dataset == SYNTHETIC:
            found = without_data(cell)
        elif cell.maker == "ind":
            found = best_alone(cell, data)
        else:
            found = trained(cell, data)
        versions = rundir.versions()
    found |= {"wall_seconds": time.perf_counter() - began, "versions": versions}
    record = cell.plain()
    return record | {name: value for name, value in found.items() if name not in record}


def without_data(cell: Cell) -> dict[str, Any]:
    """An experiment that needs none: what the budget counts, it says itself."""
    if cell.experiment == "theorem":
        return theorem.descend(cell.seed, cell.budget, cell.points)
    return scores.largest_delays(cell.seed, cell.budget)


def trained(cell: Cell, data: str | None) -> dict[str, Any]:
    """Train and score; a run that cannot go on counts as accuracy 0 and says why."""
    return watch_of(cell, *job_of(cell, data)).carry_out()


def best_alone(cell: Cell, data: str | None) -> dict[str, Any]:
    """max{Ind_j}: one model for each site j, budget/N gradients each; the one whose worst site has
    the best validation accuracy.

    Every model is scored on all sites; `alone` holds the figures of each.
    """
    n = len(federation(cell, data).sites)
    one = replace(cell, budget=cell.budget // n, points=max(2, cell.points // n))
    settings = [{**cell.settings, "site": j} for j in range(n)]
    job, _ = job_of(replace(one, settings=settings[0]), data)
    jobs = [replace(job, method=choices.make(cell.maker, n, own)) for own in settings]
    runs = scores.abreast([watch_of(one, job) for job in jobs])
    best = max(range(n), key=lambda j: runs[j]["selected"]["worst_val_accuracy"])
    names = ("worst_accuracy", "mean_accuracy", "std_accuracy", "worst_loss", "worker_gradients")
    alone = [{"site": j, **{name: runs[j][name] for name in names}} for j in range(n)]
    spent = {name: sum(run[name] for run in runs) for name in ("worker_gradients", "sample_passes")}
    return {**runs[best], **spent, "alone": alone}


# ---------------------------------------------------------------- pieces


def job_of(cell: Cell, data: str | None) -> tuple[Job, dict[str, torch.Tensor]]:
    """A job that is ready to start, and the stamped test samples by the name of their figure."""
    fed = federation(cell, data)
    sites: Any = fed.sites
    if cell.attack:
        sites = attack.sites_with(fed, cell.attack, cell.seed)
    n = len(sites)
    method = choices.make(cell.maker, n, cell.settings)
    job = prepare(
        network(fed, cell.seed),
        sites,
        method=method,
        gradients=UNBOUNDED if cell.timed else cell.budget,
        batch_size=None if cell.full else BATCH,
        delays=delays_of(cell, n),
        seed=cell.seed,
        evaluate_every=0,
    )
    if cell.timed:
        job = replace(job, method=timed(job.method))
    if cell.attack in ("", attack.CLEAN):
        return job, attack.scored(fed, cell.attack)
    job = replace(
        job,
        method=lies.lying(job.method, cell.attack, n - 1),
        problem=lies.corrupted(job.problem, cell.attack),
    )
    return job, attack.scored(fed, cell.attack)


def watch_of(
    cell: Cell, job: Job, triggered: Mapping[str, torch.Tensor] | None = None
) -> scores.Watch:
    return scores.Watch(
        job,
        cell.budget,
        cell.points,
        full=cell.full,
        horizon=horizon_of(cell, len(job.problem.sites)),
        triggered=triggered or {},
    )


def federation(cell: Cell, data: str | None) -> Federation:
    fed = _loaded(cell.dataset, data, cell.protocol, cell.seed, bool(cell.attack))
    if not cell.validation:
        return fed
    held = fed.held_out(HELD_OUT, cell.seed)
    return held if cell.trial is None else held.without_test()


@lru_cache(maxsize=2)
def _loaded(name: str, data: str | None, protocol: str, seed: int, raw: bool) -> Federation:
    return load(name, data, protocol=protocol, seed=seed, raw=raw)


def network(fed: Federation, seed: int) -> torch.nn.Module:
    """Linear layers with ReLU between them, torch's own start for this seed."""
    layers: list[torch.nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for width, following in itertools.pairwise(fed.layers):
            layers += [torch.nn.Linear(width, following), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def delays_of(cell: Cell, n: int) -> Delays:
    if not cell.timed:
        return LogNormal(1.0, 0.4)
    means = np.linspace(*MEANS, n).tolist()
    return LogNormal(0.0, 0.4, scale=tuple(means if cell.delays == SPREAD else means[::-1]))


def timed(method: Method) -> Method:
    """The method with tasks that last as long as what they compute.

    One delay for each batch that it takes a gradient of; a task that measures a loss alone lasts
    as long as one gradient. Tasks that take no time (the probes) still take none.
    """
    kinds = {
        name: replace(kind, delays=max(1, kind.batches)) if kind.delays else kind
        for name, kind in method.kinds.items()
    }
    return replace(method, kinds=kinds)


def horizon_of(cell: Cell, n: int) -> float | None:
    """Virtual seconds; None: the budget of gradients is the end."""
    if not cell.timed:
        return None
    return cell.budget / n * MEANS[1] * math.exp(0.4**2 / 2)
