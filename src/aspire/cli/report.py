"""`aspire report RUN [RUN2 ...]`: one interactive page of runs, or of a folder of experiments."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aspire.cli import reproduction
from aspire.runs import files as rundir


@click.command("report")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page [report.html in the first].")
@click.option("--tables", is_flag=True, help="Of experiments: print the tables as Markdown.")
@click.option("--networks", is_flag=True, help="Of experiments: print those of `networks`.")
def report_command(runs: tuple[Path, ...], out: Path | None, tables: bool, networks: bool) -> None:
    """Make one self-contained HTML page of the runs in these folders, side by side.

    A run may have ended, go on, or have been stopped. In a checkout RUN may also be the folder of
    the experiments of `aspire reproduce`.
    """
    path = out or runs[0] / "report.html"
    if len(runs) == 1 and not os.path.lexists(runs[0] / rundir.RUN):
        experiments(runs[0], path, tables=tables, networks=networks)
        return
    if tables or networks:
        option = "--tables" if tables else "--networks"
        raise ValueError(f"{option}: expected one folder of experiments, not of a run")
    from aspire.pages import write
    from aspire.pages.report import report

    click.echo(f"Page: {write(path, report(runs))}")


def experiments(folder: Path, path: Path, *, tables: bool, networks: bool) -> None:
    """What `aspire reproduce` left in a folder, where that is part of this installation."""
    try:
        commands = reproduction.commands()
    except ImportError:
        raise ValueError(
            f"RUN={str(folder)!r}: expected a folder with {rundir.RUN} in it"
        ) from None
    commands.report_experiments(folder, path, tables=tables, networks=networks)
