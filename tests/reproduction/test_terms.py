"""Networks on equal terms: the plan, the search, the clock and the tables of them."""

import json
from dataclasses import replace

import pytest
import torch

from reproduction import knobs, provenance, results, tune
from reproduction.choices import SYNCHRONOUS
from reproduction.networks import (
    cases,
    data,
    plan,
    pool,
    run,
    search,
    store,
    tables,
    terms,
    terms_time,
    trials,
)
from reproduction.networks.cases import NINE
from reproduction.networks.plan import SEARCH_SEED, Plan, key_of
from reproduction.networks.trials import Trial
from tests.reproduction.test_networks import kept, record_of, tiny_arrays

SEARCHED = [m for m in terms.METHODS if m != "aspire-direct-gamma0"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "arrays", tiny_arrays)
    monkeypatch.setattr(store, "missing", lambda name: None)
    monkeypatch.setattr(data, "LEAST", 1)
    monkeypatch.setattr(data, "ALPHA", 5.0)
    monkeypatch.setattr(run, "POINTS", 2)
    for name, case in cases.CASES.items():
        monkeypatch.setitem(plan.CASES, name, replace(case, gradients=(240, 240)))
    run.sites_of.cache_clear()


def cells_of(setting: str, records: dict | None = None, network: str = "mlp-dropout") -> list:
    found = Plan("small", records or {}).cells()
    return [cell for cell in found if (cell.network, cell.setting) == (network, setting)]


# ---------------------------------------------------------------- the search


def tried(trial: Trial, loss: float | None) -> dict:
    constants = {"rate": 0.1, "rate_weights": 0.2, "stride": 1.0, "coupling": 0.3, "dual": 0.1}
    found = {"val_loss": loss, "constants": constants, "accuracies": [0.5, 0.6, 0.7, 0.8, 0.9]}
    return trial.plain() | found


def searched_so_far(loss=lambda trial: 1.0, rounds: int = 3) -> dict:
    """The records when everything was run that the plan wanted, so many times."""
    records: dict = {}
    for _ in range(rounds):
        wanted = Plan("small", records).searches["mlp-dropout"].trials
        records |= kept(*(tried(trial, loss(trial)) for trial in wanted))
    return records


def counts(found: list) -> set[int]:
    methods = [cell.method for cell in found]
    assert set(methods) == set(SEARCHED)
    return {methods.count(method) for method in SEARCHED}


def test_every_method_has_as_many_trials():
    first = cells_of("trial")
    assert counts(first) == {1}
    assert {(cell.number, cell.seed, cell.gradients) for cell in first} == {(0, SEARCH_SEED, 120)}
    drawn = cells_of("trial", searched_so_far(rounds=1))
    assert counts(drawn) == {search.TRIALS}
    for cell in drawn:
        assert cell.settings == trials.written(json.loads(cell.settings))
        untouched = trials.written(knobs.untouched(cell.method, linear=False))
        assert (cell.settings == untouched) == (cell.number == 0)
    assert len({cell.name for cell in drawn}) == len({key_of(c.plain()) for c in drawn}) == 60


def test_an_edge_extends_the_search_of_every_method():
    best = {m: min(range(6), key=lambda k: (not tune.edges(m, k), k)) for m in SEARCHED}
    assert any(tune.edges(m, k) for m, k in best.items())
    records = searched_so_far(lambda t: 0.5 if t.number == best[t.method] else 1.0, rounds=2)
    assert counts(cells_of("trial", records)) == {search.TRIALS + tune.MORE}
    assert cells_of("searched", records) == []  # before the last two are there
    assert counts(cells_of("trial", searched_so_far())) == {search.TRIALS}  # setting 0 is no edge


def test_searched_rows_have_the_best_setting_and_gamma_0_that_of_its_form():
    records = searched_so_far(lambda t: {1: 0.7, 3: None}.get(t.number, 0.9))
    wanted = Plan("small", records).searches["mlp-dropout"].drawn
    cells = cells_of("searched", records)
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}
    assert {cell.gradients for cell in cells} == {240}
    settings = {cell.method: cell.settings for cell in cells}
    assert list(settings) == list(terms.METHODS)
    assert settings["aspire-direct-gamma0"] == settings["aspire-direct"]
    for method in SEARCHED:
        assert settings[method] == wanted[method][1].settings


def test_a_trial_with_other_settings_is_another_one():
    records = searched_so_far(rounds=1)
    odd = {key: {**record, "settings": '{"settle": 1.0}'} for key, record in records.items()}
    assert counts(cells_of("trial", odd)) == {1}


def test_no_test_part_is_in_a_trial():
    sites = {"a": {name: (torch.ones(2) * k, torch.zeros(2)) for k, name in
             enumerate(("train", "val", "test"))}}  # fmt: skip
    (site,) = trials.without_test(sites).values()
    assert site["train"] is sites["a"]["train"]
    assert site["test"] is site["val"] is sites["a"]["val"]


def test_trials_run_and_keep_no_curves():
    for cell in cells_of("trial")[:3]:
        record = trials.run(cell, "cpu")
        assert "history" not in record
        assert len(json.dumps(record)) < 2000
        assert 0.0 < record["val_loss"] < 10.0
        assert len(record["accuracies"]) == record["sites"] == 5
        assert record["worker_gradients"] >= 120
        assert {name: record[name] for name in cell.plain()} == cell.plain()


def test_a_trial_that_broke_down_serves_nobody():
    cell = replace(cells_of("trial")[1], settings='{"stride": 1e30}')
    assert cell.method == "aspire-consensus"
    record = trials.run(cell, "cpu")
    assert record["stopped"]
    assert record["val_loss"] is None
    assert record["accuracies"] == [0.0] * 5
    assert search.loss_of(record) == float("inf")


# ---------------------------------------------------------------- the clock


def ended(losses: dict[str, float | None], network: str = "mlp-dropout", seed: int = 0) -> dict:
    plan_ = Plan("small", {})
    cells = {method: plan_.cell(network, method, "terms", seed) for method in losses}
    return kept(*(record_of(cells[method], losses[method]) for method in losses))


def test_the_best_baseline_has_the_lowest_worst_training_loss():
    losses = dict.fromkeys(SYNCHRONOUS, 1.0) | {"gda": 0.5, "afl": None}
    found = {record["method"]: record for record in ended(losses).values()}
    assert plan.best_baseline(found) == "gda"
    assert plan.best_baseline({**found, "fedavg": None}) is None  # one is missing
    gone = ended(dict.fromkeys(SYNCHRONOUS, None)).values()
    assert plan.best_baseline({record["method"]: record for record in gone}) is None


def test_the_direct_form_aims_at_the_end_of_the_best_baseline():
    assert not cells_of("terms-listed")
    records = ended(dict.fromkeys(SYNCHRONOUS, 1.0) | {"gda": 0.5})
    (clock,) = cells_of("terms-listed", records)
    assert (clock.method, clock.delays, clock.horizon, clock.target) == (
        "gda",
        "listed",
        None,
        None,
    )
    records |= kept(record_of(clock, 0.5, virtual_seconds=40.0))
    again, ours = cells_of("terms-listed", records)
    assert again == clock
    assert (ours.method, ours.delays) == ("aspire-direct", "listed")
    assert (ours.horizon, ours.target) == (50.0, 0.5)
    (other,) = cells_of("terms-reversed", records)
    assert (other.method, other.delays) == ("gda", "reversed")


@pytest.mark.parametrize("method", SYNCHRONOUS)
def test_delays_change_the_clock_of_a_baseline_and_nothing_else(method):
    cell = Plan("small", {}).cell("mlp-dropout", method, "terms", 0)
    even = terms.run(cell, "cpu")
    slow = terms_time.run(replace(cell, setting="terms-reversed", delays="reversed"), "cpu")
    assert slow["worst_loss"] == even["worst_loss"]
    assert slow["selected_worst_accuracy"] == even["selected_worst_accuracy"]
    assert slow["virtual_seconds"] > even["virtual_seconds"]


def test_a_task_of_five_steps_lasts_five_delays():
    cell = Plan("small", {}).cell("mlp-dropout", "fedavg", "terms-listed", 0, delays="listed")
    slow = terms_time.run(cell, "cpu")
    delays = run.delays_of("listed", 5)
    rounds = [max(sum(delays(0, j, 5 * k + s) for s in range(5)) for j in range(5))
              for k in range(slow["iterations"])]  # fmt: skip
    assert slow["virtual_seconds"] == pytest.approx(sum(rounds), rel=1e-6)


# ---------------------------------------------------------------- the plan and the runner


def test_the_order_of_the_plan():
    records = searched_so_far()
    for seed in (0, 1):
        for network in ("mlp-dropout", "cnn"):
            records |= ended(dict.fromkeys(SYNCHRONOUS, 1.0), network, seed)
    cells = [c for c in Plan("small", records).cells() if c.setting in pool.RUNNERS]
    settings = [cell.setting for cell in cells]
    groups = ["terms", "terms-listed", "trial", "searched"]
    firsts = [settings.index(name) for name in groups]
    assert firsts == sorted(firsts)
    assert settings == sorted(settings, key=lambda s: groups.index(s.replace("reversed", "listed")))
    on_terms = [(c.seed, c.network) for c in cells if c.setting == "terms"]
    assert list(dict.fromkeys(on_terms)) == [(seed, name) for seed in range(5) for name in NINE]
    assert {c.method for c in cells if c.network == "resnet-bn"} == set(terms.MOVING)


def test_patterns_find_the_settings_and_a_finished_cell_is_known():
    records = searched_so_far()
    request = pool.Request(size="small", only=("mlp-dropout/afl*/trial/*", "*/gda/searched/0"))
    wanted = [c.name for c in Plan("small", records).cells() if request.wants(c)]
    afl = [f"mlp-dropout/afl@{number}/trial/100" for number in range(search.TRIALS)]
    assert wanted == [*afl, "mlp-dropout/gda/searched/0"]
    (cell,) = [c for c in cells_of("searched", records) if (c.method, c.seed) == ("gda", 0)]
    done = kept(record_of(cell, 1.0))
    assert pool.finished(cell, done)
    assert not pool.finished(replace(cell, settings="{}"), done)


def test_each_setting_names_the_module_that_makes_it():
    homes = {"terms": terms, "trial": trials, "searched": trials, "terms-listed": terms_time}
    for setting, home in homes.items():
        assert pool.module_of({"setting": setting}) == home.__name__
    assert pool.module_of({"setting": "end"}) == run.__name__
    assert "reproduction.cells" not in provenance.imported(trials.__name__)


def test_a_search_from_its_first_trial_to_its_rows(tmp_path, monkeypatch):
    few = (*terms.MOVING, "afl")
    monkeypatch.setattr(plan, "METHODS", few)
    only = ("mlp-dropout/*/trial/*", "mlp-dropout/*/searched/0")
    work = pool.carry_out(pool.Request(size="small", only=only, seeds=(0,)), tmp_path)
    assert not work.failed
    settings = [record["setting"] for record in work.records.values()]
    assert settings.count("trial") in (2 * search.TRIALS, 2 * (search.TRIALS + tune.MORE))
    assert settings.count("searched") == 3
    text = tables.markdown(tmp_path)
    assert "MLP with dropout: every method with the best of equally many settings" in text
    assert "| searched |" in text


# ---------------------------------------------------------------- the tables


def compared(setting: str, network: str, method: str, accuracies: list[float]) -> list[dict]:
    cells = (Plan("small", {}).cell(network, method, setting, s) for s in range(len(accuracies)))
    more = [{"selected_worst_accuracy": x, "last_worst_accuracy": 0.3} for x in accuracies]
    more = [{**one, "selected_mean_accuracy": 0.9} for one in more]
    return [record_of(cell, 1.0, **one) for cell, one in zip(cells, more, strict=True)]


def test_paired_differences_by_network_and_what_they_support(tmp_path):
    ours, even = [0.50, 0.60, 0.70], [0.5, 0.6, 0.7]
    records = compared("terms", "cnn", "aspire-direct", ours)
    # 10, 11, 12 points: mean 11, error 1/sqrt(3); p = 0.00274, times the 2 of this network
    records += compared("terms", "cnn", "afl", [0.60, 0.71, 0.82])
    records += compared("terms", "cnn", "fedbuff", even)
    records += compared("terms", "vit", "aspire-direct", ours)
    records += compared("terms", "vit", "gda", [0.48, 0.59, 0.68])
    records += compared("terms", "lstm", "aspire-direct", ours)
    records += compared("terms", "lstm", "gda", [0.40, 0.80, 0.69])  # -10, +20, -1: mean 3
    results.add_lines(tmp_path / "networks.jsonl", records, key_of)
    text = tables.markdown(tmp_path)
    assert "| afl | 71 | 30 | 90 | 1 | -11.0 ± 0.6, behind | 0 | 3 |" in text
    assert "| fedbuff | 60 | 30 | 90 | 1 | +0.0 ± 0.0, no difference shown | 0 | 3 |" in text
    assert "| gda | 58.3 | 30 | 90 | 1 | +1.7 ± 0.3, ahead | 0 | 3 |" in text
    assert (
        "more than 1 point below the synchronous baseline whose selected model has the best mean "
        "here on 2 of 3 networks: CNN (-11.0 ± 0.6, behind, afl); LSTM (-3.0 ± 8.9, no difference "
        "shown, gda). Significantly so on 1." in text
    )


def test_the_time_to_the_end_of_the_best_baseline(tmp_path):
    losses = dict.fromkeys(SYNCHRONOUS, 1.0) | {"gda": 0.5}
    records = ended(losses, "cnn") | ended(losses, "cnn", seed=1)
    plan_ = Plan("small", records)
    for seed in (0, 1):
        clock = plan_.cell("cnn", "gda", "terms-listed", seed, delays="listed")
        more = {"delays": "listed", "horizon": 12.5, "target": 0.5}
        ours = plan_.cell("cnn", "aspire-direct", "terms-listed", seed, **more)
        # half-way from 2.0 at 2 to 0.5 - 1.5 at 6 or 10, that is at 4 or 6 of 10
        last = 6.0 if seed == 0 else 10.0
        history = {"time": [0.0, 2.0, last], "worst_loss": [2.0, 0.75, 0.25]}
        records |= kept(record_of(clock, 0.5), record_of(ours, 0.25, history=history))
    results.add_lines(tmp_path / "networks.jsonl", records.values(), key_of)
    text = tables.markdown(tmp_path)
    assert "| CNN | gda (2) | 0.50 (0.40 to 0.60) | 2 | - | 0 |" in text
