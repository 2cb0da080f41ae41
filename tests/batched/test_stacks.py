"""Stacks of Linear and ReLU by hand: equal to autograd, row by row, and nothing else is taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from aspire.objective import Flat, Objective
from aspire.problem import build
from aspire.stacks import recognise
from tests.helpers import blobs, linear

LOSSES = {"cross_entropy": cross_entropy, "mse": mse_loss}


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
    rows, batch = draw(st.integers(1, 5)), draw(st.integers(1, 9))
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


@given(cases())
@settings(max_examples=60, deadline=None)
def test_float64_equals_autograd_to_1e_12(case):
    for hand, auto in both(case, torch.float64):
        scale = 1.0 + float(auto.abs().max())
        assert float((hand - auto).abs().max()) <= 1e-12 * scale


@given(cases())
@settings(max_examples=30, deadline=None)
def test_float32_equals_autograd_to_rounding(case):
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


@pytest.mark.parametrize("make", [
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
])  # fmt: skip
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


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_scores_are_the_loss_and_the_accuracy(decay):
    sites = [site["train"] for site in blobs(3).values()]
    for site in build(linear(), sites, weight_decay=decay).sites:
        w = site.objective.flat.start + 0.5
        assert site.scores(w) == (site.full_loss(w), site.accuracy(w))


@given(cases())
@settings(max_examples=40, deadline=None)
def test_a_row_is_the_same_to_the_bit_beside_any_others(case):
    widths, biases, (last_relu, nested, flatten), loss, rows, batch, decay, seed = case
    torch.manual_seed(seed)
    objective = Objective(Flat(stack(widths, biases, last_relu, nested, flatten)), LOSSES[loss])
    w = torch.randn(rows, len(objective.flat.start))
    x = torch.randn(rows, batch, *([1] if flatten else []), widths[0])
    y = torch.randn(rows, batch, widths[-1])
    y = torch.randint(0, widths[-1], (rows, batch)) if loss == "cross_entropy" else y
    assert objective.stack.rowwise(w, batch)
    together = objective.stack.gradients(w, x, y, decay)
    for r in range(rows):
        one = slice(r, r + 1)
        assert torch.equal(together[one], objective.stack.gradients(w[one], x[one], y[one], decay))


def test_wide_layers_are_left_to_torchs_batched_products():
    wide = Objective(Flat(nn.Linear(2048, 3)), cross_entropy)
    assert wide.stack.rowwise(wide.flat.start, 16)
    assert not wide.stack.rowwise(wide.flat.start, 64)
