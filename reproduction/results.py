"""The finished cells of an experiment in one file, OUT/NAME.jsonl: one line per cell, sorted.

The file is the same while an experiment runs and afterwards. It is replaced as a whole with every
cell that is added, so that a command that is killed leaves the cells that it finished.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from aspire.runs import files as rundir
from reproduction.cells import Cell
from reproduction.plans import PLANS
from reproduction.provenance import FIELD, MADE_BY

Record = dict[str, Any]
Key = tuple[str, str, int]
AnyKey = TypeVar("AnyKey", bound=tuple)
SUFFIX = ".jsonl"
SHOWN_SEED = 0  # the pictures show the weights of one seed
FIGURES = (
    "iterations",
    "virtual_seconds",
    "worker_gradients",
    "sample_passes",
    "worst_accuracy",
    "mean_accuracy",
    "std_accuracy",
    "accuracies",
    "evaluated_on",
    "worst_loss",
    "worst_case_loss",
    "weights",
    "sites",
    "planes",
    "constants",
    "stopped",
    "alone",
    "selected",
    "test_samples",
    "attack_success",
    "adaptive_success",
    "extra_weight",
    "gap",
    "largest_delay",
    "mean_delay",
    "wall_seconds",
    "versions",
    MADE_BY,
    FIELD,
)
CELL = tuple(field.name for field in fields(Cell))


def path_of(out: Path, experiment: str) -> Path:
    return out / f"{experiment}{SUFFIX}"


def key_of(record: Mapping[str, Any]) -> Key:
    """Data set, method (METHOD-tuned beside METHOD), and seed or number of the trial."""
    method = record["method"]
    variant = record["variant"]
    trial = record.get("trial")
    folder = method if variant == "default" else f"{method}-{variant}"
    return record["dataset"], folder, record["seed"] if trial is None else trial


def name_of(record: Mapping[str, Any]) -> str:
    """EXPERIMENT/DATASET/METHOD/NUMBER."""
    return "/".join(map(str, (record["experiment"], *key_of(record))))


def kept(record: Mapping[str, Any]) -> Record:
    """What the file keeps: the cell, its figures in full, the curves that its experiment needs."""
    curves = set(PLANS[record["experiment"]].curves)
    if record["seed"] != SHOWN_SEED:
        curves.discard("weights")
    history = {name: curve for name, curve in record["history"].items() if name in curves}
    plain = rundir.plain({**record, "history": history})
    names = (*CELL, *FIGURES, "history")
    return {name: plain[name] for name in names if plain.get(name) is not None}


def read(path: Path) -> dict[Key, Record]:
    """Every cell in the file, in order; without the file, none. A damaged line is no cell."""
    return {key: cell for key, cell in read_lines(path, key_of).items() if "budget" in cell}


def add(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Put cells into the file, in place of those with the same key."""
    add_lines(path, map(kept, records), key_of)


# ---------------------------------------------------------------- any file of records with keys


def read_lines(path: Path, key: Callable[[Record], AnyKey]) -> dict[AnyKey, Record]:
    """Every record of a file by its key, in order. A damaged line is none."""
    if not path.is_file():
        return {}
    found: dict[AnyKey, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            found[key(record)] = record
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return dict(sorted(found.items()))


def add_lines(path: Path, records: Iterable[Record], key: Callable[[Record], AnyKey]) -> None:
    """Put records into a file, in place of those with the same key. Replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        found = read_lines(path, key) | {key(record): record for record in records}
        lines = [json.dumps(found[k], separators=(",", ":")) + "\n" for k in sorted(found)]
        beside = path.with_name(path.name + ".part")
        with open(beside, "w", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Another command that writes to this file waits. One that was replaced meanwhile is let go."""
    while True:
        with open(path, "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                yield
                return
