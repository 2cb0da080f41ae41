"""What a run leaves behind while it goes on: lines of history, and checkpoints by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aspire.api.job import Job
from aspire.runs import files as rundir
from aspire.runs.callbacks import Callbacks, RunFacts
from aspire.runs.checkpoint import Saved
from aspire.runs.errors import Interrupted
from aspire.runs.folder import RunFolder
from aspire.trackers.tensorboard import FOLDER, TensorBoard


def callbacks_of(given: Iterable[Any], out: str | Path | None, *, tensorboard: bool) -> Callbacks:
    """Those that were given, and TensorBoard's where it is wanted or the run already had it.

    `out` is the run's folder, which need not be there yet.
    """
    if out is None and tensorboard:
        raise ValueError("tensorboard=True: expected `out` with it, the folder that it goes to")
    if out is not None and (tensorboard or (Path(out) / FOLDER).is_dir()):
        given = [*given, TensorBoard(Path(out) / FOLDER)]
    return Callbacks(given)


def facts_of(job: Job, folder: RunFolder | None, iteration: int) -> RunFacts:
    path = None if folder is None else folder.path
    return RunFacts(job.problem.names, rundir.plain(job.settings), path, iteration)


def interrupted(folder: RunFolder | None, t: int) -> Interrupted:
    """What to say of a run that was stopped, and how it goes on."""
    done = f"stopped after {t} iterations"
    if folder is None:
        return Interrupted(f"{done}; it had no folder (`out`), so nothing of it is kept")
    return Interrupted(f"{done}; {rundir.how_to_resume(folder.path)}")


@dataclass
class Keeper:
    """Writes to the run's folder, if it has one, and tells the callbacks."""

    folder: RunFolder | None
    seconds: float
    callbacks: Callbacks = field(default_factory=Callbacks)
    last: float = -1.0
    spent: float = 0.0  # seconds that the run had taken when it was stopped
    began: float = field(default_factory=time.perf_counter)

    def elapsed(self) -> float:
        """Seconds that the run has taken, in all the processes that it had."""
        return self.spent + time.perf_counter() - self.began

    def add(self, line: dict[str, Any]) -> None:
        if self.folder is not None:
            self.folder.add_history(line)
        self.callbacks.evaluated(line)

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
