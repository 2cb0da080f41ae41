"""Robust aggregations: small ones by hand, and what each of them promises for any rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aspire.methods import fedavg
from aspire.methods.aggregations import centred_clipping, median, norm_clipping, trimmed_mean
from aspire.types import Facts
from tests.helpers import Board, Quadratic
from tests.methods.test_golden import W0, begun, close, play, sgd


def centred(rows: Tensor, weights: Tensor, **more: Any) -> Tensor:
    return centred_clipping(rows, weights, centre=torch.zeros_like(rows[0]), **more)


EVERY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "median": median,
    "trimmed_mean": partial(trimmed_mean, share=0.2),
    "norm_clipping": norm_clipping,
    "centred_clipping": centred,
}
every = pytest.mark.parametrize("name", EVERY)


def tensor(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def drawn(n: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    return tensor(rng.standard_normal((n, 4))), tensor(rng.uniform(0.1, 2.0, n))


cases = given(st.integers(1, 9), st.integers(0, 10**6))

# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("weights", "middle"),
    [
        ([1, 1, 1, 1], 2.5),  # half of the weight on either side of (2, 3)
        ([1, 1, 1, 3], 5.0),  # likewise of (3, 7)
        ([1, 1, 1, 4], 7.0),
        ([4, 1, 1, 1], 1.0),
    ],
)
def test_the_median_by_hand(weights: list[float], middle: float) -> None:
    rows = tensor([[7.0, -7.0], [1.0, -1.0], [2.0, -2.0], [3.0, -3.0]])
    order = [3, 0, 1, 2]  # of the weights, which are by rising value above
    found = median(rows, tensor([weights[i] for i in order]))
    close(found, [middle, -middle])


@pytest.mark.parametrize(("share", "mean"), [(0.01, 3.25), (0.2, 3.25), (0.4, 1.5)])
def test_the_trimmed_mean_by_hand(share: float, mean: float) -> None:
    """Of -50, 1, 1, 2, 9, 100 one goes on each side, at least, and with .4 two."""
    rows = tensor([[9.0], [1.0], [2.0], [1.0], [100.0], [-50.0]])
    close(trimmed_mean(rows, torch.ones(6), share=share), [mean])
    close(trimmed_mean(rows[:2], torch.ones(2), share=share), [5.0])  # of two none goes


def test_the_trimmed_mean_weighs_what_is_left() -> None:
    """Of 1, 2, 6, 9 the middle two are left in one column, and of 8, 1, 5, 4 in the other."""
    rows = tensor([[1.0, 8.0], [2.0, 1.0], [6.0, 5.0], [9.0, 4.0]])
    found = trimmed_mean(rows, tensor([1.0, 1.0, 3.0, 2.0]), share=0.2)
    close(found, [(2.0 + 18.0) / 4, (15.0 + 8.0) / 5])


def test_a_share_that_is_whole_is_not_rounded_down() -> None:
    rows = torch.arange(100.0).double()[:, None]
    rows[:29] = -1e9
    close(trimmed_mean(rows, torch.ones(100), share=0.29), [49.5])


def test_norm_clipping_by_hand() -> None:
    """Lengths 5, 1 and 2: the median is 2, so the first is cut to 2/5."""
    rows = tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
    found = norm_clipping(rows, tensor([1.0, 2.0, 1.0]))
    close(found, [(1.2 + 2.0) / 4, (1.6 + 2.0) / 4])


def test_centred_clipping_by_hand() -> None:
    """0, 1 and 10 within 1 of v = 0 are 0, 1, 1; within 1 of v = 2/3 they are 0, 1, 5/3."""
    rows, even = tensor([[0.0], [1.0], [10.0]]), torch.ones(3, dtype=torch.float64)
    close(centred(rows, even, radius=1.0, iterations=1), [2 / 3])
    close(centred(rows, even, radius=1.0, iterations=2), [(0 + 1 + 5 / 3) / 3])
    # without a radius: the median distances are 1 and then 2/3
    close(centred(rows, even, iterations=2), [2 / 3 + (-2 / 3 + 1 / 3 + 2 / 3) / 3])
    # by weight: v = (0 + 1 + 2 * 1) / 4
    close(centred(rows, tensor([1.0, 1.0, 2.0]), radius=1.0, iterations=1), [0.75])


# ---------------------------------------------------------------- properties


@every
@cases
def test_the_order_of_the_rows_does_not_matter(name: str, n: int, seed: int) -> None:
    rows, weights = drawn(n, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    torch.testing.assert_close(EVERY[name](rows[order], weights[order]), EVERY[name](rows, weights))


@every
@cases
def test_rows_that_agree_are_the_aggregate(name: str, n: int, seed: int) -> None:
    rows, weights = drawn(n, seed)
    same = rows[:1].expand(n, -1)
    torch.testing.assert_close(EVERY[name](same, weights), rows[0])


@every
@given(st.integers(4, 9), st.integers(0, 10**6), st.sampled_from([1e3, -1e6, 1e12]))
def test_one_far_row_moves_it_no_farther_than_the_others_lie(
    name: str, n: int, seed: int, far: float
) -> None:
    rows, _ = drawn(n, seed)
    rows[0] = far
    found = EVERY[name](rows, torch.ones(n, dtype=torch.float64))
    others = torch.linalg.vector_norm(rows[1:], dim=1).max()
    assert float(torch.linalg.vector_norm(found)) <= 4.0 * float(others)


@every
@cases
def test_the_weights_scale_does_not_matter(name: str, n: int, seed: int) -> None:
    rows, weights = drawn(n, seed)
    torch.testing.assert_close(EVERY[name](rows, 7.0 * weights), EVERY[name](rows, weights))


# ---------------------------------------------------------------- in fedavg


def moves(w: Any) -> list[Any]:
    return [sgd(j, w, 2, 0.1)[-1] - w for j in (0, 1)]


@pytest.mark.parametrize("name", ["median", "trimmed_mean"])
def test_of_two_sites_both_count(name: str) -> None:
    plain, other = begun(fedavg(2, 0.1)), begun(fedavg(2, 0.1, aggregation=name))
    for _ in range(3):
        play(plain)
        play(other)
        close(other.master.w, plain.master.w)


def test_norm_clipping_of_the_moves() -> None:
    board, w = begun(fedavg(2, 0.1, aggregation="norm_clipping", prior=[0.25, 0.75])), W0
    for _ in range(3):
        play(board)
        found = moves(w)
        lengths = [np.linalg.norm(x) for x in found]
        scales = [min(1.0, np.mean(lengths) / x) for x in lengths]
        w = w + 0.25 * scales[0] * found[0] + 0.75 * scales[1] * found[1]
        close(board.master.w, w)


def test_centred_clipping_goes_on_from_the_last_round() -> None:
    board = begun(fedavg(2, 0.1, aggregation="centred_clipping", radius=0.01))
    w, v = W0, np.zeros(2)
    for _ in range(3):
        play(board)
        for _ in range(3):
            away = [x - v for x in moves(w)]
            v = v + np.mean([x * min(1.0, 0.01 / np.linalg.norm(x)) for x in away], axis=0)
        w = w + v
        close(board.master.w, w)


def test_a_site_without_prior_has_no_say() -> None:
    sites = [Quadratic((float(j), 1.0)) for j in range(3)]
    board = Board(
        fedavg(1, 0.5, aggregation="median", prior=[0.0, 0.5, 0.5]),
        sites,
        torch.zeros(2, dtype=torch.float64),
    )
    board.probe()
    play(board)
    close(board.master.w, [0.75, 0.5])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"aggregation": "medain"}, "aggregation='medain': expected one of median, .*'median'"),
        ({"trimmed": 0.5}, "trimmed=0.5: expected a number above 0 and below 0.5"),
        ({"radius": 0}, "radius=0: expected a positive number or None"),
    ],
)
def test_bad_arguments_are_named(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fedavg(**more).init(Facts(3, torch.zeros(2)), 0)
