"""The event log: what the master absorbed, in its order. No wall-clock time is in it.

Level `full` writes one line per event, `digest` only a running sha256 (a line at each evaluation
and at the end), `off` nothing. With one seed two runs write the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from aspire.runtimes import digest as digests
from aspire.types import Event, Report

LEVELS = ("full", "digest", "off")
NAME = "events.jsonl"


def fingerprint(value: Any, into: Any) -> None:
    """Feed a state, field by field, into a hash: tensors and arrays by their bytes."""
    if isinstance(value, torch.Tensor):
        into.update(repr((str(value.dtype), tuple(value.shape))).encode())
        into.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, np.ndarray):
        into.update(repr((str(value.dtype), value.shape)).encode())
        into.update(np.ascontiguousarray(value).tobytes())
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


def digest(state: Any) -> str:
    """sha256 of a whole master state."""
    sha = hashlib.sha256()
    fingerprint(state, sha)
    return sha.hexdigest()


def event_record(event: Event) -> dict[str, Any]:
    """One event as JSON: its kind, worker, task, numbers and the hash of its vectors."""
    record: dict[str, Any] = {"event": type(event).__name__.lower(), "worker": event.worker}
    if isinstance(event, Report):
        record |= {
            "task": event.task,
            **event.scalars,
            "vectors": digests.of_vectors(event.vectors),
        }
    return record


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
        self._file: IO[str] | None = None
        if path is not None and level != "off":
            if state:
                os.truncate(path, state["bytes"])
            self._file = open(path, "a" if state else "w", encoding="utf-8")  # noqa: SIM115

    def state(self) -> dict[str, Any]:
        """Where the log stands: events, hash, and the length of the file."""
        length = 0
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            length = os.fstat(self._file.fileno()).st_size
        return {"count": self.count, "sha256": self._hash, "bytes": length}

    def add(self, time: float, event: Event) -> None:
        if self.level == "off":
            return
        record = {"n": self.count, "time": time, **event_record(event)}
        line = json.dumps(record)
        self._hash = hashlib.sha256((self._hash + line).encode()).hexdigest()
        self.count += 1
        if self.level == "full":
            self._write(line)

    def add_steps(self, events: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Steps of S reports each, (steps, 4, S): bits of the times, workers, tasks, digests."""
        if self.level == "full":
            raise ValueError("log='full': expected 'digest' or 'off' where whole steps are added")
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
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


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
