"""One cell: a network, a method, a setting and a seed, trained and looked at. No files here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from aspire.api import Job, prepare
from aspire.api.train import evaluate
from aspire.runs import files as rundir
from aspire.runs.errors import Stopped
from aspire.simulator import simulator
from aspire.simulator.delays import LogNormal
from aspire.types import Method
from reproduction.networks import liars, methods, noisy
from reproduction.networks.cases import CASES
from reproduction.networks.data import Sites
from reproduction.networks.methods import SITE_BUFFERS, WITHOUT
from reproduction.networks.noisy import NOISY
from reproduction.threads import one_thread

EVEN, LISTED, REVERSED = "even", "listed", "reversed"  # who is slow
SPREAD = (1.0, 5.0)  # factors of the delays of the first and the last site
SIGMA = 0.4
POINTS = 20  # lines of history, besides the start; twice as many where a target is looked for
CURVES = ("t", "time", "gradients", "worst_loss", "worst_accuracy", "mean_accuracy")
DIGITS = 4  # of what is in the history
ENDS_ONLY = ("search", "half")  # settings without curves: there are many, and only ends count
More = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """What a cell computes; nothing else may change its figures.

    setting    what it is for; see `plan`
    gradients  the end, unless there is a horizon
    rate       a fixed learning rate; None: the method's own step
    delays     LN(0, 0.4) for all ('even'), times 1 to 5 over the sites as listed, or reversed
    horizon    virtual time of the end
    target     worst training loss at which the run ends
    """

    network: str
    method: str
    setting: str
    seed: int
    size: str
    gradients: int
    rate: float | None = None
    delays: str = EVEN
    horizon: float | None = None
    target: float | None = None

    @property
    def small(self) -> bool:
        return self.size == "small"

    @property
    def name(self) -> str:
        rate = "" if self.rate is None else f"@{self.rate:g}"
        return f"{self.network}/{self.method}{rate}/{self.setting}/{self.seed}"

    def plain(self) -> dict[str, Any]:
        """As it comes back from JSON, so that a finished cell can be recognised."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def run(cell: Cell, device: str) -> dict[str, Any]:
    """The record of a cell: its fields, its figures and its curves."""
    with one_thread():
        sites = sites_of(cell.network, cell.seed, cell.small)
        more = None
        if cell.setting == NOISY:
            sites = noisy.sites_of(sites, cell.seed, without=cell.method == WITHOUT)
            more = noisy.figures
        return carried_out(cell, device, sites, method_of(cell, len(sites)), more)


def carried_out(
    cell: Cell, device: str, sites: Sites, method: Method, more: More | None = None
) -> dict[str, Any]:
    """The same, of this method on these sites; `more`: further figures from the history."""
    began = time.perf_counter()
    used = time.process_time()
    watch = Watch(cell, job_of(cell, device, sites, method))
    watch.carry_out()
    figures = watch.figures()
    if more is not None and not watch.stopped:
        figures |= more(watch.history, watch.job.problem.names)
    figures["wall_seconds"] = round(time.perf_counter() - began, 2)
    figures["cpu_seconds"] = round(time.process_time() - used, 2)
    if cell.setting in ENDS_ONLY or cell.method in liars.METHODS:
        del figures["history"]
    return cell.plain() | figures | {"device": device_name(device), "torch": torch.__version__}


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def job_of(cell: Cell, device: str, sites: Sites, method: Method) -> Job:
    case = CASES[cell.network]
    return prepare(
        case.module(cell.seed, cell.small),
        sites,
        method=method,
        gradients=cell.gradients,
        batch_size=case.batch[cell.small],
        delays=delays_of(cell.delays, len(sites)),
        buffers="site" if cell.method == SITE_BUFFERS else "average",
        device=device,
        seed=cell.seed,
        evaluate_every=0,
    )


def method_of(cell: Cell, sites: int) -> Method:
    if cell.method in liars.METHODS:
        return liars.method_of(cell.method, cell.setting, sites)
    return methods.method_of(cell.method, sites, cell.rate)


@lru_cache(maxsize=2)
def sites_of(network: str, seed: int, small: bool) -> Sites:
    return CASES[network].sites(seed, small=small)


def delays_of(order: str, sites: int) -> LogNormal:
    if order == EVEN:
        return LogNormal(0.0, SIGMA)
    factors = np.linspace(*SPREAD, sites)
    return LogNormal(
        0.0, SIGMA, scale=tuple((factors if order == LISTED else factors[::-1]).tolist())
    )


def reference_times(seed: int, order: str, sites: int, steps: int) -> np.ndarray:
    """Virtual time after each step of a run in which every step waits for all sites.

    Which step a gradient belongs to does not depend on the delays there, so that one run of the
    reference has a clock for each kind of delays.
    """
    delays = delays_of(order, sites)
    workers = np.tile(np.arange(sites), steps)
    each = delays.many(seed, workers, np.repeat(np.arange(steps), sites)).reshape(steps, sites)
    return np.concatenate([[0.0], each.max(axis=1).cumsum()])


@dataclass
class Watch:
    """Carries a job out; looks at it at the start, then evenly in gradients or virtual time."""

    cell: Cell
    job: Job
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str = ""  # why the run could not go on
    simulation: Any = None
    reached: bool = False  # the target

    def __post_init__(self) -> None:
        points = POINTS if self.cell.target is None else 2 * POINTS
        between = self.end - self.first
        self.due = [self.first + between * k / points for k in range(1, points)]

    @property
    def first(self) -> float:
        """Gradients of sites that train alone, before the common training begins."""
        alone = self.job.settings.get("own_gradients") or 0
        return float(alone * len(self.job.problem.names))

    @property
    def end(self) -> float:
        return self.cell.gradients if self.cell.horizon is None else self.cell.horizon

    def carry_out(self) -> None:
        self.simulation = self.job.begin()
        try:
            self.look()
            simulator.run(self.simulation, self.done, on_step=self.look_if_due)
            if not self.history or self.history[-1]["t"] != self.simulation.master.t:
                self.look()
        except Stopped as reason:
            self.stopped = str(reason)

    def now(self, simulation: simulator.Simulation) -> float:
        return simulation.gradients if self.cell.horizon is None else simulation.time

    def done(self, simulation: simulator.Simulation) -> bool:
        return self.reached or self.now(simulation) >= self.end

    def look_if_due(self, simulation: simulator.Simulation) -> None:
        if self.due and self.now(simulation) >= self.due[0]:
            self.due = [point for point in self.due if point > self.now(simulation)]
            self.look()

    def look(self) -> None:
        line = evaluate(self.job, self.simulation)
        if line["accuracies"] is None:
            right = [
                pixel_accuracy(self.job, self.simulation, j) for j in range(len(line["losses"]))
            ]
            line |= {"accuracies": right, "worst_accuracy": min(right)}
        line["mean_accuracy"] = float(np.mean(line["accuracies"]))
        self.history.append(line)
        target = self.cell.target
        self.reached = target is not None and line["worst_loss"] <= target

    def figures(self) -> dict[str, Any]:
        """At the end; a run that broke down has no losses."""
        last = self.history[-1]
        found: dict[str, Any] = {
            "made_by": self.job.method.name,
            "iterations": self.simulation.master.t,
            "virtual_seconds": short(self.simulation.time, 8),
            "worker_gradients": int(self.simulation.gradients),
            "sample_passes": int(self.simulation.samples),
            "sites": len(self.job.problem.names),
            "parameters": len(self.job.problem.flat.start),
            "start_loss": short(self.history[0]["worst_loss"], 6),
            "planes": last["planes"],
        }
        if self.stopped:
            found |= {"stopped": self.stopped}
        else:
            found |= {name: short(last[name], 6) for name in CURVES[3:]}
            found |= {"losses": [short(x, 4) for x in last["losses"]][:20]}
            if self.cell.method in liars.METHODS:
                found |= liars.figures(self.simulation.master, last["accuracies"])
        curves = {name: [short(line[name], DIGITS) for line in self.history] for name in CURVES}
        curves["t"] = [line["t"] for line in self.history]
        curves["gradients"] = [line["gradients"] for line in self.history]
        return found | {"history": curves}


@torch.no_grad()
def pixel_accuracy(job: Job, simulation: simulator.Simulation, j: int) -> float:
    """The share of pixels of site j's test part whose largest output is the target."""
    site = job.problem.sites[j]
    w = job.method.model(simulation.master)
    part = site.test or site.train
    right = 0
    count = 0
    for inputs, targets, _ in part.chunks():
        output = site.objective.output(w, inputs, targets)
        right += int((output.argmax(1) == targets).sum())
        count += targets.numel()
    return right / count


def short(value: float, digits: int) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def diverged(record: Mapping[str, Any]) -> bool:
    """No number at the end, or a worst loss above its start."""
    worst = record.get("worst_loss")
    return worst is None or worst > record["start_loss"]


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = rundir.plain(record)
    return found


def time_to(history: Mapping[str, Sequence[Any]], target: float) -> float:
    """When the worst loss first is at the target; between two lines of history, in proportion."""
    before: tuple[float, float] | None = None
    for now, worst in zip(history["time"], history["worst_loss"], strict=True):
        if worst is not None and worst <= target:
            if before is None or before[1] <= worst:
                return float(now)
            share = (before[1] - target) / (before[1] - worst)
            return before[0] + share * (now - before[0])
        before = (now, math.inf if worst is None else worst)
    return math.inf


def loss_at(record: Mapping[str, Any], time: float) -> float:
    """The worst training loss at a virtual time, between two lines of history in proportion."""
    history = record["history"]
    losses = [math.inf if worst is None else worst for worst in history["worst_loss"]]
    return float(np.interp(time, history["time"], losses))
