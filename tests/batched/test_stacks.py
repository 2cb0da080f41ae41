"""Stacks of Linear and ReLU: equal to autograd, row by row, and nothing else is taken."""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from aspire.compiled import native
from aspire.problem.objective import Flat, Objective
from aspire.problem.problem import build
from aspire.problem.sites import gradients
from aspire.problem.stacks import recognise
from tests.helpers import blobs, linear

EITHER = pytest.mark.parametrize("compiled", [True, False])
LOSSES = {"cross_entropy": cross_entropy, "mse": mse_loss}


@contextmanager
def compiled_or_not(compiled, dtype=torch.float32):
    """With the library, or as on a machine that has no compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "library", lambda dtype: None)
        elif native.library(dtype) is None:
            pytest.skip("there is no compiled code here")
        yield


def stack(widths, biases, last_relu, nested, flatten):
    parts = []
    for a, b, bias in zip(widths, widths[1:], biases, strict=False):
        parts += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    parts = parts if last_relu else parts[:-1]
    if nested and len(parts) > 1:
        parts = [nn.Sequential(*parts[:2]), *parts[2:]]
    return nn.Sequential(*([nn.Flatten()] if flatten else []), *parts)


@st.composite
def cases(draw):
    depth = draw(st.integers(1, 4))
    widths = draw(st.lists(st.integers(1, 40), min_size=depth + 1, max_size=depth + 1))
    biases = draw(st.lists(st.booleans(), min_size=depth, max_size=depth))
    flags = [draw(st.booleans()) for _ in range(3)]
    loss = draw(st.sampled_from(sorted(LOSSES)))
    rows, batch = draw(st.integers(1, 5)), draw(st.integers(1, 9) | st.sampled_from([128, 300]))
    decay = draw(st.sampled_from([0.0, 0.1]))
    return widths, biases, flags, loss, rows, batch, decay, draw(st.integers(0, 999))


def both(case, dtype):
    """(gradients, losses, outputs) by hand and by autograd."""
    widths, biases, (last_relu, nested, flatten), loss, rows, batch, decay, seed = case
    torch.manual_seed(seed)
    module = stack(widths, biases, last_relu, nested, flatten).to(dtype)
    objective = Objective(Flat(module), LOSSES[loss], decay)
    found = objective.stack
    assert found is not None
    w = torch.randn(rows, len(objective.flat.start), dtype=dtype)
    x = torch.randn(rows, batch, *([1] if flatten else []), widths[0], dtype=dtype)
    y = torch.randn(rows, batch, widths[-1], dtype=dtype)
    y = torch.randint(0, widths[-1], (rows, batch)) if loss == "cross_entropy" else y
    assert found.takes(x[0], y[0], dtype)
    hand = (found.gradients(w, x, y, decay), found.losses(w, x, y, decay), found.outputs(w, x))
    auto = (
        torch.stack([objective.gradient(*row) for row in zip(w, x, y, strict=True)]),
        torch.stack([objective.value(*r, training=False) for r in zip(w, x, y, strict=True)]),
        torch.stack([objective.flat.output(a, b, training=False) for a, b in zip(w, x)]),  # noqa: B905
    )
    return zip(hand, auto, strict=True)


@EITHER
@given(cases())
@settings(max_examples=60, deadline=None)
def test_float64_equals_autograd_to_1e_12(compiled, case):
    with compiled_or_not(compiled, torch.float64):
        for hand, auto in both(case, torch.float64):
            scale = 1.0 + float(auto.abs().max())
            assert float((hand - auto).abs().max()) <= 1e-12 * scale


@EITHER
@given(cases())
@settings(max_examples=30, deadline=None)
def test_float32_equals_autograd_to_rounding(compiled, case):
    with compiled_or_not(compiled):
        for hand, auto in both(case, torch.float32):
            scale = 1.0 + float(auto.abs().max())
            assert float((hand - auto).abs().max()) <= 2e-5 * scale


def shared():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    module[0].weight.requires_grad_(False)
    return module


def hooked():
    module = nn.Sequential(nn.Linear(4, 2))
    module[0].register_forward_hook(lambda *arguments: None)
    return module


class Own(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "make",
    [
        shared,
        frozen,
        hooked,
        lambda: Own(nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
        lambda: nn.Conv1d(1, 1, 1),
    ],
)
def test_anything_else_is_left_to_autograd(make):
    assert Objective(Flat(make()), cross_entropy).stack is None


def test_other_losses_and_shapes_are_left_to_autograd():
    module = nn.Linear(4, 2)
    assert recognise(module, ["weight", "bias"], lambda a, b: cross_entropy(a, b)) is None
    found = recognise(module, ["weight", "bias"], cross_entropy)
    assert found is not None
    x, y = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
    assert found.takes(x, y, torch.float32)
    assert not found.takes(x, torch.zeros(3, 2), torch.float32)  # class probabilities
    assert not found.takes(torch.zeros(3, 5, 4), y, torch.float32)
    assert not found.takes(x.double(), y, torch.float32)
    assert not found.takes([x], y, torch.float32)


@EITHER
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_scores_are_the_losses_and_the_accuracy(decay, compiled):
    sites = [blobs()["s0"], *(site["train"] for site in blobs(3).values())]
    with compiled_or_not(compiled):
        for site in build(linear(), sites, weight_decay=decay).sites:
            w = site.objective.flat.start + 0.5
            found = site.scores(w)
            assert (found.train_loss, found.accuracy) == (site.full_loss(w), site.accuracy(w))
            value = site.objective.value(w, *site.train.pair, training=False)
            assert found.train_loss == pytest.approx(float(value), rel=1e-5)
            assert (found.test_loss is None) == (site.test is None)
            if site.test is not None:
                value = site.objective.value(w, *site.test.pair, training=False)
                assert found.test_loss == pytest.approx(float(value), rel=1e-5)


@EITHER
def test_what_is_no_number_stays_so(compiled):
    objective = Objective(Flat(stack((4, 8, 3), (True, True), False, False, False)), cross_entropy)
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    with compiled_or_not(compiled):
        for broken in (float("nan"), float("inf")):
            w = objective.flat.start.clone()
            w[0] = broken
            assert not objective.gradient(w, x, y, plain=True).isfinite().all()
            if compiled:
                assert not math.isfinite(objective.stack.judge(w, x, y, 0.0)[0])


@EITHER
def test_a_row_of_another_length_is_refused(compiled):
    """C would read and write beside it."""
    objective = Objective(Flat(stack((4, 8, 3), (True, True), False, False, False)), cross_entropy)
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    with compiled_or_not(compiled):
        for w in (objective.flat.start[:-1], torch.zeros(3)):
            with pytest.raises((ValueError, RuntimeError)):
                objective.gradient(w, x, y, plain=True)
            if compiled:
                with pytest.raises(ValueError, match="expected"):
                    objective.stack.judge(w, x, y, 0.0)


def test_a_target_that_is_no_class_is_not_looked_up():
    objective = Objective(Flat(nn.Linear(4, 3)), cross_entropy)
    x, y = torch.randn(2, 4), torch.tensor([1, 3])
    with compiled_or_not(True), pytest.raises(IndexError):
        objective.gradient(objective.flat.start, x, y, plain=True)


def test_many_rows_draw_the_batches_of_each_site():
    sites = [site["train"] for site in blobs(5).values()]
    made = build(linear(), sites, batch_size=200).sites
    w = made[0].objective.flat.start + torch.randn(5, len(made[0].objective.flat.start))
    draws = [3, 0, 2**33, 7, 1]
    with compiled_or_not(True):
        together = gradients(made, w, draws)
        alone = [site.gradient(row, n) for site, row, n in zip(made, w, draws, strict=True)]
    assert torch.equal(together, torch.stack(alone))


@given(cases())
@settings(max_examples=40, deadline=None)
def test_a_compiled_row_is_the_same_to_the_bit_beside_any_others(case):
    widths, biases, (last_relu, nested, flatten), _, rows, batch, decay, seed = case
    torch.manual_seed(seed)
    module = stack(widths, biases, last_relu, nested, flatten)
    found = Objective(Flat(module), cross_entropy).stack
    w = torch.randn(rows, sum(found.sizes))
    x = torch.randn(rows, batch, *([1] if flatten else []), widths[0])
    y = torch.randint(0, widths[-1], (rows, batch))
    with compiled_or_not(True):
        together = found.gradients(w, x, y, decay)
        for r in range(rows):
            one = slice(r, r + 1)
            assert torch.equal(together[one], found.gradients(w[one], x[one], y[one], decay))
