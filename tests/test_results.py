"""What a run can be used for: read again, asked, exported and shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import aspire
from aspire import train
from aspire.api.inputs import described, zeros
from aspire.api.showing import code_of
from aspire.cli import main
from aspire.sets import CDNorm
from tests.helpers import blobs, linear
from tests.runtimes.threads import ThreadEngine

QUICK: dict[str, Any] = {"iterations": 40, "batch_size": 8}
FILE = """
import torch
from tests.helpers import blobs

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.layer(self.scale * x)

def model():
    return Own()

def sites():
    return blobs()
"""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command line."""
    place = tmp_path_factory.mktemp("results")
    (place / "own.py").write_text(FILE, encoding="utf-8")
    given = ["train", str(place / "own.py"), "--iterations", "40", "--out", str(place / "run")]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    return place / "run"


# ---------------------------------------------------------------- read again


@pytest.mark.parametrize("engine", [None, ThreadEngine()], ids=["simulator", "engine"])
def test_a_run_that_is_loaded_is_the_run(engine: Any, tmp_path: Path) -> None:
    more = {} if engine is None else {"engine": engine}
    run = train(net(), blobs(), out=tmp_path / "run", **QUICK, **more)
    again = aspire.load(tmp_path / "run", net())
    assert repr(again) == repr(run)
    assert again.history == json.loads(json.dumps(run.history))
    assert all(map(torch.equal, run.model.state_dict().values(), again.model.state_dict().values()))
    again.save(tmp_path / "copy")
    for name in ("result.json", "history.jsonl", "model.safetensors", "README.md"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert repr(aspire.load(tmp_path / "copy", net())) == repr(run)


def test_figures_and_certificate_of_a_run_that_is_loaded(tmp_path: Path) -> None:
    uncertainty = CDNorm(radius=0.2, budget=2.0)
    run = train(linear(), blobs(), out=tmp_path / "run", uncertainty=uncertainty, **QUICK)
    again = aspire.load(tmp_path / "run", linear())
    assert again.metrics == run.metrics
    assert again.certificate() == run.certificate()
    with pytest.raises(ValueError, match=r"alpha=0\.1: the set of a run that was loaded is known"):
        again.certificate(0.1)
    again = aspire.load(tmp_path / "run", linear(), uncertainty=uncertainty)
    assert again.certificate(0.1) == run.certificate(0.1)


def test_a_run_without_test_parts_has_no_certificate(tmp_path: Path) -> None:
    sites = {name: site["train"] for name, site in blobs().items()}
    run = train(linear(), sites, out=tmp_path / "run", metrics="accuracy", **QUICK)
    again = aspire.load(tmp_path / "run", linear())
    assert (run.certificate(), again.certificate(0.2)) == (None, None)
    assert repr(again) == repr(run)


def test_a_run_of_the_command_line_finds_its_model(folder: Path) -> None:
    before = torch.get_rng_state()
    run = aspire.load(folder)
    assert type(run.model).__name__ == "Own"
    assert run.worst_loss == json.loads((folder / "result.json").read_text())["worst_loss"]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("result.json", "the run has not ended: expected one with a result.json"),
        ("run.json", "run.json: expected a file of a run"),
        ("model.safetensors", "model.safetensors: expected a file of a run"),
        ("history.jsonl", "history.jsonl: expected a file of a run"),
    ],
)
def test_a_folder_that_lacks_a_file(harm: str, said: str, folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "run")
    (broken / harm).unlink()
    with pytest.raises(ValueError, match=re.escape(said)):
        aspire.load(broken)


def test_what_cannot_be_loaded(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fit .*model\.safetensors: .*layer\.weight"):
        aspire.load(folder, linear())
    with pytest.raises(ValueError, match=r"model='net': expected a torch\.nn\.Module, or None"):
        aspire.load(folder, "net")  # type: ignore[arg-type]
    train(linear(), blobs(), out=tmp_path / "run", **QUICK)
    with pytest.raises(ValueError, match="no file says what its model is: expected model="):
        aspire.load(tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        aspire.load(tmp_path / "run", linear())
    place = shutil.copytree(folder.parent, tmp_path / "changed")
    settings = json.loads((place / "run" / "run.json").read_text())
    del settings["checksum"]
    settings["source"]["file"] = str(place / "own.py")
    (place / "run" / "run.json").write_text(json.dumps(settings))
    (place / "own.py").write_text("x = 1\n" + FILE)
    with pytest.raises(ValueError, match="has changed since the run in"):
        aspire.load(place / "run")


# ---------------------------------------------------------------- predict


def test_predict_is_the_model_in_eval_mode() -> None:
    run = train(net(), blobs(), **QUICK)
    x = np.random.default_rng(0).standard_normal((5000, 3))
    with torch.no_grad():
        expected = run.model.eval()(torch.tensor(x, dtype=torch.float32))
    run.model.train()
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    for given in (x, torch.tensor(x), frame, x.tolist(), x.astype(np.float32)):
        found = run.predict(given)
        assert torch.equal(found.argmax(1), expected.argmax(1))
        torch.testing.assert_close(found, expected)
    assert run.model.training
    with pytest.raises(ValueError, match="inputs are a str"):
        run.predict("x")
    with pytest.raises(ValueError, match="the model raised RuntimeError"):
        run.predict(x[:, :2])
    assert run.predict(x[:0]).shape == (0, 2)


class Two(nn.Module):
    """Two inputs, by name or in order; a mapping comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layer = nn.Linear(4 + 3, 2)

    def forward(self, token: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(torch.cat([self.embed(token), x], 1))}


def two_inputs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Sites of samples by name, and a batch of such inputs."""
    rng = np.random.default_rng(0)
    sites = {
        f"s{j}": {
            "token": rng.integers(0, 7, 30),
            "x": rng.standard_normal((30, 3)),
            "labels": rng.integers(0, 2, 30),
        }
        for j in range(2)
    }
    return sites, {name: sites["s0"][name] for name in ("token", "x")}


def run_of_pairs(sites: dict[str, Any]) -> aspire.Run:
    """The same with inputs in their order."""
    pairs = {n: ((site["token"], site["x"]), site["labels"]) for n, site in sites.items()}
    return train(Two(), pairs, **QUICK)


def test_predict_and_export_of_several_inputs(tmp_path: Path) -> None:
    sites, batch = two_inputs()
    run = train(Two(), sites, **QUICK)
    assert run.inputs == {
        "token": {"shape": [], "dtype": "int64"},
        "x": {"shape": [3], "dtype": "float32"},
    }
    found = run.predict(batch)["logits"]
    assert found.shape == (30, 2)
    assert torch.equal(run.predict((batch["token"], batch["x"]))["logits"], found)
    with pytest.raises(ValueError, match="inputs has 3 parts: expected 2"):
        run_of_pairs(sites).predict((batch["x"],) * 3)
    run.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.tensor(batch["x"], dtype=torch.float32)
    again = program(token=torch.tensor(batch["token"]), x=x)["logits"]
    torch.testing.assert_close(again, found)


def test_predict_with_the_statistics_of_a_site(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    run = train(model, blobs(), buffers="site", form="direct", **QUICK)
    x = torch.randn(6, 3)
    with torch.no_grad():
        assert torch.equal(run.predict(x, site="s1"), run.model_of("s1").eval()(x))
    assert not torch.equal(run.predict(x, site="s1"), run.predict(x))
    with pytest.raises(ValueError, match="site='s9': expected one of s0, s1"):
        run.predict(x, site="s9")
    run.save(tmp_path / "run")
    again = aspire.load(tmp_path / "run", model)
    assert torch.equal(again.predict(x), run.predict(x))
    with pytest.raises(ValueError, match="site='s1': a run's folder has the pooled statistics"):
        again.predict(x, site="s1")


def test_a_lazy_model_is_loaded(tmp_path: Path) -> None:
    run = train(nn.Sequential(nn.LazyLinear(2)), blobs(), out=tmp_path / "run", **QUICK)
    again = aspire.load(tmp_path / "run", nn.Sequential(nn.LazyLinear(2)))
    assert torch.equal(again.predict(torch.ones(4, 3)), run.predict(torch.ones(4, 3)))


# ---------------------------------------------------------------- evaluate


@pytest.mark.parametrize("loaded", [False, True])
def test_evaluating_the_sites_of_a_run_gives_its_figures(loaded: bool, tmp_path: Path) -> None:
    arguments = QUICK | {"metrics": "auroc", "weight_decay": 0.1, "form": "consensus"}
    run = train(net(), blobs(), out=tmp_path / "run", **arguments)
    asked = aspire.load(tmp_path / "run", net()) if loaded else run
    found = asked.evaluate(blobs(), "auroc")
    assert found.sites == run.sites
    assert found.parts == ("test",) * 4
    assert list(found.metrics) == ["loss", "accuracy", "auroc"]
    for name, figures in found.metrics.items():
        for ours, theirs in zip(figures, run.metrics[name]["test"], strict=True):
            assert ours is not None
            assert theirs is not None
            assert vars(ours) == pytest.approx(vars(theirs))


def test_evaluating_new_sites() -> None:
    run = train(net(), blobs(), **QUICK)
    x, y = torch.randn(30, 3), torch.arange(30) % 2
    new = {"new": (x, y), "val": {"val": (x[:10], y[:10])}, "train": {"train": (x[:5], y[:5])}}
    found = run.evaluate(new, {"ones": lambda outputs, _: outputs.argmax(1).float().mean()})
    assert (found.sites, found.parts) == (("new", "val", "train"), ("all", "val", "train"))
    outputs = run.predict(x)
    for j, n in enumerate((30, 10, 5)):
        for name, value in (
            ("loss", nn.functional.cross_entropy(outputs[:n], y[:n])),
            ("accuracy", (outputs[:n].argmax(1) == y[:n]).float().mean()),
            ("ones", outputs[:n].argmax(1).float().mean()),
        ):
            figure = found.metrics[name][j]
            assert figure is not None
            assert (figure.value, figure.n) == (pytest.approx(float(value), rel=1e-5), n)
    lines = repr(found).splitlines()
    assert lines[0].split()[:4] == ["site", "on", "n", "loss"]
    assert lines[2].split()[:3] == ["val", "val", "10"]
    assert found._repr_html_().count("<tr>") == 4


def test_what_cannot_be_evaluated(tmp_path: Path) -> None:
    run = train(net(), blobs(), loss=OwnLoss(), out=tmp_path / "run", **QUICK)
    x, y = torch.randn(30, 3), torch.arange(30) % 2
    with pytest.raises(ValueError, match="site 'a': the model and the loss do not take"):
        run.evaluate({"a": (x[:, :2], y)})
    with pytest.raises(ValueError, match="sites is empty"):
        run.evaluate({})
    with pytest.raises(ValueError, match=r"metric.*'nothing'"):
        run.evaluate({"a": (x, y)}, "nothing")
    again = aspire.load(tmp_path / "run", net())
    with pytest.raises(ValueError, match="loss=None: the loss of a run that was loaded"):
        again.evaluate({"a": (x, y)})
    same = again.evaluate({"a": (x, y)}, loss=OwnLoss())
    assert same.metrics == run.evaluate({"a": (x, y)}).metrics


class OwnLoss:
    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.multi_margin_loss(output, target)


def test_evaluating_changes_neither_run_nor_model() -> None:
    run = train(net(), blobs(), **QUICK)
    before = {name: x.clone() for name, x in run.model.state_dict().items()}
    modes = [m.training for m in run.model.modules()]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    run.evaluate(blobs(), "auroc")
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in run.model.modules()] == modes
    assert all(torch.equal(x, before[name]) for name, x in run.model.state_dict().items())


# ---------------------------------------------------------------- export


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_an_exported_model_gives_the_same(kind: str, tmp_path: Path) -> None:
    run = train(net(), blobs(), **QUICK)
    run.export(tmp_path / f"model.{kind}")
    for count in (1, 2, 9):
        x = torch.randn(count, 3)
        torch.testing.assert_close(opened(tmp_path / f"model.{kind}", x), run.predict(x))
    assert [path.name for path in tmp_path.iterdir()] == [f"model.{kind}"]


def opened(path: Path, x: torch.Tensor) -> torch.Tensor:
    """What the file gives, without our code."""
    if path.suffix == ".pt2":
        with torch.no_grad():
            return torch.export.load(path).module()(x)
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model)
    from onnx.reference import ReferenceEvaluator

    name = model.graph.input[0].name
    return torch.tensor(ReferenceEvaluator(model).run(None, {name: x.numpy()})[0])


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    class Branches(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if float(x.sum()) > -1e9 else -super().forward(x)

    run = train(Branches(3, 2), blobs(), **QUICK)
    with pytest.raises(ValueError, match=r"model\.pt2: torch cannot export <Branches>: "):
        run.export(tmp_path / "model.pt2")
    with pytest.raises(ValueError, match=r"model\.pkl': expected a name that ends in \.pt2 or"):
        run.export(tmp_path / "model.pkl")
    assert list(tmp_path.iterdir()) == []


def test_where_the_inputs_are_not_known_they_are_asked_for(tmp_path: Path) -> None:
    run = train(net(), blobs(), engine=ThreadEngine(), **QUICK)
    with pytest.raises(ValueError, match="inputs=None: the shape of the model's inputs is not kn"):
        run.export(tmp_path / "model.pt2")
    x = torch.randn(4, 3)
    run.export(tmp_path / "model.pt2", x)
    torch.testing.assert_close(opened(tmp_path / "model.pt2", x[:3]), run.predict(x[:3]))


def test_inputs_in_words() -> None:
    batch = {"a": torch.zeros(2, 3), "b": (torch.zeros(2, dtype=torch.int64), torch.ones(2, 1, 1))}
    again = zeros(json.loads(json.dumps(described(batch))), 2)
    assert described(again) == described(batch)
    assert again["b"][1].shape == (2, 1, 1)


# ---------------------------------------------------------------- README.md and notebooks


def program_in(folder: Path) -> str:
    text = (folder / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(program.splitlines()) <= 14
    return str(program)


def outputs_of(program: str, folder: Path) -> torch.Tensor:
    """Of the program in a process of its own, in which aspire cannot be imported."""
    code = f"import sys; sys.modules['aspire'] = None\n{program}\ntorch.save(outputs, 'outputs')"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return torch.load(folder / "outputs")


def test_the_readme_loads_the_model_with_torch_alone(tmp_path: Path) -> None:
    run = train(net(), blobs(), out=tmp_path / "run", **QUICK)
    found = outputs_of(program_in(tmp_path / "run"), tmp_path / "run")
    torch.testing.assert_close(found, run.predict(torch.zeros(1, 3)))
    text = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "| s2 | " in text
    assert "worst site by accuracy" in text


def test_the_readme_of_a_run_of_the_command_line(folder: Path) -> None:
    text = FILE.replace("from tests.helpers import blobs", "import beside_own")
    (folder.parent / "own.py").write_text(text)
    (folder.parent / "beside_own.py").touch()
    found = outputs_of(program_in(folder), folder)
    (folder.parent / "own.py").write_text(FILE)
    torch.testing.assert_close(found, aspire.load(folder).predict(torch.zeros(1, 3)))


def test_the_readme_says_which_module_is_missing(tmp_path: Path) -> None:
    sites, _ = two_inputs()
    train(Two(), sites, out=tmp_path / "run", **QUICK)
    program = program_in(tmp_path / "run")
    assert "model = ...  # put in the module that was given to train: Two" in program
    assert "model(token=torch.zeros(1, dtype=torch.int64), x=torch.zeros(1, 3" in program


def test_torchs_own_layers_are_written_as_code() -> None:
    inner = nn.Sequential(nn.GELU("tanh"), nn.Flatten())
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), inner)
    code = code_of(model)
    assert code is not None
    assert repr(eval(code)) == repr(model)
    assert code_of(nn.Sequential(Two())) is None
    assert code_of(nn.TransformerEncoderLayer(4, 2)) is None


def test_a_notebook_shows_a_table() -> None:
    sites = {f"<b>{name}": site for name, site in blobs().items()}
    run = train(linear(), sites, **QUICK)
    text = run._repr_html_()
    assert text.count("<tr>") == 5
    assert "&lt;b&gt;s3" in text
    assert "<b>" not in text
    many = train(linear(), {f"s{j}": blobs(1)["s0"] for j in range(40)}, **QUICK)
    assert many._repr_html_().count("<tr>") == 31
    assert "... and 10 more sites" in many._repr_html_()
