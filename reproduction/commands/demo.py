"""`aspire demo`: two trainings on real images, a table and a page."""

from __future__ import annotations

from pathlib import Path

import click

from aspire.api.progress import progress_bar
from aspire.cli.shared import interruptible


@click.command("demo")
@click.option("--seeds", type=int, default=1, show_default=True, help="Seeds 0 to N-1.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo"), show_default=True)
def demo_command(seeds: int, out: Path) -> None:
    """Handwritten digits at six sites, one of them hard: even weights against ASPIRE-EASE."""
    from aspire.pages import write
    from reproduction import demo

    with progress_bar(2 * seeds * demo.ITERATIONS) as progress, interruptible(None):
        result = demo.run(seeds, progress=progress)
    click.echo(result.text())
    click.echo(f"\nPage: {write(out / 'demo.html', result.page())}")
