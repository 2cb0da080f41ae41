"""`aspire status DIR`: where a run stands, from the files that it writes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from aspire.runs import files as rundir
from aspire.runs.folder import STATUS, read_status

SECONDS = 1.0
HEAD = (
    *("site", "state", "weight", "train loss", "behind", "reports", "late", "refused", "silent"),
)


@click.command("status")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Again every second, until the run ends.")
def status_command(directory: Path, watch: bool) -> None:
    """Show where the run in DIR stands: iteration, largest loss, and a line per site."""
    now = read(directory)
    while watch and not now["ended"]:
        if sys.stdout.isatty():
            click.clear()
            click.echo(text(now))
        else:
            click.echo(head(now))
        time.sleep(SECONDS)
        now = read(directory)
    click.echo(text(now))


def read(directory: Path) -> dict[str, Any]:
    """status.json, and how old it is."""
    if not (directory / rundir.RUN).is_file():
        raise ValueError(f"DIR={str(directory)!r}: expected the folder of a run: no {rundir.RUN}")
    now = read_status(directory)
    age = time.time() - (directory / STATUS).stat().st_mtime
    return {**now, "age": age if now["clock"] == "wall" else None}


def head(now: dict[str, Any]) -> str:
    """The run in one line."""
    words = [f"iteration {now['iteration']}", f"{now['time']:.1f} {now['clock']} seconds"]
    if now.get("reports_per_second") is not None and not now["ended"]:
        words.append(f"{now['reports_per_second']:.1f} reports/s")
    if now["planes"] is not None:
        words.append(f"{now['planes']} planes")
    if now["worst_site"] is not None:
        words.append(f"largest training loss at {now['worst_site']}")
    away = [row["name"] for row in now["sites"] if row["alive"] is False]
    if away and not now["ended"]:
        words.append(f"{len(away)} away")
    if now["ended"]:
        words.append("ended")
    elif now["age"] is not None and now["age"] > 10:
        words.append(f"nothing new for {now['age']:.0f} s")
    return ", ".join(words)


def text(now: dict[str, Any]) -> str:
    rows = [HEAD, *(cells(row) for row in now["sites"])]
    wide = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = [
        "  ".join(
            [row[0].ljust(wide[0]), row[1].ljust(wide[1])]
            + [cell.rjust(w) for cell, w in zip(row[2:], wide[2:], strict=True)]
        ).rstrip()
        for row in rows
    ]
    reasons = [f"{r['name']}: {r['away']}" for r in now["sites"] if r.get("away")]
    slow = now.get("waiting_for") or []
    waiting = [f"waiting for {', '.join(slow)}"] if slow and not now["ended"] else []
    return "\n".join([head(now), *lines, *reasons, *waiting])


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A site's line; '-' for what this runtime does not say."""

    def number(name: str, form: str) -> str:
        return "-" if row.get(name) is None else form.format(row[name])

    return (
        row["name"],
        {True: "here", False: "away", None: "-"}[row["alive"]],
        number("weight", "{:.3f}"),
        number("loss", "{:.4f}"),
        number("staleness", "{}"),
        number("reports", "{}"),
        number("late", "{}"),
        number("refused", "{}"),
        number("silent_seconds", "{:.1f} s"),
    )
