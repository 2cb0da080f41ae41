"""The virtual clock: who reports when, what the log says, and that a log can be replayed."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest

from aspire import Absence, Auto, Constant, LogNormal, Pareto, Trace, Uniform
from aspire.methods import aspire
from aspire.problem import batches
from aspire.runs import log
from aspire.simulator import simulator
from aspire.simulator.delays import many
from aspire.simulator.replay import Differs, replay_events, replay_log
from aspire.types import Stepped
from tests.helpers import blob_problem, forged


def run(
    iterations, *, delays, problem=None, seed=0, path=None, absences=(), level="full", **method
):
    problem = problem or blob_problem(3, batch_size=8)
    events = log.EventLog(level, path)
    steps = []
    simulation = simulator.begin(
        aspire(**method), problem, delays=delays, absences=absences, seed=seed
    )
    simulation.log = events
    simulator.run(
        simulation,
        lambda s: s.master.t >= iterations,
        on_step=lambda s: steps.append((s.time, s.master.t)),
    )
    events.mark("end", simulation.master.t, simulation.master)
    events.close()
    return simulation, steps


@pytest.mark.parametrize("delays", [(1.0, 2.0, 5.0), (1.0, 1.0, 1.0), (0.5, 0.75, 3.0)])
def test_fact_1_iterations_by_time(delays):
    """Constant delays, S = 1, no tau: exactly sum_j floor(T / d_j) iterations by time T."""
    _, steps = run(800, delays=Constant(delays))
    times = np.array([time for time, _ in steps])
    for horizon in (1.0, 7.0, 50.0, 123.25):
        assert (times <= horizon).sum() == sum(math.floor(horizon / d) for d in delays)


def test_fact_1_is_only_a_bound_for_a_larger_quorum(capsys):
    """d = 1, 2, 5 and S = 2: the formula says sum floor(T/d)/S; the clock gives fewer."""
    delays, horizon = (1.0, 2.0, 5.0), 1000.0
    _, steps = run(900, delays=Constant(delays), quorum=2)
    found = sum(time <= horizon for time, _ in steps)
    formula = sum(horizon / d for d in delays) / 2
    assert found == 666
    assert formula == 850
    with capsys.disabled():
        sys.stdout.write(f"\nFact 1, S = 2, T = 1000: {found} iterations, formula {formula:g}\n")


def test_tau_one_is_synchronous():
    simulation, _ = run(30, delays=LogNormal(), staleness=1)
    every = []
    other = simulator.begin(aspire(quorum=3), blob_problem(3, batch_size=8), delays=LogNormal())
    simulator.run(
        other, lambda s: s.master.t >= 30, on_step=lambda s: every.append(s.master.last.copy())
    )
    np.testing.assert_array_equal(simulation.master.z, other.master.z)
    assert all((last == t).all() for t, last in enumerate(every))


@pytest.mark.parametrize("tau", [1, 2, 4, 7])
def test_nobody_is_ever_tau_behind_in_the_log(tau, tmp_path):
    """Replayed from the log alone: t - last_j < tau for everyone outside the step."""
    problem, method = blob_problem(4, batch_size=8), aspire(staleness=tau)
    path = tmp_path / "events.jsonl"
    run(60, delays=Pareto(1.1, scale=(1, 1, 1, 20)), problem=problem, path=path, staleness=tau)
    master, tasks = method.init(problem.facts(), 0)
    last, hands, workers = [-1] * 4, {t.worker: t for t in tasks}, {}
    for record in log.read(path)[0]:
        j = record["worker"]
        workers[j], report = method.work(workers.get(j), hands[j], problem.sites[j])
        master, tasks, infos = method.absorb(master, [report])
        hands.update((t.worker, t) for t in tasks)
        for info in infos:
            if isinstance(info, Stepped):
                outside = [i for i in range(4) if i not in info.workers]
                assert all(info.t - last[i] < tau for i in outside)
                for i in info.workers:
                    last[i] = info.t
    assert master.t == 60


def test_two_runs_with_one_seed_write_the_same_bytes(tmp_path):
    paths = [tmp_path / f"{i}.jsonl" for i in range(3)]
    for path, seed in zip(paths, (5, 5, 6), strict=True):
        run(40, delays=LogNormal(), seed=seed, path=path, absences=[Absence(1, 10.0, 30.0)])
    first, second, third = (path.read_bytes() for path in paths)
    assert first == second
    assert first != third
    assert b"wall" not in first


def test_replay_gives_the_same_state_to_the_bit(tmp_path):
    path = tmp_path / "events.jsonl"
    problem = blob_problem(3, batch_size=8)
    gone = [Absence(1, 10.0, 30.0), Absence(2, 0.0, 20.0)]
    simulation, _ = run(80, delays=LogNormal(), problem=problem, path=path, absences=gone, quorum=2)
    events, end = log.read(path)
    master = replay_events(aspire(quorum=2), problem, events, 0)
    assert log.digest(master) == end["state"] == log.digest(simulation.master)
    assert {"left", "joined", "report"} == {e["event"] for e in events}


def test_replay_names_the_first_report_that_differs(tmp_path):
    path = tmp_path / "events.jsonl"
    problem = blob_problem(3, batch_size=8)
    run(20, delays=LogNormal(), problem=problem, path=path)
    forged(path, 9, vectors="0" * 16)
    with pytest.raises(Differs, match="event 9"):
        replay_log(aspire(), problem, path, 0)


def test_a_vanished_worker_is_not_waited_for_and_returns(tmp_path):
    path = tmp_path / "events.jsonl"
    simulation, steps = run(
        60, delays=Constant(1.0), absences=[Absence(0, 5.5, 12.0)], staleness=2, path=path
    )
    kinds = [(e["event"], e["time"]) for e in log.read(path)[0] if e["worker"] == 0]
    assert ("left", 5.5) in kinds
    assert ("joined", 12.0) in kinds
    assert not [time for kind, time in kinds if kind == "report" and 5.5 < time < 12.0]
    assert max(time for kind, time in kinds if kind == "report") > 12.0
    during = [time for time, _ in steps if 5.5 < time < 12.0]
    assert len(during) >= 6
    assert simulation.master.present.all()


def test_nobody_left_ends_in_a_sentence():
    with pytest.raises(simulator.Stopped, match="away for good"):
        run(50, delays=Constant(1.0), absences=[Absence(j, 3.5) for j in range(3)])


def test_delay_models(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("worker,delay\n0,1.5\n1,2\n0,2.5\n")
    trace = Trace(file)
    assert [trace(0, 0, n) for n in range(3)] == [1.5, 2.5, 1.5]
    logs = np.log([LogNormal(1.0, 0.4)(0, j, n) for j in range(10) for n in range(200)])
    assert abs(logs.mean() - 1.0) < 0.05
    assert abs(logs.std() - 0.4) < 0.03
    assert all(1 <= Uniform(1, 2)(0, 0, n) <= 2 for n in range(50))
    assert all(Pareto(2.0, scale=3.0)(0, 0, n) >= 3.0 for n in range(50))
    assert Constant((1.0, 4.0))(0, 1, 7) == 4.0
    assert LogNormal()(1, 2, 3) == LogNormal()(1, 2, 3) != LogNormal()(1, 2, 4)


@pytest.mark.parametrize(
    "delays",
    [
        LogNormal(),
        LogNormal(0.5, 0.9, scale=[1.0, 2.0, 0.1, 1.0, 3.0, 1.0, 7.0]),
        Constant((1.0, 2.0, 1.0, 0.5, 1.0, 3.0, 1.0)),
        Uniform(),
        Pareto(),
    ],
)
def test_many_delays_are_the_single_ones_to_the_bit(delays):
    workers = np.arange(700) % 7
    numbers = np.arange(700) // 3
    alone = [delays(5, int(j), int(n)) for j, n in zip(workers, numbers, strict=True)]
    assert many(delays, 5, workers, numbers).tolist() == alone


def test_many_uniform_numbers_are_the_single_ones():
    workers = np.array([0, 3, 10**6])
    numbers = np.array([0, 7, 2**33 + 1])
    found = batches.uniforms(2**40 + 3, workers, numbers, batches.DELAY)
    for u, j, n in zip(found, workers, numbers, strict=True):
        assert u == batches.uniform(2**40 + 3, int(j), int(n), batches.DELAY)


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: Constant(-1.0), "delay=-1.0"),
    (lambda: LogNormal(sigma=-1.0), "sigma=-1.0"),
    (lambda: Uniform(2, 1), "high=1"),
    (lambda: Absence(0, 5, 4), "leaves=5"),
    (lambda: Trace("nowhere.csv"), "nowhere.csv"),
])  # fmt: skip
def test_bad_delays_are_named(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_loss_beyond_all_bounds_stops_the_run():
    """Finite, and far above 1e12."""
    with pytest.raises(simulator.Stopped, match="was refused after"):
        run(60, delays=LogNormal(), preset=Auto(stride=1e15))


def test_log_levels(tmp_path):
    for level in log.LEVELS:
        run(10, delays=Constant(1.0), path=tmp_path / level, level=level)
    assert not (tmp_path / "off").exists()
    assert len((tmp_path / "digest").read_text().splitlines()) == 1
    full, digest = log.read(tmp_path / "full")[1], log.read(tmp_path / "digest")[1]
    assert full == digest


@pytest.mark.parametrize(
    "value", [0.1, 1e-300, -0.0, 3, 1e22, math.nan, math.inf, True, "a\u00e9", ""]
)
def test_a_line_is_what_the_json_encoder_writes(value):
    record = {"n": 5, "time": 0.25, "event": "report", "loss": value, "vectors": "00ff"}
    assert log._line(record) == json.dumps(record)
