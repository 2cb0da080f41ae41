"""Tasks and reports as Flower's records, and back: vectors as arrays, numbers as numbers.

A message holds three records: `vectors` (ArrayRecord), `scalars` (MetricRecord) and `about`
(ConfigRecord: the protocol's version, the task's id, worker and kind). Arrays travel as numpy's own
format without pickle, so reading one runs no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from aspire.problem.standardization import Standardization
from aspire.types import Report, Task

PROTOCOL = 1
STANDARD = "standardization"  # a record beside those of a task


def from_task(task: Task, by: Standardization | None = None) -> RecordDict:
    """With how the site's inputs are standardised, if they are."""
    about = {"worker": task.worker, "task": task.id, "kind": task.kind}
    records = _records(about, task.vectors, task.scalars)
    if by is not None:
        records[STANDARD] = ArrayRecord(_arrays({"mean": by.mean, "std": by.std}))
    return records


def standardization_in(records: RecordDict) -> Standardization | None:
    """What `from_task` put beside the task."""
    arrays = records.get(STANDARD)
    if not isinstance(arrays, ArrayRecord):
        return None
    found = {name: _vector(name, array) for name, array in arrays.items()}
    mean, std = (found.get(name) for name in ("mean", "std"))
    if mean is None or std is None or mean.shape != std.shape:
        raise ValueError(f"a message standardises by {sorted(found)}: expected mean and std")
    return Standardization(mean, std)


def to_task(records: RecordDict) -> Task:
    about, vectors, scalars = _parts(records)
    return Task(*_numbers(about), str(about.get("kind")), vectors, scalars)


def from_report(report: Report) -> RecordDict:
    about = {"worker": report.worker, "task": report.task}
    return _records(about, report.vectors, report.scalars)


def to_report(records: RecordDict) -> Report:
    about, vectors, scalars = _parts(records)
    return Report(*_numbers(about), vectors, scalars)


def _numbers(about: Mapping[str, Any]) -> tuple[int, int]:
    """Of the worker and of its task."""
    worker, task = (about.get(name) for name in ("worker", "task"))
    if type(worker) is not int or type(task) is not int:
        raise ValueError(f"a message is of worker {worker!r}, task {task!r}: expected two numbers")
    return worker, task


def _records(
    about: dict[str, Any], vectors: Mapping[str, Tensor], scalars: Mapping[str, float]
) -> RecordDict:
    return RecordDict(
        {
            "about": ConfigRecord({"protocol": PROTOCOL, **about}),
            "vectors": ArrayRecord(_arrays(vectors)),
            "scalars": MetricRecord({name: float(value) for name, value in scalars.items()}),
        }
    )


def _arrays(vectors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: Array(vector.detach().cpu().numpy()) for name, vector in vectors.items()}


def _parts(
    records: RecordDict,
) -> tuple[Mapping[str, Any], dict[str, Tensor], dict[str, float]]:
    """What a message says, or a ValueError: it comes from another machine."""
    about, arrays, numbers = (records.get(name) for name in ("about", "vectors", "scalars"))
    if not (
        isinstance(about, ConfigRecord)
        and isinstance(arrays, ArrayRecord)
        and isinstance(numbers, MetricRecord)
    ):
        raise ValueError(f"a message holds {sorted(records)}: expected about, vectors and scalars")
    if about.get("protocol") != PROTOCOL:
        raise ValueError(f"a message has protocol {about.get('protocol')!r}: expected {PROTOCOL}")
    vectors = {name: _vector(name, array) for name, array in arrays.items()}
    for name, value in numbers.items():
        if not isinstance(value, (int, float)):
            raise ValueError(f"a message has {name!r}={value!r}: expected one number")
    return about, vectors, {name: float(value) for name, value in numbers.items()}  # type: ignore[arg-type]


def _vector(name: str, array: Array) -> Tensor:
    try:
        values = array.numpy()
    except Exception as error:  # whatever numpy makes of bytes that are no array
        raise ValueError(f"a message has {name!r}, which is no array: {error}") from None
    if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
        raise ValueError(
            f"a message has {name!r} of shape {values.shape} and type {values.dtype}: "
            "expected one flat vector of floats"
        )
    return torch.from_numpy(np.array(values))
