"""The Python door: `train(model, sites, ...)` gives a `Run`."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aspire.core.presets import Auto, Paper, Theorem1
from aspire.core.schedules import Preset
from aspire.methods import aspire
from aspire.problem import Loss, Problem, build
from aspire.runtimes import log as events
from aspire.runtimes import rundir, simulator
from aspire.runtimes.delays import Absence, Delays, LogNormal
from aspire.runtimes.replay import replay_log
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import Array, Method

SMALL = 1e8  # parameters times samples of one gradient
logger = logging.getLogger("aspire")
PRESETS: dict[str, Callable[[], Preset]] = {"auto": Auto, "paper": Paper, "theorem1": Theorem1}


@dataclass(frozen=True)
class Run:
    """What training gave. Arrays are in the order of `sites`; accuracies are fractions."""

    model: nn.Module
    sites: tuple[str, ...]
    weights: Array
    losses: Array
    accuracies: Array | None
    worst_case_loss: float
    planes: int
    stationarity: float | None
    history: list[dict[str, Any]]
    evaluated_on: str
    method: str
    iterations: int
    virtual_seconds: float
    wall_seconds: float
    worker_gradients: int
    sample_passes: int
    settings: dict[str, Any] = field(repr=False)

    @property
    def worst_loss(self) -> float:
        return float(self.losses.max())

    @property
    def worst_accuracy(self) -> float | None:
        return None if self.accuracies is None else float(self.accuracies.min())

    @property
    def mean_accuracy(self) -> float | None:
        return None if self.accuracies is None else float(self.accuracies.mean())

    @property
    def std_accuracy(self) -> float | None:
        """Population standard deviation over the sites."""
        return None if self.accuracies is None else float(self.accuracies.std())

    def result(self) -> dict[str, Any]:
        """What result.json holds."""
        return {
            "method": self.method,
            "iterations": self.iterations,
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": self.wall_seconds,
            "worst_accuracy": self.worst_accuracy,
            "worst_loss": self.worst_loss,
            "std_accuracy": self.std_accuracy,
            "mean_accuracy": self.mean_accuracy,
            "accuracies": self.accuracies,
            "losses": self.losses,
            "weights": self.weights,
            "worst_case_loss": self.worst_case_loss,
            "planes": self.planes,
            "stationarity": self.stationarity,
            "worker_gradients": self.worker_gradients,
            "sample_passes": self.sample_passes,
            "evaluated_on": self.evaluated_on,
            "sites": self.sites,
        }

    def save(self, directory: str | Path) -> None:
        """Write run.json, history.jsonl, model.safetensors and result.json to a new folder."""
        folder = rundir.create(Path(directory))
        rundir.write_json(folder / rundir.RUN, self.settings)
        for record in self.history:
            rundir.append_json(folder / rundir.HISTORY, record)
        self._save_outcome(folder)

    def _save_outcome(self, folder: Path) -> None:
        rundir.write_model(folder / rundir.MODEL, self.model)
        rundir.write_json(folder / rundir.RESULT, self.result())


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

    def done(self, simulation: simulator.Simulation) -> bool:
        return bool(
            simulation.master.t >= self.iterations or simulation.gradients >= self.gradients
        )

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
    quorum: int = 1,
    staleness: int | None = None,
    local_steps: int = 1,
    batch_size: int | None = 64,
    preset: str | Preset = "auto",
    weight_decay: float = 0.0,
    delays: Delays | None = None,
    absences: Iterable[Absence] = (),
    device: str = "cpu",
    seed: int = 0,
    evaluate_every: int | None = None,
) -> Job:
    """Check every argument of `train` and put the pieces together."""
    if iterations is None and gradients is None:
        raise ValueError("iterations is missing: expected a number of master steps")
    for name, value in (("iterations", iterations), ("gradients", gradients)):
        if value is not None and (value != int(value) or value < 1):
            raise ValueError(f"{name}={value}: expected a whole number of at least 1")
    if seed != int(seed) or seed < 0:
        raise ValueError(f"seed={seed}: expected a whole number of at least 0")
    if evaluate_every is None:
        evaluate_every = max(1, -(-(iterations or gradients or 1) // 20))
    if evaluate_every != int(evaluate_every) or evaluate_every < 0:
        raise ValueError(f"evaluate_every={evaluate_every}: expected a whole number, 0: never")
    if method is None:
        method = aspire(
            uncertainty,
            quorum=quorum,
            staleness=staleness,
            local_steps=local_steps,
            preset=_preset(preset),
        )
    elif (quorum, staleness, local_steps, preset) != (1, None, 1, "auto"):
        raise ValueError(
            "method is given, so quorum, staleness, local_steps and preset belong to it: "
            "expected them in aspire(...)"
        )
    else:
        uncertainty = uncertainty or method.settings.get("uncertainty")
    problem = build(
        model,
        sites,
        loss=loss,
        batch_size=batch_size,
        weight_decay=weight_decay,
        device=_device(device),
        seed=seed,
    )
    n = len(problem.sites)
    uncertainty = (uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)
    delays, absences = delays or LogNormal(), tuple(absences)
    refuse_too_large(n, problem.flat.start)
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
        "seed": seed,
        "evaluate_every": evaluate_every,
        "versions": rundir.versions(),
    }
    return Job(
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
    )


def train(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    out: str | Path | None = None,
    log: str = "full",
    stationarity: bool = False,
    progress: Callable[[int], None] | None = None,
    source: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Run:
    """Train `model` over `sites` so that the worst of them is served well.

    model           any torch.nn.Module; it is left as it is
    sites           a list or a mapping name -> site; a site is (inputs, targets), a torch Dataset,
                    or a mapping with 'train' and optionally 'test'
    loss            'cross_entropy', 'mse', or callable(output, target) -> mean
    uncertainty     how far the adversary may shift weight; None: CDNorm(radius=1/N, budget=N)
    method          None: aspire(...) with the four arguments below
    iterations      master steps; gradients: stop at so many worker gradients instead
    quorum, staleness, local_steps, preset    see `aspire`; preset 'auto', 'paper', 'theorem1'
    batch_size      samples in a gradient; None: the whole site
    weight_decay    adds weight_decay/2 |w|^2 to every site's loss
    delays          virtual time of a task; None: LogNormal(1, 0.4); absences: who is away when
    device, seed    the same seed gives the same bytes
    evaluate_every  master steps between two lines of history; 0: only at the end
    out             a new folder for run.json, events.jsonl, history.jsonl, model and result
    log             'full', 'digest' or 'off': what events.jsonl holds
    stationarity    compute Definition 1 at the end: N full gradients
    """
    job = prepare(model, sites, **arguments)
    simulation = job.begin()
    events.check_level(log)
    folder = None if out is None else rundir.create(Path(out))
    if folder is not None:
        job.settings["log"] = log
        rundir.write_json(folder / rundir.RUN, job.settings | {"source": source})
    simulation.log = events.EventLog(log, None if folder is None else folder / events.NAME)
    try:
        with few_threads(job):
            run = _carry_out(job, simulation, folder, stationarity, progress)
    finally:
        simulation.log.close()
    if folder is not None:
        run._save_outcome(folder)
    return run


def replay(directory: str | Path, job: Job) -> tuple[int, str]:
    """Absorb the events of a run again; the number of events and the state's hash if equal.

    A log of level `digest` has no events to follow, so the run itself is repeated.
    """
    folder = Path(directory)
    level = rundir.read_json(folder / rundir.RUN)["log"]
    path = folder / events.NAME
    if level == "off":
        raise ValueError(f"{folder}: the run was logged at level off, so nothing can be replayed")
    if level == "full":
        with few_threads(job):
            return replay_log(job.method, job.problem, path, job.seed)
    end = events.read(path)[1]
    if end is None:
        raise ValueError(f"{path} has no end mark: the run did not finish")
    simulation = job.begin()
    simulation.log = again = events.EventLog("digest")
    with few_threads(job):
        simulator.run(simulation, job.done)
    state = events.digest(simulation.master)
    if state != end["state"]:
        raise ValueError(f"the state is {state[:16]} and the log says {end['state'][:16]}")
    return again.count, state


def _carry_out(
    job: Job,
    simulation: simulator.Simulation,
    folder: Path | None,
    stationarity: bool,
    progress: Callable[[int], None] | None,
) -> Run:
    began = time.perf_counter()
    history: list[dict[str, Any]] = []

    def look(simulation: simulator.Simulation) -> None:
        t = simulation.master.t
        if progress is not None:
            progress(t)
        last = job.done(simulation)
        if last or (job.evaluate_every and t % job.evaluate_every == 0):
            history.append(evaluate(job, simulation))
            if not last:
                simulation.log.mark("evaluation", t, None)
            if folder is not None:
                rundir.append_json(folder / rundir.HISTORY, history[-1])

    simulator.run(simulation, job.done, on_step=look, on_note=lambda note: logger.info(note.text))
    simulation.log.mark("end", simulation.master.t, simulation.master)
    last = history[-1]
    return Run(
        model=job.problem.flat.module(job.method.model(simulation.master)),
        sites=job.problem.names,
        weights=np.array(last["weights"]),
        losses=np.array(last["losses"]),
        accuracies=None if last["accuracies"] is None else np.array(last["accuracies"]),
        worst_case_loss=last["worst_case_loss"],
        planes=last["planes"],
        stationarity=_gap(job, simulation.master) if stationarity else None,
        history=history,
        evaluated_on=job.problem.evaluated_on,
        method=job.method.name,
        iterations=simulation.master.t,
        virtual_seconds=simulation.time,
        wall_seconds=time.perf_counter() - began,
        worker_gradients=int(simulation.gradients),
        sample_passes=int(simulation.samples),
        settings=job.settings,
    )


def evaluate(job: Job, simulation: simulator.Simulation) -> dict[str, Any]:
    """One line of history: every site at model(master), whether it is present or not."""
    w = job.method.model(simulation.master)
    losses = np.array([site.full_loss(w) for site in job.problem.sites])
    found = [site.accuracy(w) for site in job.problem.sites]
    accuracies = None if None in found else np.array(found, dtype=float)
    if not np.isfinite(losses).all():
        raise simulator.Stopped(f"a site's loss is not finite after {simulation.master.t} steps")
    return {
        "t": simulation.master.t,
        "time": simulation.time,
        "gradients": int(simulation.gradients),
        "losses": losses.tolist(),
        "worst_loss": float(losses.max()),
        "worst_case_loss": job.uncertainty.value(losses),
        "accuracies": None if accuracies is None else accuracies.tolist(),
        "worst_accuracy": None if accuracies is None else float(accuracies.min()),
        "weights": job.method.weights(simulation.master).tolist(),
        "planes": job.method.planes(simulation.master),
    }


def _gap(job: Job, master: Any) -> float | None:
    if job.method.gap is None:
        return None
    sites = job.problem.sites
    return job.method.gap(
        master,
        lambda j, w: sites[j].full_gradient(w),
        lambda j, w: sites[j].full_loss(w),
    )


def refuse_too_large(n: int, start: Tensor) -> None:
    """The master keeps 2 N p values and the simulated workers N p more."""
    needed = 3 * n * len(start) * start.element_size()
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    free = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    if start.device.type == "cuda":
        free = torch.cuda.mem_get_info(start.device)[0]
    if needed > 0.9 * free:
        raise ValueError(
            f"{n} sites with {len(start)} parameters need {needed / 2**30:.1f} GiB: "
            f"expected at most 90 % of the {free / 2**30:.1f} GiB that are free"
        )


@contextmanager
def few_threads(job: Job) -> Iterator[None]:
    """One torch thread while the work of one task is small: more would only wait for each other."""
    threads = torch.get_num_threads()
    site = job.problem.sites[0]
    if len(job.problem.flat.start) * site.batch_samples < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _preset(preset: str | Preset) -> Preset:
    if not isinstance(preset, str):
        return preset
    if preset not in PRESETS:
        raise ValueError(f"preset={preset!r}: expected one of {', '.join(PRESETS)}")
    return PRESETS[preset]()


def _device(device: str) -> str:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"device={device!r}: expected a device that is here ({first})") from None
    return device
