"""What holds for every set, whatever the losses: one table of makers, one test per property."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aspire.sets import (
    KL,
    Box,
    CDNorm,
    ChiSquare,
    CVaR,
    Ellipsoid,
    Simplex,
    TotalVariation,
)

unit = st.floats(0, 1)


@st.composite
def priors(draw, n):
    weights = np.array(
        draw(st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0, 1.7]), min_size=n, max_size=n))
    )
    weights[draw(st.integers(0, n - 1))] += 1
    return weights / weights.sum()


def per_site(n):
    values = st.sampled_from([0.0, 1e-3, 0.1, 0.25, 0.8])
    return st.lists(values, min_size=n, max_size=n).map(np.array)


def boxes(n):
    def make(parts):
        q, low, high = parts
        return Box(q * (1 - low), np.minimum(q + high, 1.0))

    return st.tuples(priors(n), per_site(n), per_site(n)).map(make)


SETS = {
    "cdnorm": lambda n: st.builds(CDNorm, priors(n), per_site(n), st.floats(0, n)),
    "cdnorm-equal": lambda n: st.builds(CDNorm, priors(n), unit, st.floats(0, n)),
    "box": boxes,
    "simplex": lambda n: st.just(Simplex(n)),
    "cvar": lambda n: st.builds(CVaR, st.floats(0, 0.99), priors(n)),
    "tv": lambda n: st.builds(TotalVariation, st.floats(0, 2), priors(n)),
    "kl": lambda n: st.builds(KL, st.floats(0, 3), priors(n)),
    "chi": lambda n: st.builds(ChiSquare, st.floats(0, 9), priors(n)),
    "ellipsoid": lambda n: st.builds(Ellipsoid, unit, per_site(n), priors(n)),
}

names = st.sampled_from(sorted(SETS))
losses_of = st.one_of(st.integers(-3, 3).map(float), st.floats(-10, 10))


@st.composite
def cases(draw):
    n = draw(st.integers(1, 8))
    s = draw(SETS[draw(names)](n))
    return s, np.array(draw(st.lists(losses_of, min_size=n, max_size=n)))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_worst_case_is_feasible_and_no_worse_than_nominal(case):
    s, f = case
    p = s.worst_case(f)
    assert p.dtype == np.float64
    assert p.min() >= 0
    assert abs(p.sum() - 1) < 1e-12
    assert s.contains(p)
    assert s.contains(s.nominal())
    scale = max(np.abs(f).max(), 1e-300)
    assert s.value(f) >= s.nominal() @ f - 1e-12 * scale
    assert (p <= s.upper() + 1e-9).all()


@settings(max_examples=200, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_renaming_sites_and_shifting_losses_change_nothing(case, random):
    s, f = case
    order = list(range(f.size))
    random.shuffle(order)
    value, scale = s.value(f), max(np.abs(f).max(), 1.0)
    assert abs(s.restrict(order).value(f[order]) - value) < 1e-9 * scale
    assert abs(s.value(f + 5) - value - 5) < 1e-9 * scale
    assert abs(s.value(f * 1e8) / 1e8 - value) < 1e-9 * scale
    assert abs(s.value(f * 1e-8) * 1e8 - value) < 1e-9 * scale


@pytest.mark.parametrize("name", sorted(SETS))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_renaming_sites_renames_a_unique_maximiser(name, data):
    n = data.draw(st.integers(2, 7))
    s = data.draw(SETS[name](n))
    # Irrational steps: no two sums of losses tie, so the maximiser is unique for these radii.
    f = np.sqrt(np.array([2, 3, 5, 7, 11, 13, 17][:n]))
    order = data.draw(st.permutations(range(n)))
    p = s.worst_case(f)
    np.testing.assert_allclose(s.restrict(order).worst_case(f[order]), p[order], atol=1e-7)
    np.testing.assert_allclose(s.worst_case(f + 1), p, atol=1e-7)


@settings(max_examples=100, deadline=None)
@given(cases(), st.floats(-1e8, 1e8))
def test_equal_losses_give_the_prior_exactly(case, level):
    s, f = case
    np.testing.assert_array_equal(s.worst_case(np.full(f.size, level)), s.nominal())


@pytest.mark.parametrize(
    "make",
    [
        lambda q: CDNorm(q, 0.3, 0),
        lambda q: CDNorm(q, 0, 2),
        lambda q: CVaR(0, q),
        lambda q: TotalVariation(0, q),
        lambda q: KL(0, q),
        lambda q: ChiSquare(0, q),
        lambda q: Ellipsoid(0, 1.0, q),
        lambda q: Ellipsoid(1, 0.0, q),
        lambda q: Ellipsoid(0, np.eye(3), q),
        lambda q: Box(q, q),
    ],
)
def test_no_room_gives_the_prior_exactly(make):
    q = np.array([0.2, 0.3, 0.5])
    s = make(q)
    np.testing.assert_array_equal(s.worst_case([3.0, 1.0, 2.0]), q)
    np.testing.assert_array_equal(s.nominal(), q)
    np.testing.assert_allclose(s.upper(), q, atol=1e-15)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_torch_is_numpy(case):
    s, f = case
    expected = s.worst_case(f)
    found = s.worst_case(torch.tensor(f, dtype=torch.float64, requires_grad=True))
    assert found.dtype == torch.float64
    assert not found.requires_grad
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(s.worst_case(list(f)), expected)
    single = s.worst_case(torch.tensor(f, dtype=torch.float32))
    assert single.dtype == torch.float32
    assert s.worst_case(torch.arange(f.size)).dtype == torch.float64
    assert s.contains(found)


@settings(max_examples=150, deadline=None)
@given(cases(), st.data())
def test_a_restriction_is_a_set_of_the_same_kind(case, data):
    s, f = case
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=f.size, max_size=f.size)))
    if s.nominal()[mask].sum() == 0:
        with pytest.raises(ValueError, match="present"):
            s.restrict(mask)
        return
    kept = s.restrict(mask)
    assert type(kept) is type(s)
    assert kept.size == mask.sum()
    assert kept == s.restrict(np.flatnonzero(mask)) == s.restrict(torch.tensor(mask))
    assert kept.contains(kept.worst_case(f[mask]))
    assert kept.contains(kept.nominal())


@settings(max_examples=100, deadline=None)
@given(cases())
def test_a_set_is_a_value(case):
    s, f = case
    before = f.copy()
    p = s.worst_case(f)
    p[:] = -1
    s.nominal()[:] = -1
    np.testing.assert_array_equal(f, before)
    again = pickle.loads(pickle.dumps(s))
    assert again == s == copy.deepcopy(s)
    assert hash(again) == hash(s)
    np.testing.assert_array_equal(again.worst_case(f), s.worst_case(f))
    assert s.contains(s.worst_case(f))
