"""`aspire report DIR` of a folder of experiments: a page, or tables on the screen."""

from __future__ import annotations

from pathlib import Path

import click


def report_experiments(directory: Path, out: Path, *, tables: bool, networks: bool) -> None:
    """Everything that `aspire reproduce` left in `directory`, as a page or as Markdown."""
    from reproduction.networks.tables import markdown as networks_markdown
    from reproduction.page import write
    from reproduction.tables import markdown

    if networks:
        click.echo(networks_markdown(directory))
    elif tables:
        click.echo(markdown(directory))
    else:
        click.echo(f"Page: {write(directory, out)}")
