"""Sites that lie to the direct form: their lies are those that the page says, and it survives."""

import sys
from importlib import metadata

import numpy as np
import pytest
import torch

from aspire.methods.aspire_ease.direct import direct
from aspire.types import Fast, Report, Task
from reproduction.networks import data, influence, liars, pool, run, store
from reproduction.networks.figures import Cells
from reproduction.networks.liars import ATTACKS, LIARS, Liars
from reproduction.networks.plan import Plan, key_of
from reproduction.networks.run import Cell
from tests.reproduction.test_networks import tiny_arrays

SMALL = 200  # gradients
NEEDED = liars.missing("low-alie")
needs_byzfl = pytest.mark.skipif(NEEDED is not None, reason=str(NEEDED))
ATTACK_MARKS = [
    pytest.param(name, marks=needs_byzfl if name in liars.LIBRARY else ()) for name in ATTACKS
]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "arrays", tiny_arrays)
    monkeypatch.setattr(store, "missing", lambda name: None)
    monkeypatch.setattr(data, "LEAST", 1)
    monkeypatch.setattr(data, "ALPHA", 5.0)
    monkeypatch.setattr(run, "POINTS", 2)
    run.sites_of.cache_clear()


def cell_of(method: str, setting: str, seed: int = 0) -> Cell:
    return Cell("cnn", method, setting, seed, "small", SMALL)


# ---------------------------------------------------------------- the lies


class Four:
    """Site j, whose gradient is (j, 1) and whose loss is j."""

    def work_many(self, items):
        return [(None, self.answer(task)) for _, task, _ in items]

    def answer(self, task: Task) -> Report:
        j = float(task.worker)
        if task.kind == "probe":
            return Report(task.worker, task.id, {}, {"loss": j, "slope": 2.0, "gradients": 1.0})
        g = torch.tensor([j, 1.0])
        return Report(task.worker, task.id, {"g": g}, {"loss": j, "gradients": 1.0})


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch):
    """The reports of four sites, of which 0 and 1 lie."""
    from dataclasses import replace

    method = replace(direct(), fast=Fast(Four().work_many))
    together = Liars(liars.backwards, LIARS, honest=2)
    lying = liars.lying(method, together)

    def ask(kind: str, *workers: int) -> dict[int, Report]:
        tasks = [Task(j, 10 + j, kind) for j in workers]
        found = lying.fast.many([(None, task, None) for task in tasks])
        return {report.worker: report for _, report in found}

    return ask


def test_liars_say_three_times_the_worst_honest_loss(four):
    told = four("probe", 0, 1, 2, 3)
    assert [told[j].scalars["loss"] for j in range(4)] == [9.0, 9.0, 2.0, 3.0]
    assert [told[j].scalars["slope"] for j in range(4)] == [200.0, 200.0, 2.0, 2.0]
    assert four("both", 1)[1].scalars["loss"] == 9.0  # what they saw they remember


def test_liars_turn_their_gradient_round_once_they_have_seen_all_honest_ones(four):
    assert four("gradient", 1, 2)[1].vectors["g"].tolist() == [1.0, 1.0]
    told = four("gradient", 1, 3)
    assert told[1].vectors["g"].tolist() == [-100.0, -100.0]
    assert told[3].vectors["g"].tolist() == [3.0, 1.0]
    assert told[1].scalars["gradients"] == 1.0


def test_one_task_at_a_time_is_the_same(four):
    method = liars.lying(direct(), Liars(liars.far, LIARS, honest=2))
    assert method.work.func is liars.work
    assert method.kinds == direct().kinds


def test_the_far_vector_is_the_same_whatever_the_gradient():
    first, second = (liars.far(torch.full((5,), x), []) for x in (0.0, 7.0))
    assert torch.equal(first, second)
    assert first.abs().tolist() == [liars.FAR] * 5


@needs_byzfl
def test_the_attacks_of_the_library_are_the_published_ones():
    seen = [torch.tensor(x) for x in ([1.0, 0.0], [2.0, 0.0], [6.0, 3.0])]
    own = torch.zeros(2)
    mean, spread = np.array([3.0, 1.0]), np.array([7.0, 3.0]) ** 0.5  # of n - 1
    for name, expected in (("alie", mean + 1.5 * spread), ("ipm", -2.0 * mean), ("mimic", [1, 0])):
        found = liars.attack_of(name)(own, seen)
        assert found.numpy() == pytest.approx(np.array(expected, dtype=float), rel=1e-6), name
        assert found.dtype == own.dtype
    assert "byzfl" not in sys.modules  # whoever imports it gets the whole of it, or its error


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch, tmp_path):
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(liars.importlib.metadata, "version", absent)
    assert liars.missing("low-far") is None
    said = []
    request = pool.Request(size="small", only=("cnn/clipped/*-alie/*", "cnn/clipped/*-ipm/*"))
    work = pool.carry_out(request, tmp_path, said.append)
    assert work.done == 0
    assert said == ["Left out: alie, ipm and mimic need byzfl: pip install --no-deps byzfl==0.0.11"]


def test_another_version_of_the_library_is_not_used(monkeypatch):
    monkeypatch.setattr(liars.importlib.metadata, "version", lambda name: "9.9")
    assert "byzfl 9.9 is here" in (liars.missing("even-mimic") or "")


# ---------------------------------------------------------------- runs


def test_the_set_holds_the_liars_down_and_leaves_the_others_as_they_were():
    upper = liars.box(10).upper()
    assert upper[list(LIARS)].tolist() == pytest.approx([0.02, 0.02])
    assert np.delete(upper, LIARS).tolist() == pytest.approx([0.2] * 8)
    assert direct().settings["uncertainty"] is None  # whose bound is 2/N as well


@pytest.mark.parametrize("attack", ATTACK_MARKS)
def test_a_run_with_liars_ends_with_a_model(attack):
    found = run.run(cell_of("clipped", f"low-{attack}"), "cpu")
    assert np.isfinite(found["worst_loss"])
    assert 0.0 <= found["honest_accuracy"] <= 1.0
    assert "history" not in found
    if attack in ("reversed", "far"):
        assert min(found["clipped"][j] for j in LIARS) > 0.9
        assert max(np.delete(found["clipped"], LIARS)) < 0.5


@pytest.mark.parametrize("method", liars.METHODS)
def test_honest_sites_are_all_the_same_to_every_method(method):
    found = run.run(cell_of(method, "even-honest"), "cpu")
    assert found["worst_loss"] < found["start_loss"]
    assert (max(found["clipped"]) == 0.0) == (method == "unclipped")


def test_the_plan_has_each_setting_for_each_seed():
    cells = [c for c in Plan("small", {}).cells() if c.method in liars.METHODS]
    assert len(cells) == len(set(cells)) == 5 * len(liars.settings(True))
    assert {c.gradients for c in cells if c.method != "clipped-long"} == {2_000}
    assert {c.gradients for c in cells if c.method == "clipped-long"} == {10_000}


# ---------------------------------------------------------------- the table


def test_the_table_has_paired_differences_to_the_clean_run():
    accuracies = {
        ("unclipped", "low-honest"): (0.71, 0.73),
        ("clipped", "low-honest"): (0.70, 0.72),
        ("clipped", "low-far"): (0.69, 0.69),
        ("clipped", "even-honest"): (0.6, 0.6),
    }
    records = [
        cell_of(method, setting, seed).plain() | {"honest_accuracy": x}
        for (method, setting), found in accuracies.items()
        for seed, x in enumerate(found)
    ]
    broken = cell_of("clipped", "even-far").plain() | {"stopped": "not finite"}
    cells = Cells("small", {key_of(record): record for record in [*records, broken]})
    lines = influence.influence(cells).splitlines()
    assert lines[-3:] == [
        "| the truth | none | 72.0 | +1.0 ± 0.0 | - | - | 2 |",
        "| the truth | clip=1, liars=2 | 71.0 | - | 60.0 | - | 2 |",
        "| a fixed far vector | clip=1, liars=2 | 69.0 | -2.0 ± 1.0 | 0.0 | -60.0 | 2 |",
    ]
    assert influence.influence(Cells("small", {})) == ""
