"""What checked steps teach of the curvatures L_j, and what follows from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aspire.core.presets import USUAL, Auto
from aspire.core.schedules import Scale, learn, rises_above
from aspire.methods import aspire
from aspire.methods.worker import check_is_due
from tests.helpers import Board, Quadratic


def after(known: list[float], first: list[float], told: dict[int, float]) -> list[float]:
    now, everybody = np.array(known, dtype=float), np.ones(len(known), dtype=bool)
    workers, found = np.array(list(told)), np.array(list(told.values()))
    learn(now, np.array(first, dtype=float), everybody, workers, found)
    return now.tolist()


def test_a_much_steeper_step_counts_at_once():
    assert after([1, 1, 1], [1, 1, 1], {1: 4.0}) == [1, 4, 1]


def test_where_the_step_was_fine_the_curvature_eases_off_to_the_probes():
    assert after([5, 1.1, 2], [1, 1, 1], {0: 0.0, 1: 0.5}) == [4, 1, 2]
    assert after([5, 2, 2], [1, 1, 1], {0: 7.0}) == [4, 2, 2], "less than half as steep again"


def test_no_more_than_ten_medians_and_nothing_where_nobody_looked():
    assert after([1, 1, 2], [1, 1, 1], {2: 1e9}) == [1, 1, 10]
    assert after([3, 3, 3], [1, 1, 1], {0: -1.0}) == [3, 3, 3]


def test_the_order_of_the_reports_does_not_matter():
    told = {0: 50.0, 1: 0.0, 2: 90.0, 3: 0.0}
    turned = dict(reversed(told.items()))
    first = [1.0, 1.0, 1.0, 1.0, 1.0]
    one = after([4, 4, 4, 4, 4], first, told)
    assert one == after([4, 4, 4, 4, 4], first, turned)
    assert one[1] == one[3] == pytest.approx(3.2)


def test_kappa_follows_the_curvatures():
    auto = Auto()

    def scale(curvature: list[float]) -> Scale:
        return Scale(np.ones(3), np.array(curvature), np.ones(3), np.full(3, 0.5), 50, None)

    start = auto.constants(scale([1, 2, 3]))
    later = auto.revised(start, scale([1, 2, 12]))
    assert later["kappa"] == pytest.approx(4 * start["kappa"])
    eased = auto.revised(later, scale([1, 2, 3]))
    assert eased == {**start, "kappa": pytest.approx(0.999 * later["kappa"])}, "but slowly down"


def test_steps_are_checked_often_at_first_and_then_at_every_fiftieth():
    due = [n for n in range(2000) if check_is_due(n)]
    assert due[:8] == [0, 1, 2, 3, 4, 5, 7, 9]
    assert max(np.diff(due)) == 50
    assert len(due) < 0.04 * 2000


def test_a_task_handed_out_with_a_new_kappa_has_the_v_of_that_kappa():
    start = torch.zeros(2, dtype=torch.float64)
    b = Board(aspire(), [Quadratic((float(j), 1.0)) for j in range(4)], start)
    b.probe()
    for t in range(60):
        b.master.curvature[t % 4] *= 1.3  # so that kappa moves whenever the planes are revised
        b.turn(t % 4)
        task, phi = b.hands[t % 4], b.master.phi[t % 4]
        kappa = task.scalars["kappa"]
        assert kappa == b.master.constants["kappa"]
        torch.testing.assert_close(
            task.vectors["v"], phi + kappa * b.master.z.to(phi.dtype), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize(
    ("linear", "whole", "local_steps", "kind"),
    [
        (True, False, 1, "convex"),
        (True, True, 4, "convex, whole sites"),
        (False, True, 1, "network"),
        (False, False, 4, "network with local steps"),
    ],
)
def test_the_usual_constants_go_by_what_is_trained(linear, whole, local_steps, kind):
    locals_, start = [Quadratic((float(j), 1.0)) for j in range(3)], torch.zeros(2).double()
    b = Board(aspire(local_steps=local_steps), locals_, start, linear=linear, whole=whole)
    b.probe()
    assert {name: b.master.constants[name] for name in USUAL[kind]} == USUAL[kind]


def test_a_networks_curvatures_stay_the_probes():
    now = np.array([2.0, 3.0])
    here, who = np.ones(2, dtype=bool), np.array([0, 1])
    learn(
        now, np.array([2.0, 1.0]), here, who, np.array([900.0, 0.0]), rises_above({"follow": 0.0})
    )
    assert now.tolist() == [2.0, pytest.approx(2.4)]


def test_what_is_given_stands():
    scale = Scale(np.ones(3), np.ones(3), np.ones(3), np.full(3, 0.5), 50, None, "network")
    found = Auto(coupling=0.7, stride=0.9).constants(scale)
    assert (found["coupling"], found["stride"], found["dual"]) == (0.7, 0.9, 0.1)
    with pytest.raises(ValueError, match="stride=-1"):
        Auto(stride=-1.0)
