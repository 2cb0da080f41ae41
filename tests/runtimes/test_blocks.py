"""Blocks of steps: the simulator's events to the bit, its numbers up to rounding."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from aspire import Absence, Auto, Constant, LogNormal, Paper, Pareto, Uniform
from aspire.compiled import native
from aspire.methods import aspire
from aspire.problem import batches
from aspire.problem.problem import build
from aspire.problem.sites import Lie
from aspire.runs import digest, log
from aspire.simulator import blocks, blocks_native, order, simulator
from aspire.simulator.delays import many
from aspire.simulator.in_flight import Evaluator
from aspire.simulator.order import Order
from reproduction import attack
from tests.helpers import blob_problem, blobs

DELAYS = [
    LogNormal(),
    LogNormal(0.5, 0.9, scale=[1.0, 2.0, 0.1, 1.0, 3.0, 1.0, 7.0]),
    Constant(1.0),
    Constant((1.0, 2.0, 1.0, 0.5, 1.0, 3.0, 1.0)),
    Uniform(),
    Pareto(),
]


@pytest.fixture(autouse=True)
def _one_thread():
    """As in every run: torch's own softmax differs with how its threads share the rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem(n, *, dtype=torch.float64, scale=1.0, decay=0.0, device="cpu", linear=False):
    """Sites of unequal size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2)).to(dtype)
    model = nn.Linear(3, 2).to(dtype) if linear else model
    sites = [
        (scale * s["train"][0][: 20 + j].to(dtype), s["train"][1][: 20 + j])
        for j, s in enumerate(blobs(n, samples=120).values())
    ]
    return build(model, sites, batch_size=8, weight_decay=decay, device=device)


def begin(made, **method):
    simulation = simulator.begin(aspire(**method), made, delays=LogNormal())
    simulation.log = log.EventLog("digest")
    return simulation


def by_blocks(made, steps, every=40, **method):
    return blocks.run(begin(made, **method), lambda s: s.master.t >= steps, last=steps, every=every)


def by_events(made, steps, **method):
    return simulator.run(begin(made, **method), lambda s: s.master.t >= steps)


# ---------------------------------------------------------------- the order


@pytest.mark.parametrize("delays", DELAYS)
def test_many_delays_are_the_single_ones_to_the_bit(delays):
    workers, numbers = np.arange(700) % 7, np.arange(700) // 3
    alone = [delays(5, int(j), int(n)) for j, n in zip(workers, numbers, strict=True)]
    assert many(delays, 5, workers, numbers).tolist() == alone


def test_many_uniform_numbers_are_the_single_ones():
    workers, numbers = np.array([0, 3, 10**6]), np.array([0, 7, 2**33 + 1])
    found = batches.uniforms(2**40 + 3, workers, numbers, batches.DELAY)
    for u, j, n in zip(found, workers, numbers, strict=True):
        assert u == batches.uniform(2**40 + 3, int(j), int(n), batches.DELAY)


@pytest.mark.parametrize("delays", DELAYS)
@pytest.mark.parametrize("quorum", [1, 3, 7])
@pytest.mark.parametrize("by", ["arrays", "heap"])
def test_the_order_is_that_of_a_heap(delays, quorum, by, monkeypatch):
    monkeypatch.setattr(order, "FEW", 0 if by == "arrays" else 32)
    n, none = 7, np.zeros(7, dtype=np.int64)
    first = many(delays, 3, np.arange(n), none)
    found = Order(delays, 3, quorum, first.copy(), none.copy(), np.arange(n), 0.0, n)
    block = found.block(200)
    heap, number, task = [(first[j], j, j) for j in range(n)], [0] * n, n
    heapq.heapify(heap)
    for i in range(len(block)):
        got = [heapq.heappop(heap) for _ in range(quorum)]
        lines = zip(block.times[i], block.arrived[i], block.tasks[i], strict=True)
        assert list(lines) == got
        workers = sorted(j for _, j, _ in got)
        assert block.workers[i].tolist() == workers
        assert block.arrived[i][block.places[i]].tolist() == workers
        for j in workers:
            number[j] += 1
            heapq.heappush(heap, (got[-1][0] + delays(3, j, number[j]), j, task))
            task += 1
        assert block.numbers[i].tolist() == [number[j] for j in workers]
    assert block.after.due.tolist() == [time for time, _, _ in sorted(heap, key=lambda x: x[1])]
    assert (block.after.number.tolist(), block.after.next_id) == (number, task)
    assert block.after.time == block.times[-1, -1]


# ---------------------------------------------------------------- the numbers


needs_a_compiler = pytest.mark.skipif(
    native.library(torch.float64) is None, reason="native.c was not compiled"
)


def assert_same(a, b, tolerance):
    """Events to the bit, numbers within a tolerance."""
    assert (a.time, a.gradients, a.samples) == (b.time, b.gradients, b.samples)
    assert a.log.count == b.log.count
    assert sorted(a.heap) == sorted(b.heap)
    assert a.started == b.started
    x, y = a.master, b.master
    assert (x.t, x.next_id, x.n) == (y.t, y.next_id, y.n)
    for name in ("last", "task", "draws"):
        assert (getattr(x, name) == getattr(y, name)).all(), name
    for name in ("z", "average", "sum_w", "sum_phi", "w", "phi"):
        found, expected = getattr(x, name).cpu(), getattr(y, name)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    assert len(x.planes) == len(y.planes)
    for name in ("P", "lam", "F"):
        found, expected = getattr(x.planes, name), getattr(y.planes, name)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(x.f, y.f, rtol=tolerance)
    np.testing.assert_allclose(x.curvature, y.curvature, rtol=1e3 * tolerance)
    for j in range(x.n):
        told, expected = a.desk.report(j, a.evaluate), b.desk.report(j, b.evaluate)
        assert (told.task, list(told.scalars)) == (expected.task, list(expected.scalars))
        assert told.scalars == pytest.approx(expected.scalars, rel=1e3 * tolerance)


@needs_a_compiler
@pytest.mark.parametrize(("n", "quorum"), [(5, 1), (16, 4), (7, 7)])
def test_blocks_are_the_simulator(n, quorum):
    made = problem(n, decay=0.01)
    assert blocks.fits(begin(made, quorum=quorum))
    preset = Auto(stride=1.3, settle=50.0, coupling=0.2)
    a, b = (run(made, 200, quorum=quorum, preset=preset) for run in (by_blocks, by_events))
    assert_same(a, b, 1e-10)


@needs_a_compiler
@pytest.mark.parametrize(("n", "quorum"), [(5, 1), (16, 4)])
@pytest.mark.parametrize("bounds", [{}, {"pull_bound": 2.0, "coordinate_bound": 1.0}])
def test_blocks_have_the_simulators_momentum(n, quorum, bounds):
    made, still = problem(n, decay=0.01), by_events(problem(n, decay=0.01), 200, quorum=quorum)
    given = {"quorum": quorum, "preset": Auto(momentum=0.6), **bounds}
    assert blocks.fits(begin(made, **given))
    a, b = (run(made, 200, **given) for run in (by_blocks, by_events))
    assert_same(a, b, 1e-9)
    assert not torch.allclose(a.master.z, still.master.z, rtol=1e-3)


@needs_a_compiler
@pytest.mark.parametrize("linear", [True, False])
def test_steps_that_went_too_far_are_cut_alike(linear):
    made = problem(7, scale=30.0, linear=linear)
    a, b = (run(made, 60, quorum=3) for run in (by_blocks, by_events))
    followed = a.master.curvature > a.master.first
    assert followed.any() if linear else not followed.any()
    assert_same(a, b, 1e-9)


@needs_a_compiler
def test_the_simulator_goes_on_where_blocks_ended_and_the_other_way_round():
    made = problem(6)
    whole = by_events(made, 120, quorum=2)
    mixed = by_blocks(made, 60, quorum=2)
    simulator.run(mixed, lambda s: s.master.t >= 90)
    blocks.run(mixed, lambda s: s.master.t >= 120, last=120, every=50)
    assert_same(mixed, whole, 1e-10)


@needs_a_compiler
def test_looks_come_at_the_asked_steps_with_the_master_up_to_date():
    seen = []

    def look(simulation):
        seen.append((simulation.master.t, simulation.log.count))

    blocks.run(
        begin(problem(5), quorum=2), lambda s: s.master.t >= 70, last=70, every=30, on_step=look
    )
    assert seen == [(30, 5 + 60), (60, 5 + 120), (70, 5 + 140)]


@needs_a_compiler
def test_whole_looks_find_the_tasks_in_flight():
    made, kept = problem(5), []

    def look(simulation):
        kept.append(sorted(simulation.heap))

    blocks.run(
        begin(made),
        lambda s: s.master.t >= 50,
        last=50,
        every=25,
        on_step=look,
        whole=lambda: True,
    )
    assert kept[0] == sorted(by_events(made, 25).heap)


@needs_a_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_change_no_byte(dtype):
    made, found = problem(40, dtype=dtype), []
    for threads in (1, 2, 3):
        simulation = begin(made, quorum=6)
        simulation.evaluate = Evaluator(simulation.method, made, threads=threads)
        blocks.run(simulation, lambda s: s.master.t >= 60, last=60, every=25)
        found.append((simulation.log.place(), log.digest(simulation.master)))
    assert found == [found[0]] * 3


@needs_a_compiler
@pytest.mark.parametrize("every", [7, 80])
def test_who_looks_for_the_whole_state_changes_no_byte(every):
    made, ends = problem(9), []
    for wants in (True, False):
        simulation = blocks.run(
            begin(made, quorum=2),
            lambda s: s.master.t >= 80,
            last=80,
            every=every,
            whole=lambda wants=wants: wants,
        )
        ends.append((simulation.log.place(), log.digest(simulation.master)))
    assert ends[0] == ends[1]


LIES = {
    "honest": None,
    "loud": Lie(loss=3.0),
    "deafening": Lie(loss=1e9),
    "backwards": Lie(gradient=-5.0),
    "scaled": Lie(model=1.5),
    "far": Lie(model=0.0, plus=torch.full((122,), 0.7, dtype=torch.float64)),
}
BOUNDS = [
    {},
    {"pull_bound": 2.0},
    {"coordinate_bound": 1.0},
    {"pull_bound": 3.0, "coordinate_bound": 0.5},
]


@needs_a_compiler
@pytest.mark.parametrize("quorum", [1, 3])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("lie", LIES)
def test_bounds_and_lies_are_the_simulators(lie, bounds, quorum):
    honest = problem(7)
    *others, last = honest.sites
    made = replace(honest, sites=(*others, replace(last, lie=LIES[lie])))
    ends = []
    for blockwise in (True, False):
        simulation = begin(made, quorum=quorum, **bounds)
        simulation = replace(simulation, method=attack.lying(simulation.method))
        simulation.evaluate = Evaluator(simulation.method, made)
        assert blocks.fits(simulation)
        if blockwise:
            blocks.run(simulation, lambda s: s.master.t >= 90, last=90, every=40)
            simulator.run(simulation, lambda s: s.master.t >= 100)
        else:
            simulator.run(simulation, lambda s: s.master.t >= 100)
        ends.append(simulation)
    assert_same(*ends, 1e-9)
    x, y = (end.master.pulls for end in ends)
    for name in ("length", "rate", "kappa", "weight", "seat", "seen"):
        np.testing.assert_allclose(getattr(x, name), getattr(y, name), rtol=1e-9)
    torch.testing.assert_close(x.rows, y.rows, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(x.common, y.common, rtol=1e-8, atol=1e-9)


@needs_a_compiler
def test_planes_without_a_limit_and_more_than_there_is_room_for(monkeypatch):
    made, rules = problem(9), {"drop": False, "max_planes": None}
    assert_same(by_blocks(made, 400, **rules), by_events(made, 400, **rules), 1e-9)
    monkeypatch.setattr(blocks_native, "LEAST", 8)
    monkeypatch.setattr(blocks_native, "WIDEST", 0)
    whole = by_events(made, 400, **rules)
    assert len(whole.master.planes) > 8
    assert_same(by_blocks(made, 400, **rules), whole, 1e-9)


# ---------------------------------------------------------------- the log


@needs_a_compiler
def test_the_same_log_again_and_another_one_for_another_run():
    made = problem(6)
    found = [by_blocks(made, steps, quorum=2).log.place() for steps in (80, 80, 81)]
    assert found[0] == found[1]
    assert found[0].sha256 != found[2].sha256
    lengths = [by_blocks(made, 80, every=k, quorum=2).log.place() for k in (7, 80)]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_digest_is_a_sum_of_bits_times_odd_numbers(dtype):
    x = torch.randn(3, 50, dtype=dtype)
    bits = x.numpy().view(np.int32 if dtype == torch.float32 else np.int64)
    odd = batches.odd_integers(50).tolist()
    assert all(m % 2 == 1 or m % 2 == -1 for m in odd)
    for row, found in zip(bits.tolist(), digest.rows(x).tolist(), strict=True):
        assert (sum(b * m for b, m in zip(row, odd, strict=True)) - found) % 2**64 == 0
    changed = x.clone()
    changed[1, 7] += 1e-5
    assert (digest.rows(changed) != digest.rows(x)).tolist() == [False, True, False]


# ---------------------------------------------------------------- what is left to the simulator


def test_what_blocks_leave_to_the_simulator():
    made = problem(4)
    assert blocks.fits(begin(made)) == blocks_native.can_compile(made)
    for method in (
        {"staleness": 5},
        {"local_steps": 2},
        {"preset": Paper()},
    ):
        assert not blocks.fits(begin(made, **method))
    full = begin(made)
    full.log = log.EventLog("full")
    assert not blocks.fits(full)
    assert not blocks.fits(simulator.begin(aspire(), made, delays=LogNormal(), exact=True))
    away = simulator.begin(aspire(), made, delays=LogNormal(), absences=[Absence(1, 3.0, 9.0)])
    assert not blocks.fits(away)
    assert not blocks.fits(begin(blob_problem(4, batch_size=None)))
    other = replace(aspire(), name="other")
    assert not blocks.fits(simulator.begin(other, made, delays=LogNormal()))


def test_without_a_compiler_runs_go_event_by_event(monkeypatch):
    monkeypatch.setattr(native, "library", lambda dtype: None)
    assert not blocks.fits(begin(problem(4)))


def test_a_log_of_single_events_takes_no_whole_steps():
    with pytest.raises(ValueError, match="log='full'"):
        log.EventLog("full").add_steps(np.zeros((1, 4, 2), dtype=np.int64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize(("n", "quorum", "scale"), [(5, 1, 1.0), (16, 4, 1.0), (7, 3, 30.0)])
def test_the_card_gives_what_the_simulator_gives(n, quorum, scale):
    card = problem(n, dtype=torch.float32, scale=scale, decay=0.01, device="cuda")
    host = problem(n, dtype=torch.float32, scale=scale, decay=0.01)
    assert blocks.on_card(card)
    given = {"quorum": quorum, "preset": Auto(stride=1.3)}
    a, b = by_blocks(card, 60, **given), by_events(host, 60, **given)
    assert_same(a, b, 1e-4)
    assert a.log.place() == by_blocks(card, 60, **given).log.place()


@needs_a_compiler
@pytest.mark.parametrize("run", [by_blocks, by_events])
def test_a_loss_beyond_all_bounds_stops_the_run(run):
    """Finite, and far above 1e12: event by event it is refused, and blocks do not go on either."""
    with pytest.raises(simulator.Stopped, match=r"out of range|was refused after"):
        run(problem(7, scale=10.0), 40, preset=Auto(stride=1e15))


@needs_a_compiler
def test_a_run_that_overflows_is_stopped_in_words():
    made = problem(7, scale=1e4)
    with pytest.raises(simulator.Stopped, match="not finite"):
        by_blocks(made, 3000, every=3000, preset=Auto(stride=1e200))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2**14, 3 * 2**14 + 5])
def test_the_digests_of_pieces_are_the_same_without_a_compiler(dtype, count, monkeypatch):
    x = torch.randn(count, dtype=dtype)
    found = digest.pieces(x)
    assert found[0] == digest.rows(x[None, : digest.PIECE])[0]
    monkeypatch.setattr(native, "library", lambda dtype: None)
    assert digest.pieces(x).tolist() == found.tolist()
    assert len(found) == -(-count // digest.PIECE)
