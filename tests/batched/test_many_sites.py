"""Very many sites: samples that lie together stay where they are, and sites are scored together."""

import numpy as np
import pytest
import torch

from aspire import train
from aspire.methods import aspire
from aspire.methods.aspire_ease.consensus_state import Rules
from aspire.methods.aspire_ease.consensus_step import quorum_met
from aspire.problem import problem
from aspire.problem.problem import build
from aspire.types import Facts

FEATURES, CLASSES = 6, 3


def whole(sizes, *, seed=0):
    made = torch.Generator().manual_seed(seed)
    inputs = torch.randn(sum(sizes), FEATURES, generator=made)
    targets = torch.randint(0, CLASSES, (sum(sizes),), generator=made)
    return inputs, targets, list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, CLASSES)


def test_slices_of_one_tensor_are_not_copied():
    inputs, targets, sites = whole([4, 1, 7, 3])
    pool = build(model(), sites).sites[0].pool
    assert pool is not None
    assert pool.inputs.data_ptr() == inputs.data_ptr()
    assert torch.equal(pool.inputs, inputs)
    assert torch.equal(pool.targets, targets)


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [0, 1, 3], [1, 1]])
def test_anything_else_is(order):
    """Slices in another order, with a gap, or twice the same."""
    inputs, _, sites = whole([4, 4, 4, 4])
    chosen = [sites[i] for i in order]
    pool = build(model(), chosen).sites[0].pool
    assert pool is not None
    assert pool.inputs.untyped_storage().data_ptr() != inputs.untyped_storage().data_ptr()
    assert torch.equal(pool.inputs, torch.cat([a for a, _ in chosen]))


def test_a_slice_that_begins_inside_its_tensor():
    inputs, _, sites = whole([5, 4, 4])
    pool = build(model(), sites[1:]).sites[0].pool
    assert pool is not None
    assert torch.equal(pool.inputs, inputs[5:])
    assert pool.inputs.data_ptr() == inputs[5:].data_ptr()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_scores_together_are_the_scores_one_by_one(decay, monkeypatch):
    _, _, sites = whole([1 + j % 5 for j in range(60)])
    made = build(model(), sites, weight_decay=decay)
    alone = made.scores(made.flat.start)
    monkeypatch.setattr(problem, "MANY", 60)
    together = made.scores(made.flat.start)
    np.testing.assert_allclose(together.train_losses, alone.train_losses, rtol=1e-5)
    np.testing.assert_array_equal(together.accuracies, alone.accuracies)
    assert np.isnan(together.test_losses).all()
    assert np.isnan(alone.test_losses).all()


def test_sites_with_a_test_part_are_scored_by_themselves(monkeypatch):
    _, _, sites = whole([3, 3])
    made = build(model(), [{"train": site, "test": sites[0]} for site in sites])
    expected = [site.accuracy(made.flat.start) for site in made.sites]
    monkeypatch.setattr(problem, "MANY", 2)
    assert made.scores(made.flat.start).accuracies.tolist() == expected


@pytest.mark.parametrize("kind", ["input", "target"])
def test_one_bad_site_among_many_is_still_named(kind):
    inputs, targets, sites = whole([3] * 40)
    if kind == "input":
        inputs[3 * 17] = float("nan")
    else:
        targets[3 * 17] = CLASSES
    with pytest.raises(ValueError, match="site 17"):
        build(model(), sites)


def test_a_small_run_of_many_sites_is_the_same_with_samples_anywhere():
    """2,000 sites of one tensor, and the same samples copied one by one: equal to the bit."""
    _, _, sites = whole([3] * 2000)
    apart = [(a.clone(), b.clone()) for a, b in sites]
    runs = [
        train(model(), made, batch_size=3, iterations=100, quorum=20, evaluate_every=0)
        for made in (sites, apart)
    ]
    assert runs[0].iterations == 100
    assert runs[0].worker_gradients >= 13 * 2000 + 20 * 100
    assert np.array_equal(runs[0].losses, runs[1].losses)
    for a, b in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_the_staleness_rule_is_the_definition(staleness):
    """A step needs every present worker that has not reported to have t - last < tau."""
    method, n = aspire(quorum=1, staleness=staleness), 6
    rules: Rules = method.init.args[0]
    master, _ = method.init(Facts(n, torch.zeros(2)), 0)
    draws = np.random.default_rng(staleness)
    for _ in range(200):
        master.t = int(draws.integers(0, 10))
        master.last = draws.integers(-1, master.t, n) if master.t else np.full(n, -1)
        master.present = draws.random(n) < 0.8
        here = np.flatnonzero(master.present)
        if not len(here):
            continue
        master.n = len(here)
        master.pending = dict.fromkeys(here[: draws.integers(1, len(here) + 1)].tolist())
        others = [j for j in here if j not in master.pending]
        expected = all(master.t - master.last[j] < staleness for j in others)
        assert quorum_met(rules, master) == expected
