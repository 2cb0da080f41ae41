"""The frontier: what is read off it, and that its runs are those of a sweep from scratch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import aspire
from aspire import train
from aspire.api.frontier import Frontier, Setting, wilson
from aspire.api.sweep import set_at
from aspire.sets import CDNorm


def made(val, test=None, n=100) -> Frontier:
    """A frontier with these accuracies, settings times sites."""
    val = np.array(val)
    test = val if test is None else np.array(test)
    sites = tuple("abcdef"[: val.shape[1]])
    settings = tuple(
        Setting(float(k), v, t, np.full(len(sites), 1 / len(sites)))
        for k, (v, t) in enumerate(zip(val, test, strict=True))
    )
    samples = np.full(len(sites), float(n))
    return Frontier("budget", sites, settings, samples, samples, 0)


def test_the_smallest_setting_that_keeps_the_floor_is_chosen():
    found = made([[0.9, 0.5], [0.85, 0.7], [0.8, 0.72], [0.74, 0.74]])
    answer = found.answer(0.7)
    assert answer.chosen == answer.setting == 1
    assert answer.closest == 3
    assert answer.reach == (0, 1)


def test_a_floor_that_no_setting_keeps_says_who_can():
    answer = made([[0.9, 0.5], [0.85, 0.7], [0.7, 0.74]]).answer(0.8)
    assert answer.chosen is None
    assert answer.closest == 1  # both have a worst of .7: the first
    assert answer.reach == (0, None)


def test_the_floor_is_judged_on_val_alone():
    answer = made(val=[[0.9, 0.5], [0.8, 0.8]], test=[[0.9, 0.9], [0.1, 0.1]]).answer(0.8)
    assert answer.chosen == 1


def test_the_knee_is_the_first_within_one_standard_error_of_the_best():
    # at .7 and n = 100 a standard error is .0458
    assert made([[0.9, 0.5], [0.9, 0.66], [0.9, 0.7]]).knee == 1
    assert made([[0.9, 0.5], [0.9, 0.65], [0.9, 0.7]]).knee == 2
    assert made([[0.9, 0.5], [0.9, 0.66], [0.9, 0.7]], n=10_000).knee == 2


def test_wilsons_interval_agrees_with_published_figures():
    """R. Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    low, high = wilson(np.array([81 / 263, 15 / 148, 0.0, 1.0]), np.array([263, 148, 20, 29]))
    assert np.allclose(low, [0.2553, 0.0624, 0.0, 0.8830], atol=5e-5)
    assert np.allclose(high, [0.3662, 0.1605, 0.1611, 1.0], atol=5e-5)


def test_the_price_agrees_with_published_figures():
    """R. Newcombe, Statistics in Medicine 17 (1998), 873, table II, method 10: 9/10 - 3/10."""
    found = made(val=[[0.3], [0.9]], n=10)
    change, (low, high) = found.price(1)
    assert change[0] == pytest.approx(0.6)
    assert (low[0], high[0]) == pytest.approx((0.1705, 0.8090), abs=5e-5)
    assert found.price(0)[0] == [0.0]


# ---------------------------------------------------------------- the sweep


def sites(n=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    made = {}
    for j in range(n):
        x = torch.randn(240, 2, generator=rng)
        y = (x[:, 0] + (j == 0) * 2 * x[:, 1] > 0).long()
        made[f"site {j}"] = {
            "train": (x[:120], y[:120]),
            "val": (x[120:180], y[120:180]),
            "test": (x[180:], y[180:]),
        }
    return made


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def linear():
    torch.manual_seed(1)
    return torch.nn.Linear(2, 2)


SET = CDNorm(radius=1 / 3, budget=3.0)


@pytest.mark.parametrize("make", [linear, network])
def test_the_smallest_setting_is_a_run_from_scratch(make):
    arguments = {"iterations": 120, "evaluate_every": 10, "select": "last", "batch_size": 16}
    found = aspire.frontier(make(), sites(), uncertainty=SET, values=[0, 3], **arguments)
    run = train(make(), sites(), uncertainty=set_at(SET, "budget", 0.0), **arguments)
    ours = found.settings[0].run
    assert run.history[-len(ours.history) :] == ours.history
    for a, b in zip(run.model.parameters(), ours.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", [linear, network])
def test_a_branch_does_not_depend_on_the_others(make):
    arguments = {"iterations": 90, "batch_size": 16, "uncertainty": SET}
    few = aspire.frontier(make(), sites(), values=[0, 3], **arguments)
    many = aspire.frontier(make(), sites(), values=[0, 1, 2, 3], **arguments)
    assert few.settings[1].run.history == many.settings[3].run.history
    assert many.settings[3].weights[0] > many.settings[0].weights[0] + 0.02
    assert not np.array_equal(many.settings[1].weights, many.settings[3].weights)


@pytest.mark.parametrize("make", [linear, network])
def test_six_settings_cost_less_than_half_of_six_runs(make):
    arguments = {"iterations": 1500, "batch_size": 16, "uncertainty": SET}
    found = aspire.frontier(make(), sites(), **arguments)
    assert [setting.value for setting in found.settings] == pytest.approx(
        [0, 0.6, 1.2, 1.8, 2.4, 3]
    )
    runs = [
        train(make(), sites(), **{**arguments, "uncertainty": set_at(SET, "budget", x.value)})
        for x in found.settings
    ]
    assert found.gradients <= sum(run.worker_gradients for run in runs) / 2
    for run, setting in zip(runs, found.settings, strict=True):
        assert np.abs(run.accuracies - setting.test).max() <= 0.1
