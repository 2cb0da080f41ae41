"""What a run leaves behind while it goes on: lines of history, and checkpoints by time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aspire.api.job import Interrupted
from aspire.runs import files as rundir
from aspire.runs.checkpoint import Saved
from aspire.runs.folder import RunFolder
from aspire.runs.tensorboard import Scalars


def interrupted(folder: RunFolder | None, t: int) -> Interrupted:
    """What to say of a run that was stopped, and how it goes on."""
    done = f"stopped after {t} iterations"
    if folder is None:
        return Interrupted(f"{done}; it had no folder (`out`), so nothing of it is kept")
    return Interrupted(f"{done}; {rundir.how_to_resume(folder.path)}")


@dataclass
class Keeper:
    """Writes to the run's folder; with no folder, nothing."""

    folder: RunFolder | None
    seconds: float
    scalars: Scalars | None = None
    last: float = -1.0
    spent: float = 0.0  # seconds that the run had taken when it was stopped
    began: float = field(default_factory=time.perf_counter)

    def elapsed(self) -> float:
        """Seconds that the run has taken, in all the processes that it had."""
        return self.spent + time.perf_counter() - self.began

    def add(self, line: dict[str, Any]) -> None:
        if self.folder is not None:
            self.folder.add_history(line)
        if self.scalars is not None:
            self.scalars.add(line)

    def show(self, status: dict[str, Any]) -> None:
        if self.folder is not None:
            self.folder.show(status)

    def checkpoint(self, t: int, saved: Callable[[], Saved], *, now: bool) -> None:
        """By time and not by steps, since it costs O(N p)."""
        clock = time.monotonic()
        if self.last < 0:
            self.last = clock
        if self.folder is None or (clock - self.last < self.seconds and not now):
            return
        self.folder.save(t, saved)
        self.last = time.monotonic()
