"""A run folder as a page needs it, of a run that has ended, goes on or was stopped. Only read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspire.pages.trail import NOW, Trail
from aspire.runs import files as rundir
from aspire.runs import log as events
from aspire.runs.folder import STATUS, has_ended, read_settings, read_status

PER_SITE = (  # in a line of history, where they are there
    *("train_losses", "val_losses", "test_losses", "accuracies", "val_accuracies", "weights"),
)
OVERALL = ("worst_loss", "worst_case_loss", "worst_accuracy", "worst_val_loss", "planes")
Number = float | None


@dataclass(frozen=True)
class Away:
    """A site was away between two iterations. `until` None: it has not come back."""

    site: str
    since: float
    until: float | None
    reason: str


@dataclass(frozen=True)
class Record:
    """What the folder says.

    history  one line per evaluation: t, time, and the numbers above
    result   None: the run has not ended
    status   None: the folder was written by Run.save
    """

    name: str
    path: Path
    sites: tuple[str, ...]
    settings: dict[str, Any]
    history: list[dict[str, Any]]
    result: dict[str, Any] | None
    status: dict[str, Any] | None
    trail: Trail

    @property
    def clock(self) -> str:
        """Whose seconds `time` counts."""
        if self.result is not None:
            return "wall" if self.result.get("virtual_seconds") is None else "virtual"
        return "wall" if self.settings.get("engine") else "virtual"

    def column(self, key: str) -> list[Number]:
        """A number of every line of history."""
        return [line.get(key) for line in self.history]

    def of_site(self, key: str, j: int) -> list[Number]:
        return [None if line[key] is None else line[key][j] for line in self.history]

    def has(self, key: str) -> bool:
        return any(line.get(key) is not None for line in self.history)

    def absences(self) -> list[Away]:
        """From the result, or from the log while there is none."""
        if self.result is not None:
            return [
                Away(x["site"], x["from"], x["to"], x["reason"]) for x in self.result["absences"]
            ]
        reasons = {row["name"]: row.get("away") for row in (self.status or {}).get("sites", [])}
        return [
            Away(
                self.sites[j],
                self.step(since),
                None if until == NOW else self.step(until),
                str(reasons.get(self.sites[j]) or "no reason is known yet"),
            )
            for j, (since, until) in self.trail.away
        ]

    def step(self, time: float) -> float:
        """The iteration at this time, as near as the evaluations tell."""
        passed = [line["t"] for line in self.history if line["time"] <= time]
        return float(passed[-1]) if passed else 0.0


def read(path: Path, trail: Trail | None = None) -> Record:
    """The run in `path`; ValueError where it is damaged. `trail`: of an earlier look at it."""
    settings = read_settings(path)
    sites = tuple(settings["sites"])
    result = None
    if has_ended(path):
        result = rundir.read_record(path / rundir.RESULT, sealed=True)
        _check_result(result, len(sites), str(path / rundir.RESULT))
    status = None
    if result is None or (path / STATUS).exists():
        status = read_status(path)
        rundir.need(status, str(path / STATUS), sites=list, iteration=int)
    trail = Trail(path / events.NAME, len(sites)) if trail is None else trail
    trail.follow()
    history = _history(path / rundir.HISTORY, len(sites), ended=result is not None)
    name = path.resolve().name
    return Record(name, path, sites, settings, history, result, status, trail)


def _history(path: Path, sites: int, *, ended: bool) -> list[dict[str, Any]]:
    """Every whole line. The last one of a run that has not ended may be half written."""
    if not ended and not path.exists():
        return []
    lines = rundir.read_text(path).split("\n")
    if lines.pop() and ended:
        raise ValueError(f"{path}: the last line is not whole: the file is damaged")
    found = []
    for number, text in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        found.append(_line(rundir.parse_json(text, where), sites, where))
    if ended and not found:
        raise ValueError(f"{path}: expected a line for each evaluation, and there is none")
    return found


def _line(line: Any, sites: int, where: str) -> dict[str, Any]:
    """One evaluation, with None for what older versions did not write."""
    if not isinstance(line, dict):
        raise ValueError(f"{where}: expected a JSON object")
    rundir.need(line, where, t=int, time=(int, float))
    known = {"t": line["t"], "time": line["time"]}
    known |= {name: _number(line.get(name), f"{where}: {name}") for name in OVERALL}
    line = {"train_losses": line.get("losses"), **line}
    for name in PER_SITE:
        known[name] = _numbers(line.get(name), sites, f"{where}: {name}")
    return known


def _numbers(values: Any, sites: int, where: str) -> list[Number] | None:
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != sites:
        raise ValueError(f"{where}: expected a list with a number for each of {sites} sites")
    return [_number(value, where) for value in values]


def _number(value: Any, where: str) -> Number:
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    raise ValueError(f"{where}: {value!r}: expected a number")


def _check_result(result: Mapping[str, Any], sites: int, where: str) -> None:
    for name in ("losses", "weights", "train_samples", "test_samples"):
        if _numbers(result.get(name), sites, f"{where}: {name}") is None:
            raise ValueError(f"{where}: expected {name}")
    rundir.need(dict(result), where, absences=list, iterations=int, worker_gradients=int)
    rundir.need(dict(result), where, wall_seconds=(int, float))
    for away in result["absences"]:
        kinds: dict[str, Any] = {"from": int, "to": (int, type(None))}
        rundir.need(away, f"{where}: absences", site=str, reason=str, **kinds)
