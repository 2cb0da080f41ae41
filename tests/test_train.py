"""The Python door: what users bring, what they get back, and how bad input is told."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from aspire import Absence, Constant, Paper, aspire, central, train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.core.schedules import Limits
from aspire.runs import log
from aspire.sets import CDNorm, Simplex
from tests.helpers import blobs, linear

QUICK = {"iterations": 60, "batch_size": 8}


def test_a_run_has_what_it_promises():
    model = linear()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run = train(model, blobs(), iterations=400, batch_size=None, stationarity=True)
    assert run.sites == ("s0", "s1", "s2", "s3")
    assert run.weights.sum() == pytest.approx(1.0)
    assert run.losses.shape == run.accuracies.shape == (4,)
    assert run.worst_loss == run.losses.max()
    assert run.worst_accuracy == run.accuracies.min()
    assert run.std_accuracy == pytest.approx(np.std(run.accuracies))
    assert 0 <= run.worst_accuracy <= run.mean_accuracy <= 1
    assert run.worst_case_loss == pytest.approx(
        CDNorm(radius=0.25, budget=4.0).for_sites(4).value(run.losses)
    )
    assert run.planes >= 1
    assert run.stationarity >= 0
    assert run.evaluated_on == "test"
    assert run.iterations == 400
    assert len(run.history) == 20
    # quorum 1: one report a step, and the probes; a few more to look at the curvature
    assert 4 * 13 + 400 < run.worker_gradients < 4 * 13 + 400 + 4 * 22
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    # the model that is returned is the one that was scored
    x, y = blobs()["s0"]["test"]
    assert (run.model(x).argmax(1) == y).float().mean() == pytest.approx(run.accuracies[0])
    assert train(model, blobs(), iterations=5).stationarity is None


def test_the_worst_site_gets_better():
    even = train(linear(), blobs(), iterations=800, uncertainty=CDNorm(radius=0.25, budget=0.0))
    fair = train(linear(), blobs(), iterations=800)
    assert fair.worst_loss < even.worst_loss - 0.01
    np.testing.assert_allclose(even.weights, 0.25)


def test_the_same_seed_gives_the_same_run():
    a, b, c = (train(linear(), blobs(), seed=s, **QUICK) for s in (3, 3, 4))
    assert a.history == b.history != c.history
    for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(x, y)


def test_a_custom_loss_and_a_site_without_test_part():
    sites = [blobs()["s0"]["train"], blobs()["s1"]]

    def smooth(output, target):
        return nn.functional.cross_entropy(output, target, label_smoothing=0.1)

    run = train(linear(), sites, loss=smooth, **QUICK)
    assert run.sites == ("0", "1")
    assert run.evaluated_on == "mixed"
    assert train(linear(), sites[:1], **QUICK).evaluated_on == "train"


def test_a_regression_has_no_accuracies():
    rng = np.random.default_rng(0)
    sites = []
    for j in range(3):
        x = torch.tensor(rng.standard_normal((50, 3)), dtype=torch.float32)
        sites.append((x, x.sum(1, keepdim=True) + j))
    run = train(
        linear(outputs=1), sites, loss="mse", uncertainty=Simplex(), iterations=900, batch_size=None
    )
    assert run.accuracies is run.worst_accuracy is run.std_accuracy is run.mean_accuracy is None
    assert run.result()["accuracies"] is None
    # sites want the constants 0, 1 and 2 above the same plane: the middle serves the worst best
    assert 0.9 < run.worst_loss < 1.02


class Jittered(Dataset):
    """A map-style data set with a random transform."""

    def __init__(self, part):
        self.x, self.y = part

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] + 0.01 * torch.randn(3), self.y[i]


def test_a_dataset_with_transforms_is_seeded():
    sites = {k: {p: Jittered(v[p]) for p in v} for k, v in blobs().items()}
    state = torch.get_rng_state()
    a = train(linear(), sites, **QUICK)
    b = train(linear(), sites, **QUICK)
    assert a.history == b.history
    torch.set_rng_state(state)
    plain = {k: TensorDataset(*v["train"]) for k, v in blobs().items()}
    pair = {k: v["train"] for k, v in blobs().items()}
    c, d = train(linear(), plain, **QUICK), train(linear(), pair, **QUICK)
    np.testing.assert_allclose(c.losses, d.losses, rtol=1e-6)


def test_a_site_that_lacks_classes():
    sites = blobs()
    x, y = sites["s1"]["train"]
    sites["s1"]["train"] = (x[y == 0], y[y == 0])
    assert train(linear(), sites, **QUICK).accuracies.shape == (4,)


def test_a_late_joiner_takes_part():
    joins = [Absence(3, 0.0, 20.0)]
    run = train(linear(), blobs(), iterations=300, delays=Constant(1.0), absences=joins)
    assert run.weights[3] > 0
    assert run.history[0]["weights"][3] == 0
    assert run.virtual_seconds == pytest.approx((300 - 60) / 4 + 20)


def test_frozen_parameters_stay_out():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    run = train(model, blobs(), **QUICK)
    assert run.settings["parameters"] == 4 * 2 + 2
    assert torch.equal(run.model[0].weight, model[0].weight)
    assert not torch.equal(run.model[2].weight, model[2].weight)
    assert not run.model[0].weight.requires_grad


def test_dropout_is_seeded_and_off_in_evaluation():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    a, b = (train(model, blobs(), **QUICK) for _ in range(2))
    assert a.history == b.history
    x = blobs()["s0"]["train"][0]
    assert not torch.equal(a.model(x), a.model(x))  # it came in training mode, and so it goes
    a.model.eval()
    assert torch.equal(a.model(x), a.model(x))


def test_moving_buffers_are_refused_by_the_consensus_form_and_frozen_ones_are_fine():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="buffers that change"):
        train(model, blobs(), form="consensus", **QUICK)
    train(model.eval(), blobs(), form="consensus", **QUICK)


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    run = train(Tied(), blobs(), **QUICK)
    assert run.settings["parameters"] == 9
    assert run.model.a.weight is run.model.b.weight


def test_variants_and_the_centralised_method_run():
    for method in (
        aspire(quorum=2, staleness=3, local_steps=4, drop=False),
        aspire(Simplex(), preset=Paper(), pull_bound=10.0),
        central(Simplex()),
    ):
        run = train(linear(), blobs(), method=method, **QUICK)
        assert np.isfinite(run.losses).all()
    assert run.method == "aspire-central"
    for preset in ("auto", "paper", "theorem1"):
        assert train(linear(), blobs(), preset=preset, **QUICK).iterations == 60


def test_the_signature_names_every_argument():
    names = list(inspect.signature(train).parameters)
    assert names[:2] == ["model", "sites"]
    asked = "loss uncertainty method iterations quorum staleness local_steps batch_size preset "
    asked += "weight_decay delays device seed evaluate_every out"
    assert set(asked.split()) <= set(names)
    with pytest.raises(TypeError, match="colour"):
        train(linear(), blobs(), colour="red", **QUICK)


def test_gamma_zero_is_even_weights_to_the_byte():
    zero = CDNorm(radius=0.25, budget=0.0)
    tiny = CDNorm(radius=0.1, budget=0.0)
    a, b = (train(linear(), blobs(), uncertainty=u, **QUICK) for u in (zero, tiny))
    for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(x, y)


def test_a_run_directory(tmp_path):
    out = tmp_path / "run"
    run = train(linear(), blobs(), out=out, **QUICK)
    names = {"run.json", "events.jsonl", "history.jsonl", "model.safetensors", "result.json"}
    names |= {"status.json", "checkpoints", "README.md"}
    assert {p.name for p in out.iterdir()} == names
    result = json.loads((out / "result.json").read_text())
    keys = (
        "method iterations virtual_seconds wall_seconds worst_accuracy worst_loss std_accuracy "
        "mean_accuracy accuracies losses weights worst_case_loss planes stationarity "
        "worker_gradients sample_passes evaluated_on"
    )
    assert set(keys.split()) <= set(result)
    assert result["losses"] == run.losses.tolist()
    settings = json.loads((out / "run.json").read_text())
    assert settings["versions"]["torch"] == torch.__version__
    saved = load_file(out / "model.safetensors")
    for name, value in run.model.state_dict().items():
        assert torch.equal(saved[name], value)
    lines = (out / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.history
    with pytest.raises(ValueError, match="expected a new or an empty folder"):
        train(linear(), blobs(), out=out, **QUICK)
    run.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "result.json").read_text() == (out / "result.json").read_text()


@pytest.mark.parametrize("level", ["full", "digest"])
def test_replay_from_python(tmp_path, level):
    out = tmp_path / "run"
    train(linear(), blobs(), out=out, log=level, **QUICK)
    events, state = replay(out, prepare(linear(), blobs(), **QUICK))
    end = log.read(out / "events.jsonl")[1]
    assert (events, state) == (end["events"], end["state"])
    with pytest.raises(ValueError, match=r"differs|says"):
        replay(out, prepare(linear(seed=1), blobs(), **QUICK))


@pytest.mark.parametrize("after", [3, 7])  # among the probes, and later
def test_a_digest_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, after):
    options = QUICK | {"iterations": 60, "evaluate_every": 10, "quorum": 2, "log": "digest"}
    settings = {name: value for name, value in options.items() if name != "log"}
    train(linear(), blobs(), out=tmp_path / "whole", **options)
    looks = []

    def stop():
        looks.append(None)
        return len(looks) > after

    with pytest.raises(Interrupted):
        train(linear(), blobs(), out=tmp_path / "part", stop=stop, **options)
    job = prepare(linear(), blobs(), **settings)
    job.settings["log"] = "digest"
    resume(tmp_path / "part", job)
    ends = [log.read(tmp_path / name / "events.jsonl")[1] for name in ("whole", "part")]
    assert ends[0] == ends[1]


X, Y = blobs()["s0"]["train"]
NAN = X.clone()
NAN[0, 0] = float("nan")
BAD = {
    "empty site": ({"sites": {"a": (X[:0], Y[:0])}}, "site 'a' is empty"),
    "no sites": ({"sites": []}, "sites is empty"),
    "not a site": ({"sites": [3]}, "site 0 is an int"),
    "unequal lengths": ({"sites": [(X, Y[:-1])]}, "30 inputs and 29 targets"),
    "unknown part": ({"sites": [{"training": (X, Y)}]}, "training"),
    "not finite": ({"sites": [(NAN, Y)]}, r"are NaN or infinite in 1 of 30 samples \(column 0"),
    "class too high": ({"sites": [(X, Y + 5)]}, "targets run from 5 to 6"),
    "wrong width": ({"model": linear(inputs=4)}, "do not take inputs of shape"),
    "wrong output": ({"model": nn.Flatten(0)}, "no parameter"),
    "flat output": ({"model": nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))}, "expected"),
    "mse shape": ({"loss": "mse"}, "expected the same shape"),
    "unknown loss": ({"loss": "hinge"}, "loss='hinge'"),
    "loss of a vector": ({"loss": lambda o, t: o.sum(1)}, "expected one number"),
    "quorum too large": ({"quorum": 9}, "quorum=9: expected at most the 4 sites"),
    "no iterations": ({"iterations": 0}, "iterations=0"),
    "negative seed": ({"seed": -1}, "seed=-1"),
    "batch of none": ({"batch_size": 0}, "batch_size=0"),
    "negative decay": ({"weight_decay": -1.0}, "weight_decay=-1.0"),
    "unknown preset": ({"preset": "best"}, "preset='best'"),
    "unknown device": ({"device": "tpu9"}, "device='tpu9'"),
    "negative evaluation": ({"evaluate_every": -1}, "evaluate_every=-1"),
    "set of another size": ({"uncertainty": CDNorm(np.ones(3) / 3, 0.1, 1.0)}, "3 sites"),
    "method and quorum": ({"method": aspire(), "quorum": 2}, "method is given"),
    "unknown absence": ({"absences": [Absence(9, 1.0)]}, "absence of worker 9"),
    "unknown log": ({"log": "loud"}, "log='loud'"),
}


@pytest.mark.parametrize(("change", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_named(change, sentence):
    arguments = {"model": linear(), "sites": blobs(), **QUICK, **change}
    with pytest.raises(ValueError, match=sentence):
        train(**arguments)


def test_divergence_ends_in_a_sentence():
    from aspire.runs.errors import Stopped

    wild = Paper(eta_w=1e30, kappa=1e8, limits=Limits())
    with pytest.raises(Stopped, match="site"):
        train(linear(), blobs(), preset=wild, iterations=50)
