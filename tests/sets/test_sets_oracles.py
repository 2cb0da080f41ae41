"""The other sets against a convex solver, `upper` against N oracle calls, golden values."""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np
import pytest

from aspire.sets import KL, Box, CDNorm, ChiSquare, CVaR, Ellipsoid, Simplex, TotalVariation


def box(rng, n, q):
    low, high = q * rng.random(n), np.minimum(q * (1 + 3 * rng.random(n)), 1)
    return Box(low, high), lambda p: [p >= low, p <= high]


def simplex(rng, n, q):
    return Simplex(), lambda p: []


def cvar(rng, n, q):
    beta = rng.random() * 0.95
    return CVaR(beta, q), lambda p: [p <= q / (1 - beta)]


def total_variation(rng, n, q):
    radius = rng.random() * 2
    return TotalVariation(radius, q), lambda p: [cp.norm1(p - q) <= radius]


def kl(rng, n, q):
    radius = rng.choice([0.01, 0.3, 2.0, 5.0]) * rng.random()
    return KL(radius, q), lambda p: [cp.sum(cp.kl_div(p, q)) <= radius]


def chi_square(rng, n, q):
    radius = rng.choice([0.01, 0.3, 3.0, 30.0]) * rng.random()
    return ChiSquare(radius, q), lambda p: [cp.sum_squares((p - q) / np.sqrt(q)) <= radius]


def diagonal(rng, n, q):
    s = (rng.random(n) + 0.1) / n * (rng.random(n) < 0.9)
    radius = rng.random() * 3
    free = s > 0
    axes = np.diag(s)[:, free]
    return Ellipsoid(radius, s**2, q), conic_ball(q, axes, radius)


def dense(rng, n, q):
    rank = int(rng.integers(1, n + 2))
    axes = rng.normal(size=(n, rank)) / n
    radius = rng.random() * 2
    return Ellipsoid(radius, axes @ axes.T, q), conic_ball(q, axes, radius)


def conic_ball(q, axes, radius):
    def constraints(p):
        u = cp.Variable(max(axes.shape[1], 1))
        matrix = axes if axes.shape[1] else np.zeros((q.size, 1))
        return [p == q + matrix @ u, cp.norm(u) <= radius]

    return constraints


@pytest.mark.parametrize(
    "make", [box, simplex, cvar, total_variation, kl, chi_square, diagonal, dense]
)
def test_agrees_with_a_convex_solver(make):
    rng = np.random.default_rng(11)
    for trial in range(25):
        n = int(rng.integers(2, 13))
        q = 0.9 * rng.dirichlet(np.ones(n)) + 0.1 / n
        f = np.round(rng.normal(size=n), 1 if trial % 3 == 0 else 12)
        s, constraints = make(rng, n, q)
        p = cp.Variable(n)
        problem = cp.Problem(cp.Maximize(f @ p), [p >= 0, cp.sum(p) == 1, *constraints(p)])
        problem.solve(solver=cp.CLARABEL)
        found = s.worst_case(f)
        assert s.contains(found, 1e-9), (s, found)
        assert abs(found @ f - problem.value) < 1e-6, (s, trial)
        shifted = s.worst_case(1e6 * f - 3e5)
        assert abs(shifted @ f - problem.value) < 1e-6, (s, trial)


def unequal(n, rng):
    r = rng.random(n) * rng.choice([0.05, 0.5, 2.0])
    r[rng.random(n) < 0.2] = 0
    return CDNorm(rng.dirichlet(np.ones(n)), r, rng.random() * n)


def random_box(n, rng):
    q = rng.dirichlet(np.ones(n))
    return Box(q * rng.random(n), q * (1 + rng.random(n)))


UPPERS = [
    lambda n, rng: unequal(n, rng),
    lambda n, rng: CDNorm(rng.dirichlet(np.ones(n)), 0.2, rng.random() * n),
    lambda n, rng: random_box(n, rng),
    lambda n, rng: Simplex(n),
    lambda n, rng: CVaR(rng.random(), rng.dirichlet(np.ones(n))),
    lambda n, rng: TotalVariation(2 * rng.random(), rng.dirichlet(np.ones(n))),
    lambda n, rng: KL(10 ** rng.uniform(-8, 1), rng.dirichlet(np.ones(n))),
    lambda n, rng: ChiSquare(10 ** rng.uniform(-8, 2), rng.dirichlet(np.ones(n))),
    lambda n, rng: Ellipsoid(
        3 * rng.random(), rng.random(n) ** 2 / n * (rng.random(n) < 0.8), rng.dirichlet(np.ones(n))
    ),
]


@pytest.mark.parametrize("make", UPPERS)
def test_upper_is_the_oracle_on_unit_losses(make):
    rng = np.random.default_rng(5)
    for _ in range(60):
        n = int(rng.integers(1, 16))
        s = make(n, rng)
        expected = (
            [s.nominal()[0]] if n == 1 else [s.worst_case(e)[j] for j, e in enumerate(np.eye(n))]
        )
        np.testing.assert_allclose(s.upper(), expected, atol=1e-9, err_msg=repr(s))


def test_upper_of_a_dense_ellipsoid():
    sigma = np.array([[0.02, -0.01, 0], [-0.01, 0.02, 0], [0, 0, 0.01]])
    s = Ellipsoid(0.5, sigma)
    assert s.contains(s.worst_case([0, 0, 1.0]))
    np.testing.assert_allclose(s.upper()[2], s.worst_case([0, 0, 1.0])[2])


def test_upper_for_many_sites():
    rng = np.random.default_rng(1)
    n = 100_000
    s = CDNorm(rng.dirichlet(np.ones(n)), rng.random(n) / n, 50.0)
    u = s.upper()
    for j in (0, 17, 99_999):
        e = np.zeros(n)
        e[j] = 1
        assert u[j] == pytest.approx(s.worst_case(e)[j], abs=1e-15)


@pytest.mark.parametrize(
    ("s", "losses", "expected"),
    [
        (Simplex(), [1, 3, 2], [0, 1, 0]),
        (Simplex(), [3, 3, 2], [0.5, 0.5, 0]),
        (Box(0.1, 0.6), [1, 3, 2], [0.1, 0.6, 0.3]),
        (CVaR(0.5), [1, 4, 3, 2], [0, 0.5, 0.5, 0]),
        (TotalVariation(0.5), [1, 4, 3, 2], [0, 0.5, 0.25, 0.25]),
        (TotalVariation(9), [1, 4, 3, 2], [0, 1, 0, 0]),
        (KL(1.0), [0, 1], [0, 1]),
        (KL(0.5, [0.5, 0.5, 0]), [0, 0, 9], [0.5, 0.5, 0]),
        (ChiSquare(0.04), [0, 1], [0.4, 0.6]),
        (ChiSquare(1.0), [0, 1], [0, 1]),
        (ChiSquare(2.0, [0.25, 0.75, 0]), [0, 1, 9], [0, 1, 0]),
        (Ellipsoid(0.1, 0.5), [0, 1], [0.45, 0.55]),
        (Ellipsoid(0.1, [0.5, 0.5, 0], [0.2, 0.2, 0.6]), [0, 1, 5], [0.15, 0.25, 0.6]),
        (Ellipsoid(9, [1, 1, 0], [0.2, 0.2, 0.6]), [0, 1, 5], [0, 0.4, 0.6]),
        (Ellipsoid(0.1, [[0.5, 0], [0, 0.5]]), [0, 1], [0.45, 0.55]),
        (Ellipsoid(1, [[0.01, -0.01], [-0.01, 0.01]]), [0, 1], [0.4, 0.6]),
        (Ellipsoid(1, [[0.01, 0.01], [0.01, 0.01]]), [0, 1], [0.5, 0.5]),
    ],
)
def test_golden(s, losses, expected):
    np.testing.assert_allclose(s.worst_case(losses), expected, atol=1e-9)


@pytest.mark.parametrize("radius", [1e-14, 1e-10, 1e-5])
def test_small_balls_keep_their_digits(radius):
    """To first order both balls give q + t q (f - mean), with KL = t^2 Var / 2, chi^2 = t^2 Var."""
    rng = np.random.default_rng(2)
    q, f = rng.dirichlet(np.ones(8)), rng.normal(size=8)
    deviation = f - q @ f
    std = np.sqrt(q @ deviation**2)
    for s, t in ((KL(radius, q), np.sqrt(2 * radius)), (ChiSquare(radius, q), np.sqrt(radius))):
        moved = s.worst_case(f) @ deviation
        assert moved == pytest.approx(t * std, rel=max(3 * t, 1e-7))


@pytest.mark.parametrize("make", [KL, ChiSquare])
def test_a_radius_just_short_of_the_worst_site(make):
    q = np.array([0.1, 0.2, 0.7])
    limit = -np.log(0.1) if make is KL else 9.0
    s = make(limit * (1 - 1e-9), q)
    p = s.worst_case([1e-9 + 1, 1.0, 1.0])
    assert s.contains(p)
    assert p[0] > 0.999


def test_a_matrix_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(ImportError, match=r"aspire-ease\[conic\]"):
        Ellipsoid(1, np.eye(2)).worst_case([0, 1])
