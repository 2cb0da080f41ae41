"""The frontier: what is read off it, and that its runs are those of a sweep from scratch."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import aspire
from aspire import train
from aspire.api.frontier import Frontier, Setting
from aspire.api.sweep import set_at
from aspire.cli import main
from aspire.sets import KL, Box, CDNorm


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


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"floor": 80}, "floor=80: expected an accuracy above 0 and up to 1"),
        ({"share": 1.0}, "share=1: expected a number between 0 and 1"),
        ({"dial": "beta"}, "dial='beta': expected one of budget, radius"),
        ({"values": [1.0]}, "two or more different numbers"),
        ({"values": [1.0, 1.0]}, "two or more different numbers"),
        ({"values": [-1.0, 1.0]}, "two or more different numbers"),
        ({"uncertainty": Box(0.1, 0.6)}, "expected a set with a budget, radius or beta"),
        ({"uncertainty": CDNorm(radius=0.3, budget=0.0)}, "expected a budget above 0"),
        ({"method": aspire.methods.afl()}, "method is given: expected none"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_trained(given, sentence, tmp_path):
    out = tmp_path / "price"
    with pytest.raises(ValueError, match=sentence):
        aspire.frontier(linear(), sites(), iterations=10**9, out=out, **given)
    assert not out.exists()


def test_every_site_needs_all_three_parts():
    lacking = sites()
    del lacking["site 1"]["val"]
    with pytest.raises(ValueError, match="site 'site 1' has no val part"):
        aspire.frontier(linear(), lacking, iterations=10)
    with pytest.raises(TypeError, match=r"frontier\(\) got an unexpected argument 'iteration'"):
        aspire.frontier(linear(), sites(), iteration=10)


def test_a_model_without_class_scores_is_refused():
    real = {
        name: {part: (x, x.clone()) for part, (x, _) in site.items()}
        for name, site in sites().items()
    }
    with pytest.raises(ValueError, match="no class scores: expected a classifier"):
        aspire.frontier(linear(), real, iterations=10, loss="mse")


def test_radii_that_differ_keep_their_ratio():
    found = set_at(CDNorm(radius=[0.1, 0.2, 0.4], budget=2.0), "radius", 0.2)
    assert np.allclose(found.radius, [0.05, 0.1, 0.2])
    assert set_at(KL(0.5), "radius", 0.25).radius == 0.25


FILE = """
import torch
from aspire.sets import CDNorm
from tests.test_frontier import linear as model, sites

def uncertainty():
    return CDNorm(radius=1 / 3, budget=3.0)
"""


def test_the_command_writes_a_page_numbers_and_the_runs(tmp_path):
    pytest.importorskip("plotly", reason="needs aspire-ease[report]")
    file, out = tmp_path / "file.py", tmp_path / "price"
    file.write_text(FILE, encoding="utf-8")
    options = ["--iterations", "30", "--values", "0,1.5,3", "--floor", "0.5", "--out", str(out)]
    said = CliRunner().invoke(main, ["frontier", str(file), *options])
    assert said.exit_code == 0, said.output
    assert "floor 50.0 %" in said.stdout
    found = json.loads((out / "frontier.json").read_text())
    assert [setting["value"] for setting in found["settings"]] == [0.0, 1.5, 3.0]
    assert found["answer"]["floor"] == 0.5
    for setting in found["settings"]:
        result = json.loads((out / f"budget-{setting['value']:g}" / "result.json").read_text())
        assert result["accuracies"] == setting["test_accuracies"]
        low, high = setting["test_intervals"]
        assert all(low[j] <= p <= high[j] for j, p in enumerate(setting["test_accuracies"]))
    assert "<h1>The price of robustness" in (out / "frontier.html").read_text(encoding="utf-8")
    again = CliRunner().invoke(main, ["frontier", str(file), *options])
    assert again.exit_code == 2
    assert "expected a new or an empty folder" in again.output


def test_numbers_that_are_none_end_in_a_sentence(tmp_path):
    (tmp_path / "file.py").write_text(FILE, encoding="utf-8")
    command = ["frontier", str(tmp_path / "file.py"), "--values", "0;1"]
    said = CliRunner().invoke(main, command)
    assert said.exit_code == 2
    assert "values='0;1': expected numbers such as 0,1,2,4" in said.output
