"""A bar that shows how far a run is."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]
OFTEN = 100  # steps between two lines where nobody knows how many there will be


@contextmanager
def progress_of(wanted: bool | Progress | None, total: float) -> Iterator[Progress | None]:
    """What is to be called after each step: a bar for True, else what was given."""
    if wanted is True:
        with progress_bar(total) as bar:
            yield bar
    else:
        yield wanted or None


@contextmanager
def progress_bar(total: float) -> Iterator[Progress]:
    """A bar on a terminal, a quiet line every tenth otherwise; both on standard error."""
    import click  # here, since the experiments also run where only torch and numpy are

    if math.isinf(total):
        yield lambda t: click.echo(f"{t} iterations", err=True) if t % OFTEN == 0 else None
        return
    if sys.stderr.isatty():
        with click.progressbar(length=int(total), file=sys.stderr) as bar:
            yield lambda t: bar.update(t - bar.pos) if t % 20 == 0 or t == total else None
        return

    def line(t: int) -> None:
        if t % max(1, total // 10) == 0:
            click.echo(f"{t} of {total:g}", err=True)

    yield line
