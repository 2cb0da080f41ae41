"""`aspire train`, `aspire replay`, `aspire demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aspire.cli.engines import engine_named
from aspire.cli.shared import Sentence, interruptible, progress_bar, stoppable
from aspire.runtimes import rundir
from aspire.runtimes.replay import Differs
from aspire.train import Run, replay, resume, train
from aspire.train.engines import PATIENCE, refuse_what_is_simulated, train_on
from aspire.train.file import Source, crew_of, job_of, parts_of, read


@click.command("train")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--iterations", type=int, default=2000, show_default=True, help="Master steps.")
@click.option("--quorum", type=int, default=1, show_default=True, help="S: reports per step.")
@click.option("--staleness", type=int, help="tau: no site falls further behind; 1: synchronous.")
@click.option("--local-steps", type=int, default=1, show_default=True, help="K: steps per report.")
@click.option("--batch-size", type=int, default=64, show_default=True, help="0: the whole site.")
@click.option("--preset", default="auto", show_default=True, help="auto, paper or theorem1.")
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--evaluate-every", type=int, help="Master steps between two lines of history.")
@click.option("--pull-bound", type=float, help="Limit on one site's pull, in medians.")
@click.option("--log", default="full", show_default=True, help="full, digest, off or vectors.")
@click.option("--exact", is_flag=True, help="Every task by itself, event by event; slower.")
@click.option("--stationarity", is_flag=True, help="Compute the stationarity gap at the end.")
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the run.")
@click.option("--checkpoint-seconds", type=float, default=60.0, show_default=True)
@click.option("--tensorboard", is_flag=True, help="Write the history to OUT/tensorboard as well.")
@click.option("--engine", "where", default="simulator", show_default=True, help="simulator or ray.")
@click.option("--address", help="Of a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.")
@click.option("--num-gpus", type=float, default=0.0, help="Of each site's Ray actor.")
@click.option(
    "--patience", type=float, default=PATIENCE, show_default=True,
    help="On an engine: seconds of silence after which a site is declared away.",
)  # fmt: skip
def train_command(
    file: Path,
    log: str,
    stationarity: bool,
    out: Path | None,
    checkpoint_seconds: float,
    tensorboard: bool,
    where: str,
    address: str | None,
    num_gpus: float,
    patience: float,
    **options: Any,
) -> None:
    """Train what FILE.py defines: model(), sites(), optionally site(name), uncertainty(), loss().

    sites() gives the sites, or their names if there is a site(name) that loads one.
    """
    text = read(file)
    source = {"file": text.path, "sha256": text.sha256, "options": options}
    common: dict[str, Any] = {"out": out, "log": log, "source": source}
    common |= {"checkpoint_seconds": checkpoint_seconds, "tensorboard": tensorboard}
    engine = engine_named(where, {"address": address, "num_gpus": num_gpus})
    with progress_bar(options["iterations"]) as progress, stoppable() as stop:
        common |= {"progress": progress, "stop": stop}
        if engine is None:
            model, sites, arguments = parts_of(text, options)
            run = train(model, sites, stationarity=stationarity, **common, **arguments)
        else:
            refuse_what_is_simulated(stationarity, {"exact": options["exact"]})
            job = job_of(text, options, only=[])
            crew = crew_of(text, options, job.problem.names)
            run = train_on(engine, job, crew, patience=patience, **common)
    click.echo(table(run))
    if out is not None:
        click.echo(f"The run is in {out}.")


@click.command("resume")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--stationarity", is_flag=True, help="Compute the stationarity gap at the end.")
def resume_command(directory: Path, stationarity: bool) -> None:
    """Go on with the run in DIRECTORY from its last checkpoint."""
    text, options, settings = recorded(directory)
    about = settings.get("engine")
    engine = None if about is None else engine_named(about["name"], about["arguments"])
    job = job_of(text, options, None if engine is None else [], known_names(settings))
    job.settings["log"] = settings["log"]
    crew = None if engine is None else crew_of(text, options, job.problem.names)
    with progress_bar(job.iterations) as progress, stoppable() as stop:
        run = resume(
            directory, job, stationarity=stationarity, progress=progress, stop=stop,
            engine=engine, crew=crew,
        )  # fmt: skip
    click.echo(table(run))


@click.command("replay")
@click.argument("directory", type=click.Path(path_type=Path))
def replay_command(directory: Path) -> None:
    """Absorb the events of the run in DIRECTORY again and compare the final state bit for bit."""
    text, options, settings = recorded(directory)
    only: list[str] | None = [] if settings["log"] == "vectors" else None
    job = job_of(text, options, only, known_names(settings))
    try:
        events, state = replay(directory, job)
    except Differs as difference:
        raise Sentence(f"The replay of {directory} differs: {difference}.") from difference
    click.echo(f"Replayed {events} events: the same state, bit for bit ({state[:16]}).")


@click.command("demo")
@click.option("--seeds", type=int, default=1, show_default=True, help="Seeds 0 to N-1.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True)
def demo_command(seeds: int, out: Path) -> None:
    """Handwritten digits at six sites, one of them hard: even weights against ASPIRE-EASE."""
    from aspire.experiments import demo

    with progress_bar(2 * seeds * demo.ITERATIONS) as progress, interruptible(None):
        result = demo.run(seeds, progress=progress)
    click.echo(result.text())
    click.echo(f"\nPicture: {result.draw(out)}\nPage:    {result.write_page(out)}")


def recorded(directory: Path) -> tuple[Source, dict[str, Any], dict[str, Any]]:
    """The file, its options and run.json of a run that the command line started."""
    settings = rundir.read_json(directory / rundir.RUN)
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
    return file, source["options"], settings


def known_names(settings: dict[str, Any]) -> list[str] | None:
    """The sites of a federation are written down; those of other runs their file knows."""
    engine = settings.get("engine") or {}
    return settings["sites"] if engine.get("name") == "federation" else None


def table(run: Run) -> str:
    """One line per site and a summary; accuracies in percent."""
    wide = max(len("site"), *(len(name) for name in run.sites))
    lines = [f"{'site':<{wide}}  weight   loss  accuracy"]
    for j, name in enumerate(run.sites):
        accuracy = "      -" if run.accuracies is None else f"{100 * run.accuracies[j]:6.1f}%"
        lines.append(f"{name:<{wide}}  {run.weights[j]:6.3f} {run.losses[j]:6.3f}  {accuracy:>8}")
    worst = "" if run.worst_accuracy is None else f", accuracy {100 * run.worst_accuracy:.1f} %"
    lines.append(
        f"worst site: loss {run.worst_loss:.4f}{worst} (on the {run.evaluated_on} parts); "
        f"worst case over the set {run.worst_case_loss:.4f}; {run.planes} planes; "
        f"{run.iterations} iterations in {run.wall_seconds:.1f} s"
    )
    return "\n".join(lines)
