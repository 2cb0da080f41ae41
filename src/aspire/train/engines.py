"""A job on an engine: from the first task, or the last checkpoint, to the outcome."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from aspire.native import keep_memory
from aspire.problem import Site
from aspire.runtimes import checkpoint, rundir
from aspire.runtimes import log as events
from aspire.runtimes.driver import TICK, Carrier, Driver, Engine, begin
from aspire.runtimes.evaluation import evaluated_on, history_line
from aspire.runtimes.metrics import scalars_of
from aspire.runtimes.serve import Crew
from aspire.runtimes.status import Board
from aspire.train.job import Interrupted, Job, prepare
from aspire.train.keeper import Keeper
from aspire.train.run import Run, outcome
from aspire.types import Info, Method, Noted, Stepped

logger = logging.getLogger("aspire")
PATIENCE = 60.0
KEPT = ("checkpoint_seconds", "tensorboard")  # options that a resumed run has from run.json


def engine_settings(engine: Engine) -> dict[str, Any]:
    """What run.json holds of an engine: its name and its arguments."""
    given = {f.name: getattr(engine, f.name) for f in fields(engine)}  # type: ignore[arg-type]
    return {"name": engine.name, "arguments": given}


def refuse_what_is_simulated(stationarity: bool, arguments: Mapping[str, Any]) -> None:
    given = [name for name in ("delays", "absences", "exact") if arguments.get(name)]
    for name in (["stationarity"] if stationarity else []) + given:
        raise ValueError(f"{name} belongs to the simulator: expected no engine with it")


def crew_and_job(
    model: nn.Module, sites: Mapping[str, Any] | Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[Crew, Job]:
    """Workers that are handed a site of this process each, and the job without any data."""
    named = dict(sites) if isinstance(sites, Mapping) else dict(enumerate(sites))
    names = tuple(str(name) for name in named)
    job = prepare(model, dict.fromkeys(names), elsewhere=True, **{**arguments, "device": "cpu"})
    crew = [
        partial(member, model, names, str(name), data, dict(arguments))
        for name, data in named.items()
    ]
    return crew, job


def member(
    model: nn.Module, names: Sequence[str], name: str, data: Any, arguments: Mapping[str, Any]
) -> tuple[Method, Site]:
    sites = dict.fromkeys(names) | {name: data}
    job = prepare(model, sites, elsewhere=True, **arguments)
    return job.method, job.problem.sites[list(sites).index(name)]


def train_on(
    engine: Engine,
    job: Job,
    crew: Crew | None,
    *,
    out: str | Path | None = None,
    log: str = "full",
    source: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
    **options: Any,
) -> Run:
    """A new run; `options` are those of `drive`."""
    if not patience > 0:
        raise ValueError(f"patience={patience}: expected a positive number of seconds")
    events.check_level(log)
    folder = None if out is None else rundir.create(Path(out))
    job.settings["log"] = log
    run = uuid.uuid4().hex[:12]
    if folder is not None:
        about: dict[str, Any] = {"source": source, "engine": engine_settings(engine)}
        about |= {"run": run, "patience": patience}
        about |= {name: options[name] for name in KEPT if name in options}
        rundir.write_json(folder / rundir.RUN, job.settings | about)
    try:
        carrier = engine.open(crew, job.problem.names, run)
    except BaseException:
        if folder is not None:
            (folder / rundir.RUN).unlink()
        raise
    try:
        return drive(job, carrier, folder=folder, log=log, patience=patience, **options)
    finally:
        carrier.close()


def resume_on(
    engine: Engine, job: Job, crew: Crew | None, folder: Path, settings: Mapping[str, Any],
    **options: Any,
) -> Run:  # fmt: skip
    """Go on from the last checkpoint; workers that are still there are found again."""
    options |= {name: settings[name] for name in ("log", "patience", *KEPT) if name in settings}
    state = checkpoint.latest(folder)
    carrier = engine.open(crew, job.problem.names, settings["run"])
    try:
        return drive(job, carrier, folder=folder, state=state, **options)
    finally:
        carrier.close()


def drive(
    job: Job,
    carrier: Carrier,
    *,
    folder: Path | None = None,
    log: str = "full",
    state: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
    checkpoint_seconds: float = 60.0,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    tensorboard: bool = False,
) -> Run:
    """Run the job over a carrier, from a checkpoint if `state` is one, to its outcome.

    patience   seconds without a word after which a site that holds a task is declared away
    stop       asked after every event; True leaves a checkpoint and raises Interrupted
    """
    keep_memory()
    path = None if folder is None else folder / events.NAME
    if state is None:
        state = {"drive": begin(job.method, job.problem.facts(), job.seed)}
    elif folder is not None:
        rundir.write_lines(folder / rundir.HISTORY, state["history"])
    trail = events.EventLog(log, path, state.get("log"))
    driver = Driver(
        job.method, carrier, job.problem.names, state["drive"], trail, patience=patience
    )
    scalars = scalars_of(folder, job.problem.names, wanted=tensorboard)
    keeper = Keeper(folder, checkpoint_seconds, scalars)
    course = Course(job, driver, keeper, list(state.get("history", [])), progress)
    try:
        course.checkpoint(now=True)
        driver.run(job.done, stop=stop, on_info=course.look, on_turn=course.turn)
        if not job.done(driver.state):
            course.checkpoint(now=True)
            raise Interrupted(f"stopped after {driver.state.master.t} iterations")
        trail.mark("end", driver.state.master.t, driver.state.master)
        return course.end()
    finally:
        trail.close()


class Course:
    """What happens beside the training: evaluation, history, checkpoints, status."""

    def __init__(
        self,
        job: Job,
        driver: Driver,
        keeper: Keeper,
        history: list[dict[str, Any]],
        progress: Callable[[int], None] | None,
    ) -> None:
        self.job, self.driver, self.keeper, self.history = job, driver, keeper, history
        self.progress, self.board = progress, Board(keeper.folder)
        self.evaluated_on = "mixed"
        self.began = time.perf_counter()

    def look(self, info: Info) -> None:
        """After each step; an evaluation that is due while another is out is left out."""
        if isinstance(info, Noted):
            logger.info(info.text)
        if not isinstance(info, Stepped):
            return
        t = info.t + 1
        if self.progress is not None:
            self.progress(t)
        due = self.job.evaluate_every and t % self.job.evaluate_every == 0
        if due and not self.driver.state.asked and not self.job.done(self.driver.state):
            self.ask()

    def ask(self) -> None:
        state, method = self.driver.state, self.job.method
        line = {
            "t": state.master.t,
            "time": state.time,
            "gradients": int(state.gradients),
            "weights": method.weights(state.master).tolist(),
            "planes": method.planes(state.master),
        }
        self.driver.ask(method.model(state.master), line)

    def turn(self) -> None:
        for asked in self.driver.answered():
            line = history_line(asked, len(self.driver.names), self.job.uncertainty)
            self.evaluated_on = evaluated_on(asked)
            self.history.append(line)
            self.keeper.add(line)
        self.checkpoint(now=False)
        self.board.show(self.driver)

    def checkpoint(self, *, now: bool) -> None:
        drive = self.driver.state
        self.keeper.checkpoint(drive.master.t, self.whole, now=now)

    def whole(self) -> dict[str, Any]:
        """All that a new driver needs."""
        log = self.driver.log.state()
        return {"drive": self.driver.state, "history": self.history, "log": log}

    def end(self) -> Run:
        """The last evaluation, and the outcome."""
        self.ask()
        while self.driver.state.asked:
            for arrival in self.driver.carrier.receive(TICK):
                self.driver.listen(arrival)
            self.turn()
        seconds = time.perf_counter() - self.began
        run = outcome(
            self.job, self.driver.state, self.history, seconds, evaluated_on=self.evaluated_on
        )
        if self.keeper.folder is not None:
            run.save_outcome(self.keeper.folder)
            checkpoint.clear(self.keeper.folder)
            self.board.show(self.driver, now=True, ended=True)
        return run
