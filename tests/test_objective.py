"""A module with a flat vector in the place of its parameters."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from aspire.problem.copies import twin
from aspire.problem.objective import Flat, Objective


class Tied(nn.Module):
    """One weight under two names, one that is not trained, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3, bias=False))
        self.inner[2].weight = self.inner[0].weight
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.register_buffer("shift", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("negative")
        return self.scale * self.inner(x) + self.shift


@pytest.mark.parametrize("module", [Tied(), nn.Linear(3, 2), nn.LSTM(3, 2)])
def test_it_is_what_functional_call_gives(module: nn.Module) -> None:
    flat, x = Flat(module), torch.rand(4, 3)
    for one in (flat, pickle.loads(pickle.dumps(flat)), copy.deepcopy(flat)):
        w = torch.randn(len(flat.start), requires_grad=True)
        expected = functional_call(one.training, one.split(w), (x,))
        found = one.output(w, x, training=True)
        if isinstance(found, tuple):
            expected, found = expected[0], found[0]
        assert torch.equal(found, expected)
        gradients = (torch.autograd.grad(y.square().sum(), w)[0] for y in (found, expected))
        assert torch.equal(*gradients)


def test_the_module_has_its_own_parameters_again() -> None:
    flat = Flat(Tied())
    before = list(flat.training.named_parameters(remove_duplicate=False))
    w = torch.randn(len(flat.start))
    flat.output(w, torch.ones(1, 3), training=True)
    with pytest.raises(ValueError, match="negative"):
        flat.output(w, -torch.ones(1, 3), training=True)
    after = list(flat.training.named_parameters(remove_duplicate=False))
    assert all(a is b for (_, a), (_, b) in zip(before, after, strict=True))


def test_threads_may_ask_at_once() -> None:
    """Each call has a copy of the module to itself: gradients are those that one thread finds."""
    torch.manual_seed(0)
    layers = (nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 3))
    objective = Objective(Flat(nn.Sequential(*layers)), cross_entropy)
    samples = torch.randn(16, 6), torch.randint(3, (16,))
    rows = torch.randn(64, len(objective.flat.start)).abs()

    def gradient(w: Tensor) -> Tensor:
        return objective.gradient(w, *samples)

    expected = [gradient(w) for w in rows]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(gradient, [*rows] * 5))
    assert all(torch.equal(a, b) for a, b in zip(found, expected * 5, strict=True))
    assert len(objective.flat.copies[True].free) > 1


def test_copies_share_what_is_not_trained() -> None:
    module = Tied()
    other = twin(module)
    pairs = zip(module.parameters(), other.parameters(), strict=True)
    assert other is not module
    assert all(a is b for a, b in pairs)
