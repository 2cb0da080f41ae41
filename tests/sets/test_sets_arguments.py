"""Bad input, binding to N, restriction, printing, and gamma_for."""

from __future__ import annotations

import numpy as np
import pytest

from aspire.sets import (
    KL,
    Box,
    CDNorm,
    ChiSquare,
    CVaR,
    Ellipsoid,
    Simplex,
    TotalVariation,
    gamma_for,
)

BAD = [
    (lambda: CDNorm(radius=-0.1, budget=1), "radius"),
    (lambda: CDNorm(radius=[0.1, -0.1], budget=1), "radius"),
    (lambda: CDNorm(radius=[[0.1]], budget=1), "radius"),
    (lambda: CDNorm(radius="wide", budget=1), "radius"),
    (lambda: CDNorm(radius=np.nan, budget=1), "radius"),
    (lambda: CDNorm(budget=1), "radius"),
    (lambda: CDNorm(radius=0.1), "budget"),
    (lambda: CDNorm(radius=0.1, budget=-1), "budget"),
    (lambda: CDNorm(radius=0.1, budget=np.inf), "budget"),
    (lambda: CDNorm(radius=0.1, budget=[1, 2]), "budget"),
    (lambda: CDNorm([0.5, 0.6], 0.1, 1), "prior"),
    (lambda: CDNorm([1.5, -0.5], 0.1, 1), "prior"),
    (lambda: CDNorm(0.5, 0.1, 1), "prior"),
    (lambda: CDNorm([], 0.1, 1), "prior"),
    (lambda: CDNorm([0.5, 0.5], [0.1] * 3, 1), "lengths"),
    (lambda: Box(0.6, [0.5, 0.5]), "lower"),
    (lambda: Box([0.6, 0.6], 1), "lower"),
    (lambda: Box(-0.1, 1), "lower"),
    (lambda: Box(0, [0.4, 0.4]), "upper"),
    (lambda: Box(0, 0.3).for_sites(3), "upper"),
    (lambda: Box([0, 0], [1, 1, 1]), "lengths"),
    (lambda: Simplex(0), "sites"),
    (lambda: Simplex(2.5), "sites"),
    (lambda: CVaR(1.0), "beta"),
    (lambda: CVaR(-0.1), "beta"),
    (lambda: CVaR(0.5, [0.5, 0.4]), "prior"),
    (lambda: TotalVariation(-1), "radius"),
    (lambda: KL(-1), "radius"),
    (lambda: KL(None), "radius"),
    (lambda: ChiSquare(-1), "radius"),
    (lambda: ChiSquare(0.1, [0.5, np.nan]), "prior"),
    (lambda: Ellipsoid(-1, 1), "radius"),
    (lambda: Ellipsoid(1, -1), "covariance"),
    (lambda: Ellipsoid(1, [[1, 2], [2, 1]]), "covariance"),
    (lambda: Ellipsoid(1, [[1, 2], [0, 1]]), "covariance"),
    (lambda: Ellipsoid(1, [[1, 0, 0], [0, 1, 0]]), "covariance"),
    (lambda: Ellipsoid(1, np.eye(3), [0.5, 0.5]), "lengths"),
    (lambda: Simplex().worst_case([1, np.nan]), "losses"),
    (lambda: Simplex().worst_case([1, np.inf]), "losses"),
    (lambda: Simplex().worst_case([]), "losses"),
    (lambda: Simplex().worst_case([[1, 2]]), "losses"),
    (lambda: Simplex().worst_case("high"), "losses"),
    (lambda: Simplex(3).worst_case([1, 2]), "3 sites, got 2"),
    (lambda: Simplex(3).for_sites(2), "3 sites, got 2"),
    (lambda: Simplex().for_sites(0), "n must"),
    (lambda: Simplex().nominal(), "for_sites"),
    (lambda: KL(1).upper(), "for_sites"),
    (lambda: KL(1).contains([[1.0]]), "p must"),
    (lambda: KL(1, [0.5, 0.5]).contains([1.0]), "2 sites, got 1"),
    (lambda: KL(1).restrict([0, 1]), "present"),
    (lambda: KL(1).restrict([False, False]), "present"),
    (lambda: KL(1, [0.5, 0.5]).restrict([0, 2]), "present"),
    (lambda: KL(1, [0.5, 0.5]).restrict([0, 0]), "present"),
    (lambda: KL(1, [0.5, 0.5]).restrict([True]), "present"),
    (lambda: KL(1, [0.5, 0.5]).restrict([0.5]), "present"),
    (lambda: KL(1, [1, 0]).restrict([1]), "present sites must carry weight"),
    (lambda: Box([1, 0], 1).restrict([1]), "present sites must carry weight"),
    (lambda: gamma_for(0, 10), "outage"),
    (lambda: gamma_for(1, 10), "outage"),
    (lambda: gamma_for(0.1, 0), "n must"),
]


@pytest.mark.parametrize(("make", "names"), BAD)
def test_bad_input_is_refused_in_one_sentence(make, names):
    with pytest.raises(ValueError, match=names) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_prior_almost_normalised_is_normalised():
    s = KL(0.1, [0.3333333, 0.3333333, 0.3333333])
    assert s.nominal().sum() == pytest.approx(1, abs=1e-15)
    assert KL(0.1, [0.2, 0.8]).nominal().tolist() == [0.2, 0.8]


@pytest.mark.parametrize(
    "s",
    [
        CDNorm(radius=0.1, budget=2),
        Box(0.05, 0.6),
        Simplex(),
        CVaR(0.4),
        TotalVariation(0.3),
        KL(0.1),
        ChiSquare(0.1),
        Ellipsoid(0.5, 0.01),
    ],
)
def test_a_set_of_numbers_takes_n_from_the_sites(s):
    assert s.size is None
    bound = s.for_sites(4)
    assert bound.size == 4
    assert bound.for_sites(4) is bound
    np.testing.assert_allclose(bound.nominal(), 0.25)
    np.testing.assert_array_equal(s.worst_case([1, 2, 3, 4]), bound.worst_case([1, 2, 3, 4]))
    assert s.restrict([True, False, True, True]) == bound.restrict([0, 2, 3])
    assert bound.restrict([0, 2, 3]).size == 3
    assert s != bound


def test_restrictions_keep_radii_and_renormalise_the_prior():
    s = CDNorm([0.2, 0.3, 0.5], [0.1, 0.2, 0.3], 2).restrict([0, 2])
    assert s == CDNorm([0.2 / 0.7, 0.5 / 0.7], [0.1, 0.3], 2)
    assert ChiSquare(0.3, [0.25, 0.25, 0.5]).restrict([0, 1]) == ChiSquare(0.3, [0.5, 0.5])
    sigma = np.array([[0.04, 0.01, 0], [0.01, 0.04, 0], [0, 0, 0.04]])
    kept = Ellipsoid(1, sigma).restrict([0, 1])
    np.testing.assert_array_equal(kept.covariance, sigma[:2, :2])


def test_a_restricted_box_keeps_its_shape():
    s = Box([0.1, 0.1, 0.1], [0.4, 0.4, 0.4]).restrict([0, 1])
    np.testing.assert_allclose(s.low, 0.15)
    np.testing.assert_allclose(s.high, 0.6)
    assert Simplex(3).restrict([1]) == Simplex(1)


def test_the_centre_of_a_box_is_the_point_nearest_to_uniform():
    np.testing.assert_allclose(Box([0, 0, 0.6], [0.1, 1, 1]).nominal(), [0.1, 0.3, 0.6])
    np.testing.assert_allclose(Box(0, 1).for_sites(4).nominal(), 0.25)


def test_contains():
    s = CDNorm([0.5, 0.5], [0.3, 0.1], 2)
    assert s.contains([0.4, 0.6])
    assert s.contains([0.6, 0.4])
    assert not s.contains([0.39, 0.61])
    assert not s.contains([0.5, 0.6])
    assert not s.contains([np.nan, 0.5])
    assert not CDNorm([0.5, 0.5], 0.3, 0.1).contains([0.4, 0.6])
    assert not CDNorm([0.5, 0.5], [0, 0.3], 2).contains([0.4, 0.6])
    assert not Simplex().contains([1.1, -0.1])
    assert not KL(9, [1, 0]).contains([0.9, 0.1])
    assert KL(0.7).contains([1, 0])
    assert not KL(0.69).contains([1, 0])
    assert not ChiSquare(9, [1, 0]).contains([0.9, 0.1])
    assert not CVaR(0.5).contains([1, 0, 0, 0])
    assert not TotalVariation(0.1).contains([0.4, 0.6])
    assert not Box(0.2, 1).contains([0.1, 0.9])
    assert not Ellipsoid(1, [0.01, 0.01]).contains([0.4, 0.6])
    line = Ellipsoid(1, [[0.02, -0.02, 0], [-0.02, 0.02, 0], [0, 0, 0]])
    assert line.contains([1 / 3 - 0.1, 1 / 3 + 0.1, 1 / 3])
    assert not line.contains([1 / 3 - 0.1, 1 / 3, 1 / 3 + 0.1])


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (CDNorm(radius=0.1, budget=2), "CDNorm(prior=None, radius=0.1, budget=2)"),
        (
            CDNorm([0.5, 0.5], [0.3, 0.1], 2),
            "CDNorm(prior=[0.5, 0.5], radius=[0.3, 0.1], budget=2)",
        ),
        (KL(0.1).for_sites(10), "KL(radius=0.1, prior=<10 values of 0.1>)"),
        (Box(0, 0.5), "Box(lower=0, upper=0.5)"),
        (Simplex(), "Simplex(sites=None)"),
    ],
)
def test_repr(s, text):
    assert repr(s) == text


def test_repr_of_large_sets_is_short():
    assert len(repr(Ellipsoid(1, np.eye(50)))) < 120
    assert len(repr(CDNorm(None, np.linspace(0, 1, 500), 2))) < 120


@pytest.mark.parametrize(
    ("outage", "n", "expected"),
    [(0.01, 10, 8.15), (0.01, 100, 24.2), (0.9, 10, 0.0), (1e-9, 5, 5.0), (0.275, 2, 1.9)],
)
def test_gamma_for(outage, n, expected):
    assert gamma_for(outage, n) == pytest.approx(expected, abs=0.02)


def bound(n, gamma):
    """B(n, Gamma) in whole numbers."""
    from math import comb, floor

    v = (gamma + n) / 2
    k, mu = floor(v), v - floor(v)
    tail = [sum(comb(n, i) for i in range(a, n + 1)) / 2**n for a in (k, k + 1)]
    return (1 - mu) * tail[0] + mu * tail[1]


@pytest.mark.parametrize("n", [1, 2, 3, 10, 57, 400])
@pytest.mark.parametrize("outage", [0.4, 0.1, 0.01, 1e-6])
def test_gamma_for_meets_its_bound(n, outage):
    gamma = gamma_for(outage, n)
    if gamma < n:
        assert bound(n, gamma) == pytest.approx(outage, rel=1e-9)
    else:
        assert 2.0**-n >= outage * (1 - 1e-9) or bound(n, n) <= outage


def test_gamma_for_a_million_sites_is_the_normal_quantile():
    assert gamma_for(0.01, 10**6) == pytest.approx(2.3263479 * 1000, rel=1e-3)
