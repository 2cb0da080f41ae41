"""FedBuff: buffers of one and of two by hand, who is waited for, and who comes and goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aspire.methods import fedavg, fedbuff
from aspire.simulator import simulator
from aspire.simulator.delays import Constant
from aspire.types import Facts, Joined, Left, Refused, Stepped
from tests.helpers import Board, Quadratic, blob_problem
from tests.methods.test_golden import W0, begun, close, play, sgd


def test_every_report_is_a_step_of_its_own_by_hand() -> None:
    """Buffer 1, n = 2: w <- w + r n q_j (1 + s)^-a (w_j - the w that j was handed)."""
    q, r, a = np.array([0.25, 0.75]), 0.5, 2.0
    board = begun(fedbuff(2, 0.1, buffer=1, server_rate=r, prior=q, staleness_power=a))
    w, sent = W0, {0: (0, W0), 1: (0, W0)}
    for t, j in enumerate((0, 0, 1, 0, 1, 1)):
        assert board.turn(j) == [Stepped(t, (j,))]
        before, start = sent[j]
        move = sgd(j, start, 2, 0.1)[-1] - start
        w = w + r * 2 * q[j] / (1 + t - before) ** a * move
        sent[j] = (t + 1, w)
        close(board.master.w, w)
        close(board.hands[j].vectors["w"], w)
    close(board.method.look(board.master).weights, q)


def test_a_buffer_of_all_is_fedavg() -> None:
    one, other = begun(fedbuff(3, 0.1, buffer=2)), begun(fedavg(3, 0.1))
    for _ in range(3):
        play(one)
        play(other)
        close(one.master.w, other.master.w)


def board_of(n: int, method: Any, **facts: Any) -> Board:
    sites = [Quadratic((float(j), 1.0), curvature=1.0 + j) for j in range(n)]
    made = Board(method, sites, torch.zeros(2, dtype=torch.float64), **facts)
    made.probe()
    return made


def move(j: int, w: Any) -> Any:
    return -0.1 * (1.0 + j) * (w - np.array([float(j), 1.0]))


def test_a_buffer_of_two_out_of_four_is_the_default_and_late_reports_count() -> None:
    board, zero = board_of(4, fedbuff(1, 0.1)), np.zeros(2)
    assert board.turn(3) == []
    assert 3 not in board.hands  # it waits for the buffer
    assert board.method.look(board.master).waiting == []
    assert board.turn(1) == [Stepped(0, (1, 3))]
    w = (move(1, zero) + move(3, zero)) / 2
    close(board.master.w, w)
    assert board.turn(0, 1) == [Stepped(1, (0, 1))]
    close(board.master.w, w + (move(0, zero) / np.sqrt(2) + move(1, w)) / 2)


def test_who_leaves_takes_its_report_along_and_who_joins_takes_part_later() -> None:
    board = board_of(3, fedbuff(1, 0.1, buffer=2), present=(0, 1))
    board.turn(0)
    board.absorb(Left(0))
    assert not board.master.answers
    board.absorb(Joined(2))
    board.turn(2)
    assert 2 not in board.hands
    assert board.turn(1) == [Stepped(0, (1,))]  # nobody else could report
    assert sorted(board.hands) == [1, 2]
    close(board.method.look(board.master).weights, [0.0, 0.5, 0.5])
    close(board.master.w, move(1, np.zeros(2)))  # n q_1 was 1: it was alone


def test_all_may_leave_and_one_return() -> None:
    board = board_of(2, fedbuff(1, 0.1))
    for j in (0, 1):
        board.hands.pop(j)
        board.absorb(Left(j))
    board.absorb(Joined(1))
    board.turn(1)
    assert board.turn(1) == [Stepped(0, (1,))]
    assert not any(isinstance(info, Refused) for info in board.infos)


@pytest.mark.parametrize(("buffer", "last"), [(3, 50.0), (1, 6.0)])
def test_slow_sites_do_not_hold_the_others_up(buffer: int, last: float) -> None:
    """Delays 1, 2 and 5: ten steps of one report each are there after 6 units of time."""
    problem = blob_problem(3, batch_size=4)
    run = simulator.begin(fedbuff(1, 0.1, buffer=buffer), problem, delays=Constant([1.0, 2.0, 5.0]))
    while run.master.t < 10:
        run.absorb(run.next_event())
    assert run.time == last


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"buffer": 0}, "buffer=0: expected a whole number of at least 1"),
        ({"server_rate": 0.0}, "server_rate"),
        ({"staleness_power": -1.0}, "staleness_power=-1.0: expected a number of at least 0"),
        ({"buffer": 4}, "buffer=4: expected at most the 3 sites"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fedbuff(**given).init(Facts(3, torch.zeros(2)), 0)
