"""The event log: what the master absorbed, in its order. No wall-clock time is in it.

Level `full` writes one line per event, `digest` only a running sha256 (a line at each evaluation
and at the end), `off` nothing. With one seed two runs of the simulator write the same bytes.

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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from aspire.runtimes.digest import pieces
from aspire.types import Event, Report

logger = logging.getLogger("aspire")
LEVELS = ("full", "digest", "off", "vectors")
NAME, VECTORS = "events.jsonl", "reports"
LONG = 2**16  # numbers: longer vectors are hashed in a thread
SHORT = 2**12  # numbers: shorter vectors are hashed byte by byte
OF_DIGESTS = "q"  # what such a hash begins with: no hexadecimal digit
PLAIN = {torch.float32, torch.float64}  # what numpy has, and hashes as it lies


def fingerprint(value: Any, into: Any) -> None:
    """Feed a state, field by field, into a hash: tensors and arrays by their bytes."""
    if isinstance(value, torch.Tensor):
        into.update(repr((str(value.dtype), tuple(value.shape))).encode())
        _feed(value.detach().cpu().contiguous(), into)
    elif isinstance(value, np.ndarray):
        into.update(repr((str(value.dtype), value.shape)).encode())
        into.update(np.ascontiguousarray(value).data)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            into.update(field.name.encode())
            fingerprint(getattr(value, field.name), into)
    elif isinstance(value, dict):
        for key in sorted(value):
            into.update(repr(key).encode())
            fingerprint(value[key], into)
    elif isinstance(value, (list, tuple)):
        for item in value:
            fingerprint(item, into)
    else:
        into.update(repr(value).encode())


def _feed(x: torch.Tensor, into: Any) -> None:
    """The bytes of a tensor, without a copy; some of its types are unknown to numpy."""
    if x.dtype in PLAIN:
        into.update(x.numpy())
    else:
        into.update(x.view(-1).view(torch.uint8).numpy().data if x.numel() else b"")


def digest(state: Any) -> str:
    """sha256 of a whole master state."""
    sha = hashlib.sha256()
    fingerprint(state, sha)
    return sha.hexdigest()


def content(vectors: Mapping[str, torch.Tensor], *, every_byte: bool) -> str:
    """The hash of a report's vectors."""
    if every_byte or max((x.numel() for x in vectors.values()), default=0) <= SHORT:
        return digest(vectors)[:16]
    sha = hashlib.sha256()
    for name, x in sorted(vectors.items()):
        sha.update(repr((name, str(x.dtype), tuple(x.shape))).encode())
        sha.update(pieces(x.detach().cpu()).tobytes())
    return OF_DIGESTS + sha.hexdigest()[:15]


def event_record(event: Event, *, like: str = "") -> dict[str, Any]:
    """One event as JSON: its kind, worker, task, numbers and a hash `like` this of its vectors."""
    record: dict[str, Any] = {"event": type(event).__name__.lower(), "worker": event.worker}
    if isinstance(event, Report):
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


class EventLog:
    """Takes events one by one; `path` None keeps only the running hash.

    The hash is a chain, h <- sha256(h + line), so it can be taken up again: `state` says where a
    log stands, and given back it cuts the file there and goes on.
    """

    def __init__(
        self, level: str = "digest", path: Path | None = None, state: dict[str, Any] | None = None
    ) -> None:
        check_level(level)
        self.level = level
        self.count = state["count"] if state else 0
        self._hash = state["sha256"] if state else ""
        self._file: IO[bytes] | None = None
        self._unwritten, self._warned = b"", False
        self._vectors = None if path is None else path.with_name(VECTORS)
        self._pool: ThreadPoolExecutor | None = None
        if path is not None and level != "off":
            if state:
                os.truncate(path, state["bytes"])
            self._file = open(path, "ab" if state else "wb", buffering=0)  # noqa: SIM115

    def state(self) -> dict[str, Any]:
        """Where the log stands: events, hash, and the length of the file."""
        length = 0
        if self._file is not None:
            if self._unwritten:
                raise OSError("the event log could not be written")
            os.fsync(self._file.fileno())
            length = os.fstat(self._file.fileno()).st_size
        return {"count": self.count, "sha256": self._hash, "bytes": length}

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
        if self.level in ("full", "vectors"):
            self._write(line)

    def refuse(self, record: dict[str, Any], reason: str) -> None:
        """A line for the reader: what was refused is no event, since it changed nothing."""
        if self.level != "off":
            self._write(json.dumps({"refused": _settled(record), "reason": reason}))

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
                self._vectors.mkdir(exist_ok=True)
                beside, kept = path.with_suffix(".part"), report.vectors.items()
                save_file({k: v.detach().cpu().contiguous() for k, v in kept}, beside)
                os.replace(beside, path)
        return name

    def add_steps(self, events: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Steps of S reports each, (steps, 4, S): bits of the times, workers, tasks, digests."""
        if self.level in ("full", "vectors"):
            raise ValueError(
                f"log={self.level!r}: expected 'digest' or 'off' where whole steps are added"
            )
        if self.level == "off":
            return
        for step in events:
            self._hash = hashlib.sha256(self._hash.encode() + step.tobytes()).hexdigest()
        self.count += events.shape[0] * events.shape[2]

    def mark(self, kind: str, t: int, master: Any) -> None:
        """A line with the running hash, and at the end the hash of the master's state."""
        if self.level == "off":
            return
        record = {"mark": kind, "t": t, "events": self.count, "sha256": self._hash}
        if kind == "end":
            record["state"] = digest(master)
        self._write(json.dumps(record))

    def _write(self, line: str) -> None:
        """What a full disk does not take now is kept and tried again with the next line."""
        if self._file is None:
            return
        self._unwritten += f"{line}\n".encode()
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if not self._warned:
                logger.warning("the event log waits for room on the disk: %s", error)
            self._warned = True

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        if self._file is not None:
            self._file.close()
            self._file = None


def kept(path: Path, record: dict[str, Any]) -> Report:
    """The report of a line, with its vectors from beside the log."""
    numbers = {k: v for k, v in record.items() if k not in NOT_NUMBERS}
    file = path.with_name(VECTORS) / f"{record['vectors']}.safetensors"
    vectors = {}
    if record["vectors"] != NOTHING:
        if not file.is_file():
            raise ValueError(f"{file}: expected the vectors of event {record['n']}")
        vectors = load_file(file)
    return Report(record["worker"], record["task"], vectors, numbers)


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The events and the end mark (None: the run did not end) of a log."""
    events, end = [], None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            raise ValueError(f"{path}, line {number}: expected one JSON object a line") from None
        if "event" in record:
            events.append(record)
        elif record.get("mark") == "end":
            end = record
    return events, end
