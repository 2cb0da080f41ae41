"""The event log: what the master absorbed, in its order. No wall-clock time is in it.

Level `full` writes one line per event, `digest` only a running sha256 (a line at each evaluation
and at the end), `off` nothing. With one seed two runs of the simulator write the same bytes.
The log of a run that was extended goes on after its end mark, with a mark that says so; the end is
the last end mark, if no event and no other mark comes after it.

A report's line has its numbers and the hash of its vectors: of long ones that of their digests
(`digest.pieces`), which takes a tenth of the time. Level `vectors` is `full` and keeps the vectors
as well, each once, in files named by a hash of every byte: for runs whose data the one who replays
does not have.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from aspire.runs import files as rundir
from aspire.runs.errors import Stopped
from aspire.runs.hashes import OF_DIGESTS, content, digest
from aspire.types import Count, Event, Report

logger = logging.getLogger("aspire")
LEVELS = ("full", "digest", "off", "vectors")
NAME = "events.jsonl"
VECTORS = "reports"
LONG = 2**16  # numbers: longer vectors are hashed in a thread
WAITING = 2**26  # bytes of lines that may wait for room on the disk
EVENT = b'{"n": '  # what the line of an event begins with


def event_record(event: Event, *, like: str = "") -> dict[str, Any]:
    """One event as JSON: its kind, worker, task, numbers and a hash `like` this of its vectors."""
    record: dict[str, Any] = {"event": type(event).__name__.lower(), "worker": event.worker}
    if isinstance(event, Report):
        if not NOT_NUMBERS.isdisjoint(event.scalars):
            forged = NOT_NUMBERS & set(event.scalars)
            raise ValueError(f"a report has a number called {min(forged)!r}: that is the log's own")
        record |= {"task": event.task, **event.scalars}
        if like:
            record["vectors"] = content(event.vectors, every_byte=not like.startswith(OF_DIGESTS))
    return record


def _settled(record: dict[str, Any]) -> dict[str, Any]:
    """With the hash, which waits until the record is written."""
    if "vectors" in record:
        record["vectors"] = record["vectors"]()
    return record


NOTHING = digest({})[:16]
NOT_NUMBERS = {"n", "time", "event", "worker", "task", "vectors"}


def _line(record: dict[str, Any]) -> str:
    """What json.dumps says of plain names and plain values, but faster."""
    if not all(map(str.isidentifier, record)):
        return json.dumps(record)
    said = []
    for name, value in record.items():
        kind = type(value)
        if kind is int or (kind is float and value - value == 0.0):
            said.append(f'"{name}": {value!r}')
        elif kind is str and value.isalnum() and value.isascii():
            said.append(f'"{name}": "{value}"')
        else:
            return json.dumps(record)
    return "{" + ", ".join(said) + "}"


def check_level(level: str) -> None:
    if level not in LEVELS:
        raise ValueError(f"log={level!r}: expected one of {', '.join(LEVELS)}")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a log stands: all that is needed to take it up again, and to tell whether one may."""

    count: Count  # events
    sha256: str  # the chain over them
    bytes: Count  # of the file
    file: str  # sha256 of these bytes
    ended: bool = False  # the last thing in it is an end mark


class EventLog:
    """Takes events one by one; `path` None keeps only the running hash.

    The hash is a chain, h <- sha256(h + line), so it can be taken up again: `place` says where a
    log stands, and given back it cuts the file there and goes on. A file that is not what it was up
    to there is refused, and left alone.
    """

    def __init__(
        self, level: str = "digest", path: Path | None = None, place: Place | None = None
    ) -> None:
        check_level(level)
        self.level = level
        self._path = path
        self.count = 0 if place is None else place.count
        self._hash = "" if place is None else place.sha256
        self._ended = place is not None and place.ended
        self._file: IO[bytes] | None = None
        self._written = hashlib.sha256()
        self._waiting: deque[bytes] = deque()  # lines that the disk has not taken yet
        self._waits = 0  # bytes of them
        self._vectors = None if path is None else path.with_name(VECTORS)
        self._pool: ThreadPoolExecutor | None = None
        if path is not None and level != "off":
            if place is not None:
                self._written = verified(path, level, place)
                os.truncate(path, place.bytes)
            self._file = open(path, "wb" if place is None else "ab", buffering=0)  # noqa: SIM115

    def place(self) -> Place:
        """Where the log stands; OSError where that is not on the disk."""
        length = 0
        if self._file is not None:
            self._flush()
            os.fsync(self._file.fileno())
            length = os.fstat(self._file.fileno()).st_size
        return Place(self.count, self._hash, length, self._written.hexdigest(), self._ended)

    def settle(self) -> None:
        """Every line is on the disk, or the run cannot end."""
        try:
            self.place()
        except OSError as error:
            raise self._full(error) from error

    def add(self, time: float, event: Event) -> None:
        self.write(self.prepare(time, event))

    def prepare(self, time: float, event: Event) -> dict[str, Any]:
        """The record of an event that is about to be absorbed."""
        if self.level == "off":
            return {}
        record = {"n": self.count, "time": time, **event_record(event)}
        if isinstance(event, Report):
            long = sum(x.numel() for x in event.vectors.values()) > LONG
            record["vectors"] = self._beside(event) if long else partial(self._vectors_of, event)
        return record

    def write(self, record: dict[str, Any]) -> None:
        if self.level == "off":
            return
        line = _line(_settled(record))
        self._hash = hashlib.sha256((self._hash + line).encode()).hexdigest()
        self.count += 1
        self._ended = False
        if self.level in ("full", "vectors"):
            self._write(line)

    def refuse(self, time: float, event: Event, reason: str) -> None:
        """A line for the reader: what was refused is no event, since it changed nothing.

        It has nothing that the site itself has named.
        """
        if self.level != "off":
            about = {"time": time, "event": type(event).__name__.lower(), "worker": event.worker}
            self._write(json.dumps({"refused": about, "reason": reason}))

    def _beside(self, report: Report) -> Callable[[], str]:
        """In a thread, while the report is absorbed: nobody writes to a message."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1)
        return self._pool.submit(self._vectors_of, report).result

    def _vectors_of(self, report: Report) -> str:
        """The hash of its vectors, which are kept under it where the level says so."""
        name = content(report.vectors, every_byte=self.level == "vectors")
        if self.level == "vectors" and report.vectors and self._vectors is not None:
            path = self._vectors / f"{name}.safetensors"
            if not path.exists():
                self._keep(path, report.vectors)
        return name

    def _keep(self, path: Path, vectors: Mapping[str, torch.Tensor]) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            with rundir.whole(path, sync=False) as beside:
                save_file({k: v.detach().cpu().contiguous() for k, v in vectors.items()}, beside)
        except OSError as error:
            raise self._full(error) from error

    def mark(self, kind: str, t: int, master: Any, **more: Any) -> None:
        """A line with the running hash, and at the end the hash of the master's state.

        `more` is said besides. There is one end mark, however often a run is resumed at its end.
        """
        if self.level == "off" or (kind == "end" and self._ended):
            return
        record = {"mark": kind, "t": t, "events": self.count, "sha256": self._hash, **more}
        if kind == "end":
            record["state"] = digest(master)
        self._ended = kind == "end"
        self._write(json.dumps(record))

    def _write(self, line: str) -> None:
        """What a full disk does not take now is kept, up to a limit, and tried again later."""
        if self._file is None:
            return
        data = f"{line}\n".encode()
        self._written.update(data)
        self._waiting.append(data)
        self._waits += len(data)
        try:
            self._flush()
        except OSError as error:
            if self._waits > WAITING:
                raise self._full(error) from error
            if len(self._waiting) == 1:
                logger.warning("the event log waits for room on the disk: %s", error)

    def _flush(self) -> None:
        """The lines that wait, in their order; OSError at the first that finds no room."""
        assert self._file is not None
        while self._waiting:
            taken = self._file.write(self._waiting[0])
            self._waits -= taken
            if taken == len(self._waiting[0]):
                self._waiting.popleft()
            else:
                self._waiting[0] = self._waiting[0][taken:]

    def _full(self, error: OSError) -> Stopped:
        folder = Path() if self._path is None else self._path.parent
        return Stopped(not_written(folder, error))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None


def not_written(folder: Path, error: OSError) -> str:
    """What to say when a file of a run finds no room."""
    return (
        f"{error}: the run stops; what its last checkpoint holds is safe, and when there is room "
        f"again it goes on from there; {rundir.how_to_resume(folder)}"
    )


# ---------------------------------------------------------------- reading


def chained(chain: str, line: bytes) -> str:
    """The running hash after the line of one more event."""
    return hashlib.sha256(chain.encode() + line).hexdigest()


def verified(path: Path, level: str, place: Place) -> Any:
    """The hash of the file up to `place`, to go on with; ValueError where it is not as it was."""
    whole = hashlib.sha256()
    chain = ""
    count = 0
    left = place.bytes
    try:
        if not path.is_file():
            raise ValueError(f"{path}: expected the log of the run, and there is none")
        with open(path, "rb") as file:
            while left > 0 and (line := file.readline(left)):
                left -= len(line)
                whole.update(line)
                if line.startswith(EVENT):
                    chain = chained(chain, line.removesuffix(b"\n"))
                    count += 1
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    events = (place.sha256, place.count) if level in ("full", "vectors") else (chain, count)
    if left or whole.hexdigest() != place.file or (chain, count) != events:
        raise ValueError(
            f"{path}: the log is not what it was when the checkpoint was written, up to byte "
            f"{place.bytes}: it is damaged"
        )
    return whole


def kept(path: Path, record: dict[str, Any]) -> Report:
    """The report of a line, with its vectors from beside the log."""
    numbers = {k: v for k, v in record.items() if k not in NOT_NUMBERS}
    vectors = {}
    if record["vectors"] != NOTHING:
        vectors = read_vectors(path.with_name(VECTORS) / f"{record['vectors']}.safetensors")
    return Report(record["worker"], record["task"], vectors, numbers)


def read_vectors(file: Path) -> dict[str, torch.Tensor]:
    """The vectors of one report; that they are its own, their hash says."""
    if not file.is_file():
        raise ValueError(f"{file}: expected the vectors of a report")
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: expected the vectors of a report, but {error}") from None


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The events and the end mark (None: the run did not end) of a log."""
    events = []
    end = None
    chain = ""
    for number, line in enumerate(rundir.read_text(path).split("\n"), start=1):
        if not line:
            continue
        record = rundir.parse_json(line, f"{path}, line {number}")
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object")
        if "event" in record:
            events.append(record)
            chain = chained(chain, line.encode())
            end = None
        elif "mark" in record:
            end = record if record["mark"] == "end" else None
    if end is not None:
        _check_end(path, end, len(events), chain)
    return events, end


def _check_end(path: Path, end: dict[str, Any], count: int, chain: str) -> None:
    """Whether the end mark is one, and the events, where there are any, those that it counted."""
    kinds = {"t": int, "events": int, "sha256": str, "state": str}
    whole = all(isinstance(end.get(name), kind) for name, kind in kinds.items())
    if not whole or (end["events"] == count and end["sha256"] != chain):
        raise ValueError(f"{path}: the end mark does not fit the events: the log is damaged")
