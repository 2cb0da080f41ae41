"""Stacks of Linear layers: gradients and losses of many parameter rows in one call.

A stack is recognised by `recognise`: layers with elementwise activations and dropout between them.
Everything else goes through the module itself. Rows are worked on together, compiled where that
can be (`stacks_native`) and else by torch: parameters (R, p), inputs (R, B, d). Inside, samples run
along the last axis, since then a sum over classes is a sum of contiguous rows: features (R, d, B),
W h + b, softmax on axis 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from aspire.compiled.activations import Activation, activation_of
from aspire.problem import batches, stacks_native

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Parts = Sequence[Tensor]
IDENTITY = Activation()
Keys = Sequence[tuple[int, int]]  # of each row's dropout: `batches.keys`


@dataclass(frozen=True)
class Layer:
    """h <- W h + b, then the activation, then dropout with this probability."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation = IDENTITY
    drop: float = 0.0

    @property
    def relu(self) -> bool:
        return self.activation.kind == "relu"

    @property
    def plain(self) -> bool:
        """Whether nothing but ReLU may follow."""
        return self.activation.kind in ("identity", "relu") and not self.drop


@dataclass(frozen=True)
class Stack:
    """A chain of layers with its loss, for parameters that lie in one row as torch names them."""

    layers: tuple[Layer, ...]
    flatten: bool
    classes: bool  # cross-entropy; else the mean squared error
    drop: float = 0.0  # dropout of the samples
    native: bool = True  # compiled, where that can be

    @cached_property
    def random(self) -> bool:
        """Whether gradients need `keys`, since there is dropout."""
        return bool(self.drop) or any(layer.drop for layer in self.layers)

    @cached_property
    def relu_only(self) -> bool:
        return not self.drop and all(layer.plain for layer in self.layers)

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers of W_1, b_1, W_2, b_2, ..., as they follow each other in a row."""
        return [
            size
            for layer in self.layers
            for size in [layer.inputs * layer.outputs] + layer.bias * [layer.outputs]
        ]

    def takes(self, inputs: Any, targets: Any, dtype: torch.dtype) -> bool:
        """Whether one row's (B, ...) samples are of the shape and type that is written out here."""
        if not (isinstance(inputs, Tensor) and isinstance(targets, Tensor)):
            return False
        shaped = inputs.ndim == 2 or (self.flatten and inputs.ndim > 2)
        if not shaped or inputs[0].numel() != self.layers[0].inputs or inputs.dtype != dtype:
            return False
        if self.classes:
            return targets.dtype == torch.int64 and targets.ndim == 1
        return targets.dtype == dtype and targets.shape[1:] == (self.layers[-1].outputs,)

    def outputs(self, w: Tensor, inputs: Tensor) -> Tensor:
        """(R, B, d) -> (R, B, outputs)."""
        return self._forward(self._split(w), inputs).transpose(1, 2)

    def losses(self, w: Tensor, inputs: Tensor, targets: Tensor, decay: float) -> Tensor:
        """Mean loss of every row plus decay/2 |w|^2: (R,)."""
        h = self._forward(self._split(w), inputs)
        if self.classes:
            value = -h.log_softmax(1).gather(1, targets.unsqueeze(1)).mean((1, 2))
        else:
            value = (h - targets.transpose(1, 2)).square_().mean((1, 2))
        return value + 0.5 * decay * w.square().sum(1) if decay else value

    def gradients(
        self, w: Tensor, inputs: Tensor, targets: Tensor, decay: float, keys: Keys | None = None
    ) -> Tensor:
        """Gradient of every row's loss: (R, p). `keys` are those of each row's dropout.

        Rows do not touch each other, so the slope of the sum of their losses has them all.
        """
        if self.compiled(w):
            batch = inputs.shape[1]
            with self.caller(w.dtype) as caller:
                return caller.gradients(w, inputs, targets, decay, batch=batch, keys=keys)
        if self.random and keys is None:
            raise ValueError("keys=None: expected one for each row, since the model has dropout")
        w = w.detach().requires_grad_(True)
        with torch.enable_grad():
            h = self._forward(self._split(w), inputs, keys)
            mean = cross_entropy if self.classes else mse_loss
            value = mean(h, targets if self.classes else targets.transpose(1, 2)) * len(w)
        found = torch.autograd.grad(value, w)[0]
        return found.add_(w.detach(), alpha=decay) if decay else found

    # ------------------------------------------------------------ compiled

    def compiled(self, w: Tensor) -> bool:
        """Whether gradients and losses of rows like w are those of `stacks_native`."""
        return self.native and self.classes and stacks_native.serves(self.layers, w)

    @contextmanager
    def caller(self, dtype: torch.dtype) -> Iterator[stacks_native.Caller]:
        """One that nobody else calls with."""
        caller = self._free.take(dtype) or stacks_native.Caller(self.layers, dtype, self.drop)
        try:
            yield caller
        finally:
            self._free.give(dtype, caller)

    @cached_property
    def _free(self) -> stacks_native.Free:
        return stacks_native.Free()

    def judge(
        self, w: Tensor, inputs: Tensor, targets: Tensor, decay: float, *, count: bool = False
    ) -> tuple[float, int]:
        """Mean loss of one row w (p,) over all samples (n, ...), and how many it gets right.

        Only where rows like w are compiled.
        """
        with self.caller(w.dtype) as caller:
            return caller.judge(w, inputs, targets, decay, count=count)

    # ------------------------------------------------------------ by torch

    def _split(self, w: Tensor) -> list[Tensor]:
        """W_l (R, outputs, inputs) and b_l (R, outputs, 1), layer by layer, as views."""
        parts = iter(w.split(self.sizes, 1))
        rows = len(w)
        views = []
        for layer in self.layers:
            views.append(next(parts).view(rows, layer.outputs, layer.inputs))
            if layer.bias:
                views.append(next(parts).unsqueeze(2))
        return views

    def _forward(self, parts: Parts, inputs: Tensor, keys: Keys | None = None) -> Tensor:
        """The outputs, samples last; with keys in training."""
        h = (inputs.flatten(2) if inputs.ndim > 3 else inputs).transpose(1, 2)
        first = 0
        if keys is not None:
            h, first = _dropped(h, self.drop, keys, first)
        views = iter(parts)
        for layer in self.layers:
            W = next(views)
            h = torch.baddbmm(next(views), W, h) if layer.bias else torch.bmm(W, h)
            h = h.relu_() if layer.relu else layer.activation.module(h)
            if keys is not None:
                h, first = _dropped(h, layer.drop, keys, first)
        return h


def _dropped(h: Tensor, share: float, keys: Keys, first: int) -> tuple[Tensor, int]:
    """Dropout of features (R, d, B), and the number of the next layer's first in the stream."""
    rows, width, batch = h.shape
    if share:
        kept = batches.kept(keys, first, batch * width, share, h.device)
        scale = 1.0 / (1.0 - share) if share < 1 else 0.0
        h = h * (kept.view(rows, batch, width).transpose(1, 2).to(h.dtype) * scale)
    return h, first + batch * width


def recognise(
    module: nn.Module,
    names: Sequence[str],
    loss: Callable[..., Any],
    *,
    relu_only: bool = False,
    native: bool = True,
) -> Stack | None:
    """The module as a stack whose parameters are `names`, or None where it is anything else.

    relu_only  take no other activation and no dropout
    native     let it be compiled
    """
    if loss is not cross_entropy and loss is not mse_loss:
        return None
    if [name for name, _ in module.named_parameters()] != list(names):
        return None
    modules = list(_chain(module))
    if any(getattr(m, kind, None) for m in module.modules() for kind in HOOKS):
        return None
    first = modules[0] if modules else module
    flatten = isinstance(first, nn.Flatten) and (first.start_dim, first.end_dim) == (1, -1)
    drop, layers = _layers(modules[flatten:])
    if not layers or sum(1 + layer.bias for layer in layers) != len(names):
        return None  # a layer that stands in two places has its parameters once
    found = Stack(tuple(layers), flatten, loss is cross_entropy, drop, native)
    return None if relu_only and not found.relu_only else found


def _layers(modules: Sequence[nn.Module]) -> tuple[float, list[Layer]]:
    """Dropout of the samples, and the layers; none where there is anything else."""
    drop = 0.0
    layers = list[Layer]()
    for m in modules:
        kind = activation_of(m)
        last = layers[-1] if layers else None
        if type(m) is nn.Identity:
            continue
        if type(m) is nn.Linear:
            layers.append(Layer(m.in_features, m.out_features, m.bias is not None))
        elif type(m) is nn.Dropout and last is None and not drop:
            drop = m.p * m.training
        elif type(m) is nn.Dropout and last is not None and not last.drop:
            layers[-1] = replace(last, drop=m.p * m.training)
        elif kind is not None and last is not None and follows(last, kind):
            layers[-1] = replace(last, activation=kind)
        else:
            return 0.0, []
    return drop, layers


def follows(layer: Layer, kind: Activation) -> bool:
    """Whether an activation may be this layer's: it has none yet, or twice the same ReLU."""
    again = layer.relu and kind.kind == "relu"
    return (layer.activation.kind == "identity" or again) and not layer.drop


def _chain(module: nn.Module) -> Iterator[nn.Module]:
    """The modules in the order in which they are applied; a nested Sequential is opened."""
    if type(module) is nn.Sequential:
        for part in module:
            yield from _chain(part)
    else:
        yield module
