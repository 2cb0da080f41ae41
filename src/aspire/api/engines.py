"""A job on an engine: from the first task, or the last checkpoint, to the outcome."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from aspire.api import extending
from aspire.api.checkpointer import Keeper, callbacks_of, facts_of, interrupted
from aspire.api.job import Job
from aspire.api.preparing import prepare
from aspire.api.progress import Progress, progress_of
from aspire.api.run import Run, outcome
from aspire.api.survey import recalled, standardized, surveyed
from aspire.arguments import is_number, real_number, shown, whole_number
from aspire.engines.carrier import Carrier, Engine
from aspire.engines.driver import Drive, Driver, begin
from aspire.engines.serve import Crew
from aspire.engines.status import Board, simulated
from aspire.problem.lazy import initialised
from aspire.problem.problem import AUTO, Site, batch_size_of
from aspire.problem.samples import has_train, named
from aspire.problem.standardization import WHEN_ASKED, Standardization
from aspire.runs import log as events
from aspire.runs.callbacks import Callbacks
from aspire.runs.checkpoint import Saved
from aspire.runs.errors import Lost, Stopped
from aspire.runs.evaluation import Evaluation, FinalFigures, answered, scored
from aspire.runs.figures import Answers
from aspire.runs.folder import RunFolder
from aspire.runs.selection import Watched
from aspire.types import Info, Method, Noted, Stepped

logger = logging.getLogger("aspire")
PATIENCE = 60.0
LIMITS = ("patience", "min_sites", "deadline")
# Options that a resumed run has from run.json.
KEPT = ("log", *LIMITS, "checkpoint_seconds")


def engine_settings(engine: Engine) -> dict[str, Any]:
    """What run.json holds of an engine: its name and its arguments."""
    given = {f.name: getattr(engine, f.name) for f in fields(engine)}  # type: ignore[arg-type]
    return {"name": engine.name, "arguments": given}


def refuse_what_is_simulated(stationarity: bool, arguments: Mapping[str, Any]) -> None:
    given = [name for name in ("delays", "absences") if arguments.get(name)]
    for name in (["stationarity"] if stationarity else []) + given:
        raise ValueError(f"{name} belongs to the simulator: expected no engine with it")


def refuse_what_an_engine_has(
    *, patience: float, min_sites: int | None, deadline: float | None
) -> None:
    given = {"patience": patience, "min_sites": min_sites, "deadline": deadline}
    usual = {"patience": PATIENCE, "min_sites": None, "deadline": None}
    for name, value in given.items():
        if value is None and usual[name] is None:
            continue
        if not is_number(value) or value != usual[name]:
            raise ValueError(
                f"{name}={shown(value)} belongs to an engine: expected one with it, or none"
            )


def check_limits(
    sites: int, *, patience: float, min_sites: int | None, deadline: float | None
) -> None:
    """ValueError where one of them is out of its range."""
    real_number("patience", patience, "a positive number of seconds", above=0.0, finite=False)
    if min_sites is not None:
        whole_number("min_sites", min_sites, most=sites)
    if deadline is not None:
        times = "at least 1, times the others' usual time"
        real_number("deadline", deadline, times, least=1.0, finite=False)


def crew_and_job(
    model: nn.Module, sites: Mapping[str, Any] | Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[Crew, Job]:
    """Workers that are handed a site of this process each, and the job without any data."""
    known = named(sites)
    names = tuple(str(name) for name in known)
    common = dict(arguments)  # one object for all, so that workers of one process travel with one
    trains = [data["train"] if has_train(data) else data for data in known.values()]
    common["batch_size"] = batch_size_of(common.get("batch_size", AUTO), trains)
    model = initialised(model, known, common.get("seed", 0), common.get("collate_fn"))
    job = prepare(model, dict.fromkeys(names), elsewhere=True, **{**common, "device": "cpu"})
    crew = [partial(member, model, names, str(name), data, common) for name, data in known.items()]
    return crew, job


def member(
    model: nn.Module,
    names: Sequence[str],
    name: str,
    data: Any,
    arguments: Mapping[str, Any],
    *,
    standardize: str | Standardization = WHEN_ASKED,
) -> tuple[Method, Site]:
    """One site, where its data is; `standardize`: how its inputs are, if they are."""
    sites = dict.fromkeys(names) | {name: data}
    if arguments.get("standardize"):
        arguments = {**arguments, "standardize": standardize}
    job = prepare(model, sites, elsewhere=True, **arguments)
    return job.method, job.problem.sites[list(sites).index(name)]


def train_on(
    engine: Engine,
    job: Job,
    crew: Crew | None,
    *,
    out: str | Path | None = None,
    log: str | None = None,
    source: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
    min_sites: int | None = None,
    deadline: float | None = None,
    callbacks: Iterable[Any] = (),
    tensorboard: bool = False,
    **options: Any,
) -> Run:
    """A new run; `options` are those of `drive`."""
    limits: dict[str, Any] = {"patience": patience, "min_sites": min_sites, "deadline": deadline}
    check_limits(len(job.problem.names), **limits)
    log = "full" if log is None else log
    events.check_level(log)
    job.settings["log"] = log
    told = callbacks_of(callbacks, out, tensorboard=tensorboard)
    run = uuid.uuid4().hex[:12]
    with nullcontext() if out is None else RunFolder.create(Path(out)) as folder:
        if folder is not None:
            about: dict[str, Any] = {"source": source, "engine": engine_settings(engine)}
            about |= {"run": run, **limits, "tensorboard": tensorboard}
            about |= {name: options[name] for name in KEPT if name in options}
            folder.show(simulated(job.problem.names, {}) | {"clock": "wall"})
            folder.write_settings(job.settings | about)
        try:
            carrier = engine.open(crew, job.problem.names, run)
        except BaseException:
            if folder is not None:
                folder.forget_settings()
            raise
        options |= {"callbacks": told, "folder": folder, "log": log, **limits}
        begun = partial(driven, job, carrier, crew, **options)
        return told.around(facts_of(job, folder, 0), begun)


def resume_on(
    engine: Engine,
    job: Job,
    crew: Crew | None,
    folder: RunFolder,
    settings: Mapping[str, Any],
    limits: Mapping[str, Any],
    callbacks: Iterable[Any] = (),
    **options: Any,
) -> Run:
    """Go on from the last checkpoint, to new `limits` if there are any; workers that are still
    there are found again."""
    options |= {name: settings[name] for name in KEPT if name in settings}
    job = recalled(job, folder.path)
    saved = folder.newest(settings["log"], job.expected(Drive))
    if limits:
        state = saved.state
        extending.check_more(job, limits, state.master.t, state.gradients, state.time)
    told = callbacks_of(callbacks, folder.path, tensorboard=settings.get("tensorboard", False))
    carrier = engine.open(crew, job.problem.names, settings["run"])
    options |= {"callbacks": told, "folder": folder, "saved": saved, "limits": limits}
    facts = facts_of(job, folder, saved.state.master.t)
    return told.around(facts, partial(driven, job, carrier, crew, **options))


def driven(
    job: Job,
    carrier: Carrier,
    crew: Crew | None,
    *,
    folder: RunFolder | None,
    saved: Saved | None = None,
    **options: Any,
) -> Run:
    """What `drive` gives, with what is asked of all sites before; the carrier is closed then."""
    try:
        if saved is None:
            patience = options.get("patience", PATIENCE)
            job = surveyed(job, carrier, crew, folder, patience)
        elif job.problem.standardization is not None:
            by = job.problem.standardization
            carrier.standardize(by, standardized(crew, by))
        return drive(job, carrier, folder=folder, saved=saved, **options)
    finally:
        carrier.close()


def drive(
    job: Job,
    carrier: Carrier,
    *,
    folder: RunFolder | None = None,
    log: str = "full",
    saved: Saved | None = None,
    patience: float = PATIENCE,
    min_sites: int | None = None,
    deadline: float | None = None,
    checkpoint_seconds: float = 60.0,
    callbacks: Callbacks | None = None,
    progress: bool | Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Mapping[str, Any] | None = None,
) -> Run:
    """Run the job over a carrier, from a checkpoint if there is one, to its outcome.

    patience, min_sites, deadline   see `Driver`
    stop       asked after every event; True leaves a checkpoint and raises Interrupted
    limits     to which the run in the checkpoint is extended
    """
    if folder is None:
        trail = events.EventLog(log)
    else:
        trail = folder.log(log) if saved is None else folder.take_up(log, saved)
    if folder is not None and saved is not None and limits:
        extending.extend(folder, trail, saved, limits)
    state = begin(job.method, job.problem.facts(), job.seed) if saved is None else saved.state
    driver = Driver(
        job.method,
        carrier,
        job.problem.names,
        state,
        trail,
        patience=patience,
        min_sites=min_sites,
        deadline=deadline,
    )
    keeper = Keeper(folder, checkpoint_seconds, callbacks or Callbacks())
    history = [] if saved is None else saved.history
    watched = Watched() if saved is None else saved.watched
    course = Course(job, driver, keeper, history, watched)
    try:
        course.board.show(driver, now=True)
        course.checkpoint(now=True)
        with progress_of(progress, job.iterations) as course.progress:
            driver.run(course.over, stop=stop, on_info=course.look, on_turn=course.turn)
        if not course.over(driver.state):
            course.checkpoint(now=True)
            course.board.show(driver, now=True)
            raise interrupted(folder, driver.state.master.t)
        why = {} if job.done(driver.state) else {"reason": course.stopping.reason}
        trail.mark("end", driver.state.master.t, driver.state.master, **why)
        trail.settle()
        return course.end()
    except Lost as error:
        if not course.over(driver.state):
            course.checkpoint(now=True)
        raise Stopped(f"{error}: {interrupted(folder, driver.state.master.t)}") from error
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
        watched: Watched,
    ) -> None:
        self.job = job
        self.driver = driver
        self.keeper = keeper
        self.history = history
        self.progress: Progress | None = None
        self.board = Board(keeper.folder)
        self.watched, self.stopping = watched, job.stopping()
        nobody = np.full(len(driver.names), np.nan)
        self.sizes = (nobody, nobody, nobody)
        self.stop_if_due()  # a run that had ended so, and was not told so

    def over(self, state: Drive) -> bool:
        return self.job.ended_by(state, self.stopping) is not None

    def seconds(self) -> float:
        """That the run has taken, in all the processes that it had."""
        return self.driver.clock() - self.driver.began

    def stop_if_due(self) -> None:
        """Not before enough sites are here: until then `min_sites` and `patience` rule."""
        if self.driver.state.started and not self.over(self.driver.state):
            asked = self.keeper.callbacks.stop
            self.stopping.look(self.watched, self.seconds(), asked=asked)

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
        if due and not self.driver.state.asked and not self.over(self.driver.state):
            self.ask()

    def ask(self) -> None:
        state = self.driver.state
        look = self.driver.look()
        line = {
            "t": state.master.t,
            "time": state.time,
            "gradients": int(state.gradients),
            **look.line(),
        }
        self.driver.ask(self.job.method.model(state.master), line)

    def turn(self) -> None:
        for asked in self.driver.answered():
            figures, self.sizes = answered(asked, len(self.driver.names))
            line = asked.line | scored(figures, self.job.uncertainty)
            self.history.append(line)
            self.watch(asked)
            self.keeper.add(line)
        self.stop_if_due()
        self.checkpoint(now=False)
        self.board.show(self.driver)

    def watch(self, asked: Evaluation) -> None:
        """The newest line, with the model that it is of, which the master has left since."""
        away = self.driver.state.away
        self.watched.look(self.history, away, self.job.select, lambda: asked.w)

    def checkpoint(self, *, now: bool) -> None:
        drive = self.driver.state
        self.keeper.checkpoint(drive.master.t, self.whole, now=now)

    def whole(self) -> Saved:
        """All that a new driver needs."""
        place = self.driver.log.place()
        return Saved(self.driver.state, self.history, place, watched=self.watched)

    def end(self) -> Run:
        """The last evaluation, and the outcome."""
        self.ask()
        while self.driver.state.asked:
            for arrival in self.driver.receive():
                self.driver.listen(arrival)
            self.turn()
        self.checkpoint(now=True)
        state = self.driver.state
        run = outcome(
            *(self.job, state, self.history, self.seconds()),
            sizes=self.sizes,
            watched=self.watched,
            ended_by=self.job.ended_by(state, self.stopping),
            ask=self.figures,
        )
        if self.keeper.folder is not None:
            run.save_outcome(self.keeper.folder)
            self.board.show(self.driver, now=True, ended=True)
        return run

    def figures(self, w: Tensor) -> Answers:
        """Of the sites that answered the last evaluation; {} of the others."""
        losses = self.history[-1]["losses"]
        absent: dict[int, dict[str, float]] = {
            j: {} for j, loss in enumerate(losses) if loss is None or np.isnan(loss)
        }
        asked = FinalFigures(
            *(0, w, {}, 0.0, absent), bound=self.job.loss_bound, metrics=self.job.metrics or ()
        )
        self.driver.ask_at_the_end(asked)
        while not (found := self.driver.answered()):
            for arrival in self.driver.receive():
                self.driver.listen(arrival)
        return [found[0].answers.get(j, {}) for j in range(len(losses))]
