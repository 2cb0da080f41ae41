"""status.json: where a run on an engine stands, written at most once a second."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aspire.runtimes import rundir
from aspire.runtimes.driver import Driver

NAME, SECONDS = "status.json", 1.0


def status(driver: Driver, rate: float) -> dict[str, Any]:
    """The numbers of the run and a row per site."""
    state, now = driver.state, driver.clock()
    weights = driver.method.weights(state.master)
    losses = [-np.inf if loss is None else loss for loss in state.losses]
    worst = int(np.argmax(losses))
    t = state.master.t
    return {
        "iteration": t,
        "time": state.time,
        "reports_per_second": rate,
        "planes": driver.method.planes(state.master),
        "worst_site": None if state.losses[worst] is None else driver.names[worst],
        "gradients": int(state.gradients),
        "dropped": state.dropped,
        "refused": state.refused,
        "sites": [
            {
                "name": name,
                "alive": j not in state.away,
                "away": state.away.get(j),
                "weight": float(weights[j]),
                "loss": state.losses[j],
                "staleness": t - 1 - state.last[j],
                "reports": state.reports[j],
                "silent_seconds": now - driver.heard[j],
            }
            for j, name in enumerate(driver.names)
        ],
    }


@dataclass
class Board:
    """Writes the status of a run into its folder; with no folder, nothing."""

    folder: Path | None
    at: float = -np.inf
    reports: int = 0

    def show(self, driver: Driver, *, now: bool = False, **more: Any) -> None:
        """At most once a second, unless `now`; `more` is said besides."""
        clock = time.monotonic()
        if self.folder is None or (clock - self.at < SECONDS and not now):
            return
        reports = sum(driver.state.reports)
        rate = (reports - self.reports) / max(clock - self.at, 1e-9)
        self.at, self.reports = clock, reports
        with suppress(OSError):  # a full disk: the next one may succeed, nothing depends on it
            rundir.write_json(self.folder / NAME, status(driver, rate) | more, sync=False)
