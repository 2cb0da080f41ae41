"""`train`, and what goes on after it: `resume` and `replay`."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from aspire.runtimes import blocks, checkpoint, rundir, simulator
from aspire.runtimes import log as events
from aspire.runtimes.driver import Engine
from aspire.runtimes.metrics import scalars_of
from aspire.runtimes.replay import replay_log
from aspire.runtimes.serve import Crew
from aspire.train.engines import (
    PATIENCE,
    crew_and_job,
    refuse_what_is_simulated,
    resume_on,
    train_on,
)
from aspire.train.job import Interrupted, Job, few_threads, prepare, refuse_too_large
from aspire.train.keeper import Keeper
from aspire.train.run import Run, outcome

logger = logging.getLogger("aspire")
APART = {
    "method",
    "problem",
    "delays",
    "seed",
    "log",
    "evaluate",
}  # of a Simulation: the job brings these


def train(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    out: str | Path | None = None,
    log: str | None = None,
    stationarity: bool = False,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 60.0,
    tensorboard: bool = False,
    source: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    patience: float = PATIENCE,
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
    pull_bound      limit on one site's pull, in medians; None: off, as in the paper
    batch_size      samples in a gradient; None: the whole site
    weight_decay    adds weight_decay/2 |w|^2 to every site's loss
    delays          virtual time of a task; None: LogNormal(1, 0.4); absences: who is away when
    device, seed    the same seed gives the same bytes
    evaluate_every  master steps between two lines of history; 0: only at the end
    exact           every task by itself, event by event: the bytes of one worker at a time, slower
    out             a new folder for run.json, events.jsonl, history.jsonl, model and result
    log             'full', 'digest', 'off' or 'vectors': what events.jsonl holds. None: 'full' with
                    `out`; without, nothing keeps the events and blocks of steps go faster
    stationarity    compute Definition 1 at the end: N full gradients
    stop            asked between events; True leaves a checkpoint in `out` and raises Interrupted
    checkpoint_seconds   how often a run with `out` is checkpointed
    tensorboard     write the history to out/tensorboard as well
    engine          where the sites' work is done; None: the simulator. Ray(): processes
    patience        on an engine: a site that is silent for so many seconds is declared away
    """
    if log is None:
        log = "full" if engine is not None or out is not None else "digest"
    if engine is not None:
        refuse_what_is_simulated(stationarity, arguments)
        crew, job = crew_and_job(model, sites, arguments)
        return train_on(
            engine, job, crew, out=out, log=log, source=source, patience=patience,
            checkpoint_seconds=checkpoint_seconds, progress=progress, stop=stop,
            tensorboard=tensorboard,
        )  # fmt: skip
    job = prepare(model, sites, **arguments)
    refuse_too_large(job, kept=out is not None)
    simulation = job.begin()
    events.check_level(log)
    folder = None if out is None else rundir.create(Path(out))
    job.settings["log"] = log
    path = None
    if folder is not None:
        path = folder / events.NAME
        rundir.write_json(folder / rundir.RUN, job.settings | {"source": source})
    simulation.log = events.EventLog(log, path)
    scalars = scalars_of(folder, job.problem.names, wanted=tensorboard)
    keeper = Keeper(folder, checkpoint_seconds, scalars)
    keeper.checkpoint(0, lambda: whole(simulation, []), now=True)
    return _finish(job, simulation, keeper, [], stationarity, progress, stop)


def _whole_signature() -> inspect.Signature:
    """`train` with the arguments of `prepare` spelled out, for help() and editors."""
    ours = inspect.signature(train).parameters
    both = {**inspect.signature(prepare).parameters, **ours}
    del both["arguments"], both["elsewhere"]
    return inspect.Signature(list(both.values()), return_annotation=Run)


train.__signature__ = _whole_signature()  # type: ignore[attr-defined]


def resume(
    directory: str | Path,
    job: Job,
    *,
    stationarity: bool = False,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 60.0,
    engine: Engine | None = None,
    crew: Crew | None = None,
) -> Run:
    """Go on from the last checkpoint of a run, with the job, engine and crew that started it."""
    folder = Path(directory)
    if (folder / rundir.RESULT).exists():
        raise ValueError(f"{folder}: the run has ended, so there is nothing to resume")
    settings = rundir.read_json(folder / rundir.RUN)
    for name, value in rundir.plain(job.settings).items():
        if name != "versions" and settings.get(name) != value:
            raise ValueError(f"{folder}: {name} was {settings.get(name)}: expected it, not {value}")
    if engine is not None:
        return resume_on(
            engine, job, crew, folder, settings,
            checkpoint_seconds=checkpoint_seconds, progress=progress, stop=stop,
        )  # fmt: skip
    state = checkpoint.latest(folder, str(job.problem.flat.start.device))
    simulation = job.begin()
    for name, value in state["simulation"].items():
        setattr(simulation, name, value)
    simulation.log = events.EventLog(settings["log"], folder / events.NAME, state["log"])
    rundir.write_lines(folder / rundir.HISTORY, state["history"])
    scalars = scalars_of(folder, job.problem.names, wanted=False)
    keeper = Keeper(folder, checkpoint_seconds, scalars)
    return _finish(job, simulation, keeper, state["history"], stationarity, progress, stop)


def replay(directory: str | Path, job: Job) -> tuple[int, str]:
    """Absorb the events of a run again; the number of events and the state's hash if equal.

    A log of level `digest` has no events to follow, so the run itself is repeated.
    """
    folder = Path(directory)
    settings = rundir.read_json(folder / rundir.RUN)
    level, alone = settings["log"], settings.get("engine") is not None
    path = folder / events.NAME
    if level == "off" or (level == "digest" and alone):
        raise ValueError(
            f"{folder}: the run was logged at level {level}, so its events cannot be replayed"
        )
    if level == "vectors":
        return replay_log(job.method, job.problem, path, job.seed, kept=True)
    if level == "full":
        with few_threads(job, one=alone):
            return replay_log(job.method, job.problem, path, job.seed, exact=alone or job.exact)
    end = events.read(path)[1]
    if end is None:
        raise ValueError(f"{path} has no end mark: the run did not finish")
    simulation = job.begin()
    simulation.log = again = events.EventLog("digest")
    with few_threads(job):
        _advance(job, simulation, job.done)
    state = events.digest(simulation.master)
    if state != end["state"]:
        raise ValueError(f"the state is {state[:16]} and the log says {end['state'][:16]}")
    return again.count, state


def whole(simulation: simulator.Simulation, history: list[dict[str, Any]]) -> dict[str, Any]:
    """All that `resume` needs besides the job."""
    simulation.desk.settle(simulation.evaluate)
    named = {f.name: getattr(simulation, f.name) for f in fields(simulation)}
    state = {name: value for name, value in named.items() if name not in APART}
    return {"simulation": state, "history": history, "log": simulation.log.state()}


def _finish(
    job: Job,
    simulation: simulator.Simulation,
    keeper: Keeper,
    history: list[dict[str, Any]],
    stationarity: bool,
    progress: Callable[[int], None] | None,
    stop: Callable[[], bool],
) -> Run:
    """From where the simulation stands to the end, with everything that is written on the way."""
    began = time.perf_counter()

    def look(simulation: simulator.Simulation) -> None:
        if progress is not None:
            progress(simulation.master.t)
        _evaluate_if_due(job, simulation, keeper, history)
        keeper.checkpoint(simulation.master.t, lambda: whole(simulation, history), now=False)

    try:
        with few_threads(job):
            _advance(
                job,
                simulation,
                lambda s: job.done(s) or stop(),
                on_step=look,
                on_note=lambda note: logger.info(note.text),
                whole=keeper.due,
            )
            if not job.done(simulation):
                t = simulation.master.t
                keeper.checkpoint(t, lambda: whole(simulation, history), now=True)
                raise Interrupted(f"stopped after {simulation.master.t} iterations")
            simulation.log.mark("end", simulation.master.t, simulation.master)
            gap = _gap(job, simulation.master) if stationarity else None
    finally:
        simulation.log.close()
    seconds = time.perf_counter() - began
    on = job.problem.evaluated_on
    run = outcome(job, simulation, history, seconds, evaluated_on=on, gap=gap)
    if keeper.folder is not None:
        run.save_outcome(keeper.folder)
        checkpoint.clear(keeper.folder)
    return run


def _advance(
    job: Job,
    simulation: simulator.Simulation,
    done: Callable[[simulator.Simulation], bool],
    *,
    whole: Callable[[], bool] = lambda: False,
    **looks: Any,
) -> None:
    """By whole blocks where they can serve, else event by event."""
    if not (math.isinf(job.gradients) and blocks.fits(simulation)):
        simulator.run(simulation, done, **looks)
        return
    every = job.evaluate_every or blocks.LOOK
    blocks.run(simulation, done, last=int(job.iterations), every=every, whole=whole, **looks)


def _evaluate_if_due(
    job: Job,
    simulation: simulator.Simulation,
    keeper: Keeper,
    history: list[dict[str, Any]],
) -> None:
    last, t = job.done(simulation), simulation.master.t
    if last or (job.evaluate_every and t % job.evaluate_every == 0):
        history.append(evaluate(job, simulation))
        keeper.add(history[-1])
        if not last:
            simulation.log.mark("evaluation", t, None)


def evaluate(job: Job, simulation: simulator.Simulation) -> dict[str, Any]:
    """One line of history: every site at model(master), whether it is present or not."""
    w = job.method.model(simulation.master)
    losses, accuracies = job.problem.scores(w)
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
