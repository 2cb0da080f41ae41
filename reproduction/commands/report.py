"""`aspire report DIR`: one page with everything that `aspire reproduce` left in DIR."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page (default: DIR/report.html).")
@click.option("--tables", is_flag=True, help="Print the tables as Markdown instead.")
@click.option("--networks", is_flag=True, help="Print those of `networks` as Markdown instead.")
def report_command(directory: Path, out: Path | None, tables: bool, networks: bool) -> None:
    """Make one self-contained HTML page of the experiments in DIR; no scripts, no network."""
    from reproduction.networks.tables import markdown as networks_markdown
    from reproduction.page import write
    from reproduction.tables import markdown

    if networks:
        click.echo(networks_markdown(directory))
    elif tables:
        click.echo(markdown(directory))
    else:
        click.echo(f"Page: {write(directory, out or directory / 'report.html')}")
