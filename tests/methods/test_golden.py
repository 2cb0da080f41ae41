"""Two workers, two dimensions, two or three rounds of every baseline: by hand, equal to 1e-12.

f_1(w) = 1/2 |w - (1, 0)|^2, f_2(w) = |w - (0, 2)|^2 + 1/4; start w = (1/2, 1/2); seed 0.
The equations are written out again here in numpy, from SPEC section 5.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aspire.methods import afl, cover, drfa_prox, fedavg, gcivr, gda, gdmax, ind, q_ffl
from aspire.methods.baselines.draws import EVEN, STEP, WEIGHTED
from aspire.problem import batches
from aspire.sets import CDNorm, Simplex
from aspire.types import Stepped
from tests.helpers import Board, Quadratic

LOCALS = [Quadratic((1.0, 0.0)), Quadratic((0.0, 2.0), curvature=2.0, offset=0.25)]
START = torch.tensor([0.5, 0.5], dtype=torch.float64)
W0 = np.array([0.5, 0.5])
CENTRES = np.array([[1.0, 0.0], [0.0, 2.0]])


def loss(j, w):
    return [0.5, 1.0][j] * ((w - CENTRES[j]) ** 2).sum() + [0.0, 0.25][j]


def grad(j, w):
    return [1.0, 2.0][j] * (w - CENTRES[j])


def losses(w):
    return np.array([loss(0, w), loss(1, w)])


def sgd(j, w, steps, rate):
    path = []
    for _ in range(steps):
        w = w - rate * grad(j, w)
        path.append(w)
    return path


def simplex(x):
    """Projection onto {p >= 0, p_1 + p_2 = 1}: two entries need no sorting."""
    first = min(max((x[0] - x[1] + 1.0) / 2.0, 0.0), 1.0)
    return np.array([first, 1.0 - first])


def close(a, b):
    np.testing.assert_allclose(np.asarray(a, dtype=float), b, rtol=0, atol=1e-12)


def begun(method):
    board = Board(method, LOCALS, START)
    board.probe()
    return board


def play(board):
    """Everybody who has a task answers, until the round is over."""
    t = board.master.t
    while board.master.t == t:
        board.turn(*sorted(board.hands))


def test_ind():
    board, w = begun(ind(1, local_steps=2, rate=0.1)), W0
    for _ in range(3):
        assert set(board.hands) == {1}
        play(board)
        w = sgd(1, w, 2, 0.1)[-1]
        close(board.master.w, w)
    close(board.method.look(board.master).weights, [0.0, 1.0])
    assert board.infos[-1] == Stepped(2, (1,))


@pytest.mark.parametrize("prior", [None, [0.25, 0.75]])
def test_fedavg(prior):
    board, w = begun(fedavg(3, 0.1, prior=prior)), W0
    q = np.array(prior or [0.5, 0.5])
    for _ in range(3):
        play(board)
        w = sum(q[j] * sgd(j, w, 3, 0.1)[-1] for j in (0, 1))
        close(board.master.w, w)
    close(board.method.look(board.master).weights, q)
    assert board.infos[-1] == Stepped(2, (0, 1))


def test_the_running_mean():
    plain, mean = begun(fedavg(1, 0.1)), begun(fedavg(1, 0.1, average=True))
    average = W0
    for t in range(3):
        play(plain)
        play(mean)
        close(mean.master.w, plain.master.w)
        average = average + min(1.0, 2.0 / (2.0 + 0.3 * t)) * (plain.master.w.numpy() - average)
        close(mean.method.model(mean.master), average)
        close(plain.method.model(plain.master), plain.master.w)


def test_afl():
    board, w, lam = begun(afl(0.1, 0.2, limit=1.4)), W0, np.array([0.5, 0.5])
    for _ in range(3):
        play(board)
        slope = sum(lam[j] * grad(j, w) for j in (0, 1))
        w, lam = np.clip(w - 0.1 * slope, -1.4, 1.4), simplex(lam + 0.2 * losses(w))
        close(board.master.w, w)
        close(board.method.look(board.master).weights, lam)


def test_drfa_prox():
    K, rate, g, mu = 3, 0.1, 0.05, 0.3
    q = np.array([0.4, 0.6])
    board = begun(drfa_prox(K, rate, g, regularisation=mu, sampled=3, prior=q))
    w, lam = W0, q
    for t in range(3):
        drawn = [0 if batches.uniform(0, i, t, WEIGHTED) < lam[0] else 1 for i in range(3)]
        s = 1 + int(batches.uniform(0, 0, t, STEP) * K)
        assert {j: task.kind for j, task in board.hands.items()} == dict.fromkeys(drawn, "local")
        paths = [sgd(j, w, K, rate) for j in drawn]
        w, w_s = (np.mean([path[i] for path in paths], axis=0) for i in (K - 1, s - 1))
        play(board)
        v = losses(w_s)  # m = 3 of 2 workers: all of them, N/m = 1
        lam = simplex((lam + g * K * v + g * K * mu * q) / (1 + g * K * mu))
        close(board.master.w, w)
        close(board.method.look(board.master).weights, lam)


def test_drfa_prox_with_one_draw():
    board, lam, w = begun(drfa_prox(2, 0.1, 0.05, regularisation=0.0, sampled=1)), W0, W0
    for t in range(3):
        drawn = 0 if batches.uniform(0, 0, t, WEIGHTED) < lam[0] else 1
        s = 1 + int(batches.uniform(0, 0, t, STEP) * 2)
        marks = [batches.uniform(0, j, t, EVEN) for j in (0, 1)]
        other = int(np.argmin(marks))
        path = sgd(drawn, w, 2, 0.1)
        assert set(board.hands) == {drawn}
        board.turn(drawn)
        assert {j: task.kind for j, task in board.hands.items()} == {other: "snapshot"}
        board.turn(other)
        v = np.zeros(2)
        v[other] = 2.0 * loss(other, path[s - 1])
        w, lam = path[-1], simplex(lam + 0.05 * 2 * v)
        close(board.master.w, w)
        close(board.method.look(board.master).weights, lam)
        assert board.infos[-1] == Stepped(t, tuple(sorted({drawn, other})))


def test_q_ffl():
    q, K, eta = 2.0, 2, 0.1
    board, w = begun(q_ffl(q, K, eta)), W0
    for _ in range(3):
        play(board)
        F = losses(w)
        D = [(w - sgd(j, w, K, eta)[-1]) / eta for j in (0, 1)]
        top = sum(F[j] ** q * D[j] for j in (0, 1))
        bottom = sum(q * F[j] ** (q - 1) * (D[j] @ D[j]) + F[j] ** q / eta for j in (0, 1))
        w = w - top / bottom
        close(board.master.w, w)
        close(board.method.look(board.master).weights, F**q / (F**q).sum())


def test_q_ffl_with_q_zero_is_fedavg():
    one, other = begun(q_ffl(0.0, 4, 0.1)), begun(fedavg(4, 0.1))
    for _ in range(3):
        play(one)
        play(other)
        close(one.master.w, other.master.w)


def test_gda():
    P = CDNorm(prior=[0.5, 0.5], radius=[0.2, 0.2], budget=1.0)  # p_1 in [0.4, 0.6]
    board, w, p = begun(gda(P, 0.1, 0.02)), W0, np.array([0.5, 0.5])
    for _ in range(3):
        play(board)
        slope = sum(p[j] * grad(j, w) for j in (0, 1))
        f = losses(w)
        middle = p + 0.02 * f
        first = np.clip((middle[0] - middle[1] + 1.0) / 2.0, 0.4, 0.6)
        w, p = w - 0.1 * slope, np.array([first, 1.0 - first])
        close(board.master.w, w)
        close(board.method.look(board.master).weights, p)


def test_gda_on_the_simplex_is_afl():
    one, other = begun(gda(Simplex(), 0.1, 0.2)), begun(afl(0.1, 0.2))
    for _ in range(3):
        play(one)
        play(other)
        close(one.master.w, other.master.w)
        close(one.master.weights, other.master.weights)


def test_gdmax():
    P = CDNorm(prior=[0.5, 0.5], radius=[0.2, 0.2], budget=2.0)
    board, w, seen = begun(gdmax(P, 0.4)), W0, set()
    for _ in range(3):
        play(board)
        worst = int(np.argmax(losses(w)))
        seen.add(worst)
        p = np.full(2, 0.3)
        p[worst] = 0.7
        w = w - 0.4 * sum(p[j] * grad(j, w) for j in (0, 1))
        close(board.master.w, w)
        close(board.method.look(board.master).weights, p)
    assert seen == {0, 1}


def kernel(j, w, T):
    g = np.exp(loss(j, w) / T)
    return g, g / T * grad(j, w)


def test_cover():
    T, a, eta = 0.7, 0.3, 0.05
    board = begun(cover(T, eta, momentum=a, sampled=2))
    w, before, u, V = W0, None, 0.0, np.zeros(2)
    for t in range(3):
        drawn = [0 if batches.uniform(0, i, t, WEIGHTED) < 0.5 else 1 for i in range(2)]
        new = [kernel(j, w, T) for j in drawn]
        gu, gV = (np.mean([x[i] for x in new], axis=0) for i in (0, 1))
        if before is None:
            u, V = gu, gV
        else:
            old = [kernel(j, before, T) for j in drawn]
            ou, oV = (np.mean([x[i] for x in old], axis=0) for i in (0, 1))
            u, V = gu + (1 - a) * (u - ou), gV + (1 - a) * (V - oV)
        play(board)
        before, w = w, w - eta * T * V / u
        close(board.master.w, w)
        close(board.master.u * np.exp(board.master.c / T), u)


def test_gcivr():
    T, eta, q = 0.7, 0.02, np.array([0.4, 0.6])
    board = begun(gcivr(T, eta, period=3, sampled=1, prior=q))
    w, before, u, V = W0, None, 0.0, np.zeros(2)
    for t in range(4):
        if t % 3 == 0:
            assert {task.kind for task in board.hands.values()} == {"checkpoint"}
            new = [kernel(j, w, T) for j in (0, 1)]
            u, V = (sum(q[j] * new[j][i] for j in (0, 1)) for i in (0, 1))
        else:
            j = 0 if batches.uniform(0, 0, t, WEIGHTED) < 0.4 else 1
            assert {k: task.kind for k, task in board.hands.items()} == {j: "difference"}
            new, old = kernel(j, w, T), kernel(j, before, T)
            u, V = u + new[0] - old[0], V + new[1] - old[1]
        play(board)
        before, w = w, w - eta * T * V / u
        close(board.master.w, w)


def test_a_small_temperature_neither_overflows_nor_divides_by_zero():
    for method in (cover(1e-3, 1e-4, sampled=1), gcivr(1e-3, 1e-4, period=5)):
        board = begun(method)
        for _ in range(30):
            play(board)
        assert bool(torch.isfinite(board.master.w).all())
        assert board.master.u > 0
        close(board.method.look(board.master).weights.sum(), 1.0)


@pytest.mark.parametrize("make", [cover, gcivr])
def test_a_site_without_prior_does_not_count(make):
    """f_2 is much the larger one, and exp((f_1 - f_2)/T) underflows."""
    board = begun(make(1e-3, 1e-4, prior=[1.0, 0.0]))
    play(board)
    close(board.method.look(board.master).weights, [1.0, 0.0])
    close(board.master.w, W0 - 1e-4 * grad(0, W0))


@pytest.mark.parametrize("method", [fedavg(), afl(), drfa_prox(), q_ffl(), gda(), gdmax(), ind(1)])
def test_the_first_guess_of_the_rate(method):
    """Curvatures 1 and 2 by power iterations: rate 1/2."""
    board = begun(method)
    assert board.master.constants["rate"] == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("method", [cover(), gcivr()])
def test_the_first_guess_of_rate_and_temperature(method):
    board = begun(method)
    assert board.master.constants["rate"] == pytest.approx(0.05, rel=1e-6)
    assert board.master.constants["temperature"] == pytest.approx(0.1 * np.median(losses(W0)))


def test_u_below_half_of_what_the_known_losses_say_forgets_the_past():
    T = 0.7
    board = begun(gcivr(T, 0.05, period=3, sampled=1, prior=[0.4, 0.6]))
    play(board)
    u, before, w = board.master.u, W0, board.master.w.numpy()
    assert set(board.hands) == {1}
    shift = board.master.c
    play(board)
    u_new = u * np.exp(shift / T) + kernel(1, w, T)[0] - kernel(1, before, T)[0]
    known = 0.4 * np.exp(loss(0, before) / T) + 0.6 * np.exp(loss(1, w) / T)
    assert u_new < 0.5 * known
    close(board.master.u * np.exp(board.master.c / T), kernel(1, w, T)[0])


def test_the_step_is_no_longer_than_the_longest_gradient():
    T = 0.2
    board = begun(gcivr(T, 0.2, period=4, sampled=1))
    cut = 0
    for _ in range(12):
        before = board.master.w
        play(board)
        master = board.master
        length = float(torch.linalg.vector_norm(master.w - before)) / 0.2
        assert length <= master.slope.max() * (1 + 1e-12)
        cut += length >= master.slope.max() * (1 - 1e-12)
    assert cut > 0


class Large(Quadratic):
    """A site whose loss costs as much as ten gradients: it is due with every tenth batch."""

    loss_samples = 30


def large(method):
    sites = [Large((1.0, 0.0)), Large((0.0, 2.0), curvature=2.0, offset=0.25)]
    board = Board(method, sites, START)
    board.probe()
    return board


def test_between_reports_the_last_known_loss_counts():
    board, w, lam = large(afl(0.1, 0.2)), W0, np.array([0.5, 0.5])
    f = losses(w)
    for t in range(12):
        if t + 1 == 10:  # the probe was batch 0
            f = losses(w)
        play(board)
        slope = sum(lam[j] * grad(j, w) for j in (0, 1))
        w, lam = w - 0.1 * slope, simplex(lam + 0.2 * f)
        close(board.master.w, w)
        close(board.method.look(board.master).weights, lam)


def test_between_reports_cover_moves_by_the_gradients():
    T, a, eta = 0.7, 0.3, 0.05
    board = large(cover(T, eta, momentum=a, sampled=1))
    f, w, before, u, V = losses(W0), W0, W0, 0.0, np.zeros(2)
    for t in range(4):
        j = 0 if batches.uniform(0, 0, t, WEIGHTED) < 0.5 else 1
        g = np.exp(f[j] / T)
        keep = 0.0 if t == 0 else 1 - a
        u = g + keep * (u - g)
        V = g / T * grad(j, w) + keep * (V - g / T * grad(j, before))
        play(board)
        longest = board.master.slope.max()
        if u < 0.5 * np.exp(f / T).mean() or T * np.linalg.norm(V) > u * longest:
            u, V = g, g / T * grad(j, w)  # out of the range of what they estimate
        before, w = w, w - eta * T * V / u
        close(board.master.w, w)


def test_between_reports_drfa_prox_takes_the_last_known_losses():
    K, g = 2, 0.05
    board = large(drfa_prox(K, 0.1, g, regularisation=0.0, sampled=2))
    f, w, lam, before, total, taken = losses(W0), W0, np.array([0.5, 0.5]), 0, 2, 0
    for t in range(12):
        drawn = [0 if batches.uniform(0, i, t, WEIGHTED) < lam[0] else 1 for i in range(2)]
        s = 1 + int(batches.uniform(0, 0, t, STEP) * K)
        paths = [sgd(j, w, K, 0.1) for j in drawn]
        w, w_s = (np.mean([path[i] for path in paths], axis=0) for i in (K - 1, s - 1))
        total += K * len(set(drawn))
        if total / 2 // 10 > before / 2 // 10:  # ten more batches a worker, on average
            f, taken = losses(w_s), taken + 1
        before = total
        play(board)
        lam = simplex(lam + g * K * f)
        close(board.master.w, w)
        close(board.method.look(board.master).weights, lam)
    assert taken == total / 2 // 10 > 0
