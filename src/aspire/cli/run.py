"""`aspire train`, `aspire replay`, `aspire demo`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch

from aspire.cli.shared import Sentence, interruptible, progress_bar, stoppable
from aspire.runtimes import rundir
from aspire.runtimes.replay import Differs
from aspire.train import Job, Run, prepare, replay, resume, train


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
@click.option("--log", default="full", show_default=True, help="full, digest or off.")
@click.option("--stationarity", is_flag=True, help="Compute the stationarity gap at the end.")
@click.option("--out", type=click.Path(path_type=Path), help="A new folder for the run.")
@click.option("--checkpoint-seconds", type=float, default=60.0, show_default=True)
def train_command(
    file: Path,
    log: str,
    stationarity: bool,
    out: Path | None,
    checkpoint_seconds: float,
    **options: Any,
) -> None:
    """Train what FILE.py defines: model(), sites(), optionally site(name), uncertainty(), loss().

    sites() gives the sites, or their names if there is a site(name) that loads one.
    """
    model, sites, arguments = from_file(file, **options)
    source = {"file": str(file.resolve()), "sha256": _sha256(file), "options": options}
    with progress_bar(options["iterations"]) as progress, stoppable() as stop:
        run = train(
            model, sites, out=out, log=log, stationarity=stationarity, progress=progress,
            stop=stop, checkpoint_seconds=checkpoint_seconds, source=source, **arguments,
        )  # fmt: skip
    click.echo(table(run))
    if out is not None:
        click.echo(f"The run is in {out}.")


@click.command("resume")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--stationarity", is_flag=True, help="Compute the stationarity gap at the end.")
def resume_command(directory: Path, stationarity: bool) -> None:
    """Go on with the run in DIRECTORY from its last checkpoint."""
    job = recorded_job(directory)
    with progress_bar(job.iterations) as progress, stoppable() as stop:
        run = resume(directory, job, stationarity=stationarity, progress=progress, stop=stop)
    click.echo(table(run))


@click.command("replay")
@click.argument("directory", type=click.Path(path_type=Path))
def replay_command(directory: Path) -> None:
    """Absorb the events of the run in DIRECTORY again and compare the final state bit for bit."""
    job = recorded_job(directory)
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


def recorded_job(directory: Path) -> Job:
    """The job of a run that `aspire train` started, from its run.json."""
    settings = rundir.read_json(directory / rundir.RUN)
    source = settings.get("source")
    if source is None:
        raise ValueError(
            f"{directory}: the run was not started by aspire train, so no file is known"
        )
    file = Path(source["file"])
    if _sha256(file) != source["sha256"]:
        raise ValueError(f"{file} has changed since the run in {directory}: expected the same file")
    model, sites, arguments = from_file(file, **source["options"])
    job = prepare(model, sites, **arguments)
    job.settings["log"] = settings["log"]
    return job


def from_file(
    file: Path, *, batch_size: int, **options: Any
) -> tuple[torch.nn.Module, Any, dict[str, Any]]:
    """The model, the sites and the other arguments of `train` that FILE.py and the options give."""
    module = load(file)
    torch.manual_seed(options["seed"])
    model, sites = _call(module, file, "model"), _call(module, file, "sites")
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"{file}: model() gave a {type(model).__name__}: expected a torch module")
    if not isinstance(sites, dict) and all(isinstance(name, str) for name in sites):
        sites = {name: _call(module, file, "site", name) for name in sites}
    arguments = options | {"batch_size": batch_size or None}
    for name in ("uncertainty", "loss"):
        if hasattr(module, name):
            arguments[name] = _call(module, file, name)
    return model, sites, arguments


def load(file: Path) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"FILE={str(file)!r}: expected a Python file, and there is none")
    spec = importlib.util.spec_from_file_location(f"aspire_run_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"FILE={str(file)!r}: expected a Python file, with the ending .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{file} does not load: {type(error).__name__}: {error}") from error
    return module


def _call(module: ModuleType, file: Path, name: str, *arguments: Any) -> Any:
    function = vars(module).get(name)
    if not callable(function):
        raise ValueError(f"{file} has no function {name}(): expected one")
    try:
        return function(*arguments)
    except Exception as error:
        raise ValueError(f"{file}: {name}() raised {type(error).__name__}: {error}") from error


def _sha256(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"FILE={str(file)!r}: expected a Python file, and there is none")
    return hashlib.sha256(file.read_bytes()).hexdigest()


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
