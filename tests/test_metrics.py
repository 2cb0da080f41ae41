"""Figures at the end of a run: what they are, where they are computed, and what refuses them."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_model
from scipy import stats

from aspire import train
from aspire.api.certificate import OnTest, certificate
from aspire.cli import main
from aspire.problem.figures import figures_of, one_by_one
from aspire.problem.intervals import highest_mean, lowest_share, normal, percentiles, wilson
from aspire.problem.metrics import metrics_of
from aspire.problem.problem import build
from aspire.protocol import figures_objection
from aspire.sets import CDNorm
from aspire.types import Report

ROOT = Path(__file__).parent.parent

# ---------------------------------------------------------------- intervals


@pytest.mark.parametrize("seed", range(40))
def test_shares_agree_with_scipy(seed):
    rng = np.random.default_rng(seed)
    n = int(10 ** rng.uniform(0, 5))
    right = int(rng.integers(0, n + 1))
    alpha = 10 ** rng.uniform(-6, -0.31)
    exact = stats.beta.ppf(alpha, right, n - right + 1) if right else 0.0
    assert lowest_share(right, n, alpha) == pytest.approx(exact, rel=1e-9)
    known = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right, n) == pytest.approx((known.low, known.high), abs=1e-12)


def test_bounds_by_hand():
    assert lowest_share(10, 10, 0.05) == pytest.approx(0.05**0.1)
    assert highest_mean(0.0, 10, 0.05) == pytest.approx(1 - 0.05**0.1)  # nothing was ever lost
    assert highest_mean(1.0, 10, 0.05) == 1.0
    # Hoeffding's exponent by hand: KL(1/4, m) = log(1/0.05)/20 at this m
    m = highest_mean(0.25, 20, 0.05)
    assert 0.25 * np.log(0.25 / m) + 0.75 * np.log(0.75 / (1 - m)) == pytest.approx(np.log(20) / 20)
    assert m < 0.25 + np.sqrt(np.log(20) / 40)  # the better known form is never below it
    assert normal(2.0, 0.5) == pytest.approx((2 - 0.98, 2 + 0.98), abs=1e-3)
    assert percentiles([float(i) for i in range(199, 0, -1)]) == (5.0, 195.0)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 0.6, 1.0, float("nan"), "0.05", True])
def test_a_level_that_is_none_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha="):
        certificate(["a"], [OnTest(5, 10, None, None, None)], CDNorm(radius=1.0, budget=1.0), alpha)


def test_the_certificate_by_hand():
    tested = [OnTest(45, 50, 0.2, 50, 2.0), OnTest(40, 50, 0.5, 50, 2.0), None]
    box = CDNorm(radius=1 / 3, budget=3.0).for_sites(3)
    found = certificate(["a", "b", "c"], tested, box, 0.1)
    assert found.accuracy == pytest.approx(stats.beta.ppf(0.1, 40, 11))
    assert (found.site, found.sites) == ("b", ("a", "b"))
    highest = [2 * highest_mean(x.loss / 2, 50, 0.05) for x in tested[:2]]
    assert found.loss == pytest.approx(box.restrict([True, True, False]).value(highest))
    assert found.left_out == ("c",)
    for words in (
        "test part: c",
        "cut off at 2",
        "not used to train, select or tune",
        "independent draws",
    ):
        assert words in str(found)
    assert certificate(["a"], [None], CDNorm(radius=1.0, budget=1.0)) is None


# ---------------------------------------------------------------- figures of one site


def pairs(n=60, classes=2, seed=0):
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=draws)
    y = (x[:, 0] + torch.randn(n, generator=draws) > 0).long() * (classes - 1)
    return x, y


def problem(loss="cross_entropy", outputs=2, targets=None, **arguments):
    torch.manual_seed(0)
    x, y = pairs()
    y = y if targets is None else targets
    parts = {"train": (x[:20], y[:20]), "val": (x[20:40], y[20:40]), "test": (x[40:], y[40:])}
    return build(torch.nn.Linear(3, outputs), [parts], loss=loss, **arguments)


def test_loss_and_accuracy_are_those_of_an_evaluation():
    made = problem(weight_decay=0.1)
    said = figures_of(made.sites[0], made.flat.start)
    scores = made.sites[0].scores(made.flat.start)
    assert said["train.loss.value"] == pytest.approx(scores.train_loss)
    assert said["test.loss.value"] == pytest.approx(scores.test_loss)
    assert said["val.loss.value"] == pytest.approx(scores.val_loss)
    assert said["test.accuracy.value"] == pytest.approx(scores.accuracy)
    assert [said[f"{part}.loss.n"] for part in ("train", "val", "test")] == [20, 20, 20]
    w = made.flat.start
    logits = made.sites[0].test.pair[0] @ w[:6].view(2, 3).T + w[6:]
    each = torch.nn.functional.cross_entropy(logits, made.sites[0].test.pair[1], reduction="none")
    decay = 0.05 * float(w.square().sum())
    error = float(each.std()) / np.sqrt(20)
    low = float(each.mean()) - 1.959964 * error + decay
    assert said["test.loss.low"] == pytest.approx(low, rel=1e-5)
    assert said["tested.bound"] == pytest.approx(np.log(20))
    assert said["tested.loss"] == pytest.approx(float(each.clamp(max=np.log(20)).mean()))


def half_of_it(output, target):
    if float(output.detach().mean()) > 1e9:  # vmap refuses to branch on a value
        return output.sum()
    return torch.nn.functional.cross_entropy(output, target) / 2


@pytest.mark.parametrize(
    "loss",
    [
        torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), ignore_index=-100),
        torch.nn.CrossEntropyLoss(label_smoothing=0.2),
        torch.nn.MultiMarginLoss(),
        half_of_it,
    ],
)
def test_a_loss_is_taken_of_each_sample(loss):
    """Weighed as the mean weighs it: that is how a figure is the loss of an evaluation."""
    y = pairs()[1]
    if getattr(loss, "weight", None) is not None:
        y[45] = loss.ignore_index
    made = problem(loss, targets=y)
    said = figures_of(made.sites[0], made.flat.start)
    scores = made.sites[0].scores(made.flat.start)
    assert said["test.loss.value"] == pytest.approx(scores.test_loss, rel=1e-5)
    assert said["test.loss.n"] == (y[40:] >= 0).sum()
    assert said["test.accuracy.value"] == pytest.approx(scores.accuracy)


def spread(output, target):
    """Of one sample it is 0: it compares samples with each other."""
    return torch.nn.functional.cross_entropy(output, target) + output[:, 0].var(unbiased=False)


def test_a_loss_that_compares_samples_has_no_interval():
    made = problem(spread)
    said = figures_of(made.sites[0], made.flat.start, 3.0)
    assert said["test.loss.value"] == pytest.approx(made.sites[0].scores(made.flat.start).test_loss)
    assert said["test.loss.n"] == 20
    assert "test.loss.low" not in said
    assert "tested.loss" not in said


def test_yes_and_no():
    """One logit is right or wrong; of several labels only shares are known."""
    draws = torch.Generator().manual_seed(3)
    one = problem("bce", 1, torch.randint(2, (60, 1), generator=draws).float())
    said = figures_of(one.sites[0], one.flat.start)
    assert said["test.accuracy.value"] == pytest.approx(
        one.sites[0].scores(one.flat.start).accuracy
    )
    assert said["tested.right"] == 20 * said["test.accuracy.value"]
    assert said["tested.bound"] == pytest.approx(np.log(20))
    several = problem("bce", 4, torch.randint(2, (60, 4), generator=draws).float())
    said = figures_of(several.sites[0], several.flat.start)
    known = several.sites[0].scores(several.flat.start).accuracy
    assert said["test.accuracy.value"] == pytest.approx(known)
    assert said["test.accuracy.n"] == 20
    assert "tested.right" not in said


def test_many_samples_at_once_are_as_one_after_the_other():
    outputs, targets = torch.randn(1100, 3), torch.randint(3, (1100,))
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    fast = one_by_one(loss, outputs, targets, 1100)
    slow = torch.cat([one_by_one(loss, outputs[:550], targets[:550], 550),
                      one_by_one(loss, outputs[550:], targets[550:], 550)])  # fmt: skip
    assert torch.allclose(fast, slow, atol=1e-6)


def test_a_regression_has_no_accuracy_and_needs_a_bound():
    made = problem("mse", 1, torch.randn(60, 1))
    said = figures_of(made.sites[0], made.flat.start)
    assert "test.loss.value" in said
    assert "test.accuracy.value" not in said
    assert "tested.loss" not in said
    assert figures_of(made.sites[0], made.flat.start, 3.0)["tested.bound"] == 3.0


# ---------------------------------------------------------------- metrics


def share_of_ones(outputs, targets):
    return (outputs.argmax(1) == 1).float().mean()


def test_torchmetrics_by_name_object_and_function():
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs aspire-ease[metrics]")
    own = torchmetrics.AUROC(task="multiclass", num_classes=2)
    asked = {"AUROC": "auroc", "own": own, "ones": share_of_ones, "f1": "f1"}
    made = problem(metrics=metrics_of(asked))
    said = figures_of(made.sites[0], made.flat.start)
    outputs = made.sites[0].objective.output(made.flat.start, *made.sites[0].test.pair)
    targets = made.sites[0].test.pair[1]
    order = outputs[:, 1] - outputs[:, 0]
    above = (order[targets == 1][:, None] > order[targets == 0][None]).double().mean()
    assert said["test.AUROC.value"] == pytest.approx(float(above))  # what AUROC means
    assert said["test.own.value"] == pytest.approx(float(above))
    assert said["test.ones.value"] == pytest.approx(float(share_of_ones(outputs, targets)))
    hits = ((outputs.argmax(1) == 1) & (targets == 1)).sum()
    f1 = 2 * hits / ((outputs.argmax(1) == 1).sum() + (targets == 1).sum())
    assert said["test.f1.value"] == pytest.approx(float(f1))
    for name in asked:
        assert said[f"test.{name}.n"] == 20
        low, value, high = (said[f"test.{name}.{x}"] for x in ("low", "value", "high"))
        assert low <= value <= high
        assert low < high
    assert said == figures_of(made.sites[0], made.flat.start)  # the bootstrap is seeded


def test_one_class_alone_has_no_auroc():
    pytest.importorskip("torchmetrics", reason="needs aspire-ease[metrics]")
    y = pairs()[1]
    y[40:] = 1
    made = problem(targets=y, metrics=metrics_of("auroc"))
    said = figures_of(made.sites[0], made.flat.start)
    assert "val.auroc.value" in said
    assert "test.auroc.value" not in said


def test_regression_metrics():
    pytest.importorskip("torchmetrics", reason="needs aspire-ease[metrics]")
    made = problem("mse", 1, torch.randn(60, 1), metrics=metrics_of(["mae"]))
    said = figures_of(made.sites[0], made.flat.start)
    outputs = made.sites[0].objective.output(made.flat.start, *made.sites[0].test.pair)
    gap = (outputs - made.sites[0].test.pair[1]).abs().mean()
    assert said["test.mae.value"] == pytest.approx(float(gap))


def raises(outputs, targets):
    raise KeyError("nothing here")


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ("aurok", "expected a name of torchmetrics; did you mean 'auroc'"),
        (3, "metrics=3: expected a name of torchmetrics"),
        ({"a b": "auroc"}, "metrics has the name 'a b'"),
        ({"x": 3}, "metrics: x is an int"),
        ({"loss": share_of_ones}, "always there"),
        ({f"m{i}": share_of_ones for i in range(13)}, "metrics names 13: expected at most 12"),
        ({"x": raises}, "the metric 'x' raised KeyError: 'nothing here'"),
        ({"x": lambda outputs, targets: outputs}, "it gave <Tensor of shape (20, 2)>"),
    ],
)
def test_what_is_no_metric_is_refused_before_the_run(metrics, sentence):
    pytest.importorskip("torchmetrics", reason="needs aspire-ease[metrics]")
    with pytest.raises(ValueError) as error:
        problem(metrics=metrics_of(metrics))
    assert sentence in str(error.value)


# ---------------------------------------------------------------- runs


def sites(count=3):
    made = {}
    for j in range(count):
        x, y = pairs(seed=j)
        made[f"s{j}"] = {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}
    return made


ARGUMENTS = {"iterations": 12, "batch_size": None, "seed": 0}


def test_a_run_has_them_in_its_result(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    out = tmp_path / "run"
    run = train(model, sites(), out=out, metrics={"ones": share_of_ones}, **ARGUMENTS)
    plain = train(model, sites(), **ARGUMENTS)
    assert [x.value for x in run.metrics["accuracy"]["test"]] == pytest.approx(run.accuracies)
    assert [x.value for x in run.metrics["loss"]["test"]] == pytest.approx(run.test_losses)
    result = json.loads((out / "result.json").read_text())
    assert result["metrics"]["ones"]["test"][0].keys() == {"value", "n", "low", "high"}
    assert result["metrics"].keys() == {"loss", "accuracy", "ones"}
    assert result["metrics"]["loss"].keys() == {"train", "test"}
    assert result["certificate"]["accuracy"] == pytest.approx(run.certificate().accuracy)
    assert run.certificate(0.2).accuracy > run.certificate(0.05).accuracy
    assert run.certificate(0.2).loss < run.certificate(0.05).loss
    assert "no site's accuracy is below" in repr(run)
    assert "no site's accuracy is below" not in repr(plain)  # ordinary output stays as it is
    for a, b in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert run.history == plain.history
    assert run.metrics["loss"] == plain.metrics["loss"]


def test_the_command_line(tmp_path):
    pytest.importorskip("torchmetrics", reason="needs aspire-ease[metrics]")
    file = tmp_path / "file.py"
    file.write_text(FILE)
    command = ["train", str(file), "--out", str(tmp_path / "run"), *OPTIONS]
    refused = CliRunner().invoke(main, [*command, "--metrics", "aurok"])
    assert refused.exit_code == 2
    assert "did you mean 'auroc'" in refused.output
    assert not (tmp_path / "run").exists()
    aspire(*command, "--metrics", "f1", "--loss-bound", "2")
    aspire("resume", tmp_path / "run", "--iterations", 12)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"].keys() == {"loss", "accuracy", "f1"}  # --metrics counts more
    assert result["certificate"]["loss_bound"] == 2.0
    assert result["iterations"] == 12


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf"), 1e13, "3", True])
def test_a_bound_that_is_none_is_refused(bound):
    with pytest.raises(ValueError, match="loss_bound="):
        train(torch.nn.Linear(3, 2), sites(), loss_bound=bound, **ARGUMENTS)


def test_a_site_without_the_figure_is_named(caplog):
    def picky(outputs, targets):
        if bool((targets == 1).all()):
            raise ValueError("one class")
        return float(targets.float().mean())

    made = sites()
    made["s1"]["test"] = (made["s1"]["test"][0], torch.ones(20, dtype=torch.int64))
    run = train(torch.nn.Linear(3, 2), made, metrics={"picky": picky}, **ARGUMENTS)
    assert [x is None for x in run.metrics["picky"]["test"]] == [False, True, False]
    assert "no picky on the test part of s1" in caplog.text


# ---------------------------------------------------------------- messages


GOOD = {"test.loss.value": 0.5, "test.loss.n": 10.0, "test.loss.low": 0.4, "test.loss.high": 0.6}
CUT = {"tested.loss": 0.5, "tested.n": 10.0, "tested.bound": 3.0}
RIGHT = {"tested.right": 8.0, "tested.judged": 10.0}


@pytest.mark.parametrize(
    "said",
    [
        {"loss": 1.0},
        {"test.auroc.value": 1.0, "test.auroc.n": 3.0},
        {"test.loss.value": 1.0},
        {**GOOD, "test.loss.mean": 1.0},
        {**GOOD, "test.loss.low": 0.7},
        {**GOOD, "test.loss.n": 0.0},
        {**GOOD, "test.loss.n": 1.5},
        {**GOOD, "test.loss.value": float("nan")},
        {**GOOD, "test.loss.high": 1e13},
        {"test.accuracy.value": 1.1, "test.accuracy.n": 10.0},
        {"tested.loss": 1.0},
        {"tested.right": 1.0},
        {**RIGHT, "tested.right": 11.0},
        {**RIGHT, "tested.right": 0.5},
        {**CUT, "tested.loss": 4.0},
        {**CUT, "tested.loss": -1.0},
        {**CUT, "tested.n": 0.5},
    ],
)
def test_an_answer_that_cannot_be_is_refused(said):
    reason = figures_objection(Report(1, -3, {}, said), ["f1"])
    assert reason is not None
    assert reason.startswith("worker 1 answers ")
    assert len(reason) < 200


def test_proper_answers_are_taken():
    f1 = {name.replace("loss", "f1"): x for name, x in GOOD.items()}
    assert figures_objection(Report(1, -3, {}, {**GOOD, **CUT, **RIGHT, **f1}), ["f1"]) is None
    assert figures_objection(Report(1, -3, {}, {}), []) is None
    assert figures_objection(Report(1, -3, {"w": torch.zeros(3)}, {}), []) is not None


# ---------------------------------------------------------------- engines

FILE = """
import torch

def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)

def site(name):
    draws = torch.Generator().manual_seed("ab".index(name))
    x = torch.randn(60, 3, generator=draws)
    y = (x[:, 0] + torch.randn(60, generator=draws) > 0).long()
    return {"train": (x[:40], y[:40]), "test": (x[40:], y[40:])}

def sites():
    return ["a", "b"]

def ones(outputs, targets):
    return (outputs.argmax(1) == 1).float().mean()

def metrics():
    return {"auroc": "auroc", "ones": ones}
"""
OPTIONS = ("--iterations", "10", "--batch-size", "8", "--evaluate-every", "0")


def on_the_simulator(file, folder):
    aspire("train", file, "--out", folder / "run", *OPTIONS)
    return folder / "run"


def on_ray(file, folder):
    pytest.importorskip("ray", reason="needs aspire-ease[ray]")
    aspire("train", file, "--engine", "ray", "--actors", "1", "--out", folder / "run", *OPTIONS)
    return folder / "run"


def in_a_federation(file, folder):
    pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
    from aspire.engines.grpc import kits
    from tests.federation.processes import federation

    kits.init(folder / "kits", ["a", "b"], ["127.0.0.1"], 2)
    with federation(file, folder / "kits", folder, OPTIONS) as parties:
        assert [party.wait(120) for party in parties] == [0, 0, 0], [p.said for p in parties]
    return folder / "server" / "run"


@pytest.mark.parametrize("engine", [on_the_simulator, on_ray, in_a_federation])
def test_every_engine_has_the_figures_of_its_model(engine, tmp_path):
    """Those that this process finds for the same model; a site's own key draws its resamples."""
    pytest.importorskip("torchmetrics", reason="needs aspire-ease[metrics]")
    file = tmp_path / "file.py"
    file.write_text(FILE)
    run = engine(file, tmp_path)
    result = json.loads((run / "result.json").read_text())
    defined = {}
    exec(FILE, defined)
    model = defined["model"]()
    load_model(model, run / "model.safetensors")
    here = build(
        model, {n: defined["site"](n) for n in "ab"}, metrics=metrics_of(defined["metrics"]())
    )
    answers = here.figures(here.flat.start)
    for metric in ("loss", "accuracy", "auroc", "ones"):
        for part in ("train", "test"):
            for told, said in zip(result["metrics"][metric][part], answers, strict=True):
                own_key = engine is in_a_federation and metric in ("auroc", "ones")
                for field in ("value", "n") if own_key else ("value", "n", "low", "high"):
                    assert told[field] == pytest.approx(said[f"{part}.{metric}.{field}"], rel=1e-6)
                assert told["low"] <= told["value"] <= told["high"]
    assert result["certificate"]["tested"][1]["right"] == answers[1]["tested.right"]


def aspire(*arguments):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output


# ---------------------------------------------------------------- how often they hold


def test_the_page_shows_what_was_measured():
    found = json.loads((ROOT / "benchmarks" / "coverage.json").read_text())
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert found["draws"] == 2000
    for one in found["certificates"]:
        assert min(one["accuracy"], one["loss"]) >= 1 - found["alpha"]
        shares = f"{100 * one['accuracy']:.1f} % | {100 * one['loss']:.1f} %"
        assert f"| {one['sizes'][0]:,} | {shares} |" in page
    for metric, by_n in found["intervals"].items():
        assert by_n["5000"] >= 0.94
        assert (
            f"| {metric} | " + " | ".join(f"{100 * x:.1f} %" for x in by_n.values()) + " |" in page
        )


def test_certificates_and_intervals_hold_as_often_as_they_say():
    """The same simulation, smaller: 300 draws are 5 standard errors within these limits."""
    coverage = coverage_benchmark()
    found = coverage.certificates(coverage.SIZES, 300)
    assert min(found["accuracy"], found["loss"]) >= 0.95
    inside = coverage.intervals(60)
    assert min(by_n["5000"] for by_n in inside.values()) >= 0.8


def test_a_bound_of_one_site_holds_just_often_enough():
    """All of what may be seen at n = 40, with its chances: at the true share 0.8 exactly."""
    chances = stats.binom.pmf(np.arange(41), 40, 0.8)
    misses = [lowest_share(right, 40, 0.05) > 0.8 for right in range(41)]
    assert 0.02 < chances[misses].sum() <= 0.05
    chances = stats.binom.pmf(np.arange(41), 40, 0.3)
    misses = [highest_mean(losses / 40, 40, 0.05) < 0.3 for losses in range(41)]
    assert 0.005 < chances[misses].sum() <= 0.05


def coverage_benchmark():
    path = ROOT / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
