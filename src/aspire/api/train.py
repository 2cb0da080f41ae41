"""`train`, and what goes on after it: `resume` and `replay`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from aspire.api import extending
from aspire.api.checkpointer import Keeper, callbacks_of, facts_of, interrupted
from aspire.api.engines import (
    PATIENCE,
    crew_and_job,
    refuse_what_an_engine_has,
    refuse_what_is_simulated,
    resume_on,
    train_on,
)
from aspire.api.job import Job, few_threads, refuse_too_large
from aspire.api.options import check_names, check_options
from aspire.api.preparing import prepare
from aspire.api.progress import Progress, progress_of
from aspire.api.run import Run, outcome
from aspire.api.survey import recalled
from aspire.engines.carrier import Engine
from aspire.engines.serve import Crew, say_conversions
from aspire.engines.status import simulated
from aspire.problem.failures import told
from aspire.runs import checkpoint
from aspire.runs import files as rundir
from aspire.runs import log as events
from aspire.runs.callbacks import check_callbacks
from aspire.runs.errors import Interrupted, Stopped
from aspire.runs.evaluation import scored
from aspire.runs.folder import RunFolder, read_settings
from aspire.runs.hashes import digest
from aspire.runs.selection import Watched
from aspire.simulator import simulator
from aspire.simulator.replay import replay_log
from aspire.types import look_at

logger = logging.getLogger("aspire")


def train(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    out: str | Path | None = None,
    log: str | None = None,
    stationarity: bool = False,
    callbacks: Iterable[Any] = (),
    progress: bool | Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 60.0,
    tensorboard: bool = False,
    source: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    patience: float = PATIENCE,
    min_sites: int | None = None,
    deadline: float | None = None,
    **arguments: Any,
) -> Run:
    """Train `model` over `sites` so that the worst of them is served well.

    model           any torch.nn.Module; it is left as it is. The one that comes back is in its
                    modes: call eval() before it is used
    sites           a list or a mapping name -> site; a site is its samples, or a mapping with
                    'train' and optionally 'val' and 'test'. Samples are (inputs, targets), a
                    DataFrame with its target column, a Dataset, a DataLoader and more, see
                    docs/guide.md
    loss            'cross_entropy', 'mse', 'bce' on logits, or callable(output, target) -> mean
    collate_fn      how a list of samples becomes a batch, such as one that pads them; None: torch's
    uncertainty     how far the adversary may shift weight; None: CDNorm(radius=1/N, budget=N)
    iterations      master steps; gradients: worker gradients. The run ends with what is first;
                    with neither, after 2,000 steps
    method          None: aspire(...) with the arguments below
    form            'consensus', 'direct' or None: consensus for one linear layer, else direct
    quorum, staleness, local_steps      of both forms, see `aspire`
    optimizer, schedule, learning_rate, accumulate, clip, reference    of the direct form;
                    reference: numbers by site, a model, or 'own-best', see docs/methods.md
    preset, pull_bound                  of the consensus form; preset 'auto', 'paper', 'theorem1'
    buffers         batch-norm statistics: 'average' over the sites, or 'site': each has its own
    precision       'float32', or 'bf16': sites compute under autocast
    execution       how gradients are computed: 'plain', 'channels_last', 'rows' or 'compiled', see
                    docs/performance.md. 'auto': in the direct form, the fastest that serves
    batch_size      samples in a gradient; None: the whole site; 'auto': as the sites' DataLoaders
                    have it, else 64
    standardize     inputs with mean 0 and std 1 over all training parts; True: the sums of the
                    sites say how, and the model that comes back does it itself
    weight_decay    direct form: of AdamW, decoupled; else adds weight_decay/2 |w|^2 to every loss
    delays          virtual time of a task; None: LogNormal(1, 0.4); absences: who is away when
    device, seed    the same seed gives the same bytes on the simulator
    evaluate_every  master steps between two lines of history; 0: only at the end; None: a 20th of
                    `iterations`, or of `gradients` where that is all that is given.
                    A line has every site's loss on its training part, that on its test part, and
                    its accuracy on the test part, or else on the training part; loss and accuracy
                    on its validation part, where it has one
    select          which evaluation's model is given back: 'worst_loss', 'worst_accuracy' (the best
                    by the worst site on validation parts) or 'last'; None: 'worst_loss' where every
                    site has a validation part, else 'last'
    patience_evaluations   end the run when the worst validation figure, or the worst training loss
                    where there is none, has not improved for so many evaluations; None: never
    max_seconds     end the run after so many seconds, those before a resume counted; None: never
    metrics         figures at the end, besides loss and accuracy: names of torchmetrics ('auroc',
                    'f1', 'mae', ...), or a mapping name -> name, torchmetrics object or
                    callable(outputs, targets) -> number
    loss_bound      where the certificate cuts off the loss of a sample; None: at log(10 classes)
    out             a new folder for run.json, events.jsonl, history.jsonl, model and result
    log             'full', 'digest', 'off' or 'vectors': what events.jsonl holds. None: 'full' with
                    `out`; without, 'digest', since nothing would keep the events
    stationarity    compute the gap of Definition 1 at the end: N full gradients
    stop            asked between events; True leaves a checkpoint in `out` and raises Interrupted,
                    which says how to continue
    checkpoint_seconds   how often a run with `out` is checkpointed
    callbacks       objects that are told of the run while it goes on, such as trackers: see
                    docs/trackers.md
    progress        True: a bar on standard error; or a function that is called with the number of
                    steps after each of them
    tensorboard     write the history to out/tensorboard as well
    engine          where the sites' work is done; None: the simulator. Ray(): processes
    patience        on an engine: a site that is silent for so many seconds is declared away
    min_sites       on an engine: sites that must have answered before the training starts, within
                    `patience` seconds; None: all
    deadline        on an engine: a site that a step has to wait for is declared away when it takes
                    so many times as long as the others usually do; None: no limit
    source          written to run.json: what the arguments were made of

    Returns the trained model, its figures and its history.
    """
    check_names(arguments, KNOWN)
    if log is None:
        log = "full" if engine is not None or out is not None else "digest"
    check_options(
        out=out,
        log=log,
        engine=engine,
        callbacks=callbacks,
        progress=progress,
        stop=stop,
        checkpoint_seconds=checkpoint_seconds,
        source=source,
        flags={"stationarity": stationarity, "tensorboard": tensorboard},
    )
    if engine is not None:
        refuse_what_is_simulated(stationarity, arguments)
        crew, job = crew_and_job(model, sites, arguments)
        return train_on(
            engine,
            job,
            crew,
            out=out,
            log=log,
            source=source,
            patience=patience,
            min_sites=min_sites,
            deadline=deadline,
            checkpoint_seconds=checkpoint_seconds,
            callbacks=callbacks,
            progress=progress,
            stop=stop,
            tensorboard=tensorboard,
        )
    refuse_what_an_engine_has(patience=patience, min_sites=min_sites, deadline=deadline)
    job = prepare(model, sites, **arguments)
    say_conversions(note for site in job.problem.sites for note in site.notes)
    refuse_too_large(job, kept=out is not None)
    simulation = job.begin()
    events.check_level(log)
    job.settings["log"] = log
    told = callbacks_of(callbacks, out, tensorboard=tensorboard)
    with nullcontext() if out is None else RunFolder.create(Path(out)) as folder:
        if folder is not None:
            folder.show(simulated(job.problem.names, {}))
            kept = {"source": source, "checkpoint_seconds": checkpoint_seconds}
            folder.write_settings(job.settings | kept)
        simulation.log = events.EventLog(log) if folder is None else folder.log(log)
        keeper = Keeper(folder, checkpoint_seconds, told)
        keeper.checkpoint(0, lambda: whole(simulation, [], keeper.elapsed()), now=True)
        return _finish(job, simulation, keeper, [], Watched(), stationarity, progress, stop)


def _whole_signature() -> inspect.Signature:
    """`train` with the arguments of `prepare` spelled out, for help() and editors."""
    ours = inspect.signature(train).parameters
    both = {**inspect.signature(prepare).parameters, **ours}
    del both["arguments"], both["elsewhere"]
    return inspect.Signature(list(both.values()), return_annotation=Run)


train.__signature__ = _whole_signature()  # type: ignore[attr-defined]
KNOWN = tuple(inspect.signature(train).parameters)


def resume(
    directory: str | Path,
    job: Job,
    *,
    stationarity: bool = False,
    callbacks: Iterable[Any] = (),
    progress: bool | Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 60.0,
    engine: Engine | None = None,
    crew: Crew | None = None,
    iterations: int | None = None,
    gradients: int | None = None,
    patience_evaluations: int | None = None,
    max_seconds: float | None = None,
) -> Run:
    """Go on from the last checkpoint of a run.

    directory     of the run
    job           what `prepare` makes of the arguments that the run had
    engine, crew  those that started it; None: the simulator
    stationarity, callbacks, progress, stop, checkpoint_seconds   as in `train`

    Returns the run, from its first iteration to its last.
    `iterations`, `gradients`, `patience_evaluations` and `max_seconds` take the place of those that
    the run had; with one of them a run that has ended goes on, too. They are totals: a run of 100
    iterations goes on for 100 more with iterations=200.
    """
    path = Path(directory)
    check_callbacks(callbacks)
    settings = read_settings(path)
    for name, value in rundir.plain(job.settings).items():
        if name != "versions" and settings.get(name) != value:
            raise ValueError(f"{path}: {name} was {settings.get(name)}: expected it, not {value}")
    if engine is not None:
        refuse_what_is_simulated(stationarity, {})
    given: dict[str, Any] = {"iterations": iterations, "gradients": gradients}
    given |= {"patience_evaluations": patience_evaluations, "max_seconds": max_seconds}
    limits = extending.checked(given, job.evaluate_every)
    job = extending.extended(extending.in_force(job, settings), limits, settings)
    with RunFolder.open(path, extend=bool(limits)) as folder, blaming_the_checkpoint(path):
        if engine is not None:
            return resume_on(
                engine,
                job,
                crew,
                folder,
                settings,
                limits,
                checkpoint_seconds=checkpoint_seconds,
                callbacks=callbacks,
                progress=progress,
                stop=stop,
            )
        simulation = job.begin()
        saved = folder.newest(settings["log"], job.expected(simulator.Standing))
        simulation.stand(saved.state)
        if limits:
            done = simulation.master.t, simulation.gradients, saved.seconds
            extending.check_more(job, limits, *done)
        simulation.log = folder.take_up(settings["log"], saved)
        told = callbacks_of(callbacks, path, tensorboard=False)
        seconds = settings.get("checkpoint_seconds", checkpoint_seconds)
        keeper = Keeper(folder, seconds, told, spent=saved.seconds)
        history = saved.history
        watched = saved.watched
        if limits:
            extending.extend(folder, simulation.log, saved, limits)
            point = lambda: whole(simulation, history, keeper.elapsed(), watched)  # noqa: E731
            keeper.checkpoint(simulation.master.t, point, now=True)
        return _finish(job, simulation, keeper, history, watched, stationarity, progress, stop)


@contextmanager
def blaming_the_checkpoint(path: Path) -> Iterator[None]:
    """One that was made up can hold numbers that no run has, and no check knows them all."""
    try:
        yield
    except (ValueError, OSError, ImportError, Stopped, Interrupted):
        raise
    except Exception as error:
        raise Stopped(
            f"{path}: the resumed run broke down with {told(error)}: either its checkpoint holds "
            "a state that no run of this job has, or this is a mistake of ours"
        ) from error


def replay(directory: str | Path, job: Job) -> tuple[int, str]:
    """Absorb the events of a run again; ValueError, or `Differs`, where the state is another.

    directory  of the run
    job        what `prepare` makes of the arguments that the run had

    Returns the number of events, and the hash of the state. A log of level `digest` has no events
    to follow, so the run itself is repeated.
    """
    folder = Path(directory)
    settings = read_settings(folder)
    job = extending.in_force(job, settings)
    level = settings["log"]
    alone = settings.get("engine") is not None
    path = folder / events.NAME
    if level == "off" or (level == "digest" and alone):
        raise ValueError(
            f"{folder}: the run was logged at level {level}, so its events cannot be replayed"
        )
    if level == "full" and (settings.get("engine") or {}).get("name") == "federation":
        raise ValueError(
            f"{folder}: the sites of a federation draw their batches by secret keys, so their "
            "reports cannot be computed again: expected a log of level vectors"
        )
    if alone:
        job = recalled(job, folder)
    if level == "vectors":
        return replay_log(job.method, job.problem, path, job.seed, kept=True)
    check_execution(folder, settings, job)
    if level == "full":
        with few_threads(job, one=alone):
            return replay_log(job.method, job.problem, path, job.seed, alone=alone)
    end = events.read(path)[1]
    if end is None:
        raise ValueError(f"{path} has no end mark: the run did not finish")
    if end.get("reason") is not None:  # it ended before its limits, for what no replay can know
        job = replace(job, iterations=min(job.iterations, end["t"]))
    simulation = job.begin()
    simulation.log = again = events.EventLog("digest")
    with few_threads(job):
        simulator.run(simulation, job.done)
    state = digest(simulation.master)
    if state != end["state"]:
        raise ValueError(f"the state is {state[:16]} and the log says {end['state'][:16]}")
    return again.count, state


def check_execution(folder: Path, settings: Mapping[str, Any], job: Job) -> None:
    """ValueError where the job computes gradients in another way than the run did."""
    was = settings.get("execution")
    now = job.settings.get("execution")
    if was is not None and was != now:
        raise ValueError(f"{folder}: execution was {was}: expected it, not {now}")


def whole(
    simulation: simulator.Simulation,
    history: list[dict[str, Any]],
    seconds: float,
    watched: Watched | None = None,
) -> checkpoint.Saved:
    """All that `resume` needs besides the job."""
    place = simulation.log.place()
    return checkpoint.Saved(simulation.standing(), history, place, seconds, watched or Watched())


def finish(job: Job, simulation: simulator.Simulation, stop: Callable[[], bool]) -> Run:
    """The rest of a run that has no folder, evaluated from here on."""
    return _finish(job, simulation, Keeper(None, 0.0), [], Watched(), False, None, stop)


def _finish(
    job: Job,
    simulation: simulator.Simulation,
    keeper: Keeper,
    history: list[dict[str, Any]],
    watched: Watched,
    stationarity: bool,
    progress: bool | Progress | None,
    stop: Callable[[], bool],
) -> Run:
    """From where the simulation stands to the end, with the callbacks told of both."""

    def train() -> Run:
        with progress_of(progress, job.iterations) as shown:
            return _to_the_end(job, simulation, keeper, history, watched, stationarity, shown, stop)

    facts = facts_of(job, keeper.folder, simulation.master.t)
    return keeper.callbacks.around(facts, train)


def _to_the_end(
    job: Job,
    simulation: simulator.Simulation,
    keeper: Keeper,
    history: list[dict[str, Any]],
    watched: Watched,
    stationarity: bool,
    progress: Progress | None,
    stop: Callable[[], bool],
) -> Run:
    """From where the simulation stands to the end, with everything that is written on the way."""

    stopping = job.stopping()

    def over(simulation: simulator.Simulation) -> bool:
        return job.ended_by(simulation, stopping) is not None

    def keep(*, now: bool) -> None:
        saved = lambda: whole(simulation, history, keeper.elapsed(), watched)  # noqa: E731
        keeper.checkpoint(simulation.master.t, saved, now=now)

    def look(simulation: simulator.Simulation) -> None:
        if progress is not None:
            progress(simulation.master.t)
        _evaluate_if_due(job, simulation, keeper, history, watched)
        if not over(simulation):
            stopping.look(watched, keeper.elapsed(), asked=keeper.callbacks.stop)
        keep(now=False)

    if simulation.master.t:  # it may have ended so, and was killed before it could say so
        stopping.look(watched, keeper.elapsed())
    try:
        with few_threads(job):
            simulator.run(
                simulation,
                lambda s: over(s) or stop(),
                on_step=look,
                on_note=lambda note: logger.info(note.text),
            )
            if not over(simulation):
                keep(now=True)
                raise interrupted(keeper.folder, simulation.master.t)
            _evaluate_at_the_end(job, simulation, keeper, history, watched)
            why = {} if job.done(simulation) else {"reason": stopping.reason}
            simulation.log.mark("end", simulation.master.t, simulation.master, **why)
            simulation.log.settle()
            keep(now=True)
            gap = _gap(job, simulation.master) if stationarity else None
    finally:
        simulation.log.close()
    run = outcome(
        job,
        simulation,
        history,
        keeper.elapsed(),
        sizes=job.problem.sizes(),
        virtual_seconds=simulation.time,
        gap=gap,
        watched=watched,
        ended_by=job.ended_by(simulation, stopping),
        ask=lambda w: job.problem.figures(w, job.loss_bound),
    )
    if keeper.folder is not None:
        run.save_outcome(keeper.folder)
        keeper.show(simulated(job.problem.names, history[-1]) | {"ended": True})
    return run


def _evaluate_if_due(
    job: Job,
    simulation: simulator.Simulation,
    keeper: Keeper,
    history: list[dict[str, Any]],
    watched: Watched,
) -> None:
    t = simulation.master.t
    if job.evaluate_every and t % job.evaluate_every == 0 and not job.done(simulation):
        history.append(evaluate(job, simulation))
        _watch(job, simulation, history, watched)
        keeper.add(history[-1])
        keeper.show(simulated(job.problem.names, history[-1]))
        simulation.log.mark("evaluation", t, None)


def _evaluate_at_the_end(
    job: Job,
    simulation: simulator.Simulation,
    keeper: Keeper,
    history: list[dict[str, Any]],
    watched: Watched,
) -> None:
    """The last line is of the last event, which need not have ended a step."""
    line = evaluate(job, simulation)
    now = ("t", "time", "gradients")
    if not history or any(history[-1][name] != line[name] for name in now):
        history.append(line)
        _watch(job, simulation, history, watched)
        keeper.add(line)
    keeper.show(simulated(job.problem.names, line))


def _watch(
    job: Job,
    simulation: simulator.Simulation,
    history: list[dict[str, Any]],
    watched: Watched,
) -> None:
    """Who is away counts at no evaluation, as on an engine."""
    away = {absence["site"] for absence in simulation.absences if absence["to"] is None}
    watched.look(history, away, job.select, lambda: job.method.model(simulation.master))


def evaluate(job: Job, simulation: simulator.Simulation) -> dict[str, Any]:
    """One line of history: every site at model(master), whether it is present or not."""
    w = job.method.model(simulation.master)
    figures = job.problem.scores(w)
    odd = np.flatnonzero(~np.isfinite(figures.train_losses))
    if len(odd):
        first = job.problem.names[odd[0]]
        t = simulation.master.t
        raise Stopped(f"the loss of site {first!r} is not finite after {t} steps")
    look = look_at(job.method, simulation.master, len(job.problem.names))
    return {
        "t": simulation.master.t,
        "time": simulation.time,
        "gradients": int(simulation.gradients),
        **scored(figures, job.uncertainty),
        **look.line(),
    }


def _gap(job: Job, master: Any) -> float | None:
    sites = job.problem.sites
    gap = look_at(job.method, master, len(sites)).gap
    if gap is None:
        return None
    return gap(
        lambda j, w: sites[j].full_gradient(w),
        lambda j, w: sites[j].full_loss(w),
    )
