"""Activations and dropout of stacks: equal to torch's autograd, compiled or not, row by row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from aspire.compiled import native
from aspire.problem import batches
from aspire.problem.objective import Flat, Objective
from aspire.problem.problem import build
from aspire.problem.sites import gradients
from tests.helpers import blobs

Make = Callable[[], nn.Module]
COMPILED: dict[str, Make] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "elu": lambda: nn.ELU(0.7),
    "selu": nn.SELU,
    "celu": lambda: nn.CELU(2.0),  # whose inverse torch has exactly
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": lambda: nn.Softplus(2.0, 3.0),
    "hardtanh": lambda: nn.Hardtanh(-0.5, 0.8),
    "relu6": nn.ReLU6,
}
OTHERS: dict[str, Make] = {
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "softsign": nn.Softsign,
    "logsigmoid": nn.LogSigmoid,
    "tanhshrink": nn.Tanhshrink,
    "softshrink": nn.Softshrink,
    "hardshrink": nn.Hardshrink,
    "threshold": lambda: nn.Threshold(0.1, 0.3),
}
PRECISION = {torch.float64: 1e-12, torch.float32: 2e-5}


def network(activation: Make, *, drop: float = 0.0, first: float = 0.0) -> nn.Module:
    """Widths that are and are not whole vectors; an activation after the last layer, too."""
    layers = [
        *([nn.Dropout(first)] if first else []),
        nn.Linear(5, 16),
        activation(),
        *([nn.Dropout(drop)] if drop else []),
        nn.Linear(16, 9, bias=False),
        activation(),
        *([nn.Dropout(drop)] if drop else []),
        nn.Linear(9, 3),
        activation(),
    ]
    return nn.Sequential(*layers)


def objective_of(module: nn.Module, execution: str, loss: str = "classes") -> Objective:
    mean = cross_entropy if loss == "classes" else mse_loss
    return Objective(Flat(module), mean, 0.1, execution=execution)


def drawn(
    objective: Objective, rows: int, batch: int, loss: str = "classes"
) -> tuple[Tensor, Tensor, Tensor]:
    start = objective.flat.start
    w = 0.7 * torch.randn(rows, len(start), dtype=start.dtype)
    x = 2.0 * torch.randn(rows, batch, 5, dtype=start.dtype)
    if loss == "classes":
        return w, x, torch.randint(0, 3, (rows, batch))
    return w, x, torch.randn(rows, batch, 3, dtype=start.dtype)


def needs_a_compiler(dtype: torch.dtype = torch.float32) -> None:
    if native.library(dtype) is None:
        pytest.skip("there is no compiled code here")


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("execution", ["compiled", "rows"])
@pytest.mark.parametrize("name", [*COMPILED, *OTHERS])
def test_gradients_are_those_of_autograd(name: str, execution: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = network((COMPILED | OTHERS)[name]).to(dtype)
    objective = objective_of(module, execution)
    found = objective.stack
    assert found is not None
    if execution == "compiled":
        needs_a_compiler(dtype)
    w, x, y = drawn(objective, rows=3, batch=150)  # more than one piece of a compiled batch
    assert found.compiled(w) == (execution == "compiled" and name in COMPILED)
    expected = torch.stack([objective.gradient(*row) for row in zip(w, x, y, strict=True)])
    scale = 1.0 + float(expected.abs().max())
    for some in (found.gradients(w, x, y, 0.1), found.gradients(w[1:2], x[1:2], y[1:2], 0.1)):
        same_rows = expected if len(some) == 3 else expected[1:2]
        assert float((some - same_rows).abs().max()) <= PRECISION[dtype] * scale
    value = objective.value(w[0], x[0], y[0], training=False)
    assert float(found.losses(w, x, y, 0.1)[0]) == pytest.approx(float(value), rel=1e-5)
    if found.compiled(w[0]):
        assert found.judge(w[0], x[0], y[0], 0.1)[0] == pytest.approx(float(value), rel=1e-5)


# Sums over the inputs of few outputs, and over many classes, go across vectors.
WIDE = {
    name: nn.Sequential(nn.Linear(150, 40), nn.ReLU(), nn.Linear(40, 70), nn.ReLU(), last)
    for name, last in {"narrow": nn.Linear(70, 3), "classes": nn.Linear(70, 50)}.items()
}


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("name", [*COMPILED, *WIDE])
def test_the_width_of_vectors_changes_no_byte(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor has vectors of one width")
    needs_a_compiler(dtype)
    monkeypatch.setattr(native, "library", native.library.__wrapped__)  # which remembers nothing
    torch.manual_seed(0)
    module = WIDE[name] if name in WIDE else network(COMPILED[name])
    objective = objective_of(copy.deepcopy(module).to(dtype), "compiled")
    w = torch.randn(3, len(objective.flat.start), dtype=dtype)
    x = torch.randn(3, 150, module[0].in_features, dtype=dtype)
    y = torch.randint(0, 3, (3, 150))
    found = []
    for vectors in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda v=vectors: v)
        stack = replace(objective).stack
        assert stack is not None
        found.append((stack.gradients(w, x, y, 0.1).tolist(), stack.judge(w[0], x[0], y[0], 0.1)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["gelu", "mish"])
def test_squared_errors_go_by_rows(name: str) -> None:
    torch.manual_seed(0)
    objective = objective_of(network((COMPILED | OTHERS)[name]), "rows", "squares")
    assert objective.stack is not None
    w, x, y = drawn(objective, rows=3, batch=7, loss="squares")
    expected = torch.stack([objective.gradient(*row) for row in zip(w, x, y, strict=True)])
    torch.testing.assert_close(objective.stack.gradients(w, x, y, 0.1), expected)


# ---------------------------------------------------------------- dropout

KEYS = [(1, 2), (4_000_000_000, 77), (5, 6)]


def by_hand(module: nn.Module, w: Tensor, x: Tensor, y: Tensor, key: tuple[int, int]) -> Tensor:
    """The gradient of one row with the masks of `batches.kept`, by autograd."""
    flat = Flat(module)
    leaf = w.clone().requires_grad_(True)
    views = flat.split(leaf)
    h, first = x, 0
    for number, m in enumerate(module):
        if isinstance(m, nn.Dropout):
            kept = batches.kept([key], first, h.numel(), m.p, h.device).view(h.shape)
            h = h * kept / (1.0 - m.p)
        elif isinstance(m, nn.Linear):
            first += h.numel()
            h = nn.functional.linear(h, views[f"{number}.weight"], views.get(f"{number}.bias"))
        else:
            h = m(h)
    return torch.autograd.grad(cross_entropy(h, y) + 0.05 * leaf.square().sum(), leaf)[0]


@pytest.mark.parametrize("execution", ["compiled", "rows"])
@pytest.mark.parametrize("name", ["relu", "gelu", "identity"])
def test_dropout_has_the_masks_of_its_keys(name: str, execution: str) -> None:
    needs_a_compiler(torch.float64)
    torch.manual_seed(0)
    module = network(COMPILED[name], drop=0.3, first=0.2).double()
    stack = objective_of(module, execution).stack
    assert stack is not None
    assert stack.random
    w, x, y = drawn(objective_of(module, execution), rows=3, batch=150)
    found = stack.gradients(w, x, y, 0.1, KEYS)
    rows = zip(w, x, y, KEYS, strict=True)
    torch.testing.assert_close(found, torch.stack([by_hand(module, *row) for row in rows]))
    with pytest.raises(ValueError, match="keys"):
        stack.gradients(w, x, y, 0.1)


def test_dropout_drops_its_share_and_other_numbers_in_every_stream() -> None:
    kept = batches.kept(KEYS, 2**32 - 5000, 10_000, 0.3, torch.device("cpu"))
    assert kept.double().mean(1).tolist() == pytest.approx([0.7] * 3, abs=0.02)
    assert float((kept[0] == kept[1]).double().mean()) == pytest.approx(0.58, abs=0.02)


def test_a_row_is_the_same_to_the_bit_beside_any_others() -> None:
    needs_a_compiler()
    torch.manual_seed(0)
    stack = objective_of(network(nn.GELU, drop=0.3, first=0.1), "compiled").stack
    assert stack is not None
    w, x, y = drawn(objective_of(network(nn.GELU), "compiled"), rows=3, batch=20)
    together = stack.gradients(w, x, y, 0.0, KEYS)
    for r in range(3):
        one = slice(r, r + 1)
        assert torch.equal(together[one], stack.gradients(w[one], x[one], y[one], 0.0, KEYS[one]))


@pytest.mark.parametrize("execution", ["compiled", "rows"])
def test_sites_draw_their_dropout_by_their_own_batches(execution: str) -> None:
    """Together, alone, and with a secret key: other batches have other masks."""
    needs_a_compiler()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))
    sites = [site["train"] for site in blobs(4).values()]
    made = build(module, sites, batch_size=20, execution=execution).sites
    w = made[0].objective.flat.start.expand(4, -1).contiguous()
    found = gradients(made, w, [3, 0, 7, 7])
    alone = [site.gradient(row, n) for site, row, n in zip(made, w, [3, 0, 7, 7], strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))
    assert not torch.equal(made[0].gradient(w[0], 1), made[0].gradient(w[0], 2))
    secret = replace(made[0], batch_size=20).keyed(b"k" * 32)
    assert torch.equal(secret.gradient(w[0], 1), secret.gradient(w[0], 1))
    assert not torch.equal(secret.gradient(w[0], 1), made[0].gradient(w[0], 1))
