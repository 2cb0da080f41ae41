"""`aspire reproduce`: every experiment on tiny data, resumable, the same however it is run."""

import html
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aspire.cli import main
from aspire.problem.problem import Problem
from reproduction import choices, plans, pool, results, summary, tune
from reproduction import reproduce as reproduce_module
from reproduction.cells import Cell, run, trained
from reproduction.table2 import FAMILIES
from reproduction.tables import TITLES

DATASETS = "fashion-mnist,person-activity"


def call(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def reproduce(name, data, out, *options) -> str:
    code, text = call(
        "reproduce", name, "--data", data, "--out", out, "--jobs", 1, "--quick", *options
    )
    assert code == 0, text
    return text


def cells_of(out: Path) -> dict[str, dict]:
    """NAME/DATASET/METHOD/NUMBER -> record, from all files."""
    found = [json.loads(line) for path in out.glob("*.jsonl") for line in path.open()]
    return {results.name_of(record): record for record in found}


def figures(out: Path) -> dict[str, dict]:
    """The records without what a clock says."""
    found = cells_of(out)
    for record in found.values():
        record.pop("wall_seconds")
    return found


def summary_of(out: Path, name: str) -> list[dict]:
    return summary.lines_of(name, list(results.read(out / f"{name}.jsonl").values()))


KEYS = {"experiment", "dataset", "method", "seed", "variant", "settings", "versions", "history"}
RESULT = {"iterations", "virtual_seconds", "wall_seconds", "worst_accuracy", "worst_loss", "planes"}
RESULT |= {"std_accuracy", "mean_accuracy", "accuracies", "weights", "worst_case_loss"}
RESULT |= {"worker_gradients", "sample_passes", "evaluated_on", "sites"}


def test_table1_has_every_method_on_every_data_set(data, tmp_path):
    text = reproduce("table1", data, tmp_path)
    assert "Left out: sc-ma" in text  # and the others that are not here
    assert "aspire data fetch shl" in text
    found = cells_of(tmp_path)
    for dataset in DATASETS.split(","):
        for method in choices.TABLE1:
            record = found[f"table1/{dataset}/{method}/0"]
            assert record.keys() >= KEYS | RESULT
            assert record["history"].keys() == {"gradients", "worst_val_accuracy", "weights"}
            assert record["worker_gradients"] >= record["budget"] or method == "ind"
            assert record["versions"]["threads"] == 1
    assert len(found) == 2 * len(choices.TABLE1)


def test_a_summary_is_what_its_cells_say(data, tmp_path):
    options = ("--methods", "afl,mix-even", "--datasets", "fashion-mnist", "--seeds", 3)
    reproduce("table1", data, tmp_path, *options)
    lines = summary_of(tmp_path, "table1")
    found = cells_of(tmp_path)
    assert {line["method"] for line in lines} == {"afl", "mix-even"}
    for line in lines:
        name = f"table1/fashion-mnist/{line['method']}"
        records = [found[f"{name}/{seed}"] for seed in range(3)]
        assert line["seeds"] == [0, 1, 2]
        assert ["weights" in record["history"] for record in records] == [True, False, False]
        for name in ("worst_accuracy", "worst_loss", "std_accuracy", "mean_accuracy"):
            values = [record[name] for record in records]
            assert line[name]["mean"] == pytest.approx(np.mean(values))
            assert line[name]["std"] == pytest.approx(np.std(values, ddof=1))


def test_finished_cells_are_kept_byte_for_byte(data, tmp_path, monkeypatch):
    options = ("--methods", "afl,fedavg,gda,mix-even", "--datasets", "fashion-mnist")
    done = []

    def dies_at_the_third(cell, data):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(cell)
        return run(cell, data)

    monkeypatch.setattr(pool, "run", dies_at_the_third)
    code, text = call(
        "reproduce", "table1", "--data", data, "--out", tmp_path, "--jobs", 1, "--quick", *options
    )
    assert code == 130
    assert "Interrupted" in text
    path = tmp_path / "table1.jsonl"
    before = path.read_text().splitlines()
    assert len(before) == 2
    with path.open("a") as file:
        file.write('{"experiment":"table1","dataset":"fashion-mnist","method":"gda","se')
    monkeypatch.setattr(pool, "run", run)
    text = reproduce("table1", data, tmp_path, *options)
    after = path.read_text()
    assert "2 of 4 cells were finished before" in text
    assert set(before) < set(after.splitlines())
    methods = [json.loads(line)["method"] for line in after.splitlines()]
    assert methods == ["afl", "fedavg", "gda", "mix-even"]
    reproduce("table1", data, tmp_path, *options)
    assert path.read_text() == after


def test_a_cell_that_fails_is_named_and_the_others_go_on(data, tmp_path, monkeypatch):
    run = pool.run

    def breaks(cell, data):
        if cell.method == "gda":
            raise ZeroDivisionError("division by zero")
        return run(cell, data)

    options = ("--datasets", "fashion-mnist", "--data", data, "--jobs", 1, "--quick")
    monkeypatch.setattr(pool, "run", breaks)
    given = ("--methods", "gda,afl", "--out", tmp_path, *options)
    code, text = call("reproduce", "table1", *given)
    assert code == 1
    failed = "table1/fashion-mnist/gda/0: ZeroDivisionError: division by zero"
    assert f"Failed cells: 1, the first: {failed}" in text
    assert set(cells_of(tmp_path)) == {"table1/fashion-mnist/afl/0"}
    alone = ("--methods", "gda", "--out", tmp_path / "alone", *options)
    code, text = call("reproduce", "tune", *alone)
    assert code == 2
    assert "tune: nothing could be run (tune/fashion-mnist/gda/0: ZeroDivisionError" in text
    monkeypatch.setattr(pool, "run", run)
    code, text = call("reproduce", "table1", *given)
    assert code == 0
    assert "1 of 2 cells were finished before" in text


def test_another_budget_is_another_cell(data, tmp_path):
    cell = Cell("table1", "fashion-mnist", "afl", 0, "afl", 100)
    pool.carry_out([cell], tmp_path, data=str(data), jobs=1)
    other = replace(cell, budget=200)
    records = results.read(tmp_path / "table1.jsonl")
    assert pool.finished(cell, records) is not None
    assert pool.finished(other, records) is None
    pool.carry_out([other], tmp_path, data=str(data), jobs=1)
    assert [record["budget"] for record in cells_of(tmp_path).values()] == [200]


def test_commands_that_write_to_one_file_lose_no_cell(tmp_path):
    path = tmp_path / "gamma.jsonl"
    cells = [Cell("gamma", "sc-ma", f"gamma-{k}", k, "", 1).plain() for k in range(60)]

    def write(part):
        for cell in part:
            results.add(path, [{**cell, "history": {}}])

    with ThreadPoolExecutor(6) as several:
        list(several.map(write, [cells[k::6] for k in range(6)]))
    assert {record["seed"] for record in results.read(path).values()} == set(range(60))
    assert [file.name for file in tmp_path.iterdir()] == ["gamma.jsonl"]


def test_the_number_of_jobs_changes_nothing(data, tmp_path):
    options = ("--methods", "aspire-ease,drfa-prox", "--datasets", DATASETS)
    reproduce("table1", data, tmp_path / "one", *options)
    reproduce("table1", data, tmp_path / "two", *options, "--jobs", 2)
    assert len(figures(tmp_path / "one")) == 4
    assert figures(tmp_path / "one") == figures(tmp_path / "two")


def test_gamma_zero_is_the_row_of_that_name(data, tmp_path):
    reproduce("gamma", data, tmp_path, "--datasets", "fashion-mnist")
    found = figures(tmp_path)
    even = found["gamma/fashion-mnist/aspire-consensus-gamma0/0"]
    zero = found["gamma/fashion-mnist/gamma-0/0"]
    for name in RESULT - {"wall_seconds"}:
        assert even[name] == zero[name], name


def test_the_attack_the_curves_and_the_page(data, tmp_path):
    small = ("--datasets", "fashion-mnist")
    reproduce("table2", data, tmp_path, *small)
    for name in ("time", "planes", "rates"):
        reproduce(name, data, tmp_path, *small)
    reproduce("delays", data, tmp_path)
    reproduce("theorem", data, tmp_path)
    lines = summary_of(tmp_path, "table2")
    for line in lines:
        assert ("attack_success" in line) != line["method"].startswith("lie-")
        assert "cost" in line
    adaptive = [line for line in lines if "adaptive_success" in line]
    assert len(adaptive) == sum(not family.beside for family in FAMILIES.values())
    assert all(line["reached"] in (0, 1) for line in summary_of(tmp_path, "time"))
    found = cells_of(tmp_path)
    record = found["time/fashion-mnist/aspire-consensus/0"]
    assert record["history"]["time"][-1] == pytest.approx(record["virtual_seconds"], rel=1e-4)
    gaps = found["rates/fashion-mnist/gda/0"]["history"]["gap"]
    assert all(gap > 0 for gap in gaps)
    ratio = found["delays/synthetic/lognormal/0"]["history"]["ratio"]
    assert ratio == sorted(ratio)
    code, text = call("report", tmp_path)
    assert code == 0, text
    page = (tmp_path / "report.html").read_text()
    body = page[page.index("<main>") : page.index("</main>")]
    assert body.count('class="plot"') >= 5
    assert "82.04" in body  # the paper's figure beside ours
    assert "Gamma = N instead of 0, with the low prior and bounds, adds" in body
    for name in ("table2", "time", "planes", "delays", "rates", "theorem"):
        assert f"<h2>{html.escape(TITLES[name])}</h2>" in body


def test_tuning_never_sees_the_test_part_and_is_used(data, tmp_path, monkeypatch):
    options = ("--datasets", "fashion-mnist", "--methods", "aspire-consensus,afl")
    reproduce("tune", data, tmp_path, *options)
    found = figures(tmp_path)
    assert {record["evaluated_on"] for record in found.values()} == {"validation"}
    assert {record["seed"] for record in found.values()} == {tune.SEED}
    assert {key.rpartition("/")[2] for key in found} == {"0", "1", "2"}  # of two methods, no more
    trials = [found[f"tune/fashion-mnist/aspire-consensus/{k}"] for k in range(3)]
    assert trials[0]["settings"] == {"settle": 20.0}
    assert {"prior", "reach", "budget", "coupling"} <= set(trials[1]["settings"])
    for record in trials:
        assert "test_losses" not in record
        assert record["accuracies"] == record["selected"]["val_accuracies"]
    chosen = json.loads((tmp_path / "tuned.json").read_text())
    best = tune.best(trials)
    assert best["worst_accuracy"] == max(record["worst_accuracy"] for record in trials)
    assert chosen["datasets"]["fashion-mnist"]["aspire-consensus"]["settings"] == best["settings"]
    monkeypatch.setattr(tune, "committed", lambda: chosen)
    names = "aspire-consensus,aspire-consensus-gamma0,afl,gda"
    asked = ("--tuned", "--datasets", "fashion-mnist", "--methods", names)
    text = reproduce("table1", data, tmp_path, *asked)
    assert "gda on fashion-mnist: no tuned settings are committed" in text
    found = figures(tmp_path)
    record = found["table1/fashion-mnist/aspire-consensus-tuned/0"]
    assert (record["method"], record["variant"]) == ("aspire-consensus", "tuned")
    assert record["settings"] == best["settings"]
    without = found["table1/fashion-mnist/aspire-consensus-gamma0-tuned/0"]
    assert without["settings"] == best["settings"]  # the same prior, and Gamma = 0


def test_the_best_settings_at_an_edge_give_every_method_two_more(data, tmp_path):
    options = ("--datasets", "fashion-mnist")
    reproduce("tune", data, tmp_path, *options)
    found = list(figures(tmp_path).values())
    counts = {method: len(trials) for (_, method), trials in tune.grouped(found).items()}
    assert counts.keys() == set(choices.SEARCHED)
    assert set(counts.values()) == {3 + tune.MORE}
    before = (tmp_path / "tune.jsonl").read_bytes()
    reproduce("tune", data, tmp_path, *options)
    assert (tmp_path / "tune.jsonl").read_bytes() == before


def scored_at(monkeypatch):
    """The models at which problems with test parts were scored, and at which without."""
    seen = {True: [], False: []}
    scores = Problem.scores

    def watched(problem, w):
        seen[problem.sites[0].test is not None].append(w.clone())
        return scores(problem, w)

    monkeypatch.setattr(Problem, "scores", watched)
    return seen


def test_the_test_part_is_scored_at_the_last_and_at_the_selected_model_alone(data, monkeypatch):
    seen = scored_at(monkeypatch)
    cell = Cell("table1", "person-activity", "afl", 0, "afl", 1000, validation=True)
    found = run(cell, str(data))
    assert len(seen[False]) == cell.points == len(found["history"]["worst_val_accuracy"])
    assert len(seen[True]) == 2
    curve = found["history"]["worst_val_accuracy"]
    best = int(np.argmax(curve))
    assert torch.equal(seen[True][0], seen[False][-1])
    assert torch.equal(seen[True][1], seen[False][best])
    assert found["selected"]["worst_val_accuracy"] == pytest.approx(curve[best], rel=1e-4)
    assert found["selected"]["gradients"] == found["history"]["gradients"][best]
    assert found["worst_accuracy"] == min(found["accuracies"])
    assert found["selected"]["worst_accuracy"] == min(found["selected"]["accuracies"])
    seen[True].clear()
    run(replace(cell, experiment="tune", trial=0), str(data))
    assert seen[True] == []


@pytest.mark.parametrize("local_steps", [1, 3])
def test_models_of_one_site_each_are_trained_side_by_side_as_alone(data, local_steps):
    settings = {"local_steps": local_steps}
    cell = Cell("table1", "person-activity", "ind", 0, "ind", 500, settings=settings, points=10)
    cell = replace(cell, validation=True)
    together = run(cell, str(data))
    for j, line in enumerate(together["alone"]):
        own = replace(cell, budget=100, points=2, settings={**settings, "site": j})
        alone = trained(own, str(data))
        assert line["worker_gradients"] == alone["worker_gradients"]
        # equal up to rounding, which a hundred steps of a network make larger
        assert line["worst_loss"] == pytest.approx(alone["worst_loss"], rel=0.05)
        assert line["mean_accuracy"] == pytest.approx(alone["mean_accuracy"], abs=0.02)
        if together["weights"][j] == 1.0:  # the best of them
            assert together["history"]["gradients"] == alone["history"]["gradients"]


def test_one_of_several_side_by_side_may_break_down(data):
    cell = Cell("table1", "person-activity", "ind", 0, "ind", 500, settings={"rate": 1e30})
    found = run(replace(cell, validation=True), str(data))
    assert found["worst_accuracy"] == found["selected"]["worst_accuracy"] == 0.0
    assert found["stopped"]


def test_a_run_that_breaks_down_is_a_cell_with_accuracy_zero(data):
    settings = {"rate": 1e30}
    cell = Cell("table1", "person-activity", "afl", 0, "afl", 300, settings=settings)
    for trial in (0, None):
        found = run(replace(cell, validation=True, trial=trial), str(data))
        assert found["selected"]["worst_val_accuracy"] == found["worst_accuracy"] == 0.0
    assert found["worst_accuracy"] == 0.0
    assert found["stopped"]
    line = summary.summarise([found])[0]
    assert line["stopped"] == 1
    assert "worst_loss" not in line


BAD = {
    "name": (("tabel1",), "NAME='tabel1'"),
    "data set": (("table1", "--datasets", "mnist"), "datasets='mnist'"),
    "method": (("table1", "--methods", "sgd"), "methods='sgd'"),
    "no seeds": (("table1", "--seeds", "0"), "seeds=0"),
    "seed list": (("table1", "--seed-list", "1,x"), "seed-list='1,x'"),
    "both": (("table1", "--seeds", "2", "--seed-list", "1"), "expected one of them"),
    "jobs": (("delays", "--jobs", "0"), "jobs=0"),
    "nothing here": (("table1", "--datasets", "shl"), "nothing could be run"),
}


@pytest.mark.parametrize(("arguments", "sentence"), BAD.values(), ids=BAD.keys())
def test_bad_names_are_one_sentence_and_code_two(arguments, sentence, data, tmp_path):
    code, text = call("reproduce", *arguments, "--data", data, "--out", tmp_path / "out")
    assert code == 2
    assert sentence in text
    assert "Traceback" not in text


def test_a_report_of_nothing_is_one_sentence(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        code, text = call("report", folder)
        assert code == 2
        assert "expected a folder" in text


def test_the_time_to_a_target_is_read_off_the_curve():
    history = {"time": [10.0, 20.0, 30.0], "worst_accuracy": [0.2, 0.6, 0.5]}
    assert summary.time_to(history, 0.4) == pytest.approx(15.0)
    assert summary.time_to(history, 0.1) == 10.0
    assert summary.time_to(history, 0.7) is None


def test_seeds_and_budgets_of_the_plans():
    request = plans.Request(seeds=(3, 7))
    cells, _ = plans.cells("time", request, ["sc-ma"])
    assert {cell.seed for cell in cells} == {3, 7}
    assert {cell.delays for cell in cells} == {"spread"}
    keys = {results.key_of(cell.plain()) for cell in cells}
    assert len(keys) == len(cells) == 2 * len(plans.TIMES)


def test_all_has_no_more_seeds_of_a_figure_than_the_figure_alone(data, tmp_path, monkeypatch):
    asked = {}

    def carry_out(cells, out, **how):
        asked[cells[0].experiment] = {cell.seed for cell in cells}
        return []

    monkeypatch.setattr("reproduction.pool.carry_out", carry_out)
    monkeypatch.setattr("reproduction.reproduce.conclude", lambda *given: [tmp_path])
    request = plans.Request(datasets=("fashion-mnist",), seeds=tuple(range(7)))
    reproduce_module.reproduce("all", request, out=tmp_path, data=str(data))
    assert asked["table1"] == set(range(7))
    assert asked["table2"] == asked["gamma"] == asked["planes"] == asked["rates"] == {0, 1, 2}
