"""The event log as a page needs it: when each site reported, and when it left and came back.

It is read from where the last look ended, and only in whole lines: the process that trains may be
writing the next one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aspire.runs import files as rundir
from aspire.runs.log import EVENT

NOW = float("inf")  # an absence that has not ended


class Trail:
    """What was read so far of the log of a run with so many sites; of no log, nothing."""

    def __init__(self, path: Path, sites: int) -> None:
        self.path = path
        self.sites = sites
        self.forget()

    def forget(self) -> None:
        self.reports = [array("d") for _ in range(self.sites)]  # the times of each site's reports
        self.away: list[tuple[int, list[float]]] = []  # site, and from when until when
        self._read = 0  # bytes

    def follow(self) -> None:
        """Read on. A log that is shorter than it was has been cut by `resume`: begin anew."""
        try:
            if not self.path.is_file():
                return
            with open(self.path, "rb") as file:
                if file.seek(0, 2) < self._read:
                    self.forget()
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    if line.startswith(EVENT):
                        self._add(line)
        except OSError as error:
            raise ValueError(f"{self.path} cannot be read: {error.strerror}") from None

    def _add(self, line: bytes) -> None:
        record = rundir.parse_json(line.decode(errors="replace"), str(self.path))
        kind, j, time = (record.get(name) for name in ("event", "worker", "time"))
        if type(j) is not int or not 0 <= j < self.sites or not isinstance(time, int | float):
            raise ValueError(f"{self.path}: {line[:80]!r}: expected an event of a site")
        if kind == "report":
            self.reports[j].append(time)
        elif kind == "left":
            self.away.append((j, [time, NOW]))
        elif kind == "joined":
            for site, ends in self.away:
                if site == j and ends[1] == NOW:
                    ends[1] = time


def gaps(trail: Trail, times: Sequence[float], steps: Sequence[float]) -> list[list[float | None]]:
    """For each site the most master steps between two of its reports, up to each evaluation.

    times, steps  of the evaluations; between them steps are taken to be even in time
    """
    found = []
    for reports in trail.reports:
        said = np.array(reports, dtype=float)
        said = said[said <= times[-1]]
        at = np.interp(said, [0.0, *times], [0.0, *steps])
        places = np.searchsorted(steps, at[1:])
        most = np.full(len(steps) + 1, -1.0)
        np.maximum.at(most, places, np.diff(at))
        found.append([float(round(value)) if value >= 0 else None for value in most[: len(steps)]])
    return found
