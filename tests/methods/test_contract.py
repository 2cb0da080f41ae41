"""What every method promises, one row per method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from aspire.api import prepare, replay, train
from aspire.methods.worker import Foreseen
from aspire.problem.problem import build
from aspire.runs.log import digest
from aspire.simulator import simulator
from aspire.simulator.delays import Absence, LogNormal
from aspire.types import Event, Facts, Item, Joined, Left, Method, Refused, Report, Stepped
from tests.helpers import Board, blob_problem, blobs, linear, same, snapshot, validated
from tests.methods.table import MEAN, ROWS, STEADY

SITES = 3
rows = pytest.mark.parametrize("name", list(ROWS))


def board_of(method: Method) -> Board:
    problem = blob_problem(SITES, batch_size=4)
    return Board(method, problem.sites, problem.flat.start)


def history(board: Board, *, moving: bool, count: int = 30) -> Iterator[Event]:
    """Events as a runtime might write them: one worker comes and goes, the order changes."""
    for n in range(count):
        if moving and n in (8, 16):
            board.hands.pop(2, None)
            yield Left(2) if n == 8 else Joined(2)
        waiting = sorted(board.hands)
        yield board.report(waiting[(5 * n) % len(waiting)])


def played(method: Method, name: str, count: int = 30) -> tuple[Board, list[Event]]:
    board, events = board_of(method), []
    for event in history(board, moving=name not in STEADY, count=count):
        board.absorb(event)
        events.append(event)
    return board, events


@rows
def test_events_may_be_stacked(name: str) -> None:
    """absorb(a + b) = absorb(absorb(a), b), for every cut."""
    method = ROWS[name]()
    board, events = played(method, name)
    assert not any(isinstance(info, Refused) for info in board.infos)
    for cut in (0, 1, 7, 13, len(events)):
        master = board_of(method).master
        master, first, infos = method.absorb(master, events[:cut])
        master, second, more = method.absorb(master, events[cut:])
        assert same(master, board.master)
        assert infos + more == board.infos
        last = {task.worker: task for task in [*first, *second]}
        assert all(same(last[j], task) for j, task in board.hands.items())


@rows
def test_absorb_on_a_snapshot_leaves_the_original_alone(name: str) -> None:
    method = ROWS[name]()
    board, _ = played(method, name)
    before = digest(board.master)
    copy, hands = snapshot(board.master), dict(board.hands)
    for j in sorted(hands):
        method.absorb(copy, [board.report(j)])
    assert digest(board.master) == before
    assert digest(copy) != before


BAD_NUMBERS = (
    *(("loss", x) for x in (float("nan"), float("inf"), -float("inf"), 2e12, -2e12, 1e300)),
    *(("reference", x) for x in (float("nan"), 2e12, -2e12)),
    *(("curvature", x) for x in (-1e-300, -1.0, float("nan"), 1e31)),
    *(("slope", x) for x in (-1e-300, -1.0, float("inf"))),
    *((name, x) for name in ("gradients", "samples") for x in (-1.0, 0.5, 1e18, float("nan"))),
    *((name, 1.0) for name in ("worker", "n", "event", "x", "", 'a": 1, "b', "a\nb")),
)


def spoilt(report: Report) -> Iterator[Report]:
    """The same report with one thing wrong."""
    yield dataclasses.replace(report, worker=SITES)
    yield dataclasses.replace(report, worker=-1)
    yield dataclasses.replace(report, task=report.task + 1000)
    for name, bad in BAD_NUMBERS:
        yield dataclasses.replace(report, scalars={**report.scalars, name: bad})
    for name in ("gradients", "samples"):
        fewer = {k: v for k, v in report.scalars.items() if k != name}
        yield dataclasses.replace(report, scalars=fewer)
    yield dataclasses.replace(report, vectors={**report.vectors, "x": torch.zeros(8)})
    for key, vector in report.vectors.items():
        worse = vector.clone()
        worse[1] = float("nan")
        for other in (worse, vector[:-1], vector[None], vector.double()):
            yield dataclasses.replace(report, vectors={**report.vectors, key: other})
        yield dataclasses.replace(
            report, vectors={k: v for k, v in report.vectors.items() if k != key}
        )


@rows
@pytest.mark.parametrize("count", [1, 20, 21, 22])
def test_a_refused_event_changes_no_byte(name: str, count: int) -> None:
    method = ROWS[name]()
    board, _ = played(method, name, count)
    before = digest(board.master)
    report = board.report(min(board.hands))
    gone = [Left(SITES), Joined(-1), Joined(report.worker)]
    for event in [*spoilt(report), *gone]:
        master, tasks, infos = method.absorb(board.master, [event])
        assert master is board.master
        assert digest(master) == before, event
        assert tasks == []
        assert [type(info) for info in infos] == [Refused]
        assert infos[0].event is event
    assert not any(isinstance(info, Refused) for info in board.absorb(report))
    again = board.absorb(report)
    assert [type(info) for info in again] == [Refused]


@rows
def test_who_is_away_cannot_leave(name: str) -> None:
    method = ROWS[name]()
    board, _ = played(method, name, 12)
    j = 1
    first = board.absorb(Left(j))
    before = digest(board.master)
    second = board.absorb(Left(j))
    assert [type(info) for info in second] == [Refused]
    assert digest(board.master) == before
    assert (name in STEADY) == any(isinstance(info, Refused) for info in first)


@rows
def test_work_depends_on_its_arguments_alone(name: str) -> None:
    method = ROWS[name]()
    board, _ = played(method, name, 9)
    for j, task in sorted(board.hands.items()):
        worker, before = board.workers.get(j), digest((task, board.workers.get(j)))
        one = method.work(snapshot(worker), task, board.locals[j])
        torch.rand(3)  # whatever happens elsewhere
        other = method.work(snapshot(worker), task, board.locals[j])
        assert same(one, other)
        assert digest((task, worker)) == before
        assert {"gradients", "samples"} <= set(one[1].scalars)
        assert (one[1].worker, one[1].task) == (j, task.id)


@rows
def test_many_tasks_are_the_single_ones(name: str) -> None:
    """Rows of several workers, the same worker twice, probes among them: each as if alone."""
    method = ROWS[name]()
    board = board_of(method)
    items: list[Item] = []
    for _ in range(24):
        items += [
            (snapshot(board.workers.get(j)), task, board.locals[j])
            for j, task in board.hands.items()
        ]
        board.turn(max(board.hands))
    together = method.fast.many([(snapshot(worker), *rest) for worker, *rest in items])
    assert len({task.kind for _, task, _ in items}) > 1
    for (worker, task, local), (state, report) in zip(items, together, strict=True):
        expected, single = method.work(worker, task, local)
        assert (report.worker, report.task) == (single.worker, single.task)
        assert report.scalars == pytest.approx(single.scalars, rel=1e-5)
        torch.testing.assert_close(dict(report.vectors), dict(single.vectors))
        torch.testing.assert_close(state, expected)


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name]().fast.ahead])
def test_what_was_foreseen_changes_no_byte(name: str) -> None:
    """One looks ahead after each report, its twin does not; then one that foresaw wrongly."""
    method = ROWS[name]()
    plain, keen = board_of(method), board_of(method)
    steps, twins = history(plain, moving=True), history(keen, moving=True)
    for _ in range(30):
        tasks = dict(keen.hands)
        event, twin = next(steps), next(twins)
        assert same(event, twin)
        j = twin.worker
        if isinstance(twin, Report):
            keen.workers[j] = method.fast.ahead(keen.workers[j], tasks[j], keen.locals[j])
        plain.absorb(event)
        keen.absorb(twin)
    assert digest(plain.master) == digest(keen.master)
    j = next(j for j, worker in keen.workers.items() if isinstance(worker, Foreseen))
    known, task, local = keen.workers[j], keen.hands[j], keen.locals[j]
    right = method.work(known, task, local)
    assert not same(
        right, method.work(dataclasses.replace(known, gradient=0 * known.gradient), task, local)
    )
    other = dataclasses.replace(known, gradient=0 * known.gradient, draw=known.draw + 1)
    assert same(right, method.work(other, task, local))
    whole = dataclasses.replace(task, vectors={**task.vectors, "w": known.w})
    assert same(right, method.work(dataclasses.replace(known, w=0 * known.w), whole, local))


@rows
def test_losses_cost_at_most_as_much_as_gradients(name: str) -> None:
    """Sites with ten times as many samples as three passes over a batch."""
    method = ROWS[name]()
    problem = build(linear(), blobs(SITES, samples=240), batch_size=4)
    run = simulator.begin(method, problem, delays=LogNormal())
    while run.gradients < 600:
        run.absorb(run.next_event())
    probes = 3 * sum(site.loss_samples for site in problem.sites)
    assert 12 * run.gradients <= run.samples <= 24 * run.gradients + probes


@rows
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_model_is_like_the_start(name: str, kind: torch.dtype) -> None:
    method = ROWS[name]()
    problem = blob_problem(SITES, batch_size=4)
    start = problem.flat.start
    board = Board(method, problem.sites, start)
    for _ in history(board, moving=False, count=20):
        w, weights = method.model(board.master), method.look(board.master).weights
        assert (w.shape, w.dtype) == (start.shape, start.dtype)
        assert weights.shape == (SITES,)
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        assert method.look(board.master).planes >= 0
        board.absorb(_)
    master, _ = method.init(Facts(SITES, start.to(kind)), 0)
    assert method.model(master).dtype == kind


@rows
def test_weights_are_of_the_present(name: str) -> None:
    if name in STEADY:
        pytest.skip("nobody leaves")
    method = ROWS[name]()
    board = board_of(method)
    for event in history(board, moving=True, count=16):
        board.absorb(event)
        weights = method.look(board.master).weights
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        if isinstance(event, Left):
            assert weights[event.worker] == 0.0


def carried_out(method: Method, gradients: int) -> simulator.Simulation:
    """A run from far away: every parameter starts at 2."""
    far = linear()
    for parameter in far.parameters():
        torch.nn.init.constant_(parameter, 2.0)
        parameter.data[0] *= -1.0
    problem = build(far, blobs(SITES), batch_size=16)
    run = simulator.begin(method, problem, delays=LogNormal())
    while run.gradients < gradients:
        run.absorb(run.next_event())
    return run


@rows
def test_a_run_lowers_the_loss(name: str) -> None:
    method = ROWS[name]()
    run = carried_out(method, 1200)
    sites, start = run.problem.sites, run.problem.flat.start
    before, after = (
        np.array([site.full_loss(w) for site in sites]) for w in (start, method.model(run.master))
    )
    figure = {"ind": lambda f: f[1]}.get(name, np.mean if name in MEAN else np.max)
    assert figure(after) < 0.5 * figure(before)


@rows
def test_one_step_info_per_iteration(name: str) -> None:
    method = ROWS[name]()
    board, _ = played(method, name)
    steps = [info for info in board.infos if isinstance(info, Stepped)]
    assert [info.t for info in steps] == list(range(board.master.t))
    assert all(list(info.workers) == sorted(set(info.workers)) for info in steps)
    assert len(steps) > 2


@rows
def test_a_logged_run_replays_to_the_bit(name: str, tmp_path: Any) -> None:
    away = () if name in STEADY else (Absence(2, 10.0, 25.0), Absence(1, 30.0, 31.0))
    arguments = {"method": ROWS[name](), "iterations": 15, "absences": away, "batch_size": 4}
    sites = validated(SITES)
    run = train(linear(), sites, out=tmp_path / "run", **arguments)
    assert run.iterations == 15
    replay(tmp_path / "run", prepare(linear(), sites, **arguments))
