"""The objective: any torch module as a flat vector, and the mean loss of it on samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from aspire.stacks import Stack, recognise

Loss = Callable[[Any, Any], Tensor]
LOSSES: dict[str, Loss] = {
    "cross_entropy": nn.functional.cross_entropy,
    "mse": nn.functional.mse_loss,
}


class Flat:
    """A module's trainable parameters as one flat vector. The module itself stays untouched."""

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trained:
            raise ValueError("model has no parameter with requires_grad=True: nothing to train")
        kinds = {p.dtype for p in trained.values()}
        if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
            raise ValueError(f"model has parameters of types {kinds}: expected one real type")
        self.names = list(trained)
        self.shapes = [p.shape for p in trained.values()]
        self.sizes = [p.numel() for p in trained.values()]
        self.training = copy.deepcopy(module).to(device)
        self.evaluating = copy.deepcopy(module).to(device).eval()
        for part in (self.training, self.evaluating):
            part.requires_grad_(False)
        self.places = {part: places(part, self.names) for part in (self.training, self.evaluating)}
        self.start = torch.cat([p.detach().reshape(-1) for p in trained.values()]).to(device)
        drops = (nn.modules.dropout._DropoutNd, nn.AlphaDropout, nn.RReLU)
        owners = [m for m in module.modules() if any(p.requires_grad for p in m.parameters(False))]
        self.linear = len(owners) == 1 and isinstance(owners[0], nn.Linear)
        self.random = any(isinstance(m, drops) and m.training for m in self.training.modules())

    def split(self, w: Tensor) -> dict[str, Tensor]:
        """The flat vector as named views."""
        views = zip(self.names, w.split_with_sizes(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in views}

    def output(self, w: Tensor, inputs: Any, *, training: bool) -> Any:
        """What torch's `functional_call` gives, which takes several times as long to get there."""
        module = self.training if training else self.evaluating
        views, seats = self.split(w), self.places[module]
        held = [table[leaf] for table, leaf, _ in seats]
        try:
            for table, leaf, name in seats:
                table[leaf] = views[name]
            return module(inputs)
        finally:
            for (table, leaf, _), own in zip(seats, held, strict=True):
                table[leaf] = own

    def module(self, w: Tensor) -> nn.Module:
        """A new module that carries w, in eval mode, trainable parameters as they were."""
        module = copy.deepcopy(self.evaluating)
        parameters = dict(module.named_parameters())
        for name, part in self.split(w.detach().clone()).items():
            parameters[name].data = part.clone()
            parameters[name].requires_grad_(True)
        return module


def places(module: nn.Module, names: Sequence[str]) -> list[tuple[dict[str, Any], str, str]]:
    """Where these parameters are kept, under all of their names: table, entry, name."""
    once = dict(module.named_parameters())
    known = {id(once[name]): name for name in names}
    found = []
    for full, p in module.named_parameters(remove_duplicate=False):
        owner, _, leaf = full.rpartition(".")
        if id(p) in known:
            found.append((module.get_submodule(owner)._parameters, leaf, known[id(p)]))
    return found


@dataclass(frozen=True)
class Objective:
    """f(w; samples) = mean loss + weight_decay/2 |w|^2.

    A stack of Linear and ReLU is evaluated by hand, everything else by torch; `plain` says that
    the targets are known to be what the stack takes them for.
    """

    flat: Flat
    loss: Loss
    weight_decay: float = 0.0

    @cached_property
    def stack(self) -> Stack | None:
        return recognise(self.flat.training, self.flat.names, self.loss)

    def by_hand(self, w: Tensor, inputs: Any, targets: Any) -> bool:
        return self.stack is not None and self.stack.takes(inputs, targets, w.dtype)

    def value(
        self, w: Tensor, inputs: Any, targets: Any, *, training: bool, plain: bool = False
    ) -> Tensor:
        if plain and self.stack is not None and self.by_hand(w, inputs, targets):
            rows = w.unsqueeze(0), inputs.unsqueeze(0), targets.unsqueeze(0)
            return self.stack.losses(*rows, self.weight_decay)[0]
        value = self.loss(self.flat.output(w, inputs, training=training), targets)
        if self.weight_decay:
            value = value + 0.5 * self.weight_decay * w.square().sum()
        return value

    def gradient(self, w: Tensor, inputs: Any, targets: Any, *, plain: bool = False) -> Tensor:
        if plain and self.stack is not None and self.by_hand(w, inputs, targets):
            rows = w.unsqueeze(0), inputs.unsqueeze(0), targets.unsqueeze(0)
            return self.stack.gradients(*rows, self.weight_decay)[0]
        w = w.detach().requires_grad_(True)
        with torch.enable_grad():
            value = self.value(w, inputs, targets, training=True)
        return torch.autograd.grad(value, w)[0]

    def output(self, w: Tensor, inputs: Any, targets: Any) -> Any:
        """The model's outputs in eval mode."""
        if self.stack is not None and self.by_hand(w, inputs, targets):
            return self.stack.outputs(w.unsqueeze(0), inputs.unsqueeze(0))[0]
        return self.flat.output(w, inputs, training=False)
