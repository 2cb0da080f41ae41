"""`aspire report DIR`: one page with everything that `aspire reproduce` left in DIR."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page (default: DIR/report.html).")
def report_command(directory: Path, out: Path | None) -> None:
    """Make one self-contained HTML page of the experiments in DIR; no scripts, no network."""
    from aspire.experiments.page import write

    click.echo(f"Page: {write(directory, out or directory / 'report.html')}")
