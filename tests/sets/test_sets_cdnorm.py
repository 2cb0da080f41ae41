"""The CD-norm oracle against a linear program, on golden examples, and for many sites."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog

from aspire.sets import CDNorm

INSTANCES = 2000
BATCH = 50


def draw(rng):
    """One odd instance: zero radii, ties, priors smaller than the radius, any loss scale."""
    n = int(rng.integers(1, 51))
    q = rng.dirichlet(np.full(n, rng.choice([0.1, 1.0, 10.0])))
    if n > 2 and rng.random() < 0.3:
        q[rng.integers(n)] = 0.0
        q /= q.sum()
    r = rng.random(n) * rng.choice([0.01, 0.3, 2.0 / n, 3.0])
    r[rng.random(n) < rng.choice([0.0, 0.3])] = 0.0
    if rng.random() < 0.25:
        r[:] = r[0]
    f = rng.normal(size=n)
    if rng.random() < 0.4:
        f, r = np.round(f), np.where(r > 0, np.maximum(np.round(r, 1), 0.1), 0.0)
    budget = rng.choice(
        [0.0, rng.random() * n, rng.random() * 2, float(n), float(rng.integers(n + 1))]
    )
    return f, q, r, float(budget)


def lp_values(cases):
    """One block-diagonal LP for the batch, over x, y >= 0 with p = q + r (x - y)."""
    cost, high, spend = [], [], []
    for f, q, r, _ in cases:
        down = np.divide(q, r, out=np.zeros_like(q), where=r > 0)
        cost.append(np.concatenate([-f * r, f * r]))
        high.append(np.concatenate([np.ones_like(q), np.minimum(down, 1.0)]))
        spend.append(np.concatenate([r, -r])[None])
    found = linprog(
        np.concatenate(cost),
        A_ub=sparse.block_diag([np.ones_like(a) for a in spend]).tocsr(),
        b_ub=[case[3] for case in cases],
        A_eq=sparse.block_diag(spend).tocsr(),
        b_eq=np.zeros(len(cases)),
        bounds=[(0.0, h) for h in np.concatenate(high)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0, found.message
    ends = np.cumsum([c.size for c in cost])[:-1]
    moves = zip(cases, cost, np.split(found.x, ends), strict=True)
    return [case[1] @ case[0] - c @ x for case, c, x in moves]


def test_agrees_with_an_lp_on_2000_instances():
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(INSTANCES // BATCH):
        cases = [draw(rng) for _ in range(BATCH)]
        for (f, q, r, budget), best in zip(cases, lp_values(cases), strict=True):
            scale, shift = 10.0 ** rng.integers(-8, 9), rng.choice([0.0, 1.0, 100.0])
            s = CDNorm(q, r, budget)
            p = s.worst_case((f + shift) * scale)
            assert s.contains(p, 1e-12)
            worst = max(worst, abs(p @ f - best) / max(np.abs(f).max(), 1e-300))
    assert worst < 1e-9


def test_the_example_that_the_sort_gets_wrong():
    s = CDNorm(prior=[0.5, 0.5], radius=[0.3, 0.1], budget=2)
    np.testing.assert_allclose(s.worst_case([1.0, 1.5]), [0.4, 0.6], atol=1e-15)
    assert s.value([1.0, 1.5]) == pytest.approx(0.4 + 0.6 * 1.5)


@pytest.mark.parametrize(
    ("losses", "radius", "budget", "expected"),
    [
        ([0, 1, 2, 3], 0.1, 2, [0.15, 0.25, 0.25, 0.35]),
        ([0, 1, 2, 3], 0.1, 3, [0.15, 0.20, 0.30, 0.35]),
        ([0, 1, 2, 3], 0.1, 4, [0.15, 0.15, 0.35, 0.35]),
        ([0, 0, 0, 3], 0.1, 4, [0.65 / 3, 0.65 / 3, 0.65 / 3, 0.35]),
        ([0, 1, 2, 3], 0.5, 2, [0.0, 0.0, 0.25, 0.75]),
        ([0, 1, 2, 3], [0.1, 0, 0, 0], 4, [0.25] * 4),
        ([0, 1, 2, 3], 0.1, 0, [0.25] * 4),
    ],
)
def test_golden(losses, radius, budget, expected):
    p = CDNorm(radius=radius, budget=budget).worst_case(losses)
    np.testing.assert_allclose(p, expected, atol=1e-15)


def test_positional_and_keyword_forms_are_one():
    q, r = [0.2, 0.3, 0.5], [0.1, 0.2, 0.0]
    assert CDNorm(q, r, 2) == CDNorm(prior=q, radius=r, budget=2.0)
    assert CDNorm(radius=0.1, budget=2).for_sites(3) == CDNorm(None, [0.1] * 3, 2)


def dual_bound(s, f, nu):
    """g(nu) >= the optimum, from scratch: fill the budget by falling r |f - nu|."""
    q, r = s.nominal(), np.asarray(s.radius)
    rate = r * np.abs(f - nu)
    cost = np.where(f > nu, 1.0, np.minimum(1.0, q / r))
    order = np.argsort(-rate)
    left = np.maximum(s.budget - np.concatenate([[0.0], np.cumsum(cost[order])[:-1]]), 0.0)
    return q @ f + np.minimum(left, cost[order]) @ rate[order]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("share", [1e-4, 0.1, 1.0])
def test_many_sites_meet_their_dual_bound(equal, share):
    rng = np.random.default_rng(3)
    n = 60_000
    f = rng.exponential(size=n)
    r = np.full(n, 0.4 / n) if equal else rng.random(n) / n
    s = CDNorm(rng.dirichlet(np.ones(n)), r, share * n)
    p = s.worst_case(f)
    assert s.contains(p, 1e-12)
    grid, margin = [f.min(), f.max()], p @ f - s.nominal() @ f
    for _ in range(60):  # golden-section-like narrowing of the convex dual
        a, b = grid
        left, right = a + (b - a) * 0.45, a + (b - a) * 0.55
        grid = [a, right] if dual_bound(s, f, left) < dual_bound(s, f, right) else [left, b]
    gap = dual_bound(s, f, sum(grid) / 2) - p @ f
    assert -1e-12 <= gap <= 1e-9 * margin


def test_many_equal_losses_share_alike():
    f = np.repeat([0.0, 1.0, 2.0], 10_000)
    p = CDNorm(radius=1e-5, budget=5000).worst_case(f)
    assert np.unique(p).size == 3
    assert p.sum() == pytest.approx(1, abs=1e-12)
