"""`aspire status DIR`: where a run stands, from the files that it writes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from aspire.runs.standing import head, read

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
