"""A run while it is watched: history at fixed gradients or times, and the last scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.api import Job, Run
from aspire.api.run import outcome
from aspire.api.train import evaluate
from aspire.runs.errors import Stopped
from aspire.simulator import simulator
from aspire.simulator.delays import LogNormal
from aspire.types import Task, look_at
from reproduction import attack

COLUMNS = ("t", "time", "gradients", "worst_accuracy", "worst_loss", "accuracies", "losses")
SUCCESSES = ("attack_success", "adaptive_success")
VALIDATION = ("worst_val_accuracy", "val_accuracies")
DIGITS = 5  # of what is in the history
OF_TRAIN = (  # in the result of `train`, and of no use in a cell, which selects by itself
    *("val_losses", "val_accuracies", "val_samples", "worst_val_loss", "worst_val_accuracy"),
    *("selected", "last", "ended_by", "trend", "converged"),
)


@dataclass(frozen=True)
class Selected:
    """The look whose worst site has the best validation accuracy; of equals the first."""

    line: dict[str, Any]
    w: Tensor


@dataclass
class Watch:
    """Carries a job out and looks at it `points` times, evenly in worker gradients.

    full       evenly in their logarithm instead, with the squared stationarity gap
    horizon    the run ends at this virtual time; looks are evenly in it, half of them in its
               logarithm: a curve that rises fast at the start
    triggered  stamped test samples by the name of their figure

    Where sites have a `val`, looks are blind to the test parts. These are scored when all is over:
    at the last model, and at the one that the validation parts select.
    """

    job: Job
    budget: int
    points: int
    full: bool = False
    horizon: float | None = None
    triggered: Mapping[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    stopped: str = ""  # why the run could not go on
    selected: Selected | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        end = self.budget if self.horizon is None else self.horizon
        low = min(end, 14 * len(self.job.problem.sites))  # the probes take 13 gradients each
        count = self.points if self.horizon is None else self.points // 2
        even = end * np.arange(1, count + 1) / count
        early = np.geomspace(low, end, count)
        steps = early if self.full else even
        if self.horizon is not None:
            steps = np.union1d(early, even)
        self.due = [float(step) for step in steps[:-1]]
        names = self.job.problem.names
        self.honest = len(names) - int(names[-1] == attack.EXTRA)  # the attacker's is in no figure
        self.blind = None if self.job.problem.sites[0].val is None else without_test(self.job)

    def carry_out(self) -> dict[str, Any]:
        simulation = self.job.begin()
        self.go(simulation)
        return self.found(simulation)

    def go(
        self,
        simulation: simulator.Simulation,
        pause: Callable[..., Any] = lambda simulation: False,
    ) -> bool:
        """On to the end, or until `pause`; True: it is not over yet."""
        began = time.perf_counter()
        done = self.done
        try:
            simulator.run(simulation, lambda s: done(s) or bool(pause(s)), on_step=self.look)
            over = done(simulation)
            if over and (not self.history or self.history[-1]["t"] != simulation.master.t):
                self.history.append(self.line(simulation))
        except Stopped as reason:
            self.stopped = str(reason)
            over = True
            self.history.append(self.lost(simulation))
        self.seconds += time.perf_counter() - began
        return not over

    def done(self, simulation: simulator.Simulation) -> bool:
        late = self.horizon is not None and simulation.time >= self.horizon
        return late or self.job.done(simulation)

    def found(self, simulation: simulator.Simulation) -> dict[str, Any]:
        """What is known at the end."""
        if self.blind is not None and self.job.problem.sites[0].test and not self.stopped:
            self.history[-1] |= tested(self.job, self.job.method.model(simulation.master))
        run = self.run_of(simulation, self.seconds)
        found = {**run.result(), "made_by": self.job.method.name}
        found["constants"] = dict(getattr(simulation.master, "constants", {}))
        for name in OF_TRAIN:
            del found[name]
        found["history"] = self.columns()
        if self.stopped:
            found |= {"stopped": self.stopped, "worst_loss": None}
        for name in (*SUCCESSES, "extra_weight", "gap"):
            if name in self.history[-1]:
                found[name] = self.history[-1][name]
        return found if self.blind is None else found | self.chosen()

    def chosen(self) -> dict[str, Any]:
        """The figures of the selected model; where there is no test part they are all there is."""
        best = None if self.stopped else self.selected
        line = self.history[-1] if best is None else best.line
        kept = {name: line[name] for name in ("gradients", *VALIDATION)}
        if self.job.problem.sites[0].test is None:
            on_val = figures({**line, "accuracies": line["val_accuracies"]})
            return {**on_val, "evaluated_on": "validation", "selected": kept}
        on_test = {} if best is None else tested(self.job, best.w)
        return {"selected": figures(line | on_test) | kept}

    def look(self, simulation: simulator.Simulation) -> None:
        now = simulation.gradients if self.horizon is None else simulation.time
        if not self.due or now < self.due[0]:
            return
        while self.due and now >= self.due[0]:
            self.due.pop(0)
        self.history.append(self.line(simulation))

    def line(self, simulation: simulator.Simulation) -> dict[str, Any]:
        """One line of history, over the honest sites."""
        line = evaluate(self.blind or self.job, simulation)
        if self.blind is not None:
            best = self.selected
            if best is None or line[VALIDATION[0]] > best.line[VALIDATION[0]]:
                w = self.job.method.model(simulation.master).detach().clone()
                self.selected = Selected(line, w)
        if self.full:
            line["gap"] = squared_gap(self.job, simulation)
        if self.triggered:
            flat = self.job.problem.flat
            model = flat.module(self.job.method.model(simulation.master)).eval()
            for name, inputs in self.triggered.items():
                line[name] = attack.share_sent(model, inputs)
        if self.honest < len(self.job.problem.names):
            line["extra_weight"] = line["weights"][-1]
            for name in ("losses", "train_losses", "test_losses", "accuracies", "weights"):
                line[name] = line[name][: self.honest]
            line["worst_loss"] = max(line["losses"])
            line["worst_accuracy"] = min(line["accuracies"])
        return line

    def lost(self, simulation: simulator.Simulation) -> dict[str, Any]:
        """The line of a run that could not go on: no site is served."""
        nothing = [0.0] * self.honest
        look = look_at(self.job.method, simulation.master, len(self.job.problem.names))
        return {
            "t": simulation.master.t,
            "time": simulation.time,
            "gradients": int(simulation.gradients),
            "accuracies": nothing,
            "worst_accuracy": 0.0,
            "losses": nothing,
            "worst_loss": None,
            "val_accuracies": nothing,
            "worst_val_accuracy": 0.0,
            "worst_case_loss": float("nan"),
            "weights": look.weights.tolist()[: self.honest],
            "planes": look.planes,
        }

    def run_of(self, simulation: simulator.Simulation, seconds: float) -> Run:
        """Over the honest sites, without the model and what the cell has elsewhere."""
        trained, tested, validated = (x[: self.honest] for x in self.job.problem.sizes())
        now = simulation.time
        run = outcome(
            *(self.job, simulation, self.history, seconds),
            sizes=(trained, tested, validated),
            virtual_seconds=now,
        )
        sites = self.job.problem.names[: self.honest]
        return replace(run, model=torch.nn.Identity(), sites=sites, history=[], settings={})

    def columns(self) -> dict[str, list[Any]]:
        """The history by columns, rounded: what curves are drawn from."""
        wanted = [
            *COLUMNS,
            *VALIDATION,
            "weights",
            "planes",
            *SUCCESSES,
            "extra_weight",
            "gap",
        ]
        names = [name for name in wanted if any(name in line for line in self.history)]
        return {name: [_short(line.get(name)) for line in self.history] for name in names}


def without_test(job: Job) -> Job:
    sites = tuple(replace(site, test=None) for site in job.problem.sites)
    return replace(job, problem=replace(job.problem, sites=sites))


def tested(job: Job, w: Tensor) -> dict[str, Any]:
    """What a line of history says of the test parts."""
    found = job.problem.scores(w)
    accuracies = [] if found.accuracies is None else found.accuracies.tolist()
    losses = found.test_losses.tolist()
    return {"accuracies": accuracies, "worst_accuracy": min(accuracies), "test_losses": losses}


def figures(line: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a table's row, from a line of history."""
    accuracies = line["accuracies"]
    return {
        "worst_accuracy": min(accuracies),
        "mean_accuracy": float(np.mean(accuracies)),
        "std_accuracy": float(np.std(accuracies)),
        "accuracies": accuracies,
        "worst_loss": line["worst_loss"],
    }


def abreast(watches: Sequence[Watch]) -> list[dict[str, Any]]:
    """Carry out runs that know nothing of each other, on one problem and with one kind of worker
    that remembers nothing: the tasks of all of them are evaluated in the same calls."""
    runs = [(watch, watch.job.begin()) for watch in watches]
    fast = watches[0].job.method.fast
    sites = watches[0].job.problem.sites
    assert fast is not None
    assert fast.many is not None
    live = runs
    while live:
        open_ = [(simulation.desk, task) for _, simulation in live for task in unknown(simulation)]
        results = fast.many([(None, task, sites[task.worker]) for _, task in open_])
        for (desk, task), result in zip(open_, results, strict=True):
            del desk.waiting[task.worker]
            desk.known[task.worker] = result
        live = [(watch, simulation) for watch, simulation in live if watch.go(simulation, unknown)]
    return [watch.found(simulation) for watch, simulation in runs]


def unknown(simulation: simulator.Simulation) -> list[Task]:
    """Tasks in flight that nobody has begun on."""
    return [simulation.desk.hands[j] for j in simulation.desk.waiting]


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def squared_gap(job: Job, simulation: simulator.Simulation) -> float:
    """|grad G|^2 of Definition 1 (D.1) where the method has it, else |sum_j p_j grad f_j(w)|^2.

    p are the method's present weights: for COVER and GCIVR that is the gradient of their own
    objective. Both kinds are what an epsilon-stationary point bounds by epsilon^2.
    """
    sites = job.problem.sites
    master = simulation.master
    look = look_at(job.method, master, len(sites))
    if look.gap is not None:
        found = look.gap(
            lambda j, w: sites[j].full_gradient(w),
            lambda j, w: sites[j].full_loss(w),
        )
        return float(found) ** 2
    w = job.method.model(master)
    slope = torch.zeros_like(w)
    for p, site in zip(look.weights, sites, strict=True):
        slope += float(p) * site.full_gradient(w)
    return float(slope.double().square().sum())


def largest_delays(seed: int, most: int) -> dict[str, Any]:
    """max_j of one LN(1, 0.4) delay each, for the first N workers, N = 1, 3, 10, ... up to most."""
    delays = LogNormal(1.0, 0.4)
    largest = np.maximum.accumulate([delays(seed, worker, 0) for worker in range(most)])
    mean = float(np.exp(1.0 + 0.4**2 / 2))
    sizes = sorted({*(int(10 ** (k / 2)) for k in range(40) if 10 ** (k / 2) <= most), most})
    curve = [float(largest[n - 1]) for n in sizes]
    history = {"workers": sizes, "largest": curve, "ratio": [value / mean for value in curve]}
    return {"history": history, "largest_delay": curve[-1], "mean_delay": mean}
