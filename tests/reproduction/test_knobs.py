"""Every method's search has the knobs that others have and it can take, and as many settings."""

import inspect
from pathlib import Path

import pytest

from reproduction import choices, knobs, results, tune
from reproduction.cells import Cell
from reproduction.data import READERS

FIRST = {
    "constants": {"rate": 0.1, "rate_weights": 0.2, "stride": 1.0, "coupling": 0.3, "dual": 0.1},
    "settings": {"settle": 20.0},
    "accuracies": [0.7, 0.8, 0.9],
}
TRIALS = tune.grouped(
    list(results.read(Path(__file__).parents[2] / "results" / "tune.jsonl").values())
)


def cell_of(maker):
    return Cell("tune", "fashion-mnist", maker, tune.SEED, maker, 10, trial=0)


def test_no_method_lacks_a_shared_knob_that_it_can_take():
    for maker in set(choices.SEARCHED) - set(choices.PAPERS):
        takes = set(inspect.signature(knobs.FACTORIES[maker]).parameters)
        known = knobs.knobs_of(maker)
        for name, arguments in knobs.ARGUMENTS.items():
            if takes & set(arguments):
                assert name in known, (maker, name)
    for name in ("reach", "gamma"):
        with_set = {maker for maker in knobs.OWN if name in knobs.OWN[maker]}
        assert with_set >= {"aspire-consensus", "aspire-direct", "gda", "gdmax", "aspire-ease"}


def test_the_papers_rows_have_its_constants_its_set_and_the_prior():
    for maker in choices.PAPERS:
        known = knobs.knobs_of(maker).keys()
        assert {"lean", "eta_w", "eta_z", "kappa", "rho1", "rho2"} <= known
        assert not known & (knobs.SHARED.keys() - {"lean"})


def test_every_method_has_as_many_settings():
    cells = [cell_of(maker) for maker in choices.SEARCHED]
    done = {(cell.maker, 0): {**FIRST, "trial": 0, "worst_accuracy": 0.1} for cell in cells}

    def known(cell):
        return done.get((cell.maker, cell.trial))

    numbered, wider = tune.stages(cells, tune.TRIALS)
    drawn = numbered(known)
    counts = {maker: sum(c.maker == maker for c in drawn) for maker in choices.SEARCHED}
    assert set(counts.values()) == {tune.TRIALS - 1}
    assert wider(known) == []  # before all have theirs
    for cell in drawn:
        score = 0.9 if cell.trial == 3 else 0.5
        done[cell.maker, cell.trial] = {"trial": cell.trial, "worst_accuracy": score}
    assert any(tune.edges(maker, 3) for maker in choices.SEARCHED)
    more = wider(known)
    counts = {maker: sum(c.maker == maker for c in more) for maker in choices.SEARCHED}
    assert set(counts.values()) == {tune.MORE}
    assert {cell.trial for cell in more} == {tune.TRIALS, tune.TRIALS + 1}


@pytest.mark.parametrize("dataset", sorted({dataset for dataset, _ in TRIALS}))
def test_the_committed_searches_are_as_long_for_every_method(dataset):
    searches = {method: found for (name, method), found in TRIALS.items() if name == dataset}
    assert set(searches) == set(choices.SEARCHED)
    (length,) = {len(found) for found in searches.values()}
    assert length in (tune.TRIALS, tune.TRIALS + tune.MORE)


@pytest.mark.parametrize(("dataset", "method"), TRIALS)
def test_the_committed_settings_are_those_that_the_knobs_give(dataset, method):
    first, *others = TRIALS[dataset, method]
    assert first["settings"] == knobs.untouched(method, linear=not READERS[dataset].hidden)
    for record in others[: tune.TRIALS - 1]:
        assert record["seed"] == tune.SEED
        assert record["settings"] == tune.drawn(cell_of(method), record["trial"], first).settings


@pytest.mark.parametrize("maker", choices.SEARCHED)
def test_every_setting_makes_a_method(maker):
    site = {"site": 0} if maker == "ind" else {}
    cell = cell_of(maker)
    linear = knobs.untouched(maker, linear=True)
    choices.make(maker, 3, linear | site)
    first = {**FIRST, "settings": linear}
    for number in range(1, tune.TRIALS):
        settings = dict(tune.drawn(cell, number, first).settings)
        assert settings == tune.drawn(cell, number, first).settings
        choices.make(maker, 3, settings | site)


def test_a_setting_beyond_an_edge_is_the_best_one_with_one_knob_further(monkeypatch):
    ranges = {"rate": knobs.Log(0.01, 1.0), "average": knobs.OneOf((True, False))}
    monkeypatch.setattr(knobs, "knobs_of", lambda maker: ranges)
    monkeypatch.setattr(tune, "places", lambda maker, number: {"rate": 0.95, "average": 0.05})
    assert tune.edges("afl", 4) == [("rate", 1)]
    found = tune.beyond(cell_of("afl"), 12, 4, [("rate", 1)], FIRST).settings
    assert 1.0 < found["rate"] <= 10.0  # half of the two decades further
    assert found["average"] is True
    monkeypatch.setattr(tune, "places", lambda maker, number: {"rate": 0.5, "average": 0.05})
    found = tune.beyond(cell_of("afl"), 12, 4, [("rate", 0)], FIRST).settings
    assert 0.001 <= found["rate"] < 0.01  # an edge that another method asked for


def test_a_range_is_even_in_its_logarithm():
    assert knobs.Log(0.1, 10.0).at(0.5, 7.0) == pytest.approx(1.0)
    assert knobs.Log(0.1, 10.0, times=True).at(0.5, 7.0) == pytest.approx(7.0)
    assert knobs.Log(0.1, 10.0).at(1.5, 7.0) == pytest.approx(100.0)
    assert [knobs.OneOf((1, 2, 5)).at(u, 0.0) for u in (0.0, 0.5, 0.99)] == [1, 2, 5]


def test_a_prior_leans_towards_the_sites_that_are_behind():
    # one and two tens of points behind: exp(0.5) and exp(1) times the best site's weight
    assert knobs.leaning([0.7, 0.8, 0.9], 0.5) == [0.5065, 0.3072, 0.1863]
    assert knobs.leaning([0.9, 0.9], 3.0) == [0.5, 0.5]


def test_the_step_decay_of_rows_that_nobody_searched():
    takes = {maker for maker in choices.SEARCHED if knobs.untouched(maker, linear=True)}
    assert {"aspire-consensus", "aspire-direct"} <= takes
    assert not takes & set(choices.PAPERS)
    for maker in takes:
        assert knobs.untouched(maker, linear=True) == {"settle": 20.0}
        assert knobs.untouched(maker, linear=False) == {"settle": 2000.0}
    assert [name for name, reader in READERS.items() if not reader.hidden] == ["fashion-mnist"]


def test_a_knob_that_turns_nothing_has_no_edges(monkeypatch):
    # AFL's own rate is no part of AdamW's step, and a learning rate is no part of its own step
    at = {"optimizer": 0.5, "learning_rate": 0.99, "rate": 0.01}
    monkeypatch.setattr(tune, "places", lambda maker, number: at)
    monkeypatch.setattr(knobs, "knobs_of", lambda maker: {name: knobs.SHARED[name] for name in at})
    assert tune.edges("afl", 1) == [("learning_rate", 1)]
    assert tune.edges("fedavg", 1) == [("rate", 0), ("learning_rate", 1)]  # of its local steps
    at["optimizer"] = 0.1
    assert tune.edges("afl", 1) == [("rate", 0)]
    settings = knobs.settings_of("afl", at, FIRST)
    assert "learning_rate" not in settings
