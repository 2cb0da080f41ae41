"""`reference` of the direct form: numbers, a model, and what every site reaches alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aspire import train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.api.engines import crew_and_job
from aspire.methods import aspire, direct
from aspire.problem.problem import build
from aspire.sets import Simplex
from aspire.simulator import simulator
from aspire.simulator.delays import Constant
from aspire.types import Facts, Joined, Left, Refused
from tests.helpers import Board, Quadratic, blobs, linear, same, validated
from tests.runtimes.threads import ThreadEngine

START = torch.zeros(1, dtype=torch.float64)


def alone(gradients: int, **arguments: Any) -> Any:
    return direct(reference="own-best", own_gradients=gradients, **arguments)


# ---------------------------------------------------------------- by hand


def test_two_gradients_alone_by_hand() -> None:
    """AdamW with betas .5 and .999: the first step is lr, the second lr m / sqrt(v)."""
    board = Board(alone(2, learning_rate=0.1), [Quadratic([1.0])], START)
    assert board.hands[0].kind == "own"
    said = board.report(0).scalars
    mean = (0.25 * 1.0 + 0.5 * 0.9) / 0.75
    square = (0.999 * 0.001 * 1.0 + 0.001 * 0.81) / (1.0 - 0.999**2)
    w = 0.1 + 0.1 * mean / square**0.5
    assert said["loss"] == 0.5
    assert said["reference"] == pytest.approx(0.5 * (1.0 - w) ** 2, rel=1e-6)
    assert said["gradients"] == 2
    assert said["samples"] == 3 * 2 * 1 + 3 * 1  # f at the start and after each gradient


def test_the_lowest_loss_on_the_way_counts() -> None:
    """0 -> 2 with a step of 2, and the minimum is at .5: nothing is better than the start."""
    board = Board(alone(1, learning_rate=2.0), [Quadratic([0.5])], START)
    assert board.report(0).scalars["reference"] == 0.125


def test_about_twenty_looks_however_long_a_site_trains() -> None:
    board = Board(alone(100, learning_rate=0.01), [Quadratic([1.0])], START)
    said = board.report(0).scalars
    assert said["samples"] == 3 * 100 + 1 + 20


def test_a_model_is_judged_at_every_site() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    board = Board(direct(reference=model), [Quadratic([1.0]), Quadratic([5.0])], START)
    board.probe()
    for j, task in list(board.hands.items()):
        assert task.kind == "compare"
        assert board.report(j).scalars["reference"] == pytest.approx(2.0)
        board.hands[j] = task
    board.turn(0, 1)
    np.testing.assert_allclose(board.master.reference, [2.0, 2.0])
    np.testing.assert_allclose(board.master.planes.F, [0.5 * (0.5 + 12.5) - 2.0])


def test_negative_regrets_and_numbers_by_name() -> None:
    """f = (.5, .5) and r = (0, 4): the worst case is the first site, and w goes to its 1."""
    sites = [Quadratic([1.0]), Quadratic([-1.0])]
    method = direct(Simplex(), reference={"b": 4, "a": 0.0})
    board = Board(method, sites, START, names=("a", "b"))
    board.probe()
    np.testing.assert_allclose(board.master.planes.F, [0.5 * (0.5 + (0.5 - 4.0))])
    for n in range(40):
        board.turn(sorted(board.hands)[n % len(board.hands)])
    assert method.look(board.master).weights[0] > 0.9
    np.testing.assert_allclose(board.master.f, [0.0, 2.0], atol=0.01)  # losses stay losses, at 1


def test_a_false_reference_is_bounded_as_a_false_loss() -> None:
    board = Board(alone(1), [Quadratic([1.0]) for _ in range(3)], START)
    lie = board.report(0)
    for value in (float("nan"), 2e12):
        odd = replace(lie, scalars={**lie.scalars, "reference": value})
        assert [type(info) for info in board.absorb(odd)] == [Refused]
    board.absorb(replace(lie, scalars={**lie.scalars, "reference": -1e12}))
    board.turn(1, 2)
    assert board.master.reference[0] == -1e6 * 0.5
    weights = board.method.look(board.master).weights
    assert (weights <= board.master.upper + 1e-12).all()


def test_who_returns_does_not_train_alone_again() -> None:
    board = Board(alone(2), [Quadratic([float(j)]) for j in range(3)], START)
    assert {task.kind for task in board.hands.values()} == {"own"}
    board.turn(0, 1)
    board.hands.pop(2)
    board.absorb(Left(2))  # before it has a reference
    known = board.master.reference.copy()
    board.hands.pop(1)
    board.absorb(Left(1), Joined(1), Joined(2))
    assert [board.hands[j].kind for j in (1, 2)] == ["probe", "own"]
    board.turn(1, 2)
    assert same(board.master.reference[:2], known[:2])


# ---------------------------------------------------------------- on val, and in virtual time


def test_losses_are_of_the_val_part() -> None:
    sites = validated(2)
    problem = build(linear(), sites, judged=5, judged_on="val")
    w = problem.flat.start
    for site, parts in zip(problem.sites, sites.values(), strict=True):
        assert site.loss_samples == 5
        assert site.val_sample is not None
        x, y = (part[site.val_sample] for part in parts["val"])
        expected = nn.functional.cross_entropy(linear()(x), y).item()
        assert site.loss(w) == pytest.approx(expected, rel=1e-6)
        hidden = site.keyed(b"k" * 32)
        assert hidden.val_sample is not None
        assert not torch.equal(hidden.val_sample, site.val_sample)


def test_it_takes_as_many_delays_as_gradients() -> None:
    problem = build(linear(), validated(3), batch_size=4, judged_on="val")
    run = simulator.begin(alone(7), problem, delays=Constant((1.0, 2.0, 1.0)))
    while not run.master.started:
        run.absorb(run.next_event())
    assert run.time == 14.0
    assert run.gradients == 21
    assert run.master.draws.tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("limits", "own"),
    [
        ({"iterations": 30}, 15),  # 30 steps of 2 gradients, over 4 sites
        ({"gradients": 80}, 10),  # half of them, over 4 sites
        ({"iterations": 30, "gradients": 80}, 10),
        ({"iterations": 1}, 1),
    ],
)
def test_a_site_trains_alone_as_long_as_all_do_together(limits: dict[str, int], own: int) -> None:
    job = prepare(network(), validated(4), reference="own-best", **limits)
    assert job.settings["own_gradients"] == own
    assert job.settings["reference"] == "own-best"


# ---------------------------------------------------------------- whole runs


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(8) if norm else nn.GELU()
    return nn.Sequential(nn.Linear(3, 8), middle, nn.Dropout(0.1), nn.Linear(8, 2))


def other(norm: bool = False) -> nn.Module:
    found = network(norm)
    with torch.no_grad():
        for x in found.parameters():
            x.mul_(1.5)
    return found


REFERENCES: dict[str, Any] = {
    "own-best": lambda: "own-best",
    "model": other,
    "names": lambda: {"s0": 0.1, "s1": 0.2, "s2": 0.3, "s3": 0.4},
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("events", [2, 40])
def test_a_stopped_run_goes_on_to_the_same_bytes_and_replays(
    name: str, events: int, tmp_path: Path
) -> None:
    """Stopped while sites find their references, and later."""
    given: dict[str, Any] = {"reference": REFERENCES[name](), "iterations": 20, "batch_size": 8}
    whole = train(network(), validated(4), out=tmp_path / "whole", **given)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen > events

    with pytest.raises(Interrupted):
        train(network(), validated(4), out=tmp_path / "run", stop=stop, **given)
    job = prepare(network(), validated(4), **given)
    job.settings["log"] = "full"
    run = resume(tmp_path / "run", job)
    parameters = zip(run.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in parameters)
    assert same(run.weights, whole.weights)
    replay(tmp_path / "run", job)
    kept = json.loads((tmp_path / "run" / "run.json").read_text())["reference"]
    expected = given["reference"]
    assert kept.startswith("model ") if name == "model" else kept == expected


@pytest.mark.parametrize("buffers", ["average", "site"])
@pytest.mark.parametrize("reference", ["own-best", "model"])
def test_batch_norm_goes_along(buffers: str, reference: str) -> None:
    given = "own-best" if reference == "own-best" else other(norm=True)
    run = train(
        network(norm=True), validated(3), reference=given, buffers=buffers, iterations=12,
        batch_size=8,
    )  # fmt: skip
    assert np.isfinite(run.losses).all()


def test_on_an_engine_every_site_trains_alone_once() -> None:
    engine = ThreadEngine()
    run = train(
        network(), validated(3), reference="own-best", iterations=12, batch_size=8, engine=engine
    )
    own = [task.worker for task in engine.carriers[0].sent if task.kind == "own"]
    assert sorted(own) == [0, 1, 2]
    assert run.worker_gradients >= 12 + 3 * run.settings["own_gradients"]
    assert run.settings["own_gradients"] == 4


def test_a_site_whose_loss_cannot_fall_keeps_no_weight() -> None:
    """It finds out by itself that it can do no better than 50."""
    sites = [Quadratic([1.0]), Quadratic([1.0], offset=50.0)]
    board = Board(alone(60, uncertainty=Simplex(), quorum=1, learning_rate=0.1), sites, START)
    for n in range(60):
        board.turn(sorted(board.hands)[n % len(board.hands)])
    np.testing.assert_allclose(board.master.reference, [0.0, 50.0], atol=0.05)
    assert board.method.look(board.master).weights[1] == pytest.approx(0.5, abs=0.2)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"reference": "best"}, "reference='best': expected numbers by site, a torch module, 'own"),
        ({"reference": 3.0}, "reference=3.0: expected numbers by site"),
        ({"reference": [[1.0]]}, "reference=.*: expected numbers by site"),
        ({"reference": [0.0, float("nan")]}, r"reference\[1\]=nan: expected a number"),
        ({"reference": {"a": "x"}}, r"reference\['a'\]='x': expected a number"),
        ({"reference": [1e13]}, r"reference\[0\]=1.*: expected a number of at most 1e\+12"),
        ({"reference": "own-best", "own_gradients": 0}, "own_gradients=0: expected a whole number"),
        ({"own_gradients": 5}, "own_gradients=5: expected reference='own-best'"),
    ],
)
def test_bad_references_are_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        direct(**arguments)


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ([1.0], "reference has 1 entries: expected one per site, 2"),
        ({"s0": 1.0}, "reference has the sites s0: expected s0, s1"),
        (nn.Linear(3, 2), r"another architecture: expected the tensor 0.weight .*\(8, 3\).* none;"),
        (nn.Sequential(nn.Linear(3, 9)), r"0.weight of shape \(8, 3\).*one of shape \(9, 3\)"),
    ],
)
def test_references_that_do_not_fit_are_named(reference: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        prepare(network(), blobs(2), reference=reference, iterations=1).begin()


def test_every_site_needs_a_val_part() -> None:
    """The site that is named has none; on an engine it is said where the data is."""
    sites = validated(2)
    del sites["s1"]["val"]
    sentence = "reference='own-best' compares losses on val parts: .*site 's1' has none"
    given: dict[str, Any] = {"reference": "own-best", "iterations": 5}
    with pytest.raises(ValueError, match=sentence):
        prepare(network(), sites, **given)
    crew, _ = crew_and_job(network(), sites, given)
    crew[0]()
    with pytest.raises(ValueError, match=sentence):
        crew[1]()


def test_the_length_must_be_known_and_the_consensus_form_has_no_reference() -> None:
    with pytest.raises(ValueError, match="'own-best' without own_gradients"):
        direct(reference="own-best").init(Facts(2, START), 0)
    with pytest.raises(ValueError, match="reference belongs to form='direct'"):
        aspire(form="consensus", reference="own-best")
