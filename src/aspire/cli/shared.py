"""What every command shares: one sentence on bad input, a clean interrupt."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from aspire.api import Interrupted
from aspire.problem.failures import trace_of
from aspire.runs.errors import Stopped


class Group(click.Group):
    """Bad input and runs that cannot go on end in one sentence and exit code 2.

    With -v the whole traceback comes before it.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted as stopped:
            click.echo(f"Interrupted: {stopped}", err=True)
            raise click.exceptions.Exit(130) from None
        except BrokenPipeError:  # click's own affair: nobody reads on
            raise
        except OSError as error:
            where = "" if error.filename is None else f"{error.filename}: "
            raise Sentence(f"{where}{error.strerror or error}") from error
        except (ValueError, Stopped, ImportError) as error:
            if ctx.params.get("verbose"):
                click.echo(trace_of(error), err=True)
            raise Sentence(str(error)) from error


class Sentence(click.ClickException):
    exit_code = 2


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Yields a question: was the run asked to stop? Ctrl-C and SIGTERM ask; the second insists."""
    asked: list[int] = []

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in numbers]
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def interruptible(out: Path | None) -> Iterator[None]:
    """For work with no checkpoints: SIGTERM is an interrupt too; both end in a sentence."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        where = ""
        if out is not None:
            where = f" {out} holds what was done until then; the same command continues it."
        click.echo(f"\nInterrupted.{where}", err=True)
        raise click.exceptions.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
