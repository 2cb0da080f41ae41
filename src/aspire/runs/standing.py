"""Where a run stands, from the files that it writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from aspire.runs import files as rundir
from aspire.runs.folder import STATUS, read_status


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
