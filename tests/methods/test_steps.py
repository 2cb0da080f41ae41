"""What the baselines share: optimizers, step decay, bounded reports and priors, by hand to 1e-12.

The problem is that of test_golden: two quadratics, start w = (1/2, 1/2).
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aspire import train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.methods import METHODS, afl, cover, drfa_prox, fedavg, gcivr, gda, ind, q_ffl
from aspire.methods.baselines.draws import WEIGHTED
from aspire.methods.baselines.shared import Shared, SharedArguments
from aspire.methods.by_name import takes
from aspire.problem import batches
from aspire.sets import CDNorm
from aspire.types import Left
from tests.helpers import blobs, linear
from tests.methods.test_golden import W0, begun, close, grad, losses, play, sgd, simplex

SHARED = {name: make for name, make in METHODS.items() if takes(name, "settle")}


class Adam:
    """AdamW with betas .5 and .999, without decay."""

    def __init__(self) -> None:
        self.m = self.v = np.zeros(2)
        self.t = 0

    def step(self, w: Any, g: Any, rate: float) -> Any:
        self.t += 1
        self.m = 0.5 * self.m + 0.5 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        m, v = self.m / (1 - 0.5**self.t), self.v / (1 - 0.999**self.t)
        return w - rate * m / (np.sqrt(v) + 1e-8)


class Momentum:
    """b <- .9 b + g."""

    def __init__(self) -> None:
        self.b = np.zeros(2)

    def step(self, w: Any, g: Any, rate: float) -> Any:
        self.b = 0.9 * self.b + g
        return w - rate * self.b


def mean_of_ends(w: Any, rate: float) -> Any:
    return np.mean([sgd(j, w, 2, rate)[-1] for j in (0, 1)], axis=0)


# ---------------------------------------------------------------- optimizers


@pytest.mark.parametrize(("given", "rate"), [(0.1, 0.1), (None, 0.4 * 0.5)])
def test_fedavg_with_adam_takes_w_minus_the_mean_as_gradient(
    given: float | None, rate: float
) -> None:
    """Without a learning rate it is 0.4 times the size of the tensor at the start, 1/2."""
    board, w, adam = begun(fedavg(2, 0.1, optimizer="adam", learning_rate=given)), W0, Adam()
    for _ in range(4):
        play(board)
        w = adam.step(w, w - mean_of_ends(w, 0.1), rate)
        close(board.master.w, w)
        close(board.method.model(board.master), w)


def test_momentum_takes_the_methods_own_rate() -> None:
    even = CDNorm(radius=0.1, budget=0.0)  # its weights do not move
    board, w, momentum = begun(gda(even, 0.05, optimizer="momentum")), W0, Momentum()
    for _ in range(4):
        play(board)
        w = momentum.step(w, sum(0.5 * grad(j, w) for j in (0, 1)), 0.05)
        close(board.master.w, w)


def test_momentum_after_local_steps_has_rate_one() -> None:
    board, w, momentum = begun(fedavg(2, 0.01, optimizer="momentum")), W0, Momentum()
    for _ in range(4):
        play(board)
        w = momentum.step(w, w - mean_of_ends(w, 0.01), 1.0)
        close(board.master.w, w)


def test_an_optimizer_and_a_schedule_of_ones_own() -> None:
    def optimizer(groups: Any) -> torch.optim.Optimizer:
        assert [group["name"] for group in groups] == ["w"]
        return torch.optim.SGD(groups, lr=0.5)

    def schedule(one: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(one, 0.5)

    board, w = begun(afl(7.0, 0.2, optimizer=optimizer, schedule=schedule, settle=3)), W0
    lam = np.array([0.5, 0.5])
    for t in range(4):
        play(board)
        rate = 0.5 * 0.5**t / np.sqrt(1 + t / 3)
        slope = sum(lam[j] * grad(j, w) for j in (0, 1))
        w, lam = w - rate * slope, simplex(lam + 0.2 * losses(w))
        close(board.master.w, w)
    assert board.method.settings["optimizer"].endswith("optimizer")


STILL: dict[str, Any] = {
    "fedavg": lambda **more: fedavg(2, 0.1, **more),
    "q_ffl": lambda **more: q_ffl(2.0, 2, 0.1, **more),
    "drfa_prox": lambda **more: drfa_prox(2, 0.1, 0.05, sampled=2, **more),
    "ind": lambda **more: ind(1, rate=0.1, **more),
}


@pytest.mark.parametrize("name", STILL)
def test_a_plain_step_of_length_one_is_the_method_itself(name: str) -> None:
    """FedOpt with SGD(1) gives w - (w - new) = new."""
    plain = begun(STILL[name]())
    other = begun(STILL[name](optimizer=lambda groups: torch.optim.SGD(groups, lr=1.0)))
    for _ in range(4):
        play(plain)
        play(other)
        close(other.master.w, plain.master.w)


@pytest.mark.parametrize("make", [cover, gcivr])
def test_composite_methods_hand_over_their_mean_of_gradients(make: Any) -> None:
    plain = begun(make(0.7, 0.05))
    other = begun(make(0.7, 0.05, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.05)))
    for _ in range(4):
        play(plain)
        play(other)
        close(other.master.w, plain.master.w)


# ---------------------------------------------------------------- step decay


def test_afl_settles() -> None:
    board, w, lam = begun(afl(0.1, 0.2, settle=2)), W0, np.array([0.5, 0.5])
    for t in range(4):
        play(board)
        slope = sum(lam[j] * grad(j, w) for j in (0, 1))
        w, lam = w - 0.1 / np.sqrt(1 + t / 2) * slope, simplex(lam + 0.2 * losses(w))
        close(board.master.w, w)
        close(board.method.look(board.master).weights, lam)


def test_local_steps_settle() -> None:
    board, w = begun(fedavg(2, 0.1, settle=0.5)), W0
    for t in range(4):
        play(board)
        w = mean_of_ends(w, 0.1 / np.sqrt(1 + t / 0.5))
        close(board.master.w, w)


def test_q_ffl_divides_by_the_rate_of_the_round() -> None:
    board, w = begun(q_ffl(1.0, 2, 0.1, settle=1, prior=[0.25, 0.75])), W0
    q = np.array([0.25, 0.75])
    for t in range(3):
        play(board)
        eta, F = 0.1 / np.sqrt(1 + t), losses(w)
        D = [(w - sgd(j, w, 2, eta)[-1]) / eta for j in (0, 1)]
        bottom = sum(q[j] * ((D[j] @ D[j]) + F[j] / eta) for j in (0, 1))
        w = w - sum(q[j] * F[j] * D[j] for j in (0, 1)) / bottom
        close(board.master.w, w)
        close(board.method.look(board.master).weights, q * F / (q * F).sum())


# ---------------------------------------------------------------- bounded reports and priors


def test_afl_with_clip_bounds_the_longer_gradient_by_the_shorter() -> None:
    """Of two norms the second largest is the smaller."""
    board, w, lam = begun(afl(0.1, 0.2, clip=1.5, prior=[0.25, 0.75])), W0, np.array([0.25, 0.75])
    counted = np.zeros(2)
    for _ in range(4):
        play(board)
        g = [grad(j, w) for j in (0, 1)]
        norms = np.array([np.linalg.norm(x) for x in g])
        most = 1.5 * norms.min()
        counted += norms > most
        scales = np.minimum(1.0, most / norms)
        slope = sum(lam[j] * scales[j] * g[j] for j in (0, 1))
        w, lam = w - 0.1 * slope, simplex(lam + 0.2 * losses(w))
        close(board.master.w, w)
        close(board.master.norm, norms)
        close(board.master.clipped, counted)
    assert counted.max() > 0


def test_fedavg_with_clip_bounds_the_moves() -> None:
    board, w = begun(fedavg(2, 0.1, clip=1.0)), W0
    for _ in range(3):
        play(board)
        moves = [sgd(j, w, 2, 0.1)[-1] - w for j in (0, 1)]
        norms = [np.linalg.norm(x) for x in moves]
        w = w + np.mean([x * min(1.0, min(norms) / np.linalg.norm(x)) for x in moves], axis=0)
        close(board.master.w, w)


def test_without_liars_the_largest_norm_bounds() -> None:
    plain, other = begun(fedavg(2, 0.1)), begun(fedavg(2, 0.1, clip=1.0, liars=0))
    for _ in range(3):
        play(plain)
        play(other)
    close(plain.master.w, other.master.w)
    assert not other.master.clipped.any()


def test_both_vectors_of_drfa_prox_are_bounded() -> None:
    """Both by the shorter way: the losses are taken at the mean of the bounded iterates."""
    board = begun(drfa_prox(2, 0.1, clip=1.0, sampled=9))
    s = int(board.hands[0].scalars["s"])
    board.turn(0, 1)
    paths = [[x - W0 for x in sgd(j, W0, 2, 0.1)] for j in (0, 1)]
    most = min(np.linalg.norm(path[-1]) for path in paths)
    middle = [path[s - 1] for path in paths]
    drawn = [0 if batches.uniform(0, i, 0, WEIGHTED) < 0.5 else 1 for i in range(9)]
    w_s = W0 + np.mean([middle[j] * min(1.0, most / np.linalg.norm(middle[j])) for j in drawn], 0)
    assert board.hands[0].kind == "snapshot"
    close(board.hands[0].vectors["w"], w_s)


def test_the_norm_of_who_left_is_forgotten() -> None:
    board = begun(fedavg(1, 0.1, clip=1.0))
    play(board)
    assert board.master.norm.min() > 0
    board.absorb(Left(0))
    assert board.master.norm[0] == 0.0


def test_a_site_without_prior_pulls_nowhere() -> None:
    board, alone = (
        begun(q_ffl(2.0, 2, 0.1, prior=[0.0, 1.0])),
        begun(ind(1, local_steps=2, rate=0.1)),
    )
    play(board)
    play(alone)
    F, D = losses(W0)[1], (W0 - sgd(1, W0, 2, 0.1)[-1]) / 0.1
    close(board.master.w, W0 - F**2 * D / (2 * F * (D @ D) + F**2 / 0.1))
    close(board.method.look(board.master).weights, [0.0, 1.0])


# ---------------------------------------------------------------- arguments, and whole runs


def test_the_typed_arguments_are_those_of_the_dataclass() -> None:
    assert list(SharedArguments.__annotations__) == [one.name for one in fields(Shared)]


@pytest.mark.parametrize("name", SHARED)
def test_they_are_spelled_out_and_recorded(name: str) -> None:
    given = {"site": 1} if name == "ind" else {}
    method = SHARED[name](**given, optimizer="adam", settle=20)
    assert (method.settings["optimizer"], method.settings["settle"]) == ("adam", 20)
    known = set(inspect.signature(SHARED[name]).parameters)
    assert known & {"clip", "liars"} == (set() if name == "ind" else {"clip", "liars"})
    assert set(method.site_arguments or {}) <= {"local_steps", "rate", "site"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"optimizer": "sgd"}, "optimizer='sgd': expected 'adam', 'momentum', a function"),
        ({"learning_rate": 0.1}, "learning_rate=0.1 with optimizer=None: expected it with 'adam'"),
        ({"optimizer": "adam", "learning_rate": 0.0}, "learning_rate=0.0: expected a positive"),
        ({"schedule": print}, "schedule=.* with optimizer=None: expected a function, and an"),
        ({"settle": 0}, "settle=0: expected a positive number or None"),
        ({"clip": float("nan")}, "clip=nan: expected a positive number or None"),
        ({"liars": 1.5}, "liars=1.5: expected a whole number of at least 0"),
        ({"average": "yes"}, "average='yes': expected True or False"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fedavg(**given)


def test_an_optimizer_that_cannot_be_made_shows_before_the_run() -> None:
    with pytest.raises(ValueError, match="optimizer gave 3: expected a torch optimizer"):
        begun(afl(optimizer=lambda groups: 3))  # type: ignore[arg-type, return-value]


RUNS: dict[str, Any] = {
    "fedavg": lambda: fedavg(2, 0.3, optimizer="adam", settle=20, clip=2.0, average=True),
    "afl": lambda: afl(optimizer="adam", quorum=2),
    "drfa_prox": lambda: drfa_prox(2, optimizer="adam", schedule=halved),
    "gcivr": lambda: gcivr(optimizer="momentum", clip=1.0),
}


def halved(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_goes_on_to_the_same_bytes_and_replays(
    name: str, double: bool, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"iterations": 24, "batch_size": 8, "method": RUNS[name]()}
    model = linear().double() if double else linear()
    whole = train(model, blobs(4), **given)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen > 60

    with pytest.raises(Interrupted):
        train(model, blobs(4), out=tmp_path / "run", stop=stop, **given)
    job = prepare(model, blobs(4), **given)
    job.settings["log"] = "full"
    run = resume(tmp_path / "run", job)
    assert run.iterations == 24
    pairs = zip(run.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    replay(tmp_path / "run", job)
