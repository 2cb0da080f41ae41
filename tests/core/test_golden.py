"""Two workers, two dimensions, three iterations: every number by hand, equal to 1e-12.

f_1(w) = 1/2 |w - (1, 0)|^2, f_2(w) = |w - (0, 2)|^2 + 1/4; start z = (1/2, 1/2); S = 1.
The order of reports is worker 0, worker 1, worker 0. The set is the simplex, k = 2.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aspire.core.presets import CONVEX, USUAL, Auto, Paper
from aspire.core.schedules import Limits
from aspire.methods import aspire
from aspire.sets import Simplex
from tests.helpers import Board, Quadratic, same

LOCALS = [Quadratic((1.0, 0.0)), Quadratic((0.0, 2.0), curvature=2.0, offset=0.25)]
START = torch.tensor([0.5, 0.5], dtype=torch.float64)
PAPER = Paper(
    eta_w=0.1, eta_z=0.2, eta_h=0.05, kappa=0.5, rho1=0.3, rho2=0.4, c1=0.02, c2=0.03, k=2,
    limits=Limits(a1=10.0, a2=10.0, a3=1.0, a4=10.0),
)  # fmt: skip


def close(a, b) -> None:
    np.testing.assert_allclose(np.asarray(a, dtype=float), b, rtol=0, atol=1e-12)


def started(preset=PAPER, **arguments) -> Board:
    board = Board(aspire(Simplex(), preset=preset, **arguments), LOCALS, START)
    board.probe()
    return board


def test_the_start():
    board = started()
    m = board.master
    # f_1(z0) = (1/4 + 1/4)/2 = 1/4;  f_2(z0) = 1/4 + 9/4 + 1/4 = 11/4;  q = (1/2, 1/2)
    close(m.f, [0.25, 2.75])
    close(m.planes.P, [[0.5, 0.5]])
    close(m.planes.lam, [1.0])
    close(m.h, 1.5 - 0.02)  # q . f - c1_0
    close(board.hands[0].vectors["v"], [0.25, 0.25])  # phi + kappa z
    assert board.hands[0].scalars["pi"] == 0.5


def test_first_iteration():
    board = started()
    board.turn(0)
    m = board.master
    # (11) grad f_1 = (-1/2, 1/2); pi g = (-1/4, 1/4); kappa w - v = 0
    close(m.w[0], [0.525, 0.475])
    # (12) sum phi = 0; sum (z - w) = (-.025, .025); z -= .2 * .5 * that
    close(m.z, [0.5025, 0.4975])
    # (13) sum lam = 1: h stays. (14) f_1 = (.475^2 + .475^2)/2 = .225625; F = 1.4878125
    close(m.h, 1.48)
    close(m.planes.lam, [1.0 + 0.3 * (1.4878125 - 1.48 - 0.02)])
    # (15) phi_0 += .4 (z - w_0), w_0 - z = (.0225, -.0225)
    close(m.phi[0], [-0.009, 0.009])
    close(m.phi[1], [0.0, 0.0])
    # the next task of worker 0: v = phi + kappa z, pi = lam/2
    close(board.hands[0].vectors["v"], [-0.009 + 0.25125, 0.009 + 0.24875])
    close(board.hands[0].scalars["pi"], 0.5 * 0.99634375)


def test_three_iterations_with_a_new_plane():
    board = started()
    board.turn(0, 1)
    m = board.master
    # (11) worker 1 still has the first task: grad f_2 = 2 (1/2, -3/2) = (1, -3), pi = 1/2
    w1 = [0.5 - 0.1 * 0.5, 0.5 + 0.1 * 1.5]
    close(m.w[1], w1)
    # (12) with the old phi: sum phi = (-.009, .009), sum w = (.975, 1.125)
    z = [0.5025 - 0.2 * (-0.009 + 0.5 * (1.005 - 0.975)),
         0.4975 - 0.2 * (0.009 + 0.5 * (0.995 - 1.125))]  # fmt: skip
    close(m.z, z)
    # (13) with the old lam = .99634375; (14) f_2 = .45^2 + 1.35^2 + .25 = 2.275
    h = 1.48 - 0.05 * (1.0 - 0.99634375)
    lam = 0.99634375 + 0.3 * ((0.225625 + 2.275) / 2 - h - 0.02 * 2 ** (-1 / 6) * 0.99634375)
    close(m.h, h)
    close(m.planes.lam, [lam, 0.0])
    # (15) only worker 1
    phi1 = [0.4 * (z[0] - w1[0]), 0.4 * (z[1] - w1[1])]
    close(m.phi[1], phi1)
    close(m.phi[0], [-0.009, 0.009])
    # (17)-(19) t + 1 = 2: the worst case is worker 1 alone, 2.275 > 1.25: it is added with lam 0
    close(m.planes.P, [[0.5, 0.5], [0.0, 1.0]])
    # third iteration, worker 0 with the task of iteration one
    board.turn(0)
    w0, v0, pi0 = np.array([0.525, 0.475]), np.array([0.24225, 0.25775]), 0.498171875
    w0 = w0 - 0.1 * (pi0 * (w0 - [1.0, 0.0]) + 0.5 * w0 - v0)
    close(m.w[0], w0)
    phi_sum = np.array([-0.009, 0.009]) + phi1
    z3 = np.array(z) - 0.2 * (phi_sum + 0.5 * (2 * np.array(z) - w0 - w1))
    close(m.z, z3)
    h3 = h - 0.05 * (1.0 - lam)
    f1 = 0.5 * float(((w0 - [1.0, 0.0]) ** 2).sum())
    c1 = 0.02 * 3 ** (-1 / 6)
    lam3 = [lam + 0.3 * ((f1 + 2.275) / 2 - h3 - c1 * lam), 0.3 * (2.275 - h3)]
    close(m.h, h3)
    close(m.planes.lam, np.clip(lam3, 0, 1))
    c2 = 0.03 * 3 ** (-1 / 6)
    phi0 = np.array([-0.009, 0.009])
    close(m.phi[0], phi0 + 0.4 * (z3 - w0 - c2 * phi0))
    assert m.t == 3


def test_auto_constants_by_hand():
    """u = (1, 1), L = (1, 2): kappa = c * 2; the median of the losses 1/4 and 11/4 is 3/2."""
    board = started(Auto())
    m = board.master
    close(m.curvature, [1.0, 2.0])
    close(m.constants["kappa"], 2.0 * USUAL[CONVEX]["coupling"])
    board.turn(0)
    # the exact minimiser over z: z = mean(w) - sum(phi)/(kappa N), and phi was zero
    close(m.z, (board.workers[0].numpy() + np.array([0.5, 0.5])) / 2)


@pytest.mark.parametrize("preset", [PAPER, Auto()], ids=["paper", "auto"])
def test_full_quorum_is_the_synchronous_variant(preset):
    """S = N, and S = 1 with tau = 1, take the same steps."""
    by_quorum, by_tau = started(preset, quorum=2), started(preset, staleness=1)
    for _ in range(20):
        by_quorum.turn(0, 1)
        by_tau.turn(1, 0)
    assert by_quorum.master.t == by_tau.master.t == 20
    np.testing.assert_array_equal(by_quorum.master.z, by_tau.master.z)
    np.testing.assert_array_equal(by_quorum.master.planes.lam, by_tau.master.planes.lam)


def test_one_local_step_is_the_plain_variant_and_more_take_more():
    plain, one, periodic = started(), started(local_steps=1), started(local_steps=3)
    for j in (0, 1, 0, 0, 1):
        plain.turn(j)
        one.turn(j)
    assert same(plain.master, one.master)
    report = periodic.report(0)
    w, v = np.array([0.5, 0.5]), np.array([0.25, 0.25])
    for _ in range(3):
        w = w - 0.1 * (0.5 * (w - [1.0, 0.0]) + 0.5 * w - v)
    close(report.vectors["w"], w)
    assert report.scalars["gradients"] == 3


@pytest.mark.parametrize("K", [1, 2])
def test_momentum_goes_on_by_its_share_of_the_last_move(K):
    """w <- (11) + beta (w - the w before), whose K local steps take a K-th of it each."""
    board = started(Auto(momentum=0.4), local_steps=K)
    close(board.hands[0].vectors["v"], board.master.constants["kappa"] * 0.5)  # no move yet
    board.turn(0)
    moved = board.workers[0].numpy() - 0.5
    m, task = board.master, board.hands[0]
    w, told = board.workers[0].numpy().copy(), task.scalars
    v = m.phi[0].numpy() + told["kappa"] * m.z.numpy()
    for _ in range(K):
        slope = told["pi"] * (w - [1.0, 0.0]) + told["kappa"] * w - v
        w = w - told["rate"] * slope + 0.4 / K * moved
    close(board.report(0).vectors["w"], w)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_momentum_is_below_one(value):
    with pytest.raises(ValueError, match=f"momentum={value}"):
        Auto(momentum=value)
