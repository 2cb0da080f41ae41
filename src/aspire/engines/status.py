"""status.json: where a run stands; on an engine written at most once a second."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aspire.engines.driver import Driver
from aspire.runs.folder import RunFolder

SECONDS = 1.0


def simulated(names: Sequence[str], line: Mapping[str, Any]) -> dict[str, Any]:
    """From the last line of history, which may be empty."""
    losses = line.get("losses") or [None] * len(names)
    weights = line.get("weights") or [None] * len(names)
    known = [(loss, name) for loss, name in zip(losses, names, strict=True) if loss is not None]
    rows = zip(names, weights, losses, strict=True)
    return {
        "iteration": line.get("t", 0),
        "time": line.get("time", 0.0),
        "clock": "virtual",
        "planes": line.get("planes"),
        "worst_site": max(known)[1] if known else None,
        "sites": [
            {"name": name, "alive": None, "weight": weight, "loss": loss}
            for name, weight, loss in rows
        ],
    }


def status(driver: Driver, rate: float) -> dict[str, Any]:
    """The numbers of the run and a row per site."""
    state = driver.state
    now = driver.clock()
    look = driver.look()
    losses = [-np.inf if loss is None else loss for loss in state.losses]
    worst = int(np.argmax(losses))
    t = state.master.t
    away = {j: _why_away(driver, j) for j in range(len(driver.names))}
    return {
        "iteration": t,
        "time": state.time,
        "clock": "wall",
        "reports_per_second": rate,
        "planes": look.planes,
        "worst_site": None if state.losses[worst] is None else driver.names[worst],
        "gradients": int(state.gradients),
        "waiting_for": [driver.names[j] for j in driver.waiting()],
        "sites": [
            {
                "name": name,
                "alive": away[j] is None,
                "away": away[j],
                "weight": float(look.weights[j]),
                "loss": state.losses[j],
                "staleness": t - 1 - state.last[j],
                "reports": state.reports[j],
                "late": state.late[j],
                "refused": state.breaches[j],
                "silent_seconds": now - driver.heard[j],
            }
            for j, name in enumerate(driver.names)
        ],
    }


def _why_away(driver: Driver, j: int) -> str | None:
    """Before the start a site is here when it has answered; None: it is here."""
    state = driver.state
    if not state.started and not state.reports[j]:
        return driver.reasons.get(j, "has not answered yet")
    return state.away.get(j)


@dataclass
class Board:
    """Writes the status of a run into its folder; with no folder, nothing."""

    folder: RunFolder | None
    at: float = -np.inf
    reports: int = 0

    def show(self, driver: Driver, *, now: bool = False, **more: Any) -> None:
        """At most once a second, unless `now`; `more` is said besides."""
        clock = time.monotonic()
        if self.folder is None or (clock - self.at < SECONDS and not now):
            return
        reports = sum(driver.state.reports)
        rate = (reports - self.reports) / max(clock - self.at, 1e-9)
        self.at = clock
        self.reports = reports
        self.folder.show(status(driver, rate) | more)
