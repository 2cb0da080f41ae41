"""The folder of a run, and the one process that may write there.

`run.lock` is locked by the system for as long as that process lives, so a killed one leaves no lock
behind. Commands that only read need none: a file is whole or not there, and logs only grow.

A run has ended when result.json is there: it is written last. Until then the run can be resumed,
from the newest checkpoint that is whole and whose part of the event log is as it was then. One that
has ended keeps a checkpoint of its end, from which it can be extended.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from torch import nn

from aspire.runs import checkpoint
from aspire.runs import files as rundir
from aspire.runs import log as events
from aspire.runs.decode import Expected
from aspire.runs.errors import Stopped

logger = logging.getLogger("aspire")
LOCK = "run.lock"
STATUS = "status.json"
FILES = (
    *(rundir.RUN, rundir.HISTORY, rundir.MODEL, rundir.README, rundir.RESULT, rundir.SURVEY),
    *(events.NAME, STATUS, LOCK),
)
LIMITS = {"patience", "min_sites", "deadline", "checkpoint_seconds", "tensorboard"}
FOLDERS = (checkpoint.FOLDER, events.VECTORS)
EXTENDED = "extended"  # in run.json: the limits of every extension, the last one in force


class RunFolder:
    """A run folder that this process has locked; `with` unlocks it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = False
        self._begun = False  # something of ours is in it
        self._resumable = False  # this process has written or taken up a checkpoint
        self._torn = False  # a line of history is missing
        self._passed: list[Path] = []  # checkpoints that were not taken
        self._new = not os.path.lexists(path / LOCK)
        self._lock = lock(path)

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new or empty directory; one that holds anything is left as it is."""
        return cls(rundir.new_folder(path))

    @classmethod
    def open(cls, path: Path, *, extend: bool = False) -> Self:
        """A run that has not ended, or is to be extended; where it cannot go on, nothing in it is
        changed."""
        read_settings(path)
        folder = cls(path)
        try:
            if has_ended(path) and not extend:
                raise ValueError(
                    f"{path}: the run has ended, so there is nothing to resume: expected a larger "
                    "number of iterations with it"
                )
            refuse_strange(path)
        except BaseException:
            folder.close()
            raise
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others in. The lock stays where a run can go on, or where it was before."""
        if self.ended or (self._new and not self._begun):
            (self.path / LOCK).unlink(missing_ok=True)
        os.close(self._lock)

    # ------------------------------------------------------------ what is written

    def write_settings(self, settings: dict[str, Any]) -> None:
        self._begun = True
        rundir.write_json(self.path / rundir.RUN, settings, sealed=True)

    def extend(self, limits: dict[str, Any]) -> None:
        """The run has not ended any more: it goes on to these limits.

        The result goes first: without it, a run with its old limits would only end again.
        """
        with suppress(ValueError):
            status = rundir.read_record(self.path / STATUS, sealed=True)
            self.show({name: value for name, value in status.items() if name != "ended"})
        (self.path / rundir.RESULT).unlink(missing_ok=True)
        settings = rundir.read_record(self.path / rundir.RUN)
        self.write_settings(settings | {EXTENDED: [*settings.get(EXTENDED, []), limits]})

    def forget_settings(self) -> None:
        """The run could not begin: the folder is as good as new."""
        for name in (rundir.RUN, STATUS):
            (self.path / name).unlink(missing_ok=True)
        self._begun = False

    def log(self, level: str) -> events.EventLog:
        return events.EventLog(level, self.path / events.NAME)

    def show(self, status: dict[str, Any]) -> None:
        """Where the run stands. Nothing depends on it: on a full disk the next may succeed."""
        with suppress(OSError):
            rundir.write_json(self.path / STATUS, status, sync=False, sealed=True)

    def add_history(self, line: dict[str, Any]) -> None:
        try:
            rundir.append_json(self.path / rundir.HISTORY, line)
        except OSError as error:
            self._torn = True
            logger.warning("a line of history waits for room on the disk: %s", error)

    def save(self, t: int, saved: Callable[[], checkpoint.Saved]) -> None:
        """A checkpoint. Without the first, no run; where a later one fails, those before it stay.

        What the folder shows at such a moment does not count: a disk that fails may show nothing.
        """
        try:
            checkpoint.save(self.path, t, saved())
            self._resumable = True
        except OSError as error:
            if not self._resumable:
                raise Stopped(f"{self.path}: no checkpoint can be written: {error}") from error
            logger.warning("no checkpoint at iteration %d: %s", t, error)

    def save_outcome(
        self,
        model: nn.Module,
        result: dict[str, Any],
        history: list[dict[str, Any]],
        readme: str,
    ) -> None:
        """The run has ended with all of it, or can be resumed."""
        try:
            if self._torn:
                rundir.write_lines(self.path / rundir.HISTORY, history)
            rundir.write_model(self.path / rundir.MODEL, model)
            rundir.write_text(self.path / rundir.README, readme)
            rundir.write_json(self.path / rundir.RESULT, result, sealed=True)
        except OSError as error:
            raise Stopped(events.not_written(self.path, error)) from error
        self.ended = True
        checkpoint.clear(self.path)

    # ------------------------------------------------------------ where it can go on

    def newest(self, level: str, expected: Expected) -> checkpoint.Saved:
        """The newest checkpoint that is whole and fits the log; nothing is changed."""
        for path in checkpoint.files(self.path):
            try:
                saved = checkpoint.read(path, expected)
                if level != "off":
                    events.verified(self.path / events.NAME, level, saved.log)
                return saved
            except ValueError as error:
                logger.warning("%s; trying the one before", error)
                self._passed.append(path)
        raise ValueError(
            f"{self.path}: expected a whole checkpoint and the log that belongs to it, and there "
            "is none"
        )

    def take_up(self, level: str, saved: checkpoint.Saved) -> events.EventLog:
        """The log, which is cut at this checkpoint; later ones are of no use any more."""
        self._begun = self._resumable = True
        log = events.EventLog(level, self.path / events.NAME, saved.log)
        rundir.write_lines(self.path / rundir.HISTORY, saved.history)
        for path in self._passed:
            with suppress(OSError):
                path.unlink()
        return log


# ---------------------------------------------------------------- for everybody


def lock(path: Path) -> int:
    """The descriptor that holds the folder; ValueError where another process holds it."""
    busy = f"{path}: another process is at work on this run: expected to be the only one"
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise ValueError(f"{path / LOCK} cannot be locked: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ValueError(busy) from None
    except OSError as error:  # some network file systems have no locks
        logger.warning("%s cannot be locked (%s): let no other process resume it", path, error)
    if os.fstat(descriptor).st_nlink == 0:  # somebody held it until now, and took it away
        os.close(descriptor)
        raise ValueError(busy)
    return descriptor


def has_ended(path: Path) -> bool:
    """ValueError where the result cannot be read."""
    if not os.path.lexists(path / rundir.RESULT):
        return False
    rundir.read_record(path / rundir.RESULT, sealed=True)
    return True


def refuse_strange(path: Path) -> None:
    """Files and folders of a run that are something else."""
    for name in FILES:
        if os.path.lexists(path / name) and not (path / name).is_file():
            raise ValueError(f"{path / name}: expected a file")
    for name in FOLDERS:
        if os.path.lexists(path / name) and not (path / name).is_dir():
            raise ValueError(f"{path / name}: expected a folder")


def read_settings(path: Path) -> dict[str, Any]:
    """run.json, with what every command needs of it."""
    settings = rundir.read_record(path / rundir.RUN)
    where = str(path / rundir.RUN)
    perhaps = (dict, type(None))
    rundir.need(settings, where, sites=list, log=str, source=perhaps, engine=perhaps)
    events.check_level(settings["log"])
    if not all(isinstance(name, str) for name in settings["sites"]):
        raise ValueError(f"{where}: sites={settings['sites']}: expected names")
    if settings.get("source"):
        rundir.need(settings["source"], f"{where}, source", file=str, sha256=str, options=dict)
    if settings.get("engine"):
        rundir.need(settings["engine"], f"{where}, engine", name=str, arguments=dict)
        rundir.need(settings, where, run=str)
    if "start" in settings:
        rundir.need(settings, where, start=dict)
        rundir.need(settings["start"], f"{where}, start", run=str, model=str)
    if EXTENDED in settings:
        rundir.need(settings, where, **{EXTENDED: list})
        if not all(isinstance(limits, dict) for limits in settings[EXTENDED]):
            raise ValueError(f"{where}: {EXTENDED}: expected a list of limits")
    for name in LIMITS & settings.keys():
        rundir.need(settings, where, **{name: (int, float, type(None))})
    return settings


def read_status(path: Path) -> dict[str, Any]:
    """status.json, and whether the run has ended."""
    read_settings(path)
    status = rundir.read_record(path / STATUS, sealed=True)
    ended = has_ended(path)
    if status.get("ended") and not ended:
        raise ValueError(f"{path / rundir.RESULT}: the run has ended: expected its result")
    return {**status, "ended": ended}
