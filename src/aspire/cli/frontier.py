"""`aspire frontier FILE.py`: what every site gets and pays, setting by setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aspire.api.frontier_words import in_words
from aspire.api.sweep import DIALS, frontier
from aspire.api.user_file import parts_of, read
from aspire.cli.shared import interruptible
from aspire.pages import write
from aspire.pages.frontier import page_of

PAGE = "frontier.html"


@click.command("frontier")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--floor", type=float, help="An accuracy: who can reach it, and who pays?")
@click.option("--dial", type=click.Choice(DIALS), help="What is swept of uncertainty().")
@click.option("--values", help="Of the dial: 0,1,2 [six up to that of the set].")
@click.option("--share", type=float, default=1 / 3, help="Of each run that is its own [a third].")
@click.option("--iterations", type=int, default=2000, show_default=True, help="Master steps.")
@click.option("--batch-size", type=int, help="0: the whole site [a DataLoader's own, else 64].")
@click.option("--weight-decay", type=float, default=0.0, show_default=True)
@click.option("--form", help="direct or consensus [consensus for one linear layer, else direct].")
@click.option("--quorum", type=int, help="S: reports per step [consensus: 1, direct: half].")
@click.option("--select", help="worst_loss, worst_accuracy or last [worst_loss].")
@click.option("--device", default="cpu", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="A new folder: page, models.")
def frontier_command(
    file: Path,
    floor: float | None,
    dial: str | None,
    values: str | None,
    share: float,
    out: Path | None,
    **options: Any,
) -> None:
    """Sweep the uncertainty set of FILE.py, and say what every site gets and pays.

    Every site needs train, val and test parts. Settings are chosen on val and reported on test.
    """
    model, sites, arguments = parts_of(read(file), options)
    with interruptible(None):
        found = frontier(
            model,
            sites,
            floor=floor,
            dial=dial,
            values=None if values is None else numbers_of(values),
            share=share,
            out=out,
            progress=lambda done, all: click.echo(f"{done} of {all} settings", err=True),
            **arguments,
        )
    click.echo(in_words(found, floor))
    if out is not None:
        write(out / PAGE, page_of(found, floor))
        click.echo(f"The page is {out / PAGE}; each setting has its run beside it.")


def numbers_of(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"values={text!r}: expected numbers such as 0,1,2,4") from None
