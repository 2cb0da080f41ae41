"""Who holds which sample: labelled data cut into sites, as pure functions over indices.

Each gives one sorted array of indices per site. No index is given out twice, and no site stays
empty: where the arguments would leave one empty, a ValueError says so. Randomness is the argument
`seed`: the same arguments give the same sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]

DRAWS = 100  # how often `dirichlet` draws again before it gives up
SPLIT, HELD_OUT, DEAL, SHARDS, DIRICHLET = range(1, 6)  # purposes: streams that share no numbers


def shuffled(size: int, *words: int) -> Indices:
    """The numbers 0 to size - 1 in an order that depends on `words` alone.

    They are sorted by 64-bit words of the counter-based generator Philox under the key
    SeedSequence(words): both are fixed for all versions of numpy, unlike Generator.permutation.
    """
    raw = np.random.Philox(np.random.SeedSequence(words)).random_raw(size)
    return np.argsort(raw, kind="stable").astype(np.int64)


def split(size: int, share: float, *words: int) -> tuple[Indices, Indices]:
    """A random cut of 0 to size - 1 into (the rest, round(share * size) of them), both sorted."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share}: expected a number between 0 and 1")
    count = round(share * size)
    if not 0 < count < size:
        raise ValueError(f"size={size}: too few samples to put a share of {share} aside")
    order = shuffled(size, *words)
    return np.sort(order[count:]), np.sort(order[:count])


def one_class_each(labels: ArrayLike, classes: Sequence[int] | None = None) -> list[Indices]:
    """Site j holds all samples of classes[j] and nothing else; by default every class is a site."""
    values = _vector(labels, "labels")
    wanted = np.unique(values).tolist() if classes is None else list(classes)
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"classes={wanted}: expected each class once")
    sites = [np.flatnonzero(values == c) for c in wanted]
    return _none_empty(sites, [f"no sample has the label {c}" for c in wanted])


def by_column(column: ArrayLike) -> list[Indices]:
    """One site for every value of a column, in the order of np.unique(column)."""
    _, inverse, counts = np.unique(
        _vector(column, "column"), return_inverse=True, return_counts=True
    )
    order = np.argsort(inverse, kind="stable")
    return [part.astype(np.int64) for part in np.split(order, np.cumsum(counts)[:-1])]


def dirichlet(labels: ArrayLike, sites: int, alpha: float, *, seed: int = 0) -> list[Indices]:
    """Every class is dealt out to the sites in shares drawn from Dirichlet(alpha, ..., alpha).

    A large alpha gives sites alike, a small one few classes to each site. Every index goes to one
    site. If a site comes out empty, all shares are drawn again (the next stream of the same seed).
    """
    values = _vector(labels, "labels")
    _at_least_one(sites, len(values))
    if not alpha > 0.0 or not np.isfinite(alpha):
        raise ValueError(f"alpha={alpha}: expected a finite number above 0")
    classes = by_column(values)
    for draw in range(DRAWS):
        rng = np.random.default_rng([DIRICHLET, seed, draw])
        shares = rng.dirichlet(np.full(sites, alpha), size=len(classes))
        parts = _deal(classes, shares.T, seed, draw)
        if all(len(part) for part in parts):
            return parts
    raise ValueError(
        f"alpha={alpha} left one of {sites} sites empty in each of {DRAWS} draws: "
        "expected a larger alpha, fewer sites or more samples"
    )


def shards(labels: ArrayLike, sites: int, each: int, *, seed: int = 0) -> list[Indices]:
    """Sorted by label and cut into sites * each equal shards, of which every site gets `each`.

    So a site sees few classes (about `each` of them). Every index goes to one site.
    """
    values = _vector(labels, "labels")
    if each < 1:
        raise ValueError(f"each={each}: expected at least one shard per site")
    _at_least_one(sites, len(values))
    if sites * each > len(values):
        raise ValueError(
            f"sites * each = {sites * each} shards of {len(values)} samples: expected no more "
            "shards than samples"
        )
    pieces = np.array_split(np.argsort(values, kind="stable"), sites * each)
    hands = shuffled(sites * each, SHARDS, seed).reshape(sites, each)
    return [np.sort(np.concatenate([pieces[i] for i in hand])).astype(np.int64) for hand in hands]


def mixtures(groups: ArrayLike, shares: ArrayLike, *, seed: int = 0) -> list[Indices]:
    """Site j gets the share shares[j][g] of the samples of group g, drawn at random.

    `groups` numbers the groups from 0. A column of `shares` sums to at most one: where it is one,
    every sample of the group goes to one site; where it is less, the rest goes to none. The counts
    are the shares rounded so that they add up.
    """
    numbers = _vector(groups, "groups")
    table = np.asarray(shares, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all() or (table < 0.0).any():
        raise ValueError(f"shares={shares!r}: expected rows of numbers of at least 0, one per site")
    if (table.sum(axis=0) > 1.0 + 1e-9).any():
        raise ValueError(
            f"shares: the columns sum to {table.sum(axis=0)}: expected at most 1 of each group"
        )
    width = table.shape[1]
    if not np.issubdtype(numbers.dtype, np.integer) or not np.isin(numbers, range(width)).all():
        raise ValueError(f"groups: expected whole numbers from 0 to {width - 1}, as shares has")
    members = [np.flatnonzero(numbers == g) for g in range(width)]
    parts = _deal(members, table, seed, 0)
    return _none_empty(parts, [f"its shares are {row}" for row in table.tolist()])


def _deal(
    groups: Sequence[Indices], shares: NDArray[np.float64], seed: int, draw: int
) -> list[Indices]:
    """shares[j, g] of group g to site j: cut the shuffled group at the rounded running sums."""
    hands: list[list[Indices]] = [[] for _ in shares]
    for g, group in enumerate(groups):
        mixed = group[shuffled(len(group), DEAL, seed, draw, g)]
        cuts = np.rint(np.cumsum(shares[:, g]) * len(group)).astype(np.int64)
        for hand, part in zip(hands, np.split(mixed, cuts), strict=False):
            hand.append(part)
    return [np.sort(np.concatenate(hand)).astype(np.int64) for hand in hands]


def _vector(values: ArrayLike, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} of shape {array.shape}: expected one value per sample")
    return array


def _at_least_one(sites: int, samples: int) -> None:
    if not 1 <= sites <= samples:
        raise ValueError(f"sites={sites}: expected 1 to {samples}, the number of samples")


def _none_empty(sites: list[Indices], reasons: Sequence[str]) -> list[Indices]:
    for j, (site, reason) in enumerate(zip(sites, reasons, strict=True)):
        if len(site) == 0:
            raise ValueError(f"site {j} would be empty: {reason}")
    return sites
