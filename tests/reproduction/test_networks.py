"""The experiment `networks`: its networks train, its sites repeat, its runner resumes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aspire.cli import main
from reproduction import results
from reproduction.networks import (
    adapters,
    cases,
    data,
    noisy,
    plan,
    pool,
    run,
    store,
    tables,
)
from reproduction.networks.__main__ import main as bare_main
from reproduction.networks.cases import CASES, NINE
from reproduction.networks.plan import SEARCH_SEED, Plan, key_of
from reproduction.networks.run import Cell

ROOT = Path(__file__).parents[2]


def tiny_arrays(name: str) -> dict[str, np.ndarray]:
    """As `store.arrays` gives them, with few samples."""
    rng = np.random.default_rng(0)
    if name == "fashion-mnist":
        labels = np.tile(np.arange(10), 200)
        images = rng.integers(0, 100, (len(labels), 28, 28)) + 15 * labels[:, None, None]
        return {"x": images.astype(np.uint8), "y": labels, "late": np.arange(len(labels)) % 4 == 0}
    if name == "daily-sports":
        shape = (8, 8, 20, 125, 5)  # activity, person, segment, instant, placement
        activity, _, segment, _, placement = (x.reshape(-1) for x in np.indices(shape))
        x = rng.standard_normal((len(activity), 9), dtype=np.float32) + activity[:, None]
        return {"x": x, "y": activity, "late": segment >= 16, "site": placement}
    if name == "sc-ma":
        y = np.tile(np.arange(7), 300)
        x = rng.standard_normal((len(y), 3), dtype=np.float32) + y[:, None]
        return {"x": x, "y": y, "site": np.arange(len(y)) % 15, "late": np.arange(len(y)) % 5 == 0}
    site = np.repeat(np.arange(5), 800)
    y = np.arange(len(site)) // 40 % 11
    x = rng.standard_normal((len(site), 7), dtype=np.float32) + y[:, None]
    return {"x": x, "y": y, "site": site, "late": np.arange(len(site)) % 800 >= 640}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "arrays", tiny_arrays)
    monkeypatch.setattr(store, "missing", lambda name: None)
    monkeypatch.setattr(adapters, "STEPS", 3)
    monkeypatch.setattr(data, "LEAST", 1)
    monkeypatch.setattr(data, "ALPHA", 5.0)  # few images for 100 sites
    monkeypatch.setattr(run, "POINTS", 2)
    adapters.pretrained.cache_clear()
    run.sites_of.cache_clear()


def cell_of(network: str, method: str = "direct", **more) -> Cell:
    return Cell(network, method, "end", 0, "small", **{"gradients": 60, **more})


def trained(cell: Cell) -> dict:
    try:
        return run.run(cell, "cpu")
    except ValueError as error:
        if CASES[cell.network].normalised and "buffers that change" in str(error):
            pytest.skip("moving buffers are refused: BatchNorm waits for the direct form's buffers")
        raise


# ---------------------------------------------------------------- networks and sites


@pytest.mark.parametrize("network", CASES)
def test_every_network_trains_a_few_steps(network):
    record = trained(cell_of(network, gradients=100 if network.endswith("-100") else 40))
    assert np.isfinite(record["history"]["worst_loss"]).all()
    assert record["worst_loss"] != record["start_loss"]
    assert record["worker_gradients"] >= 40
    assert len(record["history"]["t"]) == 3
    assert 0.0 <= record["worst_accuracy"] <= record["mean_accuracy"] <= 1.0
    json.dumps(record)


@pytest.mark.parametrize("method", ["consensus", "reference"])
def test_the_other_methods_run(method):
    rate = 1e-2 if method == "reference" else None
    record = trained(cell_of("lstm", method, rate=rate, gradients=100))
    assert record["worst_loss"] < record["start_loss"]


def test_a_search_keeps_no_curves():
    cell = replace(cell_of("mlp-dropout", "reference", rate=1e-2), setting="search")
    record = trained(cell)
    assert "history" not in record
    assert len(json.dumps(record)) < 1000


def test_the_cnn_has_the_size_that_it_is_said_to_have():
    sizes = {name: sum(p.numel() for p in CASES[name].module(0, False).parameters())
             for name in ("cnn", "resnet-gn", "resnet-bn", "vit")}  # fmt: skip
    assert sizes["cnn"] == 421_642
    assert sizes["resnet-gn"] == sizes["resnet-bn"] > 11_000_000


def test_of_the_transformer_only_adapters_and_head_train():
    module = CASES["adapters"].module(0, True)
    named = {name.split(".")[-1] for name, p in module.named_parameters() if p.requires_grad}
    assert named == {"down", "up", "weight", "bias"}
    trainable = [name for name, p in module.named_parameters() if p.requires_grad]
    assert all("down" in x or "up" in x or x.startswith("head.") for x in trainable)


@pytest.mark.parametrize("network", NINE)
def test_the_generators_give_the_same_sites_again(network):
    first, again, other = (CASES[network].sites(seed, small=True) for seed in (0, 0, 1))
    assert list(first) == list(again)
    for name in first:
        for part in ("train", "test"):
            assert all(map(torch.equal, first[name][part], again[name][part]))
    if CASES[network].dataset in ("fashion-mnist", ""):  # elsewhere people are who they are
        assert any(changed(first[name]["train"], other[name]["train"]) for name in first)


def changed(one, other) -> bool:
    return one[0].shape != other[0].shape or not torch.equal(one[0], other[0])


def test_no_image_is_at_two_sites_and_test_images_stay_test_images():
    labels, late = np.tile(np.arange(10), 50), np.arange(500) % 5 == 0
    parts = data.dealt(labels, late, 10, 3)
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    sites = data.fashion(0, small=False)
    assert (
        sum(len(site["test"][1]) for site in sites.values())
        == tiny_arrays("fashion-mnist")["late"].sum()
    )


# ---------------------------------------------------------------- the reference's clock


@pytest.mark.parametrize("order", ["even", "listed", "reversed"])
def test_the_reference_has_a_clock_for_every_kind_of_delays(order):
    cell = cell_of("mlp-dropout", "reference", rate=1e-2)
    even, found = trained(cell), trained(replace(cell, delays=order))
    clock = run.reference_times(0, order, found["sites"], found["iterations"])
    assert found["virtual_seconds"] == pytest.approx(clock[-1], rel=1e-6)
    assert found["history"]["worst_loss"] == even["history"]["worst_loss"]
    assert found["iterations"] * found["sites"] == found["worker_gradients"]


# ---------------------------------------------------------------- the plan


def record_of(cell: Cell, worst: float | None, **more) -> dict:
    found = cell.plain() | {"start_loss": 2.0, "sites": 10, "iterations": 20, "worst_accuracy": 0.5}
    found |= {"virtual_seconds": 10.0, "worker_gradients": cell.gradients, "wall_seconds": 3.0}
    history = {"time": [0.0, 5.0, 10.0], "worst_loss": [2.0, 1.0, worst]}
    return found | {"worst_loss": worst, "history": history} | more


def kept(*records: dict) -> dict:
    return {key_of(record): record for record in records}


def searched(losses: dict[float, float], network: str = "cnn") -> dict:
    cells = {rate: Plan("small", {}).cell(network, "reference", "search", SEARCH_SEED, rate=rate)
             for rate in losses}  # fmt: skip
    return kept(*(record_of(cells[rate], losses[rate]) for rate in losses))


def test_the_reference_waits_for_its_search_which_goes_on_until_the_best_is_no_edge():
    losses = {1e-3: 0.9, 3e-3: 0.7, 1e-2: 0.5}
    assert Plan("small", {}).reference_rate("cnn") is None
    beyond = Plan("small", searched(losses))
    assert beyond.reference_rate("cnn") is None
    assert [cell.rate for cell in beyond.search("cnn")] == [1e-3, 3e-3, 1e-2, 3e-2]
    over = Plan("small", searched({**losses, 3e-2: 0.6}))
    assert over.reference_rate("cnn") == 1e-2
    ends = [
        c for c in over.cells() if (c.network, c.method, c.setting) == ("cnn", "reference", "end")
    ]
    assert [cell.seed for cell in ends] == [0, 1, 2, 3, 4]
    low = Plan("small", searched({1e-3: 0.5, 3e-3: 0.7, 1e-2: 0.9}))
    assert next(low.search("cnn")).rate == 3e-4


def test_a_rate_that_diverged_is_not_the_best():
    plan_ = Plan("small", searched({1e-3: 0.9, 3e-3: 0.7, 1e-2: None}))
    assert plan_.reference_rate("cnn") == 3e-3


def test_times_wait_for_the_reference_and_aim_at_its_end():
    assert not list(Plan("small", {}).timed("cnn", 0))
    ended = record_of(Plan("small", {}).cell("cnn", "reference", "end", 0, rate=1e-2), 0.5)
    listed, reversed_ = Plan("small", kept(ended)).timed("cnn", 0)
    assert listed.target == reversed_.target == 0.5
    clock = run.reference_times(0, "listed", 10, 20)
    assert listed.horizon == pytest.approx(1.25 * clock[-1])


def test_a_run_ends_at_its_target_or_at_its_horizon():
    short = trained(cell_of("mlp-dropout", gradients=10**9, horizon=8.0, delays="listed"))
    assert short["virtual_seconds"] == pytest.approx(8.0, abs=2.0)
    reached = trained(cell_of("mlp-dropout", gradients=10**9, horizon=50.0, target=100.0))
    assert reached["iterations"] < 3  # it starts below


def test_the_first_cells_are_the_direct_form_on_all_nine_networks():
    cells = Plan("full", {}).cells()
    assert [cell.network for cell in cells[:9]] == list(NINE)
    assert {(c.method, c.setting, c.seed) for c in cells[:9]} == {("direct", "end", 0)}
    assert len({cell.name for cell in cells}) == len(cells)


# ---------------------------------------------------------------- the runner


@pytest.fixture
def short_budgets(monkeypatch):
    for group in (cases.CASES, plan.CASES):
        for name, case in list(group.items()):
            monkeypatch.setitem(group, name, replace(case, gradients=(60, 60)))


ONLY = ("mlp-dropout/reference*/search/*", "mlp-dropout/*/end/0")


def test_it_resumes(short_budgets, tmp_path):
    request = pool.Request(size="small", only=ONLY)
    done = pool.carry_out(request, tmp_path)
    assert not done.failed
    assert done.done >= 6  # the direct and the consensus form, three rates, the reference
    content = done.path.read_bytes()
    assert pool.carry_out(request, tmp_path).done == 0
    assert done.path.read_bytes() == content
    lines = content.splitlines(keepends=True)
    done.path.write_bytes(b"".join(line for line in lines if b'"method":"direct"' not in line))
    assert pool.carry_out(request, tmp_path).done == 1


def test_no_cell_is_started_when_the_time_is_up(short_budgets, tmp_path):
    request = pool.Request(size="small", only=ONLY, minutes=0.0)
    assert pool.carry_out(request, tmp_path).done == 0


def test_a_cell_that_would_not_end_in_time_is_left_for_later():
    cell = Plan("small", {}).cell("cnn", "direct", "end", 1)
    slow = kept(record_of(replace(cell, seed=0), 0.5, wall_seconds=120.0))
    assert pool.expected_seconds(cell, slow) == pytest.approx(120.0)
    work = pool.Work(pool.Request(size="small", minutes=1.0), Path("nowhere.jsonl"), print)
    work.records = slow
    assert not work.in_time(cell)
    assert work.in_time(replace(cell, network="vit"))


def test_a_cell_that_fails_is_named_and_the_others_go_on(short_budgets, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "LEAST", 10**6)
    said = []
    request = pool.Request(size="small", only=("cnn/direct/end/0", "lstm/direct/end/0"))
    work = pool.carry_out(request, tmp_path, said.append)
    assert list(work.failed) == ["cnn/direct/end/0"]
    assert len(work.records) == 1
    assert any("FAILED" in line for line in said)


@pytest.mark.parametrize(("name", "value"), [("size", "huge"), ("jobs", 0), ("seeds", ())])
def test_a_bad_request_is_one_sentence(name, value):
    with pytest.raises(ValueError, match=name):
        pool.Request(**{name: value})


def test_the_command(short_budgets, tmp_path):
    words = ["--size", "small", "--out", str(tmp_path), "--jobs", "1"]
    only = ["--only", "mlp-dropout/direct/end/0"]
    told = CliRunner().invoke(main, ["reproduce", "networks", *words, *only])
    assert told.exit_code == 0, told.output
    assert "mlp-dropout/direct/end/0: worst loss" in told.output
    shown = CliRunner().invoke(main, ["report", str(tmp_path), "--networks"])
    assert "| MLP with dropout | 5 | 60 |" in shown.output
    odd = CliRunner().invoke(main, ["reproduce", "networks", *words, "--tuned"])
    assert odd.exit_code == 2
    assert "--tuned is no option of networks" in odd.output


def test_the_plain_command_needs_no_click(tmp_path):
    code = "import sys; sys.modules['click'] = None\n"
    code += "from reproduction.networks.__main__ import main\n"
    code += (
        "sys.exit(main(['run', '--list', '--size', 'small', '--only', 'adapters/direct/end/0']))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == ["adapters/direct/end/0"]


def test_cells_of_two_files_are_merged(tmp_path):
    cell = Plan("small", {}).cell("cnn", "direct", "end", 0)
    for name, seed in (("a", 0), ("b", 1)):
        record = record_of(replace(cell, seed=seed), 0.5)
        results.add_lines(tmp_path / f"{name}.jsonl", [record], key_of)
    assert bare_main(["merge", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 0
    assert len(results.read_lines(tmp_path / "b.jsonl", key_of)) == 2


# ---------------------------------------------------------------- a site with random labels


def noisy_cell(method: str) -> Cell:
    return replace(Plan("small", {}).cell("cnn", method, "noisy", 0), gradients=80)


def test_one_site_has_random_labels_and_all_have_val_parts():
    clean = data.fashion(0, small=True)
    ten, nine = (noisy.sites_of(clean, 0, without=without) for without in (False, True))
    assert list(nine) == list(ten)[1:]
    for name, site in ten.items():
        labels = torch.cat([site["val"][1], site["train"][1]])
        assert len(site["val"][1]) == max(1, len(clean[name]["train"][1]) // 10)
        assert sorted(site) == ["test", "train", "val"]
        assert all(map(torch.equal, site["test"], clean[name]["test"]))
        same = torch.equal(labels.sort().values, clean[name]["train"][1].sort().values)
        assert same == (name != noisy.SITE)
    many = torch.arange(10).repeat(1000)
    kept = (noisy.spoilt((many, many), 3, 0)[1] == many).double().mean()
    assert kept == pytest.approx(1.0 - 0.4 * 0.9, abs=0.02)


@pytest.mark.parametrize("method", ["direct", "direct-own", "direct-without"])
def test_the_cells_of_the_noisy_site(method):
    """All have the same number of gradients and of evaluations; who trains alone spends half."""
    record = trained(noisy_cell(method))
    assert record["worker_gradients"] >= 80
    assert len(record["history"]["t"]) == 3
    assert 0.0 <= record["others_worst_selected"] <= record["others_mean_selected"] <= 1.0
    assert ("noisy_weight" in record) == (method != "direct-without")
    assert record["sites"] == 10 - (method == "direct-without")
    if method == "direct-own":
        assert record["history"]["gradients"][1] >= 40


def test_the_figures_are_those_of_the_other_sites():
    names = ["site 0", "a", "b"]
    lines = [
        {"accuracies": [0.0, 0.0, 0.0], "val_losses": [0.1, 0.1, 0.1]},  # the start does not count
        {"accuracies": [0.1, 0.5, 0.7], "val_losses": [0.9, 0.2, 0.3]},
        {"accuracies": [0.0, 0.6, 0.4], "val_losses": [1.0, 0.1, 0.1]},
    ]
    common = {"losses": [1.0] * 3, "val_accuracies": None, "weights": [0.5, 0.25, 0.25]}
    history = [{**line, **common, "gradients": 10 * n} for n, line in enumerate(lines)]
    assert noisy.figures(history, names) == {
        "others_worst_selected": 0.5,
        "others_mean_selected": 0.6,
        "others_worst_last": 0.4,
        "others_mean_last": 0.5,
        "selected_gradients": 10,
        "noisy_weight": 0.5,
    }


def test_the_table_of_the_noisy_site(tmp_path):
    plan_, records = Plan("small", {}), []
    for seed in (0, 1):
        for k, method in enumerate(("direct", "direct-own", "direct-without")):
            more = {"others_worst_selected": 0.5, "others_worst_last": 0.6 + 0.01 * k * (seed + 1)}
            more |= {"others_mean_last": 0.7, "noisy_weight": 0.2}
            records.append(record_of(plan_.cell("cnn", method, "noisy", seed), 1.0, **more))
    results.add_lines(tmp_path / "networks.jsonl", records, key_of)
    text = tables.markdown(tmp_path)
    assert "| ten sites | 2,000 | 50 | 60 | -3.0 (1.0) | 70 | 0.2 | 2 |" in text
    assert "| nine sites, without the one with noise | 2,000 | 50 | 63 | - | 70 |" in text


# ---------------------------------------------------------------- the compact folder


def test_the_compact_folder_gives_the_same_arrays(data_folder, tmp_path, monkeypatch):
    names = ("fashion-mnist", "person-activity")
    monkeypatch.setattr(store, "NAMES", names)
    assert len(store.write(tmp_path)) == 2
    for name in names:
        from_files, from_folder = store.packed_from_files(name), store.read(tmp_path, name)
        assert from_files.keys() == from_folder.keys()
        assert all(np.array_equal(from_files[key], from_folder[key]) for key in from_files)
    assert set(np.unique(store.read(tmp_path, "fashion-mnist")["y"])) == set(range(10))


@pytest.fixture
def data_folder(data, monkeypatch):
    monkeypatch.setenv("ASPIRE_DATA", str(data))
    return data


def test_what_the_folder_rounds_is_near_what_was_measured():
    x = np.random.default_rng(0).standard_normal((250 * 5, 9)).astype(np.float32)
    again = store.unpack("daily-sports", store.in_steps({"x": x}))["x"]
    assert again.shape == x.shape
    assert (np.abs(again - x) <= 0.51 * store.STEPS).all()
    counts = np.arange(30.0, dtype=np.float32).reshape(10, 3)
    assert np.array_equal(store.unpack("sc-ma", store.whole_numbers({"x": counts}))["x"], counts)


# ---------------------------------------------------------------- tables


def test_the_tables_say_what_the_cells_say(tmp_path):
    plan_ = Plan("small", {})
    records = []
    for seed, (direct, reference) in enumerate([(0.6, 0.4), (0.4, 0.6)]):
        records.append(record_of(plan_.cell("cnn", "direct", "end", seed), direct))
        records.append(record_of(plan_.cell("cnn", "reference", "end", seed, rate=0.01), reference))
        records.append(record_of(plan_.cell("vit", "direct", "end", seed), 2.0 * reference))
        records.append(record_of(plan_.cell("vit", "reference", "end", seed, rate=0.01), reference))
    records.append(record_of(plan_.cell("cnn", "consensus", "end", 0), 2.0))
    records.append(record_of(plan_.cell("lstm", "direct", "end", 0), 3.0))
    results.add_lines(tmp_path / "networks.jsonl", records, key_of)
    text = tables.markdown(tmp_path)
    assert "| CNN | 10 | 2,000 | 0.5 | 2 | 0.5 | 0.01 | 1.00 | 0.30 |" in text
    assert "| ViT, 4 blocks | 10 | 2,000 | 1 | - | 0.5 | 0.01 | 2.00 |" in text
    assert "| geometric mean |  |  |  |  |  |  | 1.41 |" in text
    assert "own step: 5. Of these diverged" in text
    assert "1: lstm/end/0." in text


def test_the_default_step_is_compared_with_the_best_fixed_rate(tmp_path):
    plan_ = Plan("small", {})
    losses = {1e-4: 0.9, 3e-4: 0.5, 1e-3: 0.4, 3e-3: 0.6, 1e-2: None}
    records = [
        record_of(plan_.cell("cnn", "direct", "half", 0, rate=r), x) for r, x in losses.items()
    ]
    records.append(record_of(plan_.cell("cnn", "direct", "half", 0), 0.5))
    results.add_lines(tmp_path / "networks.jsonl", records, key_of)
    assert "| CNN | 0.5 | 0.001 | 0.4 | 1.25 | 5 | 1 |" in tables.markdown(tmp_path)


def test_time_shares_and_many_sites(tmp_path):
    plan_ = Plan("small", {})
    ended = record_of(plan_.cell("cnn", "reference", "end", 0, rate=1e-2), 0.5)
    clock = run.reference_times(0, "listed", 10, 20)[-1]
    cell = next(Plan("small", kept(ended)).timed("cnn", 0))
    history = {"time": [0.0, 0.4 * clock, 0.8 * clock], "worst_loss": [2.0, 0.75, 0.25]}
    records = [ended, record_of(cell, 0.25, history=history)]
    records.append(record_of(plan_.cell("mlp-100", "direct", "end", 0), 0.8, virtual_seconds=5.0))
    records.append(record_of(plan_.cell("mlp-100", "reference", "end", 0, rate=1e-2), 0.5))
    records.append(record_of(plan_.cell("mlp-100", "direct", "long", 0, horizon=10.0), 0.4))
    results.add_lines(tmp_path / "networks.jsonl", records, key_of)
    text = tables.markdown(tmp_path)
    assert "| CNN | 0.60 | 1 | - | 0 |" in text
    assert "| MLP, 100 sites | 20,000 | 0.8 | 0.5 | 0.01 | 1.60 | 1 | 0.4 | 0.80 | 1 |" in text


def test_the_page_shows_the_tables_of_the_committed_cells():
    page = (ROOT / "docs" / "networks.md").read_text(encoding="utf-8")
    shown = page.split(tables.BEGIN)[1].split(tables.END)[0]
    assert shown.strip() == tables.markdown(ROOT / "results").strip()


def test_the_tables_are_put_into_a_page(tmp_path):
    page, results_ = tmp_path / "page.md", tmp_path / "results"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    assert bare_main(["tables", str(results_), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "No cell of `networks` is here yet." in text
    assert "old" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="expected the marks"):
        tables.put_into(page, results_)
