"""`aspire status DIR`: where a run stands, from the files that it writes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from aspire.runtimes import rundir
from aspire.runtimes import status as board

SECONDS = 1.0
HEAD = ("site", "state", "weight", "loss", "behind", "reports", "silent")


@click.command("status")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Again every second, until the run ends.")
def status_command(directory: Path, watch: bool) -> None:
    """Show where the run in DIR stands: iteration, worst site, and a line per site."""
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
    """status.json where an engine writes one, else what the simulator's files say."""
    if not (directory / rundir.RUN).is_file():
        raise ValueError(f"DIR={str(directory)!r}: expected the folder of a run: no {rundir.RUN}")
    ended = (directory / rundir.RESULT).is_file()
    if (directory / board.NAME).is_file():
        age = time.time() - (directory / board.NAME).stat().st_mtime
        return {**rundir.read_json(directory / board.NAME), "ended": ended, "age": age}
    return from_history(directory, ended)


def from_history(directory: Path, ended: bool) -> dict[str, Any]:
    """The last line of history, as far as there is one."""
    names = rundir.read_json(directory / rundir.RUN)["sites"]
    last = last_line(directory / rundir.HISTORY)
    losses = last.get("losses") or [None] * len(names)
    weights = last.get("weights") or [None] * len(names)
    known = [(loss, name) for loss, name in zip(losses, names, strict=True) if loss is not None]
    rows = [
        {"name": name, "alive": True, "weight": weight, "loss": loss}
        for name, weight, loss in zip(names, weights, losses, strict=True)
    ]
    return {
        "iteration": last.get("t", 0),
        "time": last.get("time", 0.0),
        "planes": last.get("planes"),
        "worst_site": max(known)[1] if known else None,
        "sites": rows,
        "ended": ended,
        "age": None,
    }


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line: a run may be writing the one after it."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return json.loads(whole[-1]) if whole else {}


def head(now: dict[str, Any]) -> str:
    """The run in one line."""
    words = [f"iteration {now['iteration']}", f"{now['time']:.1f} s"]
    if now.get("reports_per_second") is not None and not now["ended"]:
        words.append(f"{now['reports_per_second']:.1f} reports/s")
    if now["planes"] is not None:
        words.append(f"{now['planes']} planes")
    if now["worst_site"] is not None:
        words.append(f"worst site {now['worst_site']}")
    away = [row["name"] for row in now["sites"] if not row["alive"]]
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
    return "\n".join([head(now), *lines, *reasons])


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A site's line; '-' for what this runtime does not say."""

    def number(name: str, form: str) -> str:
        return "-" if row.get(name) is None else form.format(row[name])

    return (
        row["name"],
        "here" if row["alive"] else "away",
        number("weight", "{:.3f}"),
        number("loss", "{:.4f}"),
        number("staleness", "{}"),
        number("reports", "{}"),
        number("silent_seconds", "{:.1f} s"),
    )
