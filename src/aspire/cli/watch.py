"""`aspire watch RUN`: the page of a run while it goes on."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("watch")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[one that is free]")
def watch_command(run: Path, port: int) -> None:
    """Show the run in the folder RUN in a browser, live, until Ctrl-C.

    It only reads: whatever happens to it, the run goes on as it would have. The page is served to
    this machine only, and only to who has the address that is printed.
    """
    from aspire.pages.watch import serve

    serve(run, port, tell=lambda address: click.echo(f"Watch the run at {address}"))
    click.echo("Stopped watching.", err=True)
