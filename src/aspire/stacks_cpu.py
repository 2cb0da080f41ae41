"""Stacks on the CPU: the chain rule of `stacks` in memory that stays, one product a row.

numpy hands every row's product to BLAS by itself, and a product of at most 2^18 multiplications is
one thread's work there. So a row's numbers are the same to the bit beside any other rows, in any
order and on any number of threads. Elementwise work is torch's, in place, on the same memory, but
for exponentials: at the ends of a thread's share torch forms them in another way than elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from aspire.activations import Activation

PRODUCT = 2**18  # multiplications; BLAS may share a larger product among threads
LONGEST = 512  # samples of a forward pass that lie in one product
TOGETHER = 2048  # samples of a forward pass whose features are kept at once
threshold_backward = torch.ops.aten.threshold_backward.grad_input
Numbers = Any  # a float array; its type is the parameters'


class LayerLike(Protocol):
    """What `stacks.Layer` says of a layer."""

    @property
    def inputs(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def bias(self) -> bool: ...
    @property
    def relu(self) -> bool: ...
    @property
    def activation(self) -> Activation: ...
    @property
    def drop(self) -> float: ...


Layers = Sequence[LayerLike]


def largest(layers: Layers) -> int:
    """Multiplications for one sample in the largest layer."""
    return max(layer.inputs * layer.outputs for layer in layers)


def places(layers: Layers) -> list[tuple[slice, slice]]:
    """Where W_l and b_l lie in a row; without a bias the second is empty."""
    sizes = [(x.inputs * x.outputs, x.bias * x.outputs) for x in layers]
    ends = np.cumsum([0, *(size for pair in sizes for size in pair)]).tolist()
    slices = [slice(a, b) for a, b in pairwise(ends)]
    return list(zip(slices[::2], slices[1::2], strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """One layer of R rows, small letters in numpy and capitals in torch on the same memory."""

    relu: bool
    w: Numbers  # (R, outputs, inputs)
    w_turned: Numbers
    bias: Tensor | None
    below: Numbers  # features before the layer: (R, inputs, B)
    below_turned: Numbers
    h: Numbers  # features after it
    H: Tensor
    s: Numbers  # slope of the loss by h
    S: Tensor
    s_below: Numbers | None  # the slope one layer down; None: this is the first
    dw: Numbers
    db: Numbers | None


class Room:
    """Memory for the gradients of up to `rows` rows; fill w, x and y, then call `gradients`."""

    def __init__(self, layers: Layers, classes: bool, rows: int, batch: int, dtype: torch.dtype):
        self.layers, self.classes, self.rows, self.batch = layers, classes, rows, batch
        p = places(layers)[-1][1].stop
        self.W, self.G = torch.zeros(rows, p, dtype=dtype), torch.zeros(rows, p, dtype=dtype)
        self.w, self.g = self.W.numpy(), self.G.numpy()
        self.x = np.zeros((rows, batch, layers[0].inputs), self.w.dtype)
        wide = layers[-1].outputs
        self.y: Any = np.zeros((rows, batch), np.int64)
        if not classes:
            self.y = np.zeros((rows, batch, wide), self.w.dtype)
        self.ones = np.ones((batch, 1), self.w.dtype)
        self.first = np.arange(rows)[:, None] * (wide * batch) + np.arange(batch)
        sizes = [(rows, layer.outputs, batch) for layer in layers]
        self.H = [torch.zeros(size, dtype=dtype) for size in sizes]
        self.S = [torch.zeros(size, dtype=dtype) for size in sizes]
        self.views: dict[int, list[Part]] = {}

    def _parts(self, R: int) -> list[Part]:
        parts, below = [], self.x[:R].transpose(0, 2, 1)
        for k, (layer, (at, there)) in enumerate(
            zip(self.layers, places(self.layers), strict=True)
        ):
            shape = (R, layer.outputs, layer.inputs)
            w, dw = self.w[:R, at].reshape(shape), self.g[:R, at].reshape(shape)
            H, S = self.H[k][:R], self.S[k][:R]
            parts.append(
                Part(
                    layer.relu, w, w.transpose(0, 2, 1),
                    self.W[:R, there].unsqueeze(2) if layer.bias else None,
                    below, below.transpose(0, 2, 1), H.numpy(), H, S.numpy(), S,
                    self.S[k - 1][:R].numpy() if k else None,
                    dw, self.g[:R, there, None] if layer.bias else None,
                )
            )  # fmt: skip
            below = H.numpy()
        return parts

    @np.errstate(over="ignore", invalid="ignore")  # who asks looks at what comes out
    def gradients(self, R: int, decay: float) -> Tensor:
        """Of the first R rows, as a part of the room: take a copy to keep it."""
        parts = self.views.get(R)
        if parts is None:
            parts = self.views[R] = self._parts(R)
        for part in parts:
            forward(part.w, part.below, part.bias, part.relu, part.h, part.H)
        self._slope(R, parts[-1])
        for part in reversed(parts):
            if part.relu:
                threshold_backward(part.S, part.H, 0, grad_input=part.S)
            if part.db is not None:
                np.matmul(part.s, self.ones, out=part.db)
            np.matmul(part.s, part.below_turned, out=part.dw)
            if part.s_below is not None:
                np.matmul(part.w_turned, part.s, out=part.s_below)
        found = self.G[:R]
        return found.add_(self.W[:R], alpha=decay) if decay else found

    def _slope(self, R: int, top: Part) -> None:
        """As `Stack._slope`."""
        if not self.classes:
            wanted = torch.from_numpy(self.y[:R]).transpose(1, 2)
            torch.sub(top.H, wanted, out=top.S).mul_(2.0 / (top.S.shape[1] * self.batch))
            return
        np.exp(below_zero(top.h, top.s), out=top.s)
        np.divide(top.s, top.s.sum(1, keepdims=True), out=top.s)
        where = self.y[:R] * self.batch
        where += self.first[:R]
        top.s.reshape(-1)[where] -= 1.0
        top.S.div_(self.batch)


def forward(
    w: Numbers, below: Numbers, bias: Tensor | None, relu: bool, h: Numbers, H: Tensor
) -> None:
    """h <- W h + b, then max(h, 0)."""
    np.matmul(w, below, out=h)
    if bias is not None:
        H.add_(bias)
    if relu:
        H.relu_()


def below_zero(h: Numbers, out: Numbers) -> Numbers:
    """Class scores (R, classes, B) less the largest of each sample."""
    found: Numbers = np.subtract(h, h.max(1, keepdims=True), out=out)
    return found


class Free(dict[Any, list[Any]]):
    """Memory that nobody uses, by its shape; a copy of it, here or elsewhere, is empty."""

    def take(self, shape: Any) -> Any:
        """None where there is none. Several threads may ask at once."""
        try:
            return self.setdefault(shape, []).pop()
        except IndexError:
            return None

    def give(self, shape: Any, memory: Any) -> None:
        self.setdefault(shape, []).append(memory)

    def __reduce__(self) -> tuple[type[Free], tuple[()]]:
        return Free, ()


class Hall:
    """Memory for a forward pass of one row over C times c samples."""

    def __init__(self, layers: Layers, C: int, c: int, dtype: torch.dtype) -> None:
        self.layers, self.places, self.c = layers, places(layers), c
        self.H = [torch.zeros((C, layer.outputs, c), dtype=dtype) for layer in layers]
        self.h, self.log = [H.numpy() for H in self.H], self.H[-1].numpy().copy()
        self.first = np.arange(C)[:, None] * (layers[-1].outputs * c) + np.arange(c)

    @np.errstate(over="ignore", invalid="ignore")
    def outputs(self, w: Tensor, x: Numbers) -> Tensor:
        """x (C, c, inputs) -> (C, outputs, c), until the next call."""
        row, below = w.numpy(), x.transpose(0, 2, 1)
        for layer, (at, there), h, H in zip(self.layers, self.places, self.h, self.H, strict=True):
            W = row[at].reshape(layer.outputs, layer.inputs)
            bias = w[there].unsqueeze(1) if layer.bias else None
            forward(W, below, bias, layer.relu, h, H)
            below = h
        return self.H[-1]

    @np.errstate(over="ignore", invalid="ignore")
    def losses(self, H: Tensor, y: Any) -> float:
        """The sum of -log softmax(h)_y, y (C, c)."""
        log = below_zero(H.numpy(), self.log)
        log -= np.log(np.exp(log).sum(1, keepdims=True))
        where = y * self.c
        where += self.first
        return -float(log.reshape(-1).take(where).sum(dtype=np.float64))


def pieces(layers: Layers, count: int) -> list[tuple[int, int, int]]:
    """`count` samples as (start, C, c): C products of c samples each, as alike as they can be."""
    most = min(LONGEST, PRODUCT // largest(layers))
    least = -(-count // -(-count // most))
    c = next((c for c in range(least, most + 1) if count % c == 0), most)
    c = min(c, count)
    C = max(1, TOGETHER // c)
    found = [(at, min(C, (count - at) // c), c) for at in range(0, count - c + 1, C * c)]
    end = sum(number * size for _, number, size in found)
    return found + ([(end, 1, count - end)] if end < count else [])
