"""Losses that users bring: a mean and no sum, of pairs and not all with all, in any chunks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from aspire import train
from aspire.problem.problem import build
from tests.helpers import blobs, linear

QUICK = {"iterations": 4, "batch_size": 8, "evaluate_every": 2}
X, Y = blobs(1)["s0"]["train"]
REAL = X[:, :1] * 2.0 + 0.1
CLASSES = nn.CrossEntropyLoss
SUMS = {
    "CrossEntropyLoss": CLASSES(reduction="sum"),
    "smoothed": CLASSES(reduction="sum", label_smoothing=0.1),
    "partial": partial(F.cross_entropy, reduction="sum"),
    "a function": lambda o, t: F.cross_entropy(o, t, reduction="none").sum(),
    "with a constant": lambda o, t: F.cross_entropy(o, t, reduction="sum") + 100.0,
    "negative": lambda o, t: -o[:, 0].sum(),
    "a norm": lambda o, t: (o - F.one_hot(t, 2)).norm(),
    "noisy": lambda o, t: F.cross_entropy(o, t, reduction="sum") + 0.01 * torch.randn(()),
}


@pytest.mark.parametrize("loss", SUMS.values(), ids=SUMS.keys())
@pytest.mark.parametrize("kind", ["tensors", "Dataset", "one sample"])
def test_a_sum_is_refused(loss, kind):
    site = {
        "tensors": (X, Y),
        "Dataset": TensorDataset(X, Y),
        "one sample": (X[:1], Y[:1]),
    }[kind]
    with pytest.raises(ValueError, match=r"for \d samples and .* twice: expected a mean"):
        train(linear(), {"a": site}, loss=loss, **QUICK)


def test_a_sum_is_refused_though_the_first_samples_do_not_count():
    y = torch.full((4000,), -100)
    y[2001::8] = 1  # none of the eight that are tried first
    x = X.repeat(200, 1)[:4000]
    with pytest.raises(ValueError, match="expected a mean"):
        build(linear(), [(x, y)], loss=CLASSES(reduction="sum"))
    build(linear(), [(x, y)], loss=CLASSES())


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss])
def test_sums_of_real_numbers_are_refused(loss):
    with pytest.raises(ValueError, match=f"the loss {loss.__name__} is .* expected a mean"):
        train(linear(outputs=1), [(X, REAL)], loss=loss(reduction="sum"), **QUICK)
    build(linear(outputs=1), [(X, REAL)], loss=loss())


@pytest.mark.parametrize("site", [(X, Y), (X[:1], Y[:1])], ids=["some", "one"])
def test_one_number_a_sample_is_refused(site):
    with pytest.raises(ValueError, match="expected one number, the mean over the samples"):
        train(linear(), [site], loss=CLASSES(reduction="none"), **QUICK)


def contrast(o, t):
    """In-batch negatives: it grows like the logarithm of the batch."""
    o = F.normalize(o, dim=1)
    return F.cross_entropy(o @ o.T, torch.arange(len(o)))


MEANS = {
    "weights": CLASSES(weight=torch.tensor([0.1, 5.0])),
    "smoothing": CLASSES(label_smoothing=0.2),
    "ignored": CLASSES(ignore_index=1),
    "a constant": lambda o, t: F.cross_entropy(o, t) + 3.0,
    "a root": lambda o, t: F.mse_loss(o, F.one_hot(t, 2).float()).sqrt(),
    "margins": nn.MultiMarginLoss(),
    "noise": lambda o, t: F.cross_entropy(o + torch.randn_like(o), t),
    "much noise": lambda o, t: F.cross_entropy(o, t) * (1 + 3 * torch.rand(())),
    "all with all": contrast,
    "zero": lambda o, t: (o - o.detach()).sum(),
    "batchmean": lambda o, t: F.kl_div(
        o.log_softmax(1), F.one_hot(t, 2) * 1.0, reduction="batchmean"
    ),
}


@pytest.mark.parametrize("loss", MEANS.values(), ids=MEANS.keys())
def test_a_mean_of_any_kind_is_taken(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 2))
    train(model, [(X, Y), TensorDataset(X, Y)], loss=loss, **QUICK)


def test_noise_alone_is_never_taken_for_a_sum():
    """40 times, with another draw each."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(40):
        rate = torch.rand((), generator=draw)
        build(linear(), [(X, Y)], loss=lambda o, t, r=rate: o.sum() * 0 + r + torch.rand(()))


# ---------------------------------------------------------------- shapes


PAIRED = {
    "MSELoss": nn.MSELoss(),
    "L1Loss": nn.L1Loss(),
    "SmoothL1Loss": nn.SmoothL1Loss(),
    "HuberLoss": nn.HuberLoss(),
    "mse": "mse",
    "F.mse_loss in a function": lambda o, t: F.mse_loss(o, t) + 1.0,
    "by hand": lambda o, t: ((o - t) ** 2).mean(),
    "absolute": lambda o, t: (o - t).abs().mean(),
}


@pytest.mark.parametrize("loss", PAIRED.values(), ids=PAIRED.keys())
def test_targets_get_the_shape_of_one_output(loss):
    """(n, 1) against (n,), which the loss would broadcast."""
    model = linear(outputs=1)
    flat = nn.Sequential(model, nn.Flatten(0))
    for module, right, other in ((model, REAL, REAL[:, 0]), (flat, REAL[:, 0], REAL)):
        same = build(module, [(X, right)], loss=loss)
        made = build(module, [(X, other)], loss=loss)
        assert len(made.sites[0].notes) > len(same.sites[0].notes)
        w = made.flat.start
        assert torch.equal(made.sites[0].gradient(w, 0), same.sites[0].gradient(w, 0))
        assert made.sites[0].loss(w) == same.sites[0].loss(w)


def test_targets_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"model gives shape \(8, 2\).*expected the same shape"):
        train(linear(), [(X, REAL)], loss="mse", **QUICK)


def test_an_untrained_head_and_a_loss_that_makes_shapes_alike():
    """All outputs are zero, so exchanging targets changes nothing at the start."""
    model = linear(outputs=1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    train(model, [(X, REAL[:, 0])], loss=lambda o, t: F.mse_loss(o.squeeze(1), t), **QUICK)


# ---------------------------------------------------------------- chunks

MANY = 5000  # more than a chunk of 4,096
WEIGHTS = torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64)
COUNTED = {
    "weights": CLASSES(weight=WEIGHTS),
    "ignored": CLASSES(ignore_index=2),
    "weights and ignored": CLASSES(weight=WEIGHTS, ignore_index=1),
    "weights, ignored and smoothed": CLASSES(
        weight=WEIGHTS, ignore_index=-100, label_smoothing=0.1
    ),
    "partial": partial(F.cross_entropy, weight=WEIGHTS),
}


def large():
    """Classes in order, so that chunks are unlike each other; some targets are -100."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(MANY, 3, generator=draw, dtype=torch.float64)
    y = (torch.arange(MANY) * 3 // MANY).clamp(max=2)
    return x, y


@pytest.mark.parametrize("loss", COUNTED.values(), ids=COUNTED.keys())
@pytest.mark.parametrize("made", [tuple, lambda pair: TensorDataset(*pair)], ids=["pair", "items"])
def test_a_loss_over_chunks_is_that_of_the_whole_site(loss, made):
    x, y = large()
    if getattr(loss, "ignore_index", 0) == -100 and getattr(loss, "label_smoothing", 0):
        y[::7] = -100
    model = linear(outputs=3).double()
    site = build(model, [made((x, y))], loss=loss, batch_size=None, weight_decay=0.1).sites[0]
    w = site.objective.flat.start.clone().requires_grad_(True)
    output = x @ w[:9].view(3, 3).T + w[9:]
    value = loss(output, y) + 0.05 * w.square().sum()
    (gradient,) = torch.autograd.grad(value, w)
    at, whole = w.detach(), value.item()
    assert site.full_loss(at) == pytest.approx(whole, rel=1e-12)
    assert site.loss(at) == pytest.approx(whole, rel=1e-12)
    assert torch.allclose(site.full_gradient(at), gradient, rtol=1e-11, atol=1e-13)
    kept = y != getattr(loss, "ignore_index", -100)
    right = float((output.argmax(1) == y)[kept].double().mean())
    assert site.accuracy(at) == pytest.approx(right)


def test_a_batch_in_which_nothing_counts_has_no_gradient():
    y = torch.where(torch.arange(30) % 2 > 0, Y, -100)
    objective = build(linear(), [(X, y)], loss=CLASSES(), weight_decay=0.1).sites[0].objective
    w = objective.flat.start
    assert torch.equal(objective.gradient(w, X[::2], y[::2]), 0.1 * w)
    with pytest.raises(ValueError, match="site 0: no target counts"):
        train(linear(), [(X, torch.full((30,), -100))], loss=CLASSES(), **QUICK)


def test_targets_outside_the_classes():
    """-100 is ignored by CrossEntropyLoss() and not by 'cross_entropy'; a loss may take its own."""
    y = Y.clone()
    y[20] = -100
    train(linear(), [(X, y)], loss=CLASSES(), **QUICK)
    own = lambda o, t: F.cross_entropy(o, t, ignore_index=-1)  # noqa: E731
    for loss in ("cross_entropy", CLASSES(ignore_index=-1), own):
        with pytest.raises(ValueError, match="site 0: targets run from -100 to 1: expected 0 to 1"):
            train(linear(), [(X, y)], loss=loss, **QUICK)
    train(linear(), [(X, y)], loss=lambda o, t: F.cross_entropy(o, t.clamp(min=0)), **QUICK)
