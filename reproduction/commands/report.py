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
    for line in remarks(directory):
        click.echo(line, err=True)


def remarks(directory: Path) -> list[str]:
    """A sentence for each file with cells that are not of these sources."""
    from reproduction import cells, provenance, results
    from reproduction.networks import run

    found = []
    for path in sorted(directory.glob(f"*{results.SUFFIX}")):
        of = run if path.stem == "networks" else cells
        records = results.read_lines(path, lambda record: (str(record),)).values()
        remark = provenance.remark(records, of.__name__)
        found += [] if remark is None else [f"{path.stem}: {remark}"]
    return found
