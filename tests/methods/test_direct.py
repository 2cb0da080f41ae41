"""The direct form: one step by hand, unequal speeds, clipping, and torch's optimisers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from aspire import train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.methods import aspire, direct
from aspire.methods.optimisers import (
    Default,
    FlooredAdamW,
    moments_of,
    opened,
    scales_of,
)
from aspire.sets import CDNorm, Simplex
from aspire.simulator.delays import Constant
from aspire.types import Joined, Left, Stepped
from tests.helpers import Board, Quadratic, blobs, same

START = torch.tensor([0.5, -0.5], dtype=torch.float64)
EVEN = CDNorm(radius=0.1, budget=0.0)


def sgd(rate: float) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    return lambda groups: torch.optim.SGD(groups, lr=rate)


def started(method: Any, *centres: tuple[float, float]) -> Board:
    board = Board(method, [Quadratic(c) for c in centres], START)
    for j in range(len(centres)):
        board.absorb(board.report(j))
    return board


def test_one_step_by_hand() -> None:
    """d = pi_0/s_0 g_0 with pi = 1/2 and s = 1/2 is g_0; the average starts at the new z."""
    method = direct(EVEN, quorum=1, optimizer=sgd(0.1), loss_tasks=False)
    board = started(method, (1.0, 0.0), (-1.0, 0.0))
    infos = board.absorb(board.report(0))
    assert infos == [Stepped(0, (0,))]
    z = START - 0.1 * (START - torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(board.master.z, z)
    torch.testing.assert_close(method.model(board.master), z)
    torch.testing.assert_close(board.hands[0].vectors["w"], z)
    torch.testing.assert_close(board.hands[1].vectors["w"], START)  # what it was handed stays


def test_the_multipliers_follow_the_losses() -> None:
    """rho1 = 0.1/(n m) a report, c1 = 0.02 m/sqrt(t + 1): one loss task by hand."""
    board = started(direct(Simplex(), quorum=2, optimizer=sgd(0.0)), (1.0, 0.0), (9.0, 0.0))
    for _ in range(40):
        board.absorb(board.report(min(board.hands)))
    A = board.master.planes
    assert A.lam.sum() == pytest.approx(1.0)
    assert method_weights(board)[1] > 0.9


class Costly(Quadratic):
    """A loss costs as much as ten gradients."""

    loss_samples = 30


@pytest.mark.parametrize("loss_tasks", [True, False])
def test_losses_cost_at_most_a_quarter_of_what_gradients_cost(loss_tasks: bool) -> None:
    """Of 20 sites two have weight; nobody answers before all others have been asked."""
    sites = [Costly((float(j > 17), 0.0), offset=100.0 * (j > 17)) for j in range(20)]
    method = direct(Simplex(), quorum=2, optimizer=sgd(0.01), loss_tasks=loss_tasks)
    board = Board(method, sites, START)
    for j in range(20):
        board.turn(j)
    order = list(board.hands)
    asked: dict[int, int] = {}
    gradients = 0.0
    for _ in range(800):
        asked |= {
            task.id: sites[j].loss_samples
            for j, task in board.hands.items()
            if task.kind in ("both", "loss")
        }
        assert sum(asked.values()) <= 0.25 * gradients
        order += [j for j in board.hands if j not in order]
        said = board.report(order.pop(0))
        gradients += 3.0 * said.scalars["gradients"]
        board.absorb(said)
    assert sum(asked.values()) >= 0.2 * gradients


def test_what_a_site_says_of_its_costs_does_not_silence_the_others() -> None:
    board = started(direct(Simplex(), quorum=1), (0.0, 0.0), (1.0, 0.0), (2.0, 0.0))
    for n in range(60):
        j = sorted(board.hands)[n % len(board.hands)]
        said = board.report(j)
        if j == 0 and "loss" in said.scalars:
            said.scalars["loss_samples"] = 1e12
        board.absorb(said)
    assert board.master.heard[1:].min() > 30


def method_weights(board: Board) -> np.ndarray:
    return np.asarray(board.method.look(board.master).weights)


@pytest.mark.parametrize("delay", [(1.0, 1.0, 7.0), (7.0, 1.0, 1.0)])
def test_slow_sites_count_as_much_as_fast_ones(delay: tuple[float, ...]) -> None:
    """Even weights over three quadratics end at their mean, whatever the speeds."""
    sites = {}
    for name, value in (("a", 0.0), ("b", 3.0), ("c", 9.0)):
        x = torch.ones(8, 1)
        sites[name] = (x, torch.full((8, 1), value))
    model = nn.Linear(1, 1, bias=False)
    method = direct(EVEN, quorum=1, optimizer=sgd(0.005), loss_tasks=False)
    run = train(
        model, sites, method=method, loss="mse", iterations=4000, delays=Constant(delay),
        batch_size=None,
    )  # fmt: skip
    assert float(run.model.weight.detach()) == pytest.approx(4.0, abs=0.25)


def test_half_of_the_sites_make_a_step_and_waiting_names_the_rest() -> None:
    board = started(direct(loss_tasks=False), *[(float(j), 0.0) for j in range(5)])
    assert board.absorb(board.report(0)) == []
    assert [type(info) for info in board.absorb(board.report(3))] == [Stepped]
    bound = started(direct(loss_tasks=False, quorum=1, staleness=2), (0.0, 0.0), (1.0, 0.0))
    bound.absorb(bound.report(0))
    assert bound.absorb(bound.report(0)) == []  # site 1 is two steps behind
    assert bound.method.look(bound.master).waiting == [1]
    assert [info.workers for info in bound.absorb(bound.report(1))] == [(0, 1)]


def test_who_leaves_takes_its_share_along() -> None:
    board = started(direct(loss_tasks=False, quorum=1), (0.0, 0.0), (1.0, 0.0), (2.0, 0.0))
    for j in (0, 1, 2, 0, 1):
        board.absorb(board.report(j))
    board.hands.pop(1)
    board.absorb(Left(1))
    assert board.master.share.sum() == pytest.approx(1.0)
    assert board.master.share[1] == 0
    assert method_weights(board)[1] == 0
    board.absorb(Joined(1))
    board.absorb(board.report(1))
    assert board.master.share.sum() == pytest.approx(1.0)
    assert board.master.share[1] == pytest.approx(1 / 3)
    assert method_weights(board).sum() == pytest.approx(1.0)


def test_a_long_report_is_clipped_and_counted() -> None:
    """With one liar tolerated the bound is the second largest norm."""
    far = Quadratic((1e6, 0.0))
    method = direct(EVEN, quorum=1, clip=1.0, optimizer=sgd(0.01), loss_tasks=False)
    board = Board(method, [Quadratic((1.0, 0.0)), Quadratic((0.0, 1.0)), far], START)
    for j in (0, 1, 2):
        board.absorb(board.report(j))
    for j in (0, 1):
        board.absorb(board.report(j))
    before = board.master.z.clone()
    board.absorb(board.report(2))
    norms = np.sort(board.master.norm)
    assert board.master.clipped[2] == 1
    moved = float((board.master.z - before).norm())
    assert moved == pytest.approx(0.01 * 3 * (1 / 3) * norms[1])  # rate, 1/s_j, pi_j, |g|


def test_regret_is_what_the_adversary_sees() -> None:
    """A site whose loss cannot fall keeps no weight if its reference says so."""
    sites = [Quadratic((0.0, 0.0)), Quadratic((0.0, 0.0), offset=50.0)]
    plain = Board(direct(Simplex(), quorum=1), sites, START)
    fair = Board(direct(Simplex(), quorum=1, reference=[0.0, 50.0]), sites, START)
    for board in (plain, fair):
        for n in range(60):
            board.absorb(board.report(sorted(board.hands)[n % len(board.hands)]))
    assert method_weights(plain)[1] > 0.95
    assert method_weights(fair)[1] == pytest.approx(0.5, abs=0.2)


def test_scales_follow_the_tensors() -> None:
    w, b, zero = torch.full((4, 3), 0.2), torch.zeros(4), torch.zeros(5, 16)
    assert scales_of([w, b, zero]) == pytest.approx((0.2, 0.225, 0.25))


def test_an_adapter_is_one_factor_of_the_default_step() -> None:
    """Two adapters, each with a matrix that starts at zero, and a head: three factors, not five."""
    shapes = {"a": (4, 9), "b": (9, 4), "c": (4, 9), "d": (9, 4), "head": (2, 9), "bias": (2,)}
    z = torch.cat(
        [(0.0 if n in "bd" else 0.5) * torch.ones(s).reshape(-1) for n, s in shapes.items()]
    )
    moments = moments_of(z, tuple(shapes.items()))
    groups = opened(Default(None, 0.0, False), None, z, moments).optimizer.param_groups
    assert [group["depth"] for group in groups] == [3] * 6
    assert [group["lr"] for group in groups] == pytest.approx([0.4 / 3 * 0.5] * 6)
    z.fill_(0.5)  # a run that goes on keeps the depth of its start
    again = opened(Default(None, 0.0, False), None, z, moments).optimizer.param_groups
    assert [group["lr"] for group in again] == [group["lr"] for group in groups]


def test_the_floor_stops_a_coordinate_that_one_site_uses() -> None:
    """Both coordinates get the same sum of steps under Adam; with the floor the rare one hardly."""
    x = torch.zeros(1000)
    made = FlooredAdamW([x], lr=0.01, betas=(0.5, 0.999), weight_decay=0.0)
    for n in range(100):
        x.grad = torch.ones(1000)
        x.grad[0] = 0.01 if n % 10 == 0 else 0.0
        made.step()
    assert abs(float(x[1])) == pytest.approx(1.0, rel=0.01)
    assert abs(float(x[0])) < 0.01


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)


def test_a_schedule_is_where_it_was_after_a_resume() -> None:
    z = torch.randn(6)
    moments = moments_of(z, (("w", (3, 2)),))
    fresh = opened(sgd(0.1), cosine, z, moments)
    for _ in range(7):
        fresh.optimizer.step()
        fresh.schedule.step()
    again = opened(sgd(0.1), cosine, z, moments, steps=7)
    assert again.optimizer.param_groups[0]["lr"] == fresh.optimizer.param_groups[0]["lr"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 2))


@pytest.mark.parametrize("schedule", [None, cosine])
@pytest.mark.parametrize("clip", [None, 2.0])
def test_a_stopped_run_goes_on_to_the_same_bytes_and_replays(
    tmp_path: Path, schedule: Any, clip: float | None
) -> None:
    method = direct(quorum=2, staleness=9, schedule=schedule, clip=clip)
    given: dict[str, Any] = {"method": method, "iterations": 60, "batch_size": 8}
    whole = train(network(), blobs(4), out=tmp_path / "whole", **given)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen > 70

    with pytest.raises(Interrupted):
        train(network(), blobs(4), out=tmp_path / "run", stop=stop, **given)
    job = prepare(network(), blobs(4), **given)
    job.settings["log"] = "full"
    run = resume(tmp_path / "run", job)
    parameters = zip(run.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in parameters)
    assert same(run.weights, whole.weights)
    replay(tmp_path / "run", job)


def test_networks_learn_more_than_in_the_consensus_form() -> None:
    given: dict[str, Any] = {"gradients": 1500, "batch_size": 16}
    ours = train(network(), blobs(4), method=direct(), **given)
    theirs = train(network(), blobs(4), method=aspire(form="consensus"), **given)
    assert ours.worst_loss < theirs.worst_loss


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"quorum": 0}, "quorum=0"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"optimizer": sgd(0.1), "learning_rate": 0.1}, "optimizer is given"),
        ({"liars": -1}, "liars=-1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        direct(**arguments)


def test_what_is_no_optimizer_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="expected a torch optimizer"):
        prepare(
            network(), blobs(2), method=direct(optimizer=lambda groups: 1), iterations=1
        ).begin()
    with pytest.raises(ValueError, match="reference has 3 entries"):
        prepare(network(), blobs(2), method=direct(reference=[1, 2, 3]), iterations=1).begin()


@pytest.mark.parametrize("steps", [4, 10])
def test_local_steps_do_not_run_away(steps: int) -> None:
    """Labels at random, so that some coordinates are quiet at first and loud later."""
    rng = torch.Generator().manual_seed(0)
    sites = [
        (torch.randn(50, 3, generator=rng), torch.randint(2, (50,), generator=rng))
        for _ in range(16)
    ]
    run = train(network(), sites, local_steps=steps, iterations=30, batch_size=16)
    assert run.worst_loss < 1.5
