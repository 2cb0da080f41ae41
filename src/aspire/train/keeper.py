"""What a run leaves behind while it goes on: lines of history, and checkpoints by time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspire.runtimes import checkpoint, rundir
from aspire.runtimes.metrics import Scalars

logger = logging.getLogger("aspire")


@dataclass
class Keeper:
    """Writes to the run's folder; with no folder, nothing."""

    folder: Path | None
    seconds: float
    scalars: Scalars | None = None
    last: float = -1.0

    def due(self) -> bool:
        return self.folder is not None and time.monotonic() - self.last >= self.seconds

    def add(self, line: dict[str, Any]) -> None:
        if self.folder is None:
            return
        try:
            rundir.append_json(self.folder / rundir.HISTORY, line)
        except OSError as error:
            logger.warning("a line of history was not written: %s", error)
        if self.scalars is not None:
            self.scalars.add(line)

    def checkpoint(self, t: int, whole: Callable[[], dict[str, Any]], *, now: bool) -> None:
        """By time and not by steps, since it costs O(N p)."""
        clock = time.monotonic()
        if self.last < 0:
            self.last = clock
        if self.folder is None or (clock - self.last < self.seconds and not now):
            return
        try:
            checkpoint.save(self.folder, t, whole())
        except OSError as error:
            logger.warning("no checkpoint at iteration %d: %s", t, error)
        self.last = time.monotonic()
