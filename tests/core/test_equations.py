"""The small functions under the equations, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aspire.core import equations, planes
from aspire.problem import batches
from aspire.sets import CDNorm, Simplex

finite = st.floats(-1e3, 1e3, allow_nan=False)
vectors = hnp.arrays(np.float64, st.integers(1, 12), elements=finite)


@given(vectors)
def test_the_simplex_projection_is_the_nearest_point(x):
    y, threshold = equations.project_simplex(x)
    assert abs(y.sum() - 1) < 1e-9
    assert (y >= 0).all()
    np.testing.assert_allclose(y, np.maximum(x - threshold, 0), atol=1e-9)


@given(vectors.filter(lambda x: len(x) > 1), st.integers(0, 10**6))
def test_no_other_point_of_the_simplex_is_nearer(x, seed):
    y, _ = equations.project_simplex(x)
    other = np.random.default_rng(seed).dirichlet(np.ones(len(x)))
    assert ((x - y) ** 2).sum() <= ((x - other) ** 2).sum() + 1e-6


@pytest.mark.parametrize("size", [1e6, 1e7, 1e12, 1e15, 1e18, 1e100, 1e300])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_simplex_projection_of_huge_numbers(size, sign):
    """A shift changes nothing, and what is far below the largest is zero."""
    shape = np.array([0.25, 0.0, -0.5])
    y, threshold = equations.project_simplex(np.array([sign * size, 0.0, 0.3]))
    expected = [1.0, 0.0, 0.0] if sign > 0 else [0.0, 0.35, 0.65]
    np.testing.assert_allclose(y, expected, atol=1e-12)
    assert np.isfinite(threshold)
    if size <= 1e12:  # where the shape survives the sum
        moved = equations.project_simplex(sign * size + shape)[0]
        atol = 4 * size * np.finfo(np.float64).eps
        np.testing.assert_allclose(moved, equations.project_simplex(shape)[0], atol=atol)
    alone = equations.project_simplex(np.array([sign * size]))[0]
    assert alone.tolist() == [1.0]


def test_ordinary_numbers_are_not_shifted():
    """The threshold's formula, number by number, as it was before."""
    x = np.array([0.9e6, 1e6, 1e6 - 0.125])
    y, threshold = equations.project_simplex(x)
    assert threshold == (1e6 + (1e6 - 0.125) - 1.0) / 2
    assert y.tolist() == np.maximum(x - threshold, 0.0).tolist()


def test_exact_z_step_minimises_over_z():
    """eta_z = 1/(kappa n): the gradient of the augmented Lagrangian in z vanishes."""
    rng = torch.Generator().manual_seed(0)
    w, phi, z = (torch.randn(3, 4, generator=rng, dtype=torch.float64) for _ in range(3))
    z = z[0]
    kappa, n = 0.7, 3
    new = equations.z_step(
        z, phi.sum(0), w.sum(0), n=n, kappa=kappa, rate=1 / (kappa * n), limit=float("inf")
    )
    gradient = phi.sum(0) + kappa * (n * new - w.sum(0))
    assert float(gradient.abs().max()) < 1e-12


def test_planes_add_drop_and_never_vanish():
    f = np.array([1.0, 2.0, 3.0])
    A = planes.only(np.full(3, 1 / 3), f)
    options = {"most": 50, "drop": True, "simplex": False, "tolerance": 1e-9}
    worst = np.array([0.0, 0.0, 1.0])
    A = planes.ease(A, A.lam, f, worst, **options)
    np.testing.assert_allclose(A.lam, [1.0, 0.0])
    # nothing new cuts; the new plane was zero before and after: it goes; the last one stays
    A = planes.ease(A, np.array([1.0, 0.0]), f, worst, **options)
    assert len(A) == 1
    dead = planes.Planes(A.P, np.zeros(1), A.F)
    assert len(planes.ease(dead, np.zeros(1), f, A.P[0], **options)) == 1


def test_dropping_needs_zero_at_both_times_and_cp_never_drops():
    f = np.array([1.0, 2.0])
    P = np.array([[0.5, 0.5], [0.0, 1.0]])
    A = planes.Planes(P, np.array([0.0, 1.0]), P @ f)
    options = {"most": 50, "simplex": True, "tolerance": 0.0}
    assert len(planes.ease(A, np.array([0.1, 0.9]), f, P[1], drop=True, **options)) == 2
    assert len(planes.ease(A, np.array([0.0, 1.0]), f, P[1], drop=True, **options)) == 1
    assert len(planes.ease(A, np.array([0.0, 1.0]), f, P[1], drop=False, **options)) == 2


def test_a_full_set_gives_up_its_smallest_multiplier():
    f = np.array([1.0, 2.0, 3.0])
    P = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    A = planes.Planes(P, np.array([0.3, 0.7]), P @ f)
    new = planes.ease(
        A, A.lam, f, np.array([0, 0, 1.0]), most=2, drop=True, simplex=True, tolerance=0.0
    )
    np.testing.assert_allclose(new.P, [[0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(new.lam, [1.0, 0.0])


def test_planes_follow_who_is_present():
    f = np.array([1.0, 2.0, 3.0])
    P = np.array([[1 / 3, 1 / 3, 1 / 3], [0.0, 0.5, 0.5]])
    A = planes.Planes(P, np.array([0.5, 0.5]), P @ f)
    here = np.array([True, True, False])
    left = planes.carried_over(A, here, Simplex().restrict(here), f, simplex=True)
    np.testing.assert_allclose(left.P, [[0.5, 0.5, 0], [0, 1, 0]])
    back = planes.carried_over(
        left, np.ones(3, dtype=bool), Simplex().for_sites(3), f, simplex=True, joined=2
    )
    np.testing.assert_allclose(back.P.sum(axis=1), 1.0)
    np.testing.assert_allclose(back.P[:, 2], 1 / 3)
    narrow = CDNorm(radius=0.01, budget=1.0).for_sites(3)
    reset = planes.carried_over(left, np.ones(3, dtype=bool), narrow, f, simplex=True, joined=2)
    np.testing.assert_allclose(reset.lam.sum(), 1.0)
    assert all(narrow.contains(p) for p in reset.P)


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 2**35), st.integers(1, 10**6))
def test_batches_are_the_same_integers_everywhere(seed, worker, n, size):
    a = batches.indices(seed, worker, n, size=size, count=50)
    b = batches.indices_numpy(seed, worker, n, size=size, count=50)
    np.testing.assert_array_equal(a.numpy(), b)
    assert 0 <= int(a.min()) <= int(a.max()) < size


def test_batches_are_even_and_differ():
    draws = torch.cat([batches.indices(1, 2, n, size=10, count=1000) for n in range(20)])
    counts = torch.bincount(draws, minlength=10)
    assert float(counts.max()) < 2000 * 1.1
    assert float(counts.min()) > 2000 * 0.9
    one, other = (batches.indices(1, j, 0, size=1000, count=100) for j in (0, 1))
    assert not torch.equal(one, other)


def test_the_fixed_sample_has_no_doubles():
    sample = batches.sample(0, 3, size=1000, count=100)
    assert len(set(sample.tolist())) == 100
    assert torch.equal(batches.sample(0, 3, size=50, count=100), torch.arange(50))


@pytest.mark.parametrize("purpose", [batches.DELAY, batches.FORWARD])
def test_uniform_numbers(purpose):
    u = np.array([batches.uniform(0, j, n, purpose) for j in range(20) for n in range(100)])
    assert 0 < u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.03
