"""`auto`, untouched, against the exact minimax value: a part of `benchmarks/auto.py convex`."""

from __future__ import annotations

import numpy as np
import pytest

from aspire.sets import CDNorm
from reproduction.convex import (
    exact_value,
    generate,
    problems,
    site_losses,
    solve,
    worst_value,
)

# one in three of the committed problems: both families, all scales, all N, S = 1 and S = N/2
SMALL = [p for p in problems() if p.workers < 20]
CHOSEN = SMALL[::3] + [p for p in problems() if p.quorum == 10][::3]


@pytest.mark.slow
@pytest.mark.parametrize("problem", CHOSEN, ids=lambda p: p.name)
def test_auto_reaches_the_exact_minimax_value(problem):
    n = problem.workers
    exact, w = exact_value(problem, 1.0 / n, float(n))
    assert worst_value(site_losses(problem, w), 1.0 / n, float(n)) == pytest.approx(exact)
    full, batch = solve(problem, None), solve(problem, 32)
    assert 0.999999 * exact <= full.worst_case_loss <= 1.005 * exact
    assert 0.999999 * exact <= batch.worst_case_loss <= 1.01 * exact


def test_there_are_at_least_twelve_and_they_are_fixed():
    assert len(CHOSEN) >= 12
    assert {p.family for p in CHOSEN} == {"logistic", "least_squares"}
    assert {p.scale for p in CHOSEN} == {0.1, 1.0, 10.0}
    again = generate("logistic", 1.0, 3, 1, 7)
    np.testing.assert_array_equal(again.sites[0][0], generate("logistic", 1.0, 3, 1, 7).sites[0][0])


@pytest.mark.parametrize("family", ["logistic", "least_squares"])
def test_the_exact_value_is_a_minimum(family):
    """No nearby point has a smaller worst case; the independent oracle agrees on it."""
    problem = generate(family, 1.0, 4, 1, 3)
    exact, w = exact_value(problem, 0.25, 4.0)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(20):
            other = w + size * np.linalg.norm(w) * rng.standard_normal(len(w)) / len(w) ** 0.5
            losses = site_losses(problem, other)
            value = CDNorm(radius=0.25, budget=4.0).value(losses)
            assert value == pytest.approx(worst_value(losses, 0.25, 4.0))
            assert value >= exact * (1 - 1e-7)
