"""Inputs standardised over all sites, and priors by size and by name: the same on every engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from aspire import aspire, load, train
from aspire.cli import main
from aspire.engines.carrier import Back, Gone
from aspire.engines.survey import ask, survey
from aspire.methods import central, fedavg
from aspire.problem.problem import build
from aspire.problem.standardization import WHEN_ASKED, combined
from aspire.runs.errors import Stopped
from aspire.sets import KL, CDNorm, ChiSquare, CVaR, Ellipsoid, TotalVariation
from aspire.types import Report
from tests.helpers import blobs, linear

QUICK = {"iterations": 12, "batch_size": 8, "evaluate_every": 6}
SCALE, SHIFT = torch.tensor([1.0, 4.0, 0.02]), torch.tensor([0.0, 50.0, 3.0])


def sized() -> dict:
    """Sites of unlike sizes."""
    sites = blobs(3)
    for j, parts in enumerate(sites.values()):
        parts["train"] = tuple(part[: 12 + 9 * j] for part in parts["train"])
    return sites


def measured() -> dict:
    """The same, with features that have units of their own."""
    return {
        name: {part: (x * SCALE + SHIFT, y) for part, (x, y) in parts.items()}
        for name, parts in sized().items()
    }


def by_hand(sites: dict) -> tuple[np.ndarray, np.ndarray]:
    x = np.concatenate([parts["train"][0].double().numpy() for parts in sites.values()])
    std = x.std(0)
    return x.mean(0), np.maximum(std, 0.1 * std.mean())


# ---------------------------------------------------------------- on the simulator


def test_it_is_that_of_all_training_parts_and_goes_with_the_model(tmp_path, monkeypatch):
    sites = measured()
    run = train(linear(), sites, standardize=True, out=tmp_path / "run", **QUICK)
    mean, std = by_hand(sites)
    assert run.model.mean.numpy() == pytest.approx(mean, rel=1e-5)
    assert run.model.std.numpy() == pytest.approx(std, rel=1e-5)
    assert run.model.std[2] == pytest.approx(0.1 * sites_std(sites), rel=1e-5)  # the floor
    x, y = sites["s0"]["test"]
    right = (run.model(x).argmax(1) == y).double().mean()
    assert run.accuracies[0] == pytest.approx(float(right))
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(saved["mean"], run.model.mean)
    assert torch.equal(saved["model.weight"], run.model.model.weight)
    again = load(tmp_path / "run", linear(seed=3))
    for other in (again, run):
        assert torch.equal(other.predict(x), run.model(x).detach())
        assert other.evaluate(sites).metrics["accuracy"][0].value == run.accuracies[0]
    text = (tmp_path / "run" / "README.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    assert "torch.zeros(1, 3" in program
    names: dict = {}
    monkeypatch.chdir(tmp_path / "run")
    exec(program, names)
    assert torch.allclose(names["outputs"], run.model(torch.zeros(1, 3)))


def sites_std(sites: dict) -> float:
    x = np.concatenate([parts["train"][0].double().numpy() for parts in sites.values()])
    return float(x.std(0).mean())


def test_the_run_is_that_on_inputs_standardised_by_hand():
    sites = measured()
    run = train(linear(), sites, standardize=True, **QUICK)
    mean, std = run.model.mean, run.model.std
    same = {
        name: {part: ((x - mean) / std, y) for part, (x, y) in parts.items()}
        for name, parts in sites.items()
    }
    other = train(linear(), same, **QUICK)
    assert torch.equal(run.model.model.weight, other.model.weight)
    assert run.history == other.history


@pytest.mark.parametrize("form", ["consensus", "direct"])
def test_the_test_part_has_no_say_and_datasets_are_the_same(form):
    sites = measured()
    runs = [train(linear(), sites, standardize=True, form=form, **QUICK)]
    odd = {name: dict(parts) for name, parts in sites.items()}
    odd["s1"]["test"] = (sites["s1"]["test"][0] * 1000, sites["s1"]["test"][1])
    runs.append(train(linear(), odd, standardize=True, form=form, **QUICK))
    read = {
        name: {part: TensorDataset(*pair) for part, pair in parts.items()}
        for name, parts in sites.items()
    }
    runs.append(train(linear(), read, standardize=True, form=form, **QUICK))
    for run in runs[1:]:
        assert torch.equal(run.model.mean, runs[0].model.mean)
        assert torch.equal(run.model.std, runs[0].model.std)
        assert torch.allclose(run.model.model.weight, runs[0].model.model.weight, atol=1e-5)


def test_images_and_batch_norm():
    torch.manual_seed(0)
    images = 50 * torch.rand(2, 20, 1, 6, 6) + 100
    images[..., 0, 0] = 7.0  # a dark corner
    labels = (images.mean((2, 3, 4)) > 125).long()
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.LazyLinear(2))
    given = {"standardize": True, "buffers": "site", "form": "direct", **QUICK}
    run = train(model, list(zip(images, labels, strict=True)), **given)
    assert len(run.model.mean) == 36
    assert run.model.std[0] == pytest.approx(0.1 * float(run.model.std[1:].sum()) / 36, rel=0.2)
    assert run.model_of("1")(images[0]).shape == (20, 2)


REFUSED = {
    "tokens": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2)),
        (torch.zeros(9, 2, dtype=torch.int64), torch.zeros(9, dtype=torch.int64)),
        "expected one tensor of real numbers",
    ),
    "NaN": (
        linear,
        (torch.full((9, 3), torch.nan), torch.zeros(9, dtype=torch.int64)),
        "inputs are NaN",
    ),
}


@pytest.mark.parametrize(("model", "data", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_mean(model, data, said):
    with pytest.raises(ValueError, match=said):
        train(model(), [data], standardize=True, **QUICK)
    with pytest.raises(ValueError, match="standardize='yes': expected True or False"):
        train(model(), [data], standardize="yes", **QUICK)


# ---------------------------------------------------------------- priors

SETS = (
    lambda q: CDNorm(q, 0.1, 1.0),
    lambda q: CDNorm(q, [0.1, 0.2, 0.1], 1.0),
    lambda q: KL(0.1, q),
    lambda q: ChiSquare(0.1, q),
    lambda q: CVaR(0.3, q),
    lambda q: TotalVariation(0.3, q),
    lambda q: Ellipsoid(0.1, 1.0, q),
)
SIZES = np.array([12, 21, 30]) / 63
BY_NAME = {"s2": 0.5, "s0": 0.2, "s1": 0.3}


@pytest.mark.parametrize("make", SETS)
def test_a_prior_by_size_or_by_name_is_that_vector(make):
    sites = sized()
    for form in ("consensus", "direct", None):
        for prior, vector in (("size", SIZES), (BY_NAME, [0.2, 0.3, 0.5])):
            first, second, third = (
                train(linear(), sites, **how, **QUICK)
                for how in (
                    {"uncertainty": make(vector), "form": form},
                    {"uncertainty": make(prior), "form": form},
                    {"method": aspire(make(prior), form=form)},
                )
            )
            assert first.history == second.history == third.history
            assert repr(second.settings["uncertainty"]) == repr(first.settings["uncertainty"])


def test_methods_with_a_prior_of_their_own():
    sites = sized()
    for make in (lambda q: fedavg(rate=0.1, prior=q), lambda q: central(KL(0.1, q))):
        for prior, vector in (("size", SIZES), (BY_NAME, [0.2, 0.3, 0.5])):
            runs = [train(linear(), sites, method=make(q), **QUICK) for q in (prior, vector)]
            assert runs[0].history == runs[1].history


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        ({"s0": 0.5, "s1": 0.5}, "no weight for site 's2'"),
        ({**BY_NAME, "s7": 0.0}, "no site 's7'"),
        ({"s0": 0.5, "s1": 0.5, "s2": 0.5}, "prior must sum to 1"),
        ("sizes", "prior must hold real numbers"),
    ],
)
def test_a_prior_that_fits_no_sites(prior, said):
    with pytest.raises(ValueError, match=said):
        train(linear(), sized(), uncertainty=KL(0.1, prior), **QUICK)


def test_a_set_that_waits_says_so():
    with pytest.raises(ValueError, match=r"depends on the sites, call over\(...\) first"):
        KL(0.1, "size").worst_case([1.0, 2.0])
    assert KL(0.1, "size").over(("a", "b"), (1, 3)) == KL(0.1, [0.25, 0.75])


# ---------------------------------------------------------------- the question


class Carrier:
    """Sites of this process; each does what `before` says on its first question."""

    def __init__(self, sites, before=lambda report: report):
        self.sites, self.before = sites, before
        self.out = [Back(j) for j in range(len(sites))]

    def send(self, tasks):
        self.out += [self.before(survey(self.sites[t.worker], t)) for t in tasks]

    def receive(self, timeout):
        out, self.out = self.out, []
        return out


def local(sites: dict) -> tuple:
    return build(linear(), sites, standardize=WHEN_ASKED, elsewhere=True).sites


def test_moments_travel_in_parts_as_long_as_the_model():
    sites = measured()
    start = build(linear(), sites, standardize=WHEN_ASKED, elsewhere=True).flat.start
    for p in (1, 4, len(start)):
        carrier = Carrier(local(sites))
        for site in carrier.sites:
            site.objective.flat.start = start[:p]
        names = tuple(sites)
        answers = ask(carrier, names, start[:p], moments=True, patience=1.0)
        by = combined([answer.moments for answer in answers])
        whole = build(linear(), sites, standardize=True).standardization
        assert torch.equal(by.mean, whole.mean)
        assert torch.equal(by.std, whole.std)
        assert [answer.samples for answer in answers] == [12, 21, 30]


LIES = {
    "not finite": lambda r: Report(
        r.worker, r.task, {"moments": r.vectors["moments"] / 0}, r.scalars
    ),
    "half a sample": lambda r: Report(r.worker, r.task, r.vectors, {**r.scalars, "samples": 0.5}),
    "more": lambda r: Report(r.worker, r.task, r.vectors, {**r.scalars, "loss": 0.5}),
    "nothing": lambda r: Report(r.worker, r.task, {}, {"samples": 1.0, "numbers": 0.0}),
    "gone": lambda r: Gone(r.worker, "its process died"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_an_answer_that_cannot_be_used_ends_the_run(lie):
    carrier = Carrier(local(measured()), lie)
    start = carrier.sites[0].objective.flat.start
    with pytest.raises(Stopped, match="site s0"):
        ask(carrier, ("s0", "s1", "s2"), start, moments=True, patience=0.05)


# ---------------------------------------------------------------- on every engine

FILE = """
import torch
from aspire.sets import KL

def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))

def uncertainty():
    return KL(0.1, "size")

def standardize():
    return True

def sites():
    return ["a", "b"]

def site(name):
    draw = torch.Generator().manual_seed(ord(name))
    x = torch.randn(20 if name == "a" else 40, 3, generator=draw)
    y = (x[:, 0] > 0).long()
    return {"train": (50 + 3 * x[:-8], y[:-8]), "test": (50 + 3 * x[-8:], y[-8:])}
"""
COMMON = ("--iterations", "20", "--batch-size", "8", "--evaluate-every", "10")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.py"
    path.write_text(FILE)
    return path


def command(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def check(run: Path) -> None:
    """The same statistics as on the simulator, and a replay with the same bytes."""
    command("train", run.parent / "file.py", "--out", run.parent / "simulated", *COMMON)
    found, expected = (load_file(p / "model.safetensors") for p in (run, run.parent / "simulated"))
    for name in ("mean", "std"):
        assert torch.equal(found[name], expected[name]), name
    kept = json.loads((run / "survey.json").read_text())
    assert kept["samples"] == [12, 32]
    assert json.loads((run / "result.json").read_text())["mean_accuracy"] > 0.5
    assert "bit for bit" in command("replay", run)
    assert "bit for bit" in command("replay", run.parent / "simulated")


def test_on_ray(file, tmp_path):
    ray = pytest.importorskip("ray", reason="needs aspire-ease[ray]")
    try:
        given = ("--engine", "ray", "--actors", "1", "--out", tmp_path / "run")
        command("train", file, *given, *COMMON)
        check(tmp_path / "run")
        again = command("resume", tmp_path / "run", "--iterations", 30)
        assert "30 iterations" in again
    finally:
        ray.shutdown()


def test_in_a_federation(file, tmp_path):
    pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
    from aspire.engines.grpc import kits
    from tests.federation.processes import Command, federation, listening

    kits.init(tmp_path / "kits", ["a", "b"], ["127.0.0.1"], 2)
    with federation(file, tmp_path / "kits", tmp_path, (*COMMON, "--log", "vectors")) as parties:
        codes = [party.wait(120) for party in parties]
        assert codes == [0, 0, 0], [party.said for party in parties]
        address = listening(parties[0])
    more = [Command("more", ["resume", "run", "--iterations", "30"], tmp_path / "server")]
    for name in ("a", "b"):
        own = ["--kit", str(tmp_path / "kits" / "sites" / name), "--connect", address]
        more.append(Command("more", ["site", str(file), *own], tmp_path / name))
    assert [party.wait(120) for party in more] == [0, 0, 0], [party.said for party in more]
    (tmp_path / "server" / "run").rename(tmp_path / "run")
    check(tmp_path / "run")


def test_on_flower(file, tmp_path):
    pytest.importorskip("flwr", reason="needs aspire-ease[flower]")
    from aspire.engines.flower.apps import client_app, train_over
    from tests.flower.grid import Here, as_in_a_run

    as_in_a_run()
    config = {"iterations": 20, "batch-size": 8, "local-steps": 1, "out": str(tmp_path / "run")}
    nodes = {11: {"site": "a"}, 12: {"site": "b"}}
    train_over(Here(client_app(file), nodes, config), file, config)
    check(tmp_path / "run")
