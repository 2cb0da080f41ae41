"""Rounds: who is waited for, who joins when, and what a quorum does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aspire.methods import afl, cover, drfa_prox, fedavg, gcivr, gda, gdmax, ind, q_ffl
from aspire.sets import KL
from aspire.simulator import simulator
from aspire.simulator.delays import Constant
from aspire.types import Facts, Joined, Left, Noted, Refused, Stepped
from tests.helpers import Board, Quadratic, blob_problem, same, snapshot

START = torch.zeros(2, dtype=torch.float64)


def board(method, n=3, **facts):
    locals_ = [Quadratic((float(j), 1.0), curvature=1.0 + j) for j in range(n)]
    made = Board(method, locals_, START, **facts)
    made.probe()
    return made


def test_a_round_waits_for_all():
    b = board(fedavg(1, 0.1))
    assert b.turn(2) == []
    assert b.turn(0) == []
    assert b.turn(1) == [Stepped(0, (0, 1, 2))]
    assert sorted(b.hands) == [0, 1, 2]


def test_who_left_is_not_waited_for():
    b = board(afl(0.1, 0.1))
    b.turn(0, 1)
    assert b.absorb(Left(2)) == [Stepped(0, (0, 1))]
    weights = b.method.look(b.master).weights
    assert weights[2] == 0.0
    assert weights.sum() == pytest.approx(1.0, abs=1e-15)


def test_the_answer_of_one_who_left_does_not_count():
    b = board(fedavg(1, 0.1))
    b.turn(0, 1)
    assert b.absorb(Left(0)) == []
    assert b.turn(2) == [Stepped(0, (1, 2))]
    ends = [0.1 * (1 + j) * np.array([j, 1.0]) for j in (1, 2)]
    np.testing.assert_allclose(b.master.w, np.mean(ends, axis=0), atol=1e-15)


def test_who_joins_takes_part_from_the_next_round():
    b = board(fedavg(1, 0.1), present=(0, 1))
    assert sorted(b.hands) == [0, 1]
    b.absorb(Joined(2))
    assert b.hands[2].kind == "probe"
    b.turn(2)
    assert 2 not in b.hands
    assert b.turn(0, 1) == [Stepped(0, (0, 1))]
    assert sorted(b.hands) == [0, 1, 2]
    np.testing.assert_allclose(b.method.look(b.master).weights, 1 / 3)


def test_all_may_leave_and_one_return():
    b = board(drfa_prox(2, 0.1, 0.1))
    for j in range(3):
        b.hands.pop(j, None)
        b.absorb(Left(j))
    assert not b.hands
    b.absorb(Joined(1))
    b.turn(1)
    assert b.hands[1].kind == "local"
    b.turn(1)
    assert b.hands[1].kind == "snapshot"
    assert b.turn(1) == [Stepped(0, (1,))]
    np.testing.assert_allclose(b.method.look(b.master).weights, [0.0, 1.0, 0.0])


def test_a_phase_that_nobody_can_answer_starts_the_round_again():
    b = board(drfa_prox(2, 0.1, 0.1, sampled=1))
    while next(iter(b.hands.values())).kind == "local":
        b.turn(*b.hands)
    (j,) = b.hands
    del b.hands[j]
    b.absorb(Left(j))
    assert {task.kind for task in b.hands.values()} == {"local"}
    assert b.master.t == 0


def test_a_worker_may_leave_before_its_probe():
    b = Board(fedavg(1, 0.1), [Quadratic((1.0, 1.0)) for _ in range(3)], START)
    b.turn(0, 1)
    assert {b.hands[j].kind for j in b.hands} == {"probe"}
    del b.hands[2]
    b.absorb(Left(2))
    assert {j: task.kind for j, task in b.hands.items()} == {0: "local", 1: "local"}


@pytest.mark.parametrize(
    "method", [fedavg(1, 0.1, quorum=2), afl(0.1, 0.1, quorum=2), q_ffl(1.0, 1, 0.1, quorum=2)]
)
def test_a_quorum_closes_the_round_and_the_late_are_ignored(method):
    b = board(method)
    assert b.turn(0, 2) == [Stepped(0, (0, 2))]
    assert sorted(b.hands) == [0, 1, 2]
    late = b.hands[1].id
    w = b.master.w.clone()
    assert late == min(task.id for task in b.hands.values())
    assert b.turn(1) == [Noted(1, "late report of worker 1 ignored")]
    assert torch.equal(b.master.w, w)
    assert b.master.draws[1] == 2  # its batch is used up all the same
    assert 1 not in b.hands
    assert b.turn(0, 2) == [Stepped(1, (0, 2))]
    assert b.hands[1].id > late


def test_a_quorum_of_one_in_both_phases():
    b = board(drfa_prox(1, 0.1, 0.1, quorum=1))
    for t in range(20):
        while b.master.t == t:
            b.turn(min(b.hands, key=lambda j: b.hands[j].id))
    assert np.isfinite(b.method.look(b.master).weights).all()
    assert not any(isinstance(info, Refused) for info in b.infos)


@pytest.mark.parametrize(("quorum", "last"), [(None, 50.0), (2, 20.0), (1, 10.0)])
def test_waiting_for_stragglers_shows_in_virtual_time(quorum, last):
    problem = blob_problem(3, batch_size=4)
    run = simulator.begin(fedavg(1, 0.1, quorum=quorum), problem, delays=Constant([1.0, 2.0, 5.0]))
    while run.master.t < 10:
        run.absorb(run.next_event())
    assert run.time == last


def test_ind_does_not_mind_the_others():
    b = board(ind(1, rate=0.1))
    before = snapshot(b.master)
    assert b.absorb(Left(0), Left(2), Joined(0)) == []
    assert same(before, b.master)
    assert isinstance(b.absorb(Left(3))[0], Refused)
    b.absorb(Left(1))
    b.hands.clear()
    b.absorb(Joined(1))
    b.turn(1)
    assert b.turn(1) == [Stepped(0, (1,))]


def test_gcivr_and_cover_start_anew_when_the_sites_change():
    for method in (gcivr(1.0, 0.01, period=50), cover(1.0, 0.01)):
        b = board(method)
        for _ in range(3):
            t = b.master.t
            while b.master.t == t:
                b.turn(*sorted(b.hands))
        assert {task.kind for task in b.hands.values()} == {"difference"}
        away = next(j for j in range(3) if j not in b.hands)
        b.absorb(Left(away))
        b.turn(*sorted(b.hands))
        assert {task.kind for task in b.hands.values()} == {"checkpoint"}


def test_the_seed_decides_who_is_drawn():
    def first(seed):
        method = drfa_prox(1, 0.1, 0.1, sampled=2)
        made = Board(method, [Quadratic((1.0, 1.0)) for _ in range(20)], START)
        made.master, tasks = method.init(Facts(20, START), seed)
        made.hands = {task.worker: task for task in tasks}
        made.probe()
        return sorted(made.hands)

    assert first(1) == first(1)
    assert len({tuple(first(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fedavg(0), "local_steps=0"),
        (lambda: fedavg(1, -0.1), "rate=-0.1"),
        (lambda: fedavg(quorum=0), "quorum=0"),
        (lambda: ind(-1), "site=-1"),
        (lambda: ind(3).init(Facts(3, START), 0), "site=3"),
        (lambda: fedavg(quorum=4).init(Facts(3, START), 0), "quorum=4"),
        (lambda: fedavg(prior=[1.0]).init(Facts(3, START), 0), "prior has 1 entries"),
        (lambda: afl(limit=0.0), "limit=0.0"),
        (lambda: afl(rate_weights=0.0), "rate_weights=0.0"),
        (lambda: drfa_prox(regularisation=-1.0), "regularisation=-1.0"),
        (lambda: drfa_prox(sampled=0), "sampled=0"),
        (lambda: q_ffl(-1.0), "q=-1.0"),
        (lambda: gda(KL(0.1)), "uncertainty=KL"),
        (lambda: gdmax(rate=float("nan")), "rate=nan"),
        (lambda: cover(momentum=0.0), "momentum=0.0"),
        (lambda: cover(-1.0), "temperature=-1.0"),
        (lambda: gcivr(period=0), "period=0"),
    ],
)
def test_bad_arguments_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
