"""What users are told of a run: both losses, who is worst, who was away, how it goes on."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn.functional import cross_entropy

from aspire import Absence, Constant, train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.api.engines import crew_and_job
from aspire.api.summary import summary
from aspire.cli import main
from aspire.methods import afl, aspire, central, fedavg
from aspire.runs.folder import RunFolder
from tests.helpers import blobs, linear, validated
from tests.methods.table import ROWS
from tests.runtimes.threads import ThreadEngine

QUICK = {"iterations": 60, "batch_size": 8, "evaluate_every": 20}
ENGINES = pytest.mark.parametrize("engine", [None, ThreadEngine()], ids=["simulator", "threads"])


def mixed():
    """Three sites with a test part, and s2 without."""
    sites = blobs()
    sites["s2"] = sites["s2"]["train"]
    return sites


# ---------------------------------------------------------------- losses of both parts


@ENGINES
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_losses_are_said_of_both_parts(engine, decay, tmp_path):
    out = tmp_path / "run"
    run = train(linear(), mixed(), engine=engine, weight_decay=decay, out=out, **QUICK)
    model = run.model.eval()
    more = 0.5 * decay * sum(float(p.detach().square().sum()) for p in model.parameters())
    with torch.no_grad():
        for j, site in enumerate(mixed().values()):
            parts = site if isinstance(site, dict) else {"train": site}
            for part, found in (("train", run.train_losses), ("test", run.test_losses)):
                if part not in parts:
                    assert np.isnan(found[j])
                    continue
                x, y = parts[part]
                expected = float(cross_entropy(model(x), y)) + more
                assert found[j] == pytest.approx(expected, rel=1e-5)
    assert run.losses is run.train_losses
    assert not np.isclose(run.train_losses, run.test_losses).any()
    line = json.loads((out / "history.jsonl").read_text().splitlines()[-1])
    result = json.loads((out / "result.json").read_text())
    for told in (line, result):
        assert told["losses"] == told["train_losses"] == run.losses.tolist()
        assert told["test_losses"] == [*run.test_losses[:2], None, run.test_losses[3]]


@ENGINES
def test_each_site_says_which_part_its_figures_are_on(engine, tmp_path):
    run = train(linear(), mixed(), engine=engine, out=tmp_path / "r", **QUICK)
    assert run.evaluated_on == "mixed"
    assert run.parts == ("test", "test", "train", "test")
    assert run.train_samples.tolist() == [30] * 4
    assert run.test_samples.tolist() == [30, 30, 0, 30]
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert result["parts"] == ["test", "test", "train", "test"]
    assert result["test_samples"] == [30, 30, 0, 30]
    alone = train(linear(), [site["train"] for site in blobs().values()], engine=engine, **QUICK)
    assert alone.test_losses is None
    assert alone.history[-1]["test_losses"] is None
    assert alone.evaluated_on == "train"


@pytest.mark.parametrize("method", [None, fedavg()])
def test_an_evaluation_costs_no_training_samples_and_changes_no_number(method):
    often, never = (
        train(linear(), blobs(), iterations=40, batch_size=8, method=method, evaluate_every=every)
        for every in (1, 0)
    )
    assert often.sample_passes == never.sample_passes
    assert often.history[-1] == never.history[-1]
    for a, b in zip(often.model.parameters(), never.model.parameters(), strict=True):
        assert torch.equal(a, b)


@ENGINES
def test_a_test_loss_that_is_no_number_ends_no_run(engine):
    def loss(output, target):
        value = cross_entropy(output, target)
        return value if len(target) != 7 else value * float("nan")

    sites = {name: {**site, "test": site["train"]} for name, site in blobs().items()}
    sites["s1"]["test"] = tuple(x[:7] for x in sites["s1"]["train"])
    run = train(linear(), sites, loss=loss, engine=engine, **QUICK)
    assert run.absences == []
    assert np.isfinite(run.test_losses).tolist() == [True, False, True, True]
    assert run.parts == ("test",) * 4


# ---------------------------------------------------------------- the summary


def told(**changes):
    """A run with figures of our own."""
    run = train(linear(), blobs(3), iterations=5)
    figures = {
        "losses": np.array([0.9, 0.5, 0.1]),
        "test_losses": np.array([0.2, 0.7, np.nan]),
        "accuracies": np.array([0.8, 0.75, 0.5]),
        "train_samples": np.array([1000.0, 20.0, 30.0]),
        "test_samples": np.array([10.0, 8.0, 0.0]),
        "weights": np.array([0.5, 0.3, 0.2]),
        "worst_case_loss": 0.61,
        "wall_seconds": 1.25,
        "planes": 2,
    }
    return replace(run, **figures | changes)


def test_the_worst_site_is_named_for_each_figure():
    assert summary(told()).splitlines() == [
        "site  weight  train loss     n  test loss   n  accuracy     on",
        "s0     0.500      0.9000  1000     0.2000  10    80.0 %   test",
        "s1     0.300      0.5000    20     0.7000   8    75.0 %   test",
        "s2     0.200      0.1000    30          -   -    50.0 %  train",
        "worst site by training loss: s0, 0.9000 (train, n = 1000)",
        "worst site by test loss: s1, 0.7000 (test, n = 8)",
        "worst site by accuracy: s2, 50.0 % (train, n = 30)",
        "worst-case training loss over the set: 0.6100; 2 planes; 5 iterations in 1.2 s",
        "converged: not known, with fewer than 10 evaluations",
    ]


def test_sites_that_gave_no_answer_are_no_worst_site():
    nobody = np.array([np.nan] * 3)
    some = told(losses=np.array([np.nan, 0.5, 0.1]), accuracies=np.array([np.nan, 0.7, 0.9]))
    assert "worst site by training loss: s1, 0.5000" in summary(some)
    assert "worst site by accuracy: s1, 70.0 %" in summary(some)
    none = told(losses=nobody, test_losses=nobody, accuracies=nobody, train_samples=nobody,
                test_samples=nobody, worst_case_loss=float("nan"))  # fmt: skip
    assert "worst site" not in summary(none)
    assert none.parts == (None,) * 3
    plain = told(accuracies=None, test_losses=None)
    assert summary(plain).splitlines()[0] == "site  weight  train loss     n"


def test_absences_of_the_simulator_are_shown(tmp_path):
    """Delay 1 each and quorum 1: four reports a second while all are here, three without s0."""
    away = [Absence(0, 3.5, 9.5), Absence(2, 0.0, 2.5)]
    run = train(
        linear(), blobs(), iterations=60, delays=Constant(1.0), absences=away, out=tmp_path / "r"
    )
    why = "as `absences` says"
    assert run.absences == [
        {"site": "s2", "from": 0, "to": 6, "reason": why},
        {"site": "s0", "from": 9, "to": 28, "reason": why},
    ]
    assert json.loads((tmp_path / "r" / "result.json").read_text())["absences"] == run.absences
    lines = summary(run).splitlines()[-2:]
    assert lines[0] == f"AWAY: site s2, from iteration 0 to 6: {why}"
    assert lines[1] == f"AWAY: site s0, from iteration 9 to 28: {why}"


def test_many_absences_are_counted():
    away = {"site": "s1", "from": 3, "to": None, "reason": "silent for 60 s"}
    lines = summary(told(absences=[away] * 30)).splitlines()
    assert lines[9] == "AWAY: site s1, from iteration 3 to the end: silent for 60 s"
    assert lines[-1] == "AWAY: and 10 times more (`absences`)"
    assert len(lines) == 9 + 21


@pytest.mark.parametrize(("sites", "letters", "lines"), [(3, 2, 5), (400, 90, 9000)])
def test_the_repr_of_a_run_fits_a_screen(sites, letters, lines):
    several = np.arange(1.0, sites + 1)
    run = told(
        sites=tuple("x" * letters + str(j) for j in range(sites)), losses=1e9 * several,
        test_losses=several, accuracies=several / sites, weights=several, train_samples=several,
        test_samples=several, history=[{"t": t} for t in range(lines)],
        absences=[{"site": "a", "from": 1, "to": None, "reason": "why " * 100}] * 50,
    )  # fmt: skip
    shown = repr(run).splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 100
    assert f"{sites} sites" in shown[0]
    assert any("worst site by accuracy" in line for line in shown)


# ---------------------------------------------------------------- runs that end in mid-round


@pytest.mark.parametrize("name", ROWS)
def test_a_run_that_ends_in_the_middle_of_a_round_has_a_result(name):
    """4 sites: the probes cost 52 gradients where there are any; 5, 13: they are not done."""
    for gradients in (1, 5, 57, 83):
        for every in (0, 1, 7, None):
            run = train(
                linear(),
                validated(),  # own-best needs a val part
                method=ROWS[name](),
                gradients=gradients,
                batch_size=8,
                evaluate_every=every,
                select="last",
            )
            last = run.history[-1]
            assert run.worker_gradients >= gradients
            assert last["gradients"] == run.worker_gradients
            assert (last["t"], last["time"]) == (run.iterations, run.virtual_seconds)
            assert last["losses"] == run.losses.tolist()
            seen = [(line["t"], line["gradients"]) for line in run.history]
            assert seen == sorted(set(seen))


@pytest.mark.parametrize("name", ["aspire-sync", "direct", "fedavg", "drfa_prox"])
def test_so_has_one_on_an_engine(name, tmp_path):
    for gradients in (5, 83):
        given = {"gradients": gradients, "batch_size": 8, "evaluate_every": 1}
        out = tmp_path / f"{gradients}"
        run = train(linear(), blobs(), method=ROWS[name](), engine=ThreadEngine(), out=out, **given)
        assert run.worker_gradients >= gradients
        assert run.history[-1]["gradients"] == run.worker_gradients
        replay(out, prepare(linear(), blobs(), method=ROWS[name](), **given))


def test_the_last_line_is_of_the_model_that_is_returned(tmp_path):
    given = {"method": fedavg(), "gradients": 83, "batch_size": 8, "evaluate_every": 1}
    run = train(linear(), blobs(), out=tmp_path / "r", stationarity=True, **given)
    x, y = blobs()["s1"]["train"]
    value = cross_entropy(run.model.eval()(x), y).item()
    assert run.history[-1]["losses"][1] == pytest.approx(value, rel=1e-5)
    replay(tmp_path / "r", prepare(linear(), blobs(), **given))


@pytest.mark.parametrize("method", [aspire(), central(), afl()])
def test_no_gap_before_the_probes_are_done(method):
    run = train(linear(), blobs(), method=method, gradients=5, stationarity=True)
    assert run.iterations == 0
    assert run.stationarity is None


# ---------------------------------------------------------------- the model


class Odd(nn.Module):
    """Half frozen, half in eval mode, with buffers of two types, one of them not saved."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 6)
        self.b = nn.Linear(6, 2)
        self.drop, self.still = nn.Dropout(0.5), nn.Dropout(0.5).eval()
        self.frozen = nn.Parameter(torch.ones(6, dtype=torch.float64), requires_grad=False)
        self.register_buffer("scale", torch.full((6,), 2.0, dtype=torch.float64))
        self.register_buffer("count", torch.tensor([7]), persistent=False)

    def forward(self, x):
        x = self.still(self.drop(self.a(x)))
        return self.b(x * (self.scale * self.frozen).float())


def modes(model):
    return {name: m.training for name, m in model.named_modules()}


@ENGINES
def test_the_model_comes_back_as_it_was(engine):
    torch.manual_seed(0)
    model = Odd()
    run = train(model, blobs(), engine=engine, **QUICK)
    assert modes(run.model) == modes(model)
    assert modes(run.model)["drop"]
    assert not modes(run.model)["still"]
    for find in ("named_parameters", "named_buffers"):
        mine, theirs = dict(getattr(model, find)()), dict(getattr(run.model, find)())
        assert list(mine) == list(theirs)
        for name, x in theirs.items():
            assert (x.dtype, x.device) == (mine[name].dtype, mine[name].device)
            assert x.requires_grad == mine[name].requires_grad
            assert x.data_ptr() != mine[name].data_ptr()
    for name in ("frozen", "scale", "count"):
        assert torch.equal(getattr(run.model, name), getattr(model, name))
    assert not torch.equal(run.model.a.weight, model.a.weight)


def test_training_goes_on_with_dropout():
    """A trained model that is trained again; in eval mode it would give other weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    first = train(model, blobs(), **QUICK)
    assert first.model.training
    torch.manual_seed(0)
    again = train(first.model, blobs(), **QUICK)
    still = train(first.model.eval(), blobs(), **QUICK)
    assert not torch.equal(again.model[0].weight, still.model[0].weight)
    assert modes(still.model) == dict.fromkeys(["", "0", "1", "2"], False)


class Noisy(nn.Module):
    """It draws without a module that says so, in eval mode as well."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x):
        return nn.functional.dropout(self.a(x), 0.5, self.training) + 0.01 * torch.randn(2)


def test_the_same_seed_gives_the_same_bytes_whatever_draws():
    torch.manual_seed(0)
    model = Noisy()
    a, b = (train(model, blobs(), **QUICK) for _ in range(2))
    assert a.history == b.history
    assert torch.equal(a.model.a.weight, b.model.a.weight)


# ---------------------------------------------------------------- files, and runs that were stopped


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_model_is_readable_for_whom_the_rest_is(mask, tmp_path):
    before = os.umask(mask)
    try:
        run = train(linear(), blobs(), out=tmp_path / "run", **QUICK)
        run.save(tmp_path / "copy")
    finally:
        os.umask(before)
    for folder in ("run", "copy"):
        files = [path for path in (tmp_path / folder).rglob("*") if path.is_file()]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in files}
        assert modes == {0o666 & ~mask}


FILE = """
import torch

def model():
    return torch.nn.Linear(3, 2)

def site(name):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(ord(name)))
    return x, (x[:, 0] > 0).long()

def sites():
    return ["a", "b"]
"""


@pytest.mark.parametrize("name", ["run", "my run; rm -rf $HOME 'x'", "-run"])
def test_a_stopped_run_prints_the_command_that_continues_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file.py").write_text(FILE)
    asked = iter([False] * 40 + [True] * 1000)
    monkeypatch.setattr("aspire.cli.run.stoppable", lambda: Asked(asked))
    out = ["train", "file.py", "--iterations", "300", f"--out={name}"]
    stopped = CliRunner().invoke(main, out)
    assert stopped.exit_code == 130
    said = stopped.stderr.strip().splitlines()[-1]
    start, command = said.split("; continue with: ")
    assert start.startswith("Interrupted: stopped after ")
    words = shlex.split(command)
    assert words[:2] == ["aspire", "resume"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    resumed = CliRunner().invoke(main, words[1:])
    assert resumed.exit_code == 0, resumed.output
    assert "300 iterations" in resumed.output


class Asked:
    """What `stoppable` gives, with answers that are known beforehand."""

    def __init__(self, answers):
        self.answers = answers

    def __enter__(self):
        return lambda: next(self.answers)

    def __exit__(self, *error):
        return False


@ENGINES
def test_so_does_one_of_python(engine, tmp_path):
    folder = tmp_path / "my run"
    asked = iter([False] * 40 + [True] * 1000)
    with pytest.raises(Interrupted) as stopped:
        train(linear(), blobs(), engine=engine, out=folder, stop=lambda: next(asked), **QUICK)
    start, call = str(stopped.value).split("; continue with the same arguments: ")
    assert re.fullmatch(r"stopped after \d+ iterations", start)
    code = "import aspire.api.engines; " + call.replace("{...}", "QUICK").replace("...", "**QUICK")
    exec(code, {"engine": engine, "model": linear(), "sites": blobs(), "QUICK": QUICK})
    assert (folder / "result.json").is_file()
    with pytest.raises(Interrupted, match="nothing of it is kept"):
        train(linear(), blobs(), engine=engine, stop=lambda: True, **QUICK)


# ---------------------------------------------------------------- clocks, and what does nothing


def test_virtual_and_wall_seconds_are_told_apart():
    steps = {"iterations": 60, "delays": Constant(1.0)}
    assert train(linear(), blobs(), **steps).virtual_seconds == pytest.approx(15.0)
    on_engine = train(linear(), blobs(), engine=ThreadEngine(), **QUICK)
    assert on_engine.virtual_seconds is None
    assert on_engine.wall_seconds >= on_engine.history[-1]["time"]


@ENGINES
def test_a_resumed_run_took_all_of_its_time(engine, tmp_path, monkeypatch):
    asked = iter([False] * 40 + [True] * 1000)
    with pytest.raises(Interrupted):
        train(linear(), blobs(), engine=engine, out=tmp_path, stop=lambda: next(asked), **QUICK)
    newest = RunFolder.newest

    def older(*arguments):
        """The checkpoint of a run that had taken 1,000 seconds more."""
        saved = newest(*arguments)
        if engine is None:
            return replace(saved, seconds=saved.seconds + 1000.0)
        return replace(saved, state=replace(saved.state, time=saved.state.time + 1000.0))

    monkeypatch.setattr(RunFolder, "newest", older)
    crew, job = crew_and_job(linear(), blobs(), QUICK)
    if engine is None:
        job = prepare(linear(), blobs(), **QUICK)
    run = resume(tmp_path, job, engine=engine, crew=crew)
    assert 1000.0 < run.wall_seconds < 1600.0


@pytest.mark.parametrize(
    "given", [{"min_sites": 2}, {"deadline": 3.0}, {"patience": 5.0}, {"tensorboard": True}]
)
def test_what_would_do_nothing_is_refused(given, tmp_path):
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        train(linear(), blobs(), **given, **QUICK)
    (tmp_path / "file.py").write_text(FILE)
    option = f"--{name.replace('_', '-')}"
    words = [option] if value is True else [option, str(value)]
    done = CliRunner().invoke(main, ["train", str(tmp_path / "file.py"), *words])
    assert done.exit_code == 2
    assert f"{name}={value}" in done.output


def test_the_stationarity_gap_is_printed(tmp_path):
    (tmp_path / "file.py").write_text(FILE)
    words = ["train", str(tmp_path / "file.py"), "--iterations", "20", "--stationarity"]
    done = CliRunner().invoke(main, words)
    assert re.search(r"; stationarity gap \d[\d.e-]*; 20 iterations in ", done.output)
    with pytest.raises(ValueError, match="stationarity belongs to the simulator"):
        train(linear(), blobs(), engine=ThreadEngine(), stationarity=True, **QUICK)
