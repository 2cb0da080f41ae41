"""Validation: which model a run gives back, when it stops, and how it goes on after its end."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.nn.functional import cross_entropy

from aspire import Absence, Constant, train
from aspire.api import Interrupted, converged, prepare, replay, resume
from aspire.api.checkpointer import Keeper
from aspire.api.stopping import Stopping
from aspire.api.summary import summary
from aspire.cli import main
from aspire.methods import afl, aspire, direct, fedavg
from aspire.runs import checkpoint, log
from aspire.runs.selection import ACCURACY, LOSS, Best, Watched, figure, update
from aspire.types import Report
from tests.helpers import blobs, linear
from tests.methods.table import ROWS
from tests.runtimes.threads import ThreadEngine

ENGINES = pytest.mark.parametrize("engine", [None, ThreadEngine], ids=["simulator", "threads"])
QUICK = {"iterations": 60, "batch_size": 8, "evaluate_every": 10}


def validated(few: int = 16):
    """Sites with noise in the labels of their validation parts, whose losses rise in the end."""
    sites, rng = blobs(3, seed=3), np.random.default_rng(1)
    for parts in sites.values():
        x, y = (part[:few] for part in parts["test"])
        parts["val"] = (x, torch.where(torch.tensor(rng.random(few) < 0.4), 1 - y, y))
    return sites


def vector(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def losses_on(model, part: str, sites):
    with torch.no_grad():
        return [float(cross_entropy(model(x), y)) for x, y in (s[part] for s in sites.values())]


def made(engine):
    return None if engine is None else engine()


# ---------------------------------------------------------------- figures


@ENGINES
def test_figures_are_said_of_the_validation_parts(engine, tmp_path):
    sites = validated()
    run = train(linear(), sites, engine=made(engine), out=tmp_path / "run", **QUICK)
    assert run.val_losses == pytest.approx(losses_on(run.model, "val", sites), rel=1e-5)
    with torch.no_grad():
        right = [
            float((run.model(x).argmax(1) == y).double().mean())
            for x, y in (site["val"] for site in sites.values())
        ]
    assert run.val_accuracies.tolist() == pytest.approx(right)
    assert run.val_samples.tolist() == [16, 16, 16]
    assert run.losses == pytest.approx(losses_on(run.model, "train", sites), rel=1e-5)
    assert run.test_losses == pytest.approx(losses_on(run.model, "test", sites), rel=1e-5)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["val_losses"] == run.val_losses.tolist()
    assert result["val_samples"] == [16, 16, 16]
    assert result["worst_val_loss"] == max(result["val_losses"])
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        assert line["worst_val_loss"] == max(line["val_losses"])
        assert line["worst_val_accuracy"] == min(line["val_accuracies"])


@ENGINES
def test_some_sites_may_have_none(engine):
    sites = validated()
    del sites["s1"]["val"]
    run = train(linear(), sites, engine=made(engine), **QUICK)
    assert np.isnan(run.val_losses).tolist() == [False, True, False]
    assert run.val_samples.tolist() == [16, 0, 16]
    assert run.selected["rule"] == "last"
    bare = train(linear(), blobs(3), engine=made(engine), **QUICK)
    assert bare.val_losses is None
    assert bare.worst_val_accuracy is None
    assert bare.history[-1]["val_losses"] is None


def test_a_validation_part_is_checked_before_the_training():
    sites = validated()
    inputs, targets = sites["s1"]["val"]
    sites["s1"]["val"] = (inputs.clone().fill_(math.nan), targets)
    with pytest.raises(ValueError, match=r"site 's1' \(val\): inputs are NaN or infinite in 16 of"):
        train(linear(), sites, **QUICK)
    sites["s1"]["val"] = (inputs, targets + 2)
    with pytest.raises(ValueError, match=r"site 's1' \(val\): targets run from 2"):
        train(linear(), sites, **QUICK)
    sites["s1"]["valid"] = sites["s1"].pop("val")
    with pytest.raises(ValueError, match="did you mean 'val'"):
        train(linear(), sites, **QUICK)


def test_samples_of_a_validation_part_are_converted():
    sites = validated()
    for parts in sites.values():
        parts["val"] = (parts["val"][0].double(), parts["val"][1].int())
    run = train(linear(), sites, **QUICK)
    assert np.isfinite(run.val_losses).all()


@ENGINES
def test_a_validation_loss_that_is_no_number_ends_no_run(engine):
    def loss(output, target):
        value = cross_entropy(output, target)
        return value if len(target) != 7 else value * float("nan")

    sites = validated()
    sites["s1"]["val"] = tuple(x[:7] for x in sites["s1"]["val"])
    run = train(linear(), sites, loss=loss, engine=made(engine), **QUICK)
    assert np.isfinite(run.val_losses).tolist() == [True, False, True]
    assert run.selected["rule"] == "last"


def test_with_a_reference_the_largest_regret_selects(tmp_path):
    """Site 1 has noise for labels: its loss is the lower the less was learned."""
    rows = [{"losses": [0.9, 0.9], "val_losses": x} for x in ([0.9, 0.7], [0.2, 0.8])]
    assert figure(rows[0], (), LOSS) == (0.9,)
    assert figure(rows[1], (), LOSS) == (0.8,)
    told = [{**row, "references": [0.1, 0.75]} for row in rows]
    assert figure(told[0], (), LOSS) == pytest.approx((0.8,))
    assert figure(told[1], (), LOSS) == pytest.approx((0.1,))
    assert figure({**told[1], "val_losses": [0.2, None]}, (), LOSS) is None
    run = train(
        linear(), validated(), method=direct(reference=[0.1, 0.2, 0.3]), out=tmp_path, **QUICK
    )
    lines = [json.loads(x) for x in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert all(x["references"] == [0.1, 0.2, 0.3] for x in lines)
    regrets = [max(np.subtract(x["val_losses"], x["references"])) for x in lines]
    assert run.selected["t"] == lines[int(np.argmin(regrets))]["t"]


# ---------------------------------------------------------------- selection


@pytest.mark.parametrize("name", ["aspire", "direct", "fedavg", "afl", "central"])
def test_the_model_is_the_best_by_the_worst_validation_site(name):
    sites = validated()
    run = train(linear(), sites, method=ROWS[name](), seed=1, **QUICK)
    worst = [line["worst_val_loss"] for line in run.history]
    assert min(worst) < worst[-1]  # otherwise this test would say nothing
    best = run.history[int(np.argmin(worst))]
    assert run.selected["rule"] == "worst_loss"
    assert run.selected["t"] == best["t"]
    assert run.selected["worst_val_loss"] == run.worst_val_loss == min(worst)
    assert run.last["worst_val_loss"] == worst[-1]
    assert max(losses_on(run.model, "val", sites)) == pytest.approx(min(worst), rel=1e-5)
    last = train(linear(), sites, method=ROWS[name](), select="last", seed=1, **QUICK)
    assert last.selected["rule"] == "last"
    assert last.history == run.history  # selection changes no number of the training
    assert max(losses_on(last.model, "val", sites)) == pytest.approx(worst[-1], rel=1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_every_method_gives_back_its_best_model(name):
    sites = validated()
    run = train(linear(), sites, method=ROWS[name](), iterations=12, evaluate_every=3, batch_size=8)
    best = min(line["worst_val_loss"] for line in run.history)
    assert run.selected["rule"] == "worst_loss"
    assert max(losses_on(run.model, "val", sites)) == pytest.approx(best, rel=1e-5)


def test_by_the_worst_accuracy_and_among_equals_by_the_loss():
    run = train(linear(), validated(), select="worst_accuracy", **QUICK)
    keys = [(-line["worst_val_accuracy"], line["worst_val_loss"]) for line in run.history]
    assert run.selected["t"] == run.history[keys.index(min(keys))]["t"]
    assert run.worst_val_accuracy == -min(keys)[0]
    assert "with the highest worst validation accuracy" in summary(run)


def test_an_engine_gives_back_the_model_that_it_asked_about():
    """Answers come when the master has moved on."""
    sites = validated()
    arguments = {"iterations": 300, "batch_size": 8, "evaluate_every": 10}
    run = train(linear(), sites, engine=ThreadEngine(), **arguments)
    worst = [line["worst_val_loss"] for line in run.history]
    assert run.worst_val_loss == min(worst) < worst[-1]
    assert max(losses_on(run.model, "val", sites)) == pytest.approx(min(worst), rel=1e-5)


def test_the_folder_has_the_selected_model_and_says_so(tmp_path):
    from safetensors.torch import load_file

    run = train(linear(), validated(), out=tmp_path / "run", **QUICK)
    kept = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(torch.cat([kept["weight"].flatten(), kept["bias"]]), vector(run))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["selected"]["rule"] == "worst_loss"
    assert result["selected"]["t"] == run.selected["t"] < result["last"]["t"] == 60
    assert result["selected"]["worst_val_loss"] < result["last"]["worst_val_loss"]
    line = f"model of iteration {run.selected['t']} of 60, with the lowest worst validation loss"
    assert line in summary(run)


def test_select_is_checked():
    with pytest.raises(ValueError, match="select='worst': expected 'worst_loss'"):
        train(linear(), validated(), select="worst", **QUICK)
    sites = validated()
    del sites["s1"]["val"]
    with pytest.raises(ValueError, match="select='worst_loss': site 's1' has no val part"):
        train(linear(), sites, select="worst_loss", **QUICK)
    scores = {n: {"train": (x := torch.randn(9, 3), x[:, :1]), "val": (x, x[:, :1])} for n in "ab"}
    with pytest.raises(ValueError, match="outputs are no class scores"):
        train(linear(outputs=1), scores, select="worst_accuracy", loss="mse", **QUICK)


# ---------------------------------------------------------------- who is away


def line(t: int, *losses: float | None):
    rights = [None if x is None else 1.0 - x for x in losses]
    return {"t": t, "losses": list(losses), "val_losses": list(losses), "val_accuracies": rights}


def test_an_evaluation_is_judged_over_the_sites_that_are_present():
    best, history = Best(), []

    def judged(away, *losses):
        history.append(line(len(history), *losses))
        return update(best, history, away, LOSS)

    assert judged((), 0.5, 0.9)
    assert not judged((), 0.1, None)  # s1 is present and has no figure: not eligible
    assert (best.line, best.since) == (0, 1)
    assert judged({1}, 0.4, None)  # away: it counts neither now nor then
    assert not judged({1}, 0.45, 0.1)
    assert best.line == 2
    assert judged((), 0.6, 1.0)  # the best before has no figure of s1, who is back
    assert best.line == 4
    assert not judged((), 0.6, 1.0)  # of equals the earlier
    assert not judged({0, 1}, None, None)
    assert best.line is None  # nobody is there to judge by
    assert best.seen
    assert figure(history[0], {0}, ACCURACY) == pytest.approx((-0.1, 0.9))


def test_a_best_that_lacks_a_figure_of_a_present_site_is_dropped():
    watched, history = Watched(), [line(1, 0.5, None)]
    watched.look(history, {1}, None, lambda: torch.ones(2))
    assert torch.equal(watched.w, torch.ones(2))
    history.append(line(2, 0.5, None))
    watched.look(history, (), None, lambda: torch.zeros(2))
    assert watched.w is None
    assert watched.validation.line is None


def test_on_the_simulator_a_site_that_is_away_does_not_count():
    """s2, the worst, is away from the second evaluation on."""
    away = [Absence(2, leaves=15.5)]
    arguments = {**QUICK, "absences": away, "delays": Constant(1.0), "method": fedavg()}
    run = train(linear(), validated(), **arguments)
    worst = [max(line["val_losses"][:2]) for line in run.history]
    assert [x["from"] for x in run.absences] == [15]
    assert run.selected["t"] == run.history[int(np.argmin(worst))]["t"]


def test_on_an_engine_a_site_that_gives_no_figure_makes_an_evaluation_ineligible(caplog):
    """s0 has none at the evaluations 3 and later, though it is present."""
    asked = set()

    def changed(report: Report):
        if report.task >= 0:
            return [report]
        asked.add(report.task)
        said = dict(report.scalars)
        if report.task <= -3 and report.worker == 0:
            del said["val_loss"]
        return [replace(report, scalars=said)]

    run = train(linear(), validated(), engine=ThreadEngine(changed), **QUICK)
    assert len(run.history) > 2
    assert run.history[2]["val_losses"][0] is None
    eligible = [line["worst_val_loss"] for line in run.history[:2]]
    assert run.selected["t"] == run.history[int(np.argmin(eligible))]["t"]


def test_an_engine_takes_the_last_model_where_no_evaluation_is_eligible(caplog):
    def changed(report: Report):
        said = {k: v for k, v in report.scalars.items() if not k.startswith("val")}
        return [replace(report, scalars=said)]

    arguments = {**QUICK, "select": "worst_loss"}
    run = train(linear(), validated(), engine=ThreadEngine(changed), **arguments)
    assert run.selected["rule"] == "last"
    assert "so the last model is taken" in caplog.text


@pytest.mark.parametrize(
    "lie", [{"val_loss": math.nan}, {"val_accuracy": 1.5}, {"val_samples": 0.5}, {"vall": 1.0}]
)
def test_answers_about_validation_parts_are_checked(lie):
    from aspire.protocol import answer_objection

    honest = {"loss": 1.0, "samples": 3.0, "val_loss": 2.0, "val_accuracy": 0.5, "val_samples": 4.0}
    assert answer_objection(Report(0, -1, {}, honest)) is None
    assert answer_objection(Report(0, -1, {}, honest | lie)) is not None


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("level", ["full", "digest"])
def test_a_selected_model_survives_a_checkpoint(level, tmp_path):
    """Stopped after its best evaluation, and resumed: the same bytes as if it had not been."""
    sites = validated()
    whole = train(linear(), sites, out=tmp_path / "whole", log=level, **QUICK)
    assert whole.selected["t"] < 40
    steps = [0]
    stop = {"progress": steps.append, "stop": lambda: steps[-1] >= 40}
    with pytest.raises(Interrupted):
        train(linear(), sites, out=tmp_path / "run", log=level, **stop, **QUICK)
    job = prepare(linear(), sites, **QUICK)
    job.settings["log"] = level
    run = resume(tmp_path / "run", job)
    for name in ("model.safetensors", "history.jsonl", "events.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert run.selected == whole.selected


def test_nothing_is_kept_where_nothing_is_selected(tmp_path):
    for name, arguments in (("last", {"select": "last"}), ("best", {})):
        train(linear(), validated(), out=tmp_path / name, **QUICK, **arguments)
    sizes = {name: len(_saved(tmp_path / name)[1]) for name in ("last", "best")}
    assert sizes["best"] == sizes["last"] + 1


def _saved(folder):
    (path,) = checkpoint.files(folder)
    return checkpoint.load(path)


# ---------------------------------------------------------------- stopping


@pytest.mark.parametrize("level", ["full", "digest"])
@pytest.mark.parametrize("method", [None, direct, fedavg])
def test_patience_ends_a_run_which_replays(method, level, tmp_path):
    arguments = {"iterations": 400, "batch_size": 8, "evaluate_every": 10}
    arguments |= {"patience_evaluations": 4, "method": method and method()}
    run = train(linear(), validated(), out=tmp_path / "run", log=level, **arguments)
    worst = [line["worst_val_loss"] for line in run.history]
    best = int(np.argmin(worst))
    assert len(worst) == best + 5
    assert run.iterations == run.history[-1]["t"] < 400
    assert run.ended_by == "patience_evaluations"
    assert run.selected["t"] == run.history[best]["t"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["ended_by"] == "patience_evaluations"
    said = "the worst site has not improved for 4 evaluations (patience_evaluations)"
    assert said in summary(run)
    end = log.read(tmp_path / "run" / "events.jsonl")[1]
    assert end["reason"] == "patience_evaluations"
    job = prepare(linear(), validated(), **arguments)
    events, state = replay(tmp_path / "run", job)
    assert (events, state) == (end["events"], end["state"])


def test_without_validation_parts_patience_is_about_the_worst_training_loss():
    arguments = {"iterations": 2000, "batch_size": 8, "evaluate_every": 10, "method": fedavg()}
    run = train(linear(), blobs(3), patience_evaluations=3, **arguments)
    worst = [line["worst_loss"] for line in run.history]
    assert len(worst) == int(np.argmin(worst)) + 4
    assert run.ended_by == "patience_evaluations"
    assert run.selected["rule"] == "last"


def test_patience_ends_a_run_on_an_engine(tmp_path):
    arguments = {"iterations": 10**5, "batch_size": 8, "evaluate_every": 10}
    arguments |= {"patience_evaluations": 3, "log": "vectors"}
    run = train(linear(), validated(), engine=ThreadEngine(), out=tmp_path / "run", **arguments)
    assert run.ended_by == "patience_evaluations"
    del arguments["log"]
    replay(tmp_path / "run", prepare(linear(), validated(), **arguments))


@pytest.mark.parametrize("level", ["full", "digest"])
def test_a_run_whose_time_is_up_has_a_model_and_replays_without_a_clock(level, tmp_path):
    arguments = {**QUICK, "max_seconds": 1e-9}
    run = train(linear(), validated(), out=tmp_path / "run", log=level, **arguments)
    assert run.ended_by == "max_seconds"
    assert 1 <= run.iterations < 60
    assert len(run.history) == 1
    assert "stopped early: 1e-09 seconds have passed (max_seconds)" in summary(run)
    replay(tmp_path / "run", prepare(linear(), validated(), **arguments))


def test_an_engine_looks_at_the_time_too():
    arguments = {**QUICK, "iterations": 10**9, "max_seconds": 1e-9, "evaluate_every": 10**9}
    run = train(linear(), validated(), engine=ThreadEngine(), **arguments)
    assert run.ended_by == "max_seconds"
    assert len(run.history) == 1


def test_seconds_go_on_counting_when_a_run_is_resumed(tmp_path, monkeypatch):
    """A clock that ticks whenever it is read: the second half has less time left."""

    def elapsed(self):
        self.began += 1.0
        return self.spent + self.began

    arguments = {**QUICK, "iterations": 10**4, "evaluate_every": 10**4, "max_seconds": 500.0}
    monkeypatch.setattr(Keeper, "elapsed", elapsed)
    steps = [0]
    stop = {"progress": steps.append, "stop": lambda: steps[-1] >= 100}
    fixed = {"began": 0.0}
    made = Keeper.__init__
    monkeypatch.setattr(Keeper, "__init__", lambda self, *a, **k: made(self, *a, **(fixed | k)))
    with pytest.raises(Interrupted):
        train(linear(), validated(), out=tmp_path / "run", **stop, **arguments)
    run = resume(tmp_path / "run", prepare(linear(), validated(), **arguments))
    assert run.ended_by == "max_seconds"
    assert 450 < run.iterations < 500


def test_limits_are_checked():
    with pytest.raises(ValueError, match="patience_evaluations=0: expected a whole number"):
        train(linear(), validated(), patience_evaluations=0, **QUICK)
    with pytest.raises(ValueError, match="max_seconds=0: expected a positive number"):
        train(linear(), validated(), max_seconds=0, **QUICK)
    with pytest.raises(ValueError, match="with evaluate_every=0"):
        train(linear(), validated(), patience_evaluations=2, **{**QUICK, "evaluate_every": 0})


def test_a_limit_that_is_reached_counts_more_than_a_reason_to_stop():
    stopping = Stopping(patience_evaluations=1)
    watched = Watched(training=Best(0, 1, True))
    assert stopping.look(watched, 0.0)
    job = prepare(linear(), validated(), **QUICK)
    simulation = job.begin()
    assert job.ended_by(simulation, stopping) == "patience_evaluations"
    simulation.master.t = 60
    assert job.ended_by(simulation, stopping) == "iterations"
    simulation.master.t = 0
    few = replace(job, gradients=1)
    simulation.gradients = 1
    assert few.ended_by(simulation, Stopping()) == "gradients"


# ---------------------------------------------------------------- more of a run


TWICE = {"batch_size": 8, "evaluate_every": 20}


def events_of(folder):
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [x for x in lines if '"mark"' not in x]


@pytest.mark.parametrize("level", ["full", "digest"])
@pytest.mark.parametrize("method", [aspire, direct, afl])
def test_a_run_that_was_extended_is_one_that_never_ended(method, level, tmp_path):
    """200 steps are 100 steps, ended, and 100 more: planes, multipliers, moments, all of it."""
    arguments = {**TWICE, "method": method()}
    train(linear(), validated(), out=tmp_path / "whole", log=level, iterations=200, **arguments)
    part = tmp_path / "part"
    first = train(linear(), validated(), out=part, log=level, iterations=100, **arguments)
    job = prepare(linear(), validated(), iterations=100, **arguments)
    job.settings["log"] = level
    run = resume(part, job, iterations=200)
    assert (first.iterations, run.iterations) == (100, 200)
    for name in ("model.safetensors", "history.jsonl"):
        assert (part / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert events_of(part) == events_of(tmp_path / "whole")
    ends = [log.read(folder / "events.jsonl")[1] for folder in (part, tmp_path / "whole")]
    assert ends[0] == ends[1]
    assert replay(part, job) == (ends[0]["events"], ends[0]["state"])
    marks = [json.loads(x) for x in (part / "events.jsonl").read_text().splitlines()]
    kinds = [x["mark"] for x in marks if x.get("mark") in ("end", "extended")]
    assert kinds == ["end", "extended", "end"]


def test_an_extended_run_can_be_stopped_killed_and_extended_again(tmp_path):
    folder, sites = tmp_path / "run", validated()
    train(linear(), sites, out=tmp_path / "whole", iterations=300, **TWICE)
    train(linear(), sites, out=folder, iterations=100, **TWICE)
    job = prepare(linear(), sites, iterations=100, **TWICE)
    job.settings["log"] = "full"
    steps = [0]
    stop = {"progress": steps.append, "stop": lambda: steps[-1] >= 150}
    with pytest.raises(Interrupted):
        resume(folder, job, iterations=200, **stop)
    assert not (folder / "result.json").exists()
    assert log.read(folder / "events.jsonl")[1] is None
    with pytest.raises(ValueError, match="has no end mark"):
        replay(folder, job)
    assert resume(folder, job).iterations == 200
    run = resume(folder, job, iterations=300)
    assert run.settings["extended"] == [{"iterations": 200}, {"iterations": 300}]
    for name in ("model.safetensors", "history.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    replay(folder, job)
    assert [path.name for path in checkpoint.files(folder)] == [f"{300:012d}.safetensors"]


def test_an_extension_needs_more_than_what_is_done(tmp_path):
    folder, sites = tmp_path / "run", validated()
    train(linear(), sites, out=folder, iterations=100, **TWICE)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    job = prepare(linear(), sites, iterations=100, **TWICE)
    job.settings["log"] = "full"
    for limits, sentence in (
        ({"iterations": 100}, "iterations=100: the run has done 100: expected more than that"),
        ({"iterations": 40}, "iterations=40: the run has done 100: expected more than that"),
        ({"gradients": 10}, "the run has reached its limit of iterations=100: expected a larger"),
        ({"iterations": 200, "gradients": 10}, "gradients=10: the run has done"),
        ({"iterations": 0}, "iterations=0: expected a whole number of at least 1"),
        ({"iterations": 200, "max_seconds": 1e-9}, "max_seconds=1e-09: the run has done"),
        ({}, "the run has ended, so there is nothing to resume"),
    ):
        with pytest.raises(ValueError, match=sentence):
            resume(folder, job, **limits)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_gradients_are_extended_too(tmp_path):
    arguments = {**TWICE, "method": fedavg()}
    folder, sites = tmp_path / "run", validated()
    whole = train(linear(), sites, out=tmp_path / "whole", gradients=400, **arguments)
    train(linear(), sites, out=folder, gradients=200, **arguments)
    job = prepare(linear(), sites, gradients=200, **arguments)
    job.settings["log"] = "full"
    run = resume(folder, job, gradients=400)
    assert run.ended_by == "gradients"
    assert run.worker_gradients == whole.worker_gradients
    assert events_of(folder) == events_of(tmp_path / "whole")
    assert torch.equal(vector(run), vector(whole))
    replay(folder, job)


def test_a_run_that_was_stopped_early_goes_on_when_it_is_extended(tmp_path):
    """Its patience begins anew; its time does not."""
    arguments = {**TWICE, "iterations": 2000, "patience_evaluations": 3}
    folder, sites = tmp_path / "run", validated()
    first = train(linear(), sites, out=folder, **arguments)
    job = prepare(linear(), sites, **arguments)
    job.settings["log"] = "full"
    run = resume(folder, job, iterations=3000)
    assert run.iterations == first.iterations + 60
    assert run.ended_by == "patience_evaluations"
    assert run.selected == first.selected
    replay(folder, job)
    whole = resume(folder, job, patience_evaluations=10**6)
    assert (whole.iterations, whole.ended_by) == (3000, "iterations")


def test_with_a_digest_a_limit_on_gradients_cannot_be_added(tmp_path):
    train(linear(), validated(), out=tmp_path / "run", log="digest", iterations=100, **TWICE)
    job = prepare(linear(), validated(), iterations=100, **TWICE)
    job.settings["log"] = "digest"
    with pytest.raises(ValueError, match="with log='digest' one cannot be added"):
        resume(tmp_path / "run", job, iterations=200, gradients=10**6)


def test_a_run_on_an_engine_is_extended(tmp_path):
    from aspire.api.engines import crew_and_job

    folder, arguments = tmp_path / "run", {**TWICE, "iterations": 60}
    train(linear(), validated(), engine=ThreadEngine(), out=folder, log="vectors", **arguments)
    crew, job = crew_and_job(linear(), validated(), arguments)
    job.settings["log"] = "vectors"
    run = resume(folder, job, engine=ThreadEngine(), crew=crew, iterations=120)
    assert run.iterations == 120
    ts = [line["t"] for line in run.history]
    assert ts == sorted(ts)
    assert ts[-1] == 120
    assert 60 in ts
    replay(folder, job)
    worst = [line["worst_val_loss"] for line in run.history]
    assert run.worst_val_loss == min(worst)


def test_an_end_that_was_not_told_is_the_same_end(tmp_path):
    """Killed after its last checkpoint and before its result: resumed, it ends with the same."""
    arguments = {**TWICE, "iterations": 2000, "patience_evaluations": 3}
    folder, sites = tmp_path / "run", validated()
    first = train(linear(), sites, out=folder, **arguments)
    names = ("model.safetensors", "history.jsonl", "events.jsonl")
    before = {name: (folder / name).read_bytes() for name in names}
    (folder / "result.json").unlink()
    job = prepare(linear(), sites, **arguments)
    job.settings["log"] = "full"
    run = resume(folder, job)
    assert (run.iterations, run.ended_by) == (first.iterations, "patience_evaluations")
    assert {name: (folder / name).read_bytes() for name in names} == before


FILE = """
import torch
from tests.test_validation import validated


def model():
    return torch.nn.Linear(3, 2)


def sites():
    return list(validated())


def site(name):
    return validated()[name]
"""


def test_the_command_line(tmp_path):
    def call(*arguments, code=0):
        done = CliRunner().invoke(main, [str(a) for a in arguments])
        assert done.exit_code == code, done.output
        return done.output

    file, out = tmp_path / "file.py", tmp_path / "run"
    file.write_text(FILE)
    common = ("--batch-size", 8, "--evaluate-every", 10, "--out")
    said = call("train", file, "--iterations", 400, "--patience-evaluations", 4, *common, out)
    assert "stopped early: the worst site has not improved for 4 evaluations" in said
    assert "with the lowest worst validation loss" in said
    assert "bit for bit" in call("replay", out)
    done = json.loads((out / "result.json").read_text())["iterations"]
    assert f"the run has done {done}" in call("resume", out, "--iterations", done, code=2)
    more = call("resume", out, "--iterations", done + 20, "--patience-evaluations", 100)
    assert f"{done + 20} iterations in" in more
    assert "bit for bit" in call("replay", out)
    assert "nothing to resume" in call("resume", out, code=2)
    short = call("train", file, "--max-seconds", 1e-9, "--select", "last", *common, tmp_path / "b")
    assert "stopped early: 1e-09 seconds have passed" in short
    assert "did you mean" in call("train", file, "--select", "worst_los", code=2)


# ---------------------------------------------------------------- converged


def told(values, key="worst_case_loss", every=10):
    return [{"t": every * (i + 1), key: float(x)} for i, x in enumerate(values)]


STEPS = np.arange(1, 21)
FALLING = {
    "a line": 1 - 0.02 * STEPS,
    "a slow line": 1 - 1e-5 * STEPS,
    "a slow line after a deep fall": [1000.0, *(1 - 0.002 * STEPS)],
    "a root": STEPS**-0.5,
    "one over t": 1.0 / STEPS,
    "a logarithm": 3 - np.log(STEPS),
    "to zero": 0.5**STEPS,
    "after a plateau": [1.0] * 12 + [1 - 0.05 * k for k in range(8)],
    "few": 1 - 0.02 * STEPS[:10],
    "many": 1 / np.sqrt(np.arange(1, 201)),
}
SETTLED = {
    "constant": [0.7] * 20,
    "soon": 0.3 + 0.7 * 0.3**STEPS,
    "with an end": 0.3 + 0.7 * 0.6**STEPS,
}


@pytest.mark.parametrize("name", FALLING)
def test_what_clearly_falls_has_not_converged(name):
    assert converged.trend(told(FALLING[name])) == "still falling"


@pytest.mark.parametrize("name", SETTLED)
def test_what_no_longer_falls_has_converged(name):
    assert converged.trend(told(SETTLED[name])) == "settled"


def test_a_clear_fall_is_seen_through_noise():
    """Over 500 draws each: a fall is never missed where it is 10 times the noise."""
    rng = np.random.default_rng(0)
    for shape in (1 - 0.02 * STEPS, STEPS**-0.5, [1000.0, *(1 - 0.02 * STEPS)]):
        recent = shape[-5] - shape[-1]
        draws = rng.normal(0, recent / 10, (500, len(shape)))
        assert all(converged.trend(told(shape + x)) == "still falling" for x in draws)


def test_noise_alone_is_no_fall():
    """What has settled is said to be so two times in three, at least."""
    rng = np.random.default_rng(1)
    draws = 0.3 + 0.7 * 0.3**STEPS + rng.normal(0, 0.01, (500, 20))
    found = [converged.trend(told(x)) for x in draws]
    assert found.count("settled") > 2 / 3 * len(found)
    assert found.count("still falling") < 1 / 4 * len(found)


def test_what_rises_and_what_is_too_short():
    overfitted = [*(1 - 0.05 * np.arange(10)), *(0.55 + 0.02 * np.arange(10))]
    assert converged.trend(told(overfitted)) == "rising"
    assert converged.trend(told([1.0, 0.5, 0.4])) is None
    assert converged.trend(told([math.nan] * 20)) is None
    assert converged.trend([]) is None


def test_validation_is_what_counts_where_there_is_any():
    both = [a | b for a, b in zip(told([0.7] * 20), told(1 / STEPS, "worst_val_loss"), strict=True)]
    assert converged.trend(both) == "still falling"
    assert converged.figure(both)[0] == "worst validation loss"
    both[3]["worst_val_loss"] = None
    assert converged.trend(both) == "settled"


def test_a_real_run_converges_and_a_short_one_does_not():
    arguments = {"batch_size": None, "iterations": 20}
    short = train(linear(), blobs(3), **arguments)
    assert short.converged is False
    assert "converged: no, the worst-case training loss is still falling" in summary(short)
    assert "still falling" in repr(short)
    long = train(linear(), blobs(3), **{**arguments, "iterations": 4000, "evaluate_every": 100})
    assert long.converged is True
    assert "converged: yes, the worst-case training loss has settled" in summary(long)
    first = train(linear(), blobs(3), **{**arguments, "evaluate_every": 10})
    assert first.converged is None
    assert first.result()["trend"] is None
    assert "converged: not known, with fewer than 10 evaluations" in summary(first)
