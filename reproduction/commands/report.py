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
    for line in remarks(directory):
        click.echo(line, err=True)


def remarks(directory: Path) -> list[str]:
    """A sentence for each file with cells that are not of these sources."""
    from reproduction import cells, provenance, results
    from reproduction.networks import pool as networks_pool

    found = []
    for path in sorted(directory.glob(f"*{results.SUFFIX}")):
        networks = path.stem == networks_pool.NAME
        of = networks_pool.module_of if networks else lambda record: cells.__name__
        records = results.read_lines(path, lambda record: (str(record),)).values()
        remark = provenance.remark(records, of)
        found += [] if remark is None else [f"{path.stem}: {remark}"]
    return found
