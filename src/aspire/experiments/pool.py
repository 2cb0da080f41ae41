"""Carries cells out, several at a time, and keeps what is finished: files are always whole."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aspire.experiments import tune
from aspire.experiments.cells import Cell, run
from aspire.experiments.summary import read_cell
from aspire.runtimes import rundir

Tell = Callable[[str], None]
Record = dict[str, Any]
Doer = Callable[[Sequence[Cell]], Iterator[tuple[Cell, Record | str]]]  # str: why there is none


def finished(cell: Cell, out: Path) -> Record | None:
    """The record of this very cell, if an earlier call finished it."""
    record = read_cell(out / cell.path)
    return record if record is not None and record["cell"] == cell.plain() else None


@dataclass
class Progress:
    """How far it is and how long it may still take, by the gradients of the cells."""

    total: int
    cost: float
    tell: Tell

    def __post_init__(self) -> None:
        self.began, self.done, self.paid = time.monotonic(), 0, 0.0

    def tick(self, cell: Cell, found: Record | str) -> None:
        self.done += 1
        self.paid += cell.budget
        spent = time.monotonic() - self.began
        left = spent * (self.cost - self.paid) / self.paid
        filled = 20 * self.done // self.total
        bar = "#" * filled + "." * (20 - filled)
        number = f"seed {cell.seed}" if cell.trial is None else f"trial {cell.trial}"
        self.tell(
            f"[{bar}] {self.done} of {self.total}, about {readable(left)} left: {cell.dataset} "
            f"{cell.folder} {number}{outcome(found)}"
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
    trials: int = 1,
) -> list[str]:
    """Every cell that is not finished; written as they come. Returns which failed, and why.

    With several trials the cells are trial 0, and the others are drawn around what it gave.
    """
    with doing(jobs, data) as do:
        failed = _missing(cells, out, do, tell)
        first = [(cell, finished(cell, out)) for cell in cells] if trials > 1 else []
        drawn = [
            tune.trial(cell, number, record)
            for cell, record in first
            if record is not None
            for number in range(1, trials)
        ]
        return failed + _missing(drawn, out, do, tell)


def _missing(cells: Sequence[Cell], out: Path, do: Doer, tell: Tell) -> list[str]:
    todo = [cell for cell in cells if finished(cell, out) is None]
    if len(todo) < len(cells):
        tell(f"{len(cells) - len(todo)} of {len(cells)} cells were finished before and are kept.")
    progress = Progress(len(todo), float(sum(cell.budget for cell in todo)), tell)
    failed = []
    for cell, found in do(todo):
        if isinstance(found, str):
            failed.append(f"{cell.path.removesuffix('.json')}: {found}")
        else:
            path = out / cell.path
            path.parent.mkdir(parents=True, exist_ok=True)
            rundir.write_json(path, found)
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
