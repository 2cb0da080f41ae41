"""Partitions: what holds for all labels, numbers of sites and seeds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reproduction.data import partitions as p

labels_of = st.lists(st.integers(0, 5), min_size=1, max_size=80)
seeds = st.integers(0, 2**40)


def assert_each_once(sites: list[np.ndarray], size: int) -> None:
    together = np.concatenate(sites)
    assert sorted(together.tolist()) == list(range(size))
    for site in sites:
        assert len(site) > 0
        assert site.dtype == np.int64
        assert (np.diff(site) > 0).all()


@given(st.integers(0, 300), seeds)
def test_shuffled_is_a_permutation_that_the_seed_fixes(size: int, seed: int) -> None:
    order = p.shuffled(size, seed)
    assert sorted(order.tolist()) == list(range(size))
    np.testing.assert_array_equal(order, p.shuffled(size, seed))


def test_shuffled_sorts_the_words_of_philox() -> None:
    """The words are those of the published generator: its key from SeedSequence, counter from 1."""
    raw = np.random.Generator(np.random.Philox(np.random.SeedSequence([3, 1]))).bit_generator
    words = [int(raw.random_raw()) for _ in range(50)]
    assert p.shuffled(50, 3, 1).tolist() == sorted(range(50), key=words.__getitem__)


@given(st.integers(2, 500), st.floats(0.01, 0.99), seeds)
def test_split_cuts_once(size: int, share: float, seed: int) -> None:
    count = round(share * size)
    if count in (0, size):
        with pytest.raises(ValueError, match="too few samples"):
            p.split(size, share, seed)
        return
    rest, part = p.split(size, share, seed)
    assert len(part) == count
    assert_each_once([rest, part], size)


@given(labels_of)
def test_one_class_each(labels: list[int]) -> None:
    sites = p.one_class_each(labels)
    assert_each_once(sites, len(labels))
    for site, label in zip(sites, sorted(set(labels)), strict=True):
        assert {labels[i] for i in site} == {label}
    chosen = labels[0]
    only = p.one_class_each(labels, [chosen])
    assert [labels[i] for i in only[0]] == [chosen] * labels.count(chosen)


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=50))
def test_by_column(column: list[str]) -> None:
    sites = p.by_column(column)
    assert_each_once(sites, len(column))
    for site, value in zip(sites, sorted(set(column)), strict=True):
        assert {column[i] for i in site} == {value}


@given(labels_of, st.integers(1, 6), st.floats(0.05, 50.0), seeds)
def test_dirichlet(labels: list[int], sites: int, alpha: float, seed: int) -> None:
    if sites > len(labels):
        with pytest.raises(ValueError, match="the number of samples"):
            p.dirichlet(labels, sites, alpha, seed=seed)
        return
    try:
        parts = p.dirichlet(labels, sites, alpha, seed=seed)
    except ValueError:  # few samples, many sites
        with pytest.raises(ValueError, match="left one of"):
            p.dirichlet(labels, sites, alpha, seed=seed)
        return
    assert len(parts) == sites
    assert_each_once(parts, len(labels))
    again = p.dirichlet(labels, sites, alpha, seed=seed)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


def test_a_large_alpha_gives_sites_alike_and_a_small_one_gives_few_classes() -> None:
    labels = np.repeat(np.arange(4), 1000)
    alike = [np.bincount(labels[s], minlength=4) for s in p.dirichlet(labels, 5, 1e6, seed=1)]
    assert np.abs(np.array(alike) - 200).max() <= 5
    apart = [np.bincount(labels[s], minlength=4) for s in p.dirichlet(labels, 5, 0.05, seed=1)]
    largest = np.array(apart).max(axis=0) / 1000
    assert largest.mean() > 0.7  # most of a class is at one site


@given(labels_of, st.integers(1, 6), st.integers(1, 4), seeds)
def test_shards(labels: list[int], sites: int, each: int, seed: int) -> None:
    if sites * each > len(labels):
        with pytest.raises(ValueError, match="expected"):
            p.shards(labels, sites, each, seed=seed)
        return
    parts = p.shards(labels, sites, each, seed=seed)
    assert len(parts) == sites
    assert_each_once(parts, len(labels))
    if each == 1:  # one shard is a stretch of the labels in order
        ends = sorted((min(labels[i] for i in s), max(labels[i] for i in s)) for s in parts)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))


@given(st.data(), st.integers(1, 4), st.integers(1, 6), seeds)
def test_mixtures(data: st.DataObject, width: int, sites: int, seed: int) -> None:
    groups = np.repeat(np.arange(width), data.draw(st.integers(60, 120)))
    drawn = st.lists(st.floats(0.3, 1.0), min_size=sites, max_size=sites)
    shares = np.array([data.draw(drawn) for _ in range(width)]).T
    shares /= shares.sum(axis=0)
    parts = p.mixtures(groups, shares, seed=seed)
    assert_each_once(parts, len(groups))
    for part, row in zip(parts, shares, strict=True):
        counts = np.bincount(groups[part], minlength=width)
        assert np.abs(counts - row * (groups == 0).sum()).max() <= 1.0
    half = p.mixtures(groups, shares / 2, seed=seed)
    together = np.concatenate(half)
    assert len(set(together.tolist())) == len(together)
    for g in range(width):
        assert abs((groups[together] == g).sum() - (groups == g).sum() / 2) <= 1.0


def test_the_seed_decides() -> None:
    labels = np.arange(1000) % 10
    for made in (
        lambda seed: p.dirichlet(labels, 4, 1.0, seed=seed),
        lambda seed: p.shards(labels, 4, 3, seed=seed),
        lambda seed: p.mixtures(labels, np.full((4, 10), 0.25), seed=seed),
    ):
        assert any(a.tolist() != b.tolist() for a, b in zip(made(0), made(1), strict=True))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: p.one_class_each([0, 1], [0, 2]), "site 1 would be empty: no sample has .* 2"),
        (lambda: p.one_class_each([0, 1], [0, 0]), "each class once"),
        (lambda: p.one_class_each([]), "expected one value per sample"),
        (lambda: p.by_column([[1, 2]]), r"column of shape \(1, 2\)"),
        (lambda: p.dirichlet([0, 1], 0, 1.0), "sites=0"),
        (lambda: p.dirichlet([0, 1], 2, 0.0), "alpha=0.0"),
        (lambda: p.dirichlet([0] * 3, 3, 1e-3), "left one of 3 sites empty"),
        (lambda: p.shards([0, 1], 2, 0), "each=0"),
        (lambda: p.shards([0, 1], 2, 2), "4 shards of 2 samples"),
        (lambda: p.mixtures([0, 1], [[0.5, 0.5], [0.6, 0.5]]), "at most 1 of each group"),
        (lambda: p.mixtures([0, 2], [[0.5, 0.5]]), "whole numbers from 0 to 1"),
        (lambda: p.mixtures([0.5, 1], [[0.5, 0.5]]), "whole numbers from 0 to 1"),
        (lambda: p.mixtures([0, 1], [[-0.5, 0.5]]), "at least 0"),
        (lambda: p.mixtures([0, 0], [[1.0], [0.0]]), "site 1 would be empty"),
        (lambda: p.split(10, 1.0, 0), "share=1.0"),
    ],
)
def test_bad_arguments(call: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()  # type: ignore[operator]
