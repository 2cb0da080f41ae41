"""`aspire train`, `aspire resume`, `aspire replay`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click

from aspire.api import prepare, replay, resume, train
from aspire.api.engines import PATIENCE, refuse_what_is_simulated, train_on
from aspire.api.job import Job
from aspire.api.stopping import USUAL
from aspire.api.summary import summary
from aspire.api.user_file import Source, callbacks_of, crew_of, job_of, parts_of, read
from aspire.cli.engines import engine_named
from aspire.cli.shared import Sentence, stoppable
from aspire.engines.driver import Drive
from aspire.runs import files as rundir
from aspire.runs.folder import RunFolder, read_settings
from aspire.runs.hashes import digest
from aspire.simulator.replay import Differs


@click.command("train")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--iterations", type=int, default=USUAL, show_default=True, help="Master steps.")
@click.option("--method", help="NAME or 'NAME(key=value, ...)' of aspire.methods [aspire].")
@click.option("--form", help="direct or consensus [consensus for one linear layer, else direct].")
@click.option("--quorum", type=int, help="S: reports per step [consensus: 1, direct: half].")
@click.option("--staleness", type=int, help="tau: no site falls further behind; 1: synchronous.")
@click.option("--local-steps", type=int, help="K: steps per report [1].")
@click.option("--batch-size", type=int, help="0: the whole site [a DataLoader's own, else 64].")
@click.option("--preset", help="auto, paper or theorem1 [auto]; consensus form.")
@click.option("--learning-rate", type=float, help="Direct form: of AdamW [by tensor].")
@click.option("--accumulate", type=int, help="Direct form: batches in one gradient [1].")
@click.option("--clip", type=float, help="Direct form: limit on a report's length, in norms.")
@click.option("--reference", help="Direct form: own-best, what each site reaches alone.")
@click.option("--precision", default="float32", show_default=True, help="float32 or bf16.")
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--evaluate-every", type=int, help="Steps between two lines of history [20 lines].")
@click.option("--select", help="worst_loss, worst_accuracy or last: see the guide.")
@click.option("--patience-evaluations", type=int, help="End after so many without a better one.")
@click.option("--max-seconds", type=float, help="End after so many seconds.")
@click.option("--metrics", help="Figures at the end, by names of torchmetrics: auroc,f1.")
@click.option("--loss-bound", type=float, help="Where the certificate cuts off a sample's loss.")
@click.option(
    "--pull-bound", type=float, help="Consensus form: limit on a site's pull, in medians."
)
@click.option(
    "--execution",
    default="auto",
    show_default=True,
    help="How gradients are computed: auto, plain, channels_last, rows or compiled.",
)
@click.option("--log", help="full, digest, off or vectors [with --out full, else digest].")
@click.option("--stationarity", is_flag=True, help="Compute the stationarity gap at the end.")
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the run.")
@click.option("--checkpoint-seconds", type=float, default=60.0, show_default=True)
@click.option("--tensorboard", is_flag=True, help="Write the history to OUT/tensorboard as well.")
@click.option("--engine", "where", default="simulator", help="simulator (default) or ray.")
@click.option("--address", help="Of a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")
@click.option("--num-gpus", type=float, default=0.0, help="Of each Ray actor.")
@click.option("--actors", type=int, help="Ray actors that share the sites; none: one each, to 16.")
@click.option(
    "--patience",
    type=float,
    default=PATIENCE,
    show_default=True,
    help="On an engine: seconds of silence after which a site is declared away.",
)
@click.option(
    "--min-sites",
    type=int,
    help="On an engine: sites that must answer within --patience before it starts; none: all.",
)
@click.option(
    "--deadline",
    type=float,
    help="On an engine: a site that is waited for may take so many times the others' usual time.",
)
def train_command(
    file: Path,
    log: str | None,
    stationarity: bool,
    out: Path | None,
    checkpoint_seconds: float,
    tensorboard: bool,
    where: str,
    address: str | None,
    num_gpus: float,
    actors: int | None,
    patience: float,
    min_sites: int | None,
    deadline: float | None,
    **options: Any,
) -> None:
    """Train what FILE.py defines: model(), sites(), optionally site(name), uncertainty(), loss(),
    method(), optimizer(groups), schedule(optimizer), reference(), metrics(), callbacks(),
    collate_fn(items), standardize().

    sites() gives the sites, or their names if there is a site(name) that loads one. --method counts
    more than method(); --quorum, --staleness, --local-steps, --preset and --pull-bound are
    arguments of the method.
    """
    text = read(file)
    source = {"file": text.path, "sha256": text.sha256, "options": options}
    common: dict[str, Any] = {"out": out, "log": log, "source": source}
    common |= {"checkpoint_seconds": checkpoint_seconds, "tensorboard": tensorboard}
    common |= {"patience": patience, "min_sites": min_sites, "deadline": deadline}
    engine = engine_named(where, {"address": address, "num_gpus": num_gpus, "actors": actors})
    with stoppable() as stop:
        common |= {"progress": True, "stop": stop}
        if engine is None:
            model, sites, arguments = parts_of(text, options)
            arguments["callbacks"] = callbacks_of(text)
            run = train(model, sites, stationarity=stationarity, **common, **arguments)
        else:
            refuse_what_is_simulated(stationarity, {})
            job = job_of(text, options, only=[])
            crew = crew_of(text, options, job.problem.names)
            run = train_on(engine, job, crew, callbacks=callbacks_of(text), **common)
    click.echo(summary(run))
    if out is not None:
        click.echo(f"The run is in {out}.")


@click.command("resume")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--stationarity", is_flag=True, help="Compute the stationarity gap at the end.")
@click.option("--iterations", type=int, help="The new total of master steps.")
@click.option("--gradients", type=int, help="The new total of worker gradients.")
@click.option("--patience-evaluations", type=int, help="In place of the one that the run had.")
@click.option("--max-seconds", type=float, help="The new total of seconds.")
def resume_command(directory: Path, stationarity: bool, **limits: Any) -> None:
    """Go on with the run in DIRECTORY from its last checkpoint.

    With a larger limit a run that has ended goes on, too.
    """
    text, options, settings = recorded(directory)
    about = settings.get("engine")
    engine = None if about is None else engine_named(about["name"], about["arguments"])
    job = job_of(text, options, None if engine is None else [], known_names(settings))
    start_again(directory, job, settings)
    job.settings["log"] = settings["log"]
    crew = None if engine is None else crew_of(text, options, job.problem.names)
    with stoppable() as stop:
        run = resume(
            directory,
            job,
            stationarity=stationarity,
            callbacks=callbacks_of(text),
            progress=True,
            stop=stop,
            engine=engine,
            crew=crew,
            **limits,
        )
    click.echo(summary(run))


@click.command("replay")
@click.argument("directory", type=click.Path(path_type=Path))
def replay_command(directory: Path) -> None:
    """Absorb the events of the run in DIRECTORY again and compare the final state bit for bit."""
    text, options, settings = recorded(directory)
    only: list[str] | None = [] if settings["log"] == "vectors" else None
    job = job_of(text, options, only, known_names(settings))
    start_again(directory, job, settings)
    try:
        events, state = replay(directory, job)
    except Differs as difference:
        raise Sentence(f"The replay of {directory} differs: {difference}.") from difference
    click.echo(f"Replayed {events} events: the same state, bit for bit ({state[:16]}).")


def recorded(directory: Path) -> tuple[Source, dict[str, Any], dict[str, Any]]:
    """The file, its options and run.json of a run that the command line started."""
    settings = read_settings(directory)
    source = settings.get("source")
    if source is None:
        raise ValueError(
            f"{directory}: the run was not started by aspire train, so no file is known"
        )
    file = read(Path(source["file"]))
    if file.sha256 != source["sha256"]:
        raise ValueError(
            f"{file.path} has changed since the run in {directory}: expected the same file"
        )
    options = known_options(directory, source["options"])
    if settings.get("method") == "aspire" and "form" not in settings:  # of before there were two
        options["form"] = "consensus"
    if "execution" in settings:  # what was chosen then
        options["execution"] = settings["execution"]
    return file, options, settings


def known_options(directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Those of a run that `prepare` knows, or a sentence about the first that it does not."""
    known = inspect.signature(prepare).parameters
    for name, value in options.items():
        if name not in known or not isinstance(value, str | int | float | None):
            raise ValueError(f"{directory / rundir.RUN}: option {name}={value!r} is not known")
    for name in ("seed", "batch_size", "iterations"):
        if name not in options:
            raise ValueError(f"{directory / rundir.RUN}: expected the option {name}")
    return options


def known_names(settings: dict[str, Any]) -> list[str] | None:
    """The sites of a federation are written down; those of other runs their file knows."""
    engine = settings.get("engine") or {}
    return settings["sites"] if engine.get("name") == "federation" else None


# ---------------------------------------------------------------- from another run's model


def start_from(job: Job, run: Path) -> None:
    """Let the job, which nobody else knows yet, begin with the model that a federation came to."""
    text, options, settings = recorded(run)
    names = known_names(settings)
    if names is None:
        raise ValueError(f"start={str(run)!r}: expected the folder of a run of aspire server")
    before = job_of(text, options, [], names)
    with RunFolder.open(run, extend=True) as folder:
        saved = folder.newest(settings["log"], before.expected(Drive))
    model = before.method.model(saved.state.master)
    start = job.problem.flat.start
    if model.shape != start.shape:
        raise ValueError(
            f"start={str(run)!r} has a model of {len(model)} numbers: expected {len(start)}"
        )
    start.copy_(model)
    job.settings["start"] = {"run": str(run.resolve()), "model": digest(start)}


def start_again(directory: Path, job: Job, settings: dict[str, Any]) -> None:
    """As the run in `directory` did."""
    start = settings.get("start")
    if start is None:
        return
    start_from(job, Path(start["run"]))
    if job.settings["start"] != start:
        raise ValueError(
            f"{start['run']} has gone on since the run in {directory} began with its model: "
            "expected it as it was"
        )
