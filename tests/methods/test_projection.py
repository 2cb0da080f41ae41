"""The projection is right when no direction in the set leads nearer: the oracle itself checks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aspire.core.equations import project_simplex
from aspire.methods.baselines.projection import project
from aspire.sets import Box, CDNorm, ChiSquare, CVaR, Simplex, TotalVariation


def made(kind, n, rng):
    q = rng.dirichlet(np.ones(n))
    if kind is Simplex:
        return Simplex(n)
    if kind is Box:
        low, high = rng.uniform(0, 1 / n, n), rng.uniform(1 / n, 1, n)
        return Box(low, high)
    if kind is CVaR:
        return CVaR(float(rng.uniform(0, 0.9)), q)
    if kind is TotalVariation:
        return TotalVariation(float(rng.uniform(0, 1)), q)
    radius = rng.uniform(0, 0.5, n) * (rng.uniform(size=n) > 0.2)
    return CDNorm(q, radius, float(rng.uniform(0, n)))


@pytest.mark.parametrize("kind", [Simplex, Box, CVaR, TotalVariation, CDNorm])
@given(seed=st.integers(0, 10**6))
def test_no_point_of_the_set_is_nearer(kind, seed):
    """p is the projection of x iff (x - p) . (y - p) <= 0 for every y in P."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    P = made(kind, n, rng)
    x = P.nominal() + rng.choice([0.01, 0.3, 10.0]) * rng.standard_normal(n)
    p = project(P, x)
    assert P.contains(p, tol=1e-10)
    assert P.value(x - p) - (x - p) @ p <= 1e-9 * (1 + np.abs(x).max())


@pytest.mark.parametrize("kind", [Simplex, Box, CVaR, TotalVariation, CDNorm])
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e7, 1e12, 1e18, 1e300]))
def test_huge_numbers_stay_in_the_set(kind, seed, size):
    """One coordinate is far above or below: it gets all that the set allows it, or nothing."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 9))
    P, x, sign = made(kind, n, rng), rng.standard_normal(n), rng.choice([-1.0, 1.0])
    x[0] += sign * size
    p = project(P, x)
    assert P.contains(p, tol=1e-9)
    far = np.where(np.arange(n) == 0, sign, 0.0)
    assert far @ p == pytest.approx(P.value(far), abs=1e-6)


def test_a_point_of_the_set_stays():
    P = CDNorm([0.2, 0.3, 0.5], [0.1, 0.2, 0.3], 2.0)
    p = P.worst_case([3.0, 1.0, 2.0])
    np.testing.assert_allclose(project(P, p), p, atol=1e-14)


def test_a_wide_box_is_the_simplex():
    x = np.array([0.9, 0.4, -0.2])
    wide = CDNorm(np.full(3, 1 / 3), np.ones(3), 3.0)
    np.testing.assert_allclose(project(wide, x), project_simplex(x)[0], atol=1e-15)


def test_a_zero_budget_is_the_prior():
    P = CDNorm([0.2, 0.8], [0.1, 0.1], 0.0)
    np.testing.assert_allclose(project(P, np.array([5.0, -5.0])), [0.2, 0.8], atol=1e-15)


def test_other_sets_are_refused():
    with pytest.raises(ValueError, match="no projection"):
        project(ChiSquare(0.1).for_sites(2), np.ones(2))
