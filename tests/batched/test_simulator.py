"""Many tasks in one call: the same events, the same numbers, and the same bytes in a replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from aspire import Absence, LogNormal
from aspire.methods import aspire
from aspire.problem import batches
from aspire.problem.problem import Site, build
from aspire.problem.sites import gradients
from aspire.runs import log
from aspire.simulator import simulator
from aspire.simulator.in_flight import Evaluator, _even
from aspire.simulator.replay import replay_events
from aspire.types import Facts, Fast
from tests.helpers import blob_problem, blobs

GONE = (Absence(1, 10.0, 30.0), Absence(2, 0.0, 20.0))


def problem(n=6, *, dtype=torch.float64):
    """Sites of unequal size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Linear(20, 2)).to(dtype)
    sites = [
        (s["train"][0][: 20 + j].to(dtype), s["train"][1][: 20 + j])
        for j, s in enumerate(blobs(n).values())
    ]
    return build(model, sites, batch_size=8)


def run(made, path=None, *, alone=False, iterations=60, threads=1, absences=GONE, **method):
    simulation = simulator.begin(aspire(**method), made, delays=LogNormal(), absences=absences)
    simulation.evaluate = Evaluator(simulation.method, made, alone=alone, threads=threads)
    simulation.log = log.EventLog("full", path)
    simulator.run(simulation, lambda s: s.master.t >= iterations)
    simulation.log.mark("end", simulation.master.t, simulation.master)
    simulation.log.close()
    return simulation


def test_rows_of_indices_are_the_single_ones():
    workers, draws, sizes, starts = [0, 3, 7], [5, 0, 2**33], [10, 999, 7], [0, 10, 1009]
    rows = batches.rows(4, workers, draws, sizes, starts, count=9)
    for row, j, n, size, start in zip(rows, workers, draws, sizes, starts, strict=True):
        assert torch.equal(row, start + batches.indices(4, j, n, size=size, count=9))


def test_many_gradients_are_the_single_ones():
    made = problem()
    w = made.flat.start + 0.1 * torch.randn(6, len(made.flat.start), dtype=torch.float64)
    found = gradients(made.sites, w, [3, 1, 4, 1, 5, 9])
    for j, n in enumerate([3, 1, 4, 1, 5, 9]):
        torch.testing.assert_close(found[j], made.sites[j].gradient(w[j], n), rtol=0, atol=1e-13)


class Loud(Site):
    def gradient(self, w, draw):
        return 100.0 * super().gradient(w, draw)


def test_a_site_with_a_gradient_of_its_own_keeps_it():
    made = problem()
    odd = made.sites[2]
    loud = Loud(**{name: getattr(odd, name) for name in odd.__dataclass_fields__})
    locals_ = [*made.sites[:2], loud, *made.sites[3:]]
    w = made.flat.start.expand(6, -1)
    found, plain = gradients(locals_, w, [1] * 6), gradients(made.sites, w, [1] * 6)
    torch.testing.assert_close(found[2], 100.0 * plain[2])
    torch.testing.assert_close(found[[0, 1, 3, 4, 5]], plain[[0, 1, 3, 4, 5]])
    assert not replace(made, sites=tuple(locals_)).batched


@pytest.mark.parametrize("method", [{}, {"quorum": 3}, {"local_steps": 3}, {"pull_bound": 10.0}])
def test_together_is_one_by_one_up_to_rounding(method, tmp_path):
    paths = [tmp_path / "together", tmp_path / "alone"]
    a = run(problem(), paths[0], **method)
    b = run(problem(), paths[1], alone=True, **method)
    order = [[(e["event"], e["worker"], e["time"]) for e in log.read(p)[0]] for p in paths]
    assert order[0] == order[1]
    torch.testing.assert_close(a.master.z, b.master.z, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(a.master.f, b.master.f, rtol=1e-9)
    assert a.gradients == b.gradients


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_bytes_again_with_any_threads_and_in_a_replay(alone, dtype, tmp_path):
    made, paths = problem(dtype=dtype), [tmp_path / str(i) for i in range(2)]
    for path, threads in zip(paths, (1, 2), strict=True):
        run(made, path, alone=alone, threads=threads, quorum=2)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    events, end = log.read(paths[0])
    master = replay_events(aspire(quorum=2), made, events, 0, alone=alone)
    assert log.digest(master) == end["state"]


def test_threads_change_no_byte_where_several_calls_run(tmp_path):
    made, paths = blob_problem(40, batch_size=8), [tmp_path / str(i) for i in range(2)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for path, threads in zip(paths, (1, 3), strict=True):
            run(made, path, threads=threads, quorum=5, absences=())
    finally:
        torch.set_num_threads(before)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_tasks_in_flight_are_evaluated_together_and_a_vanished_result_is_dropped():
    made, calls = problem(), []
    method = aspire()

    def watched(items):
        calls.append([task.worker for _, task, _ in items])
        return method.fast.many(items)

    simulation = simulator.begin(
        replace(method, fast=Fast(watched)), made, delays=LogNormal(), absences=[Absence(0, 0.5)]
    )
    simulator.run(simulation, lambda s: s.master.t >= 100)
    assert calls[0] == list(range(6))  # the probes
    assert calls[1] == list(range(1, 6))  # worker 0 has left before anything was due
    assert 0 not in simulation.desk.known
    assert sum(map(len, calls)) >= 2 * len(calls)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_desk_that_was_settled_goes_on_with_the_same_groups(threads):
    made, method = blob_problem(40, batch_size=8), aspire(quorum=5)
    whole, first = (simulator.begin(method, made, delays=LogNormal()) for _ in range(2))
    first.evaluate = Evaluator(method, made, threads=threads)
    simulator.run(whole, lambda s: s.master.t >= 40)
    simulator.run(first, lambda s: s.master.t >= 17)
    assert first.desk.waiting  # some have a task on which nothing was begun
    first.desk.settle(first.evaluate)
    assert set(first.desk.known) | set(first.desk.waiting) == set(first.desk.hands)
    first.evaluate = Evaluator(method, made)
    simulator.run(first, lambda s: s.master.t >= 40)
    assert log.digest(first.master) == log.digest(whole.master)


def test_many_probes_are_the_single_ones():
    made, method = problem(), aspire()
    _, tasks = method.init(Facts(6, made.flat.start), 0)
    items = [(None, task, made.sites[task.worker]) for task in tasks]
    for (_, one), item in zip(method.fast.many(items), items, strict=True):
        assert one.scalars == pytest.approx(method.work(*item)[1].scalars, rel=1e-8)


def test_even_parts():
    assert _even(list(range(5)), 16) == [[0, 1, 2, 3, 4]]
    parts = _even(list(range(35)), 16)
    assert [len(part) for part in parts] == [9, 9, 9, 8]
    assert [i for part in parts for i in part] == list(range(35))
