"""Carries cells out, several at a time, and keeps what is finished."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reproduction import provenance, results
from reproduction.cells import Cell, run
from reproduction.results import Record

Tell = Callable[[str], None]
Stage = Callable[[Callable[[Cell], Record | None]], list[Cell]]
Doer = Callable[[Sequence[Cell]], Iterator[tuple[Cell, Record | str]]]  # str: why there is none


def finished(cell: Cell, records: Mapping[results.Key, Record]) -> Record | None:
    """The record of this very cell, if an earlier call finished it with these sources."""
    plain = cell.plain()
    record = records.get(results.key_of(plain))
    if record is None or any(record.get(name) != value for name, value in plain.items()):
        return None
    if provenance.stale(record, Cell.__module__):
        return None
    return record


@dataclass
class Progress:
    """How far it is and how long it may still take, by the gradients of the cells."""

    total: int
    cost: float
    tell: Tell

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.done = 0
        self.paid = 0.0

    def tick(self, cell: Cell, found: Record | str) -> None:
        self.done += 1
        self.paid += cell.budget
        spent = time.monotonic() - self.began
        left = spent * (self.cost - self.paid) / self.paid
        filled = 20 * self.done // self.total
        bar = "#" * filled + "." * (20 - filled)
        dataset, method, number = results.key_of(cell.plain())
        kind = "seed" if cell.trial is None else "trial"
        self.tell(
            f"[{bar}] {self.done} of {self.total}, about {readable(left)} left: {dataset} "
            f"{method} {kind} {number}{outcome(found)}"
        )


def outcome(found: Record | str) -> str:
    """A few words on what became of a cell."""
    if isinstance(found, str):
        return f" FAILED: {found}"
    worst = found.get("worst_accuracy")
    score = "" if worst is None else f", worst accuracy {100 * worst:.2f} %"
    return f"{score} ({found['wall_seconds']:.1f} s)"


def readable(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def carry_out(
    cells: Sequence[Cell],
    out: Path,
    *,
    data: str | None,
    jobs: int,
    tell: Tell = lambda text: None,
    stages: Sequence[Stage] = (),
) -> list[str]:
    """Every cell of an experiment that is not finished; written as they come.

    Returns which failed, and why. Each stage then says, of what is finished, which cells follow.
    """
    path = results.path_of(out, cells[0].experiment)
    with doing(jobs, data) as do:
        failed = _missing(cells, path, do, tell)
        for stage in stages:
            records = results.read(path)
            failed += _missing(stage(partial(finished, records=records)), path, do, tell)
    return failed


def _missing(cells: Sequence[Cell], path: Path, do: Doer, tell: Tell) -> list[str]:
    records = results.read(path)
    todo = [cell for cell in cells if finished(cell, records) is None]
    if len(todo) < len(cells):
        tell(f"{len(cells) - len(todo)} of {len(cells)} cells were finished before and are kept.")
    remark = provenance.remark(records.values(), lambda record: Cell.__module__)
    if remark is not None:
        tell(f"{remark} Stale ones are made again, the others kept.")
    progress = Progress(len(todo), float(sum(cell.budget for cell in todo)), tell)
    failed = []
    for cell, found in do(todo):
        if isinstance(found, str):
            failed.append(f"{results.name_of(cell.plain())}: {found}")
        else:
            made_by = found.get(provenance.MADE_BY)
            sources = provenance.hash_of(Cell.__module__, made_by)
            results.add(path, [{**found, provenance.FIELD: sources}])
        progress.tick(cell, found)
    return failed


@contextmanager
def doing(jobs: int, data: str | None) -> Iterator[Doer]:
    """Something that runs cells: here, or in processes that end when this does."""
    work = partial(_one, data=data)
    if jobs == 1:
        yield lambda todo: map(work, todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_ignore) as pool:
        yield lambda todo: pool.imap_unordered(work, todo)


def _one(cell: Cell, data: str | None) -> tuple[Cell, Record | str]:
    """One cell that fails must not end the hours of all others."""
    try:
        return cell, run(cell, data)
    except Exception as error:
        return cell, f"{type(error).__name__}: {error}"


def _ignore() -> None:
    """An interrupt is for the parent, which ends its processes and leaves whole files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
