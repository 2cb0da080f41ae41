"""Carries the plan out: several cells at a time, until the time is up; finished ones are kept."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from reproduction import provenance, results
from reproduction.networks import liars, store, terms, terms_time, trials
from reproduction.networks.cases import CASES
from reproduction.networks.plan import SEEDS, Key, Plan, Record, key_of
from reproduction.networks.run import Cell, run
from reproduction.networks.terms import TERMS
from reproduction.networks.terms_time import ORDERS
from reproduction.networks.trials import SEARCHED, TRIAL

NAME = "networks"
AHEAD = 2.5  # times the budget: gradients of an asynchronous run in the reference's time
SIZES = ("full", "small")
Tell = Callable[[str], None]
Outcome = dict[str, Any] | str  # a record, or why there is none
RUNNERS: dict[str, Callable[..., dict[str, Any]]] = {  # of settings with a module of their own
    TERMS: terms.run,
    TRIAL: trials.run,
    SEARCHED: trials.run,
    **dict.fromkeys(ORDERS, terms_time.run),
}


@dataclass(frozen=True)
class Request:
    """What was asked for.

    only     patterns for NETWORK/METHOD/SETTING/SEED, such as 'cnn' or 'cnn/direct*/end/*'; (): all
    minutes  no cell is started that is not expected to end by then; None: no limit
    """

    size: str = "full"
    seeds: tuple[int, ...] = SEEDS
    only: tuple[str, ...] = ()
    device: str = "cpu"
    jobs: int = 1
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: expected one of {', '.join(SIZES)}")
        if self.jobs < 1:
            raise ValueError(f"jobs={self.jobs}: expected at least 1")
        if not self.seeds:
            raise ValueError("seeds is empty: expected at least one seed")

    def wants(self, cell: Cell) -> bool:
        patterns = [p if "/" in p else f"{p}/*" for p in self.only]
        return not patterns or any(fnmatchcase(cell.name, pattern) for pattern in patterns)


@dataclass
class Work:
    """The state of a command: what is finished, what runs, what failed."""

    request: Request
    path: Path
    tell: Tell
    began: float = field(default_factory=time.monotonic)
    running: dict[Future[Outcome], Cell] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    done: int = 0

    def __post_init__(self) -> None:
        self.records: dict[Key, Record] = dict(results.read_lines(self.path, key_of))

    def open_cells(self) -> list[Cell]:
        """What can be run now, the most important first."""
        plan = Plan(self.request.size, self.records, self.request.seeds)
        busy = {cell.name for cell in self.running.values()} | self.failed.keys()
        cells = [cell for cell in plan.cells() if self.request.wants(cell)]
        missing = [c for c in cells if c.name not in busy and not finished(c, self.records)]
        return [cell for cell in missing if self.can_be_run(cell)]

    def can_be_run(self, cell: Cell) -> bool:
        dataset = CASES[cell.network].dataset
        reason = store.missing(dataset) if dataset else None
        reason = reason or liars.missing(cell.setting)
        if reason is not None:
            self.left_out[cell.name] = reason
        return reason is None

    def in_time(self, cell: Cell) -> bool:
        minutes = self.request.minutes
        if minutes is None:
            return True
        left = 60.0 * minutes - (time.monotonic() - self.began)
        return left > expected_seconds(cell, self.records)

    def keep(self, cell: Cell, outcome: Outcome) -> None:
        self.done += 1
        if isinstance(outcome, str):
            self.failed[cell.name] = outcome
            self.tell(f"{self.done}: {cell.name} FAILED: {outcome}")
            return
        made_by = outcome.get(provenance.MADE_BY)
        outcome[provenance.FIELD] = provenance.hash_of(module_of(outcome), made_by)
        self.records[key_of(outcome)] = outcome
        results.add_lines(self.path, [outcome], key_of)
        worst = outcome.get("worst_loss")
        shown = outcome.get("stopped", "") if worst is None else f"worst loss {worst:.4g}"
        self.tell(f"{self.done}: {cell.name}: {shown} ({outcome['wall_seconds']:.0f} s)")


def module_of(record: Record) -> str:
    """The module that makes cells of this setting."""
    return runner_of(record["setting"]).__module__


def runner_of(setting: str) -> Callable[..., dict[str, Any]]:
    return RUNNERS.get(setting, run)


def finished(cell: Cell, records: Mapping[Key, Record]) -> bool:
    """Whether the record of this very cell is there, made with these sources."""
    plain = cell.plain()
    record = records.get(key_of(plain))
    if record is None or provenance.stale(record, module_of(record)):
        return False
    return all(record.get(name) == plain.get(name) for name in fields_of(cell))


def fields_of(cell: Cell) -> Sequence[str]:
    return tuple(cell.__dataclass_fields__)


def expected_seconds(cell: Cell, records: Mapping[Key, Record]) -> float:
    """What the slowest like it took, by gradients; 0 where nothing is known."""
    like = [
        record["wall_seconds"] / max(1, record["worker_gradients"])
        for record in records.values()
        if (record["size"], record["network"], record["method"])
        == (cell.size, cell.network, cell.method)
    ]
    share = 1.0 if cell.horizon is None else AHEAD
    return max(like, default=0.0) * share * cell.gradients


def carry_out(request: Request, out: Path, tell: Tell = lambda text: None) -> Work:
    """Run what is missing; what an earlier call finished is kept."""
    work = Work(request, out / f"{NAME}.jsonl", tell)
    remark = provenance.remark(work.records.values(), module_of)
    if remark is not None:
        tell(f"{remark} Stale ones are made again, the others kept.")
    if request.jobs == 1:
        alone(work)
    else:
        beside_each_other(work)
    for reason in dict.fromkeys(work.left_out.values()):
        tell(f"Left out: {reason}")
    return work


def alone(work: Work) -> None:
    while True:
        cell = next(filter(work.in_time, work.open_cells()), None)
        if cell is None:
            return
        work.keep(cell, attempt(cell, work.request.device))


def beside_each_other(work: Work) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(work.request.jobs, mp_context=context) as pool:
        try:
            while keep_busy(work, pool):
                for future in wait(work.running, return_when=FIRST_COMPLETED).done:
                    work.keep(work.running.pop(future), future.result())
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()  # what they have begun is lost, and nobody waits for it
            raise


def keep_busy(work: Work, pool: ProcessPoolExecutor) -> bool:
    """Start as many cells as there is room for; False: nothing runs."""
    free = work.request.jobs - len(work.running)
    for cell in list(filter(work.in_time, work.open_cells()))[:free]:
        work.running[pool.submit(attempt, cell, work.request.device)] = cell
    return bool(work.running)


def attempt(cell: Cell, device: str) -> Outcome:
    """One cell that fails must not end all others."""
    try:
        return runner_of(cell.setting)(cell, device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
