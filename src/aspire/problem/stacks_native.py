"""Stacks on the CPU, compiled: `rows.c` on tensors, where it is compiled for this processor.

Every row is worked on by itself, so its numbers are the same to the bit beside any other rows, in
any order and on any number of threads. A batch of many samples is worked on in pieces.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.compiled import native

Layers = Sequence[Any]  # of `stacks.Layer`
Asked = Sequence[tuple[int, int, int, int]]  # worker, batch, samples of the worker, the first


def serves(layers: Layers, w: Tensor) -> bool:
    """Whether there is a compiled function for rows like w."""
    fits = w.device.type == "cpu" and len(layers) <= native.MOST_LAYERS
    fits = fits and all(layer.activation.compiled for layer in layers)
    return fits and native.library(w.dtype) is not None


class Caller:
    """Memory for one call at a time."""

    def __init__(self, layers: Layers, dtype: torch.dtype, drop: float = 0.0) -> None:
        self.functions = native.library(dtype)
        row = sum(layer.outputs * (layer.inputs + layer.bias) for layer in layers)
        self.problem = native.NativeStack(len(layers), 1, row, *native.shapes(layers))
        self.problem.drop_first = drop
        self.random = bool(drop) or any(layer.drop for layer in layers)
        self.place = ctypes.addressof(self.problem)
        self.memory = np.zeros(self.functions.room_bytes(self.place), np.uint8)
        self.room = native.at(self.memory)
        self.right = ctypes.c_int64()

    def _see(self, w: Tensor, inputs: Tensor, targets: Tensor, decay: float) -> None:
        if w.shape[-1] != self.problem.row:  # C would read and write beside it
            raise ValueError(f"w of {w.shape[-1]} numbers: expected {self.problem.row}")
        self.problem.samples = inputs.data_ptr()
        self.problem.targets = targets.data_ptr()
        self.problem.decay = decay

    def gradients(
        self,
        w: Tensor,
        inputs: Tensor,
        targets: Tensor,
        decay: float,
        *,
        batch: int,
        seed: int = 0,
        asked: Asked | None = None,
        keys: Sequence[tuple[int, int]] | None = None,
    ) -> Tensor:
        """Of every row, on the batches `asked` for, or on `batch` samples after the other."""
        if self.random and (keys is None or len(keys) != len(w)):
            raise ValueError("keys: expected one for each row, since the model has dropout")
        w = w.contiguous()
        inputs = inputs.contiguous()
        targets = targets.contiguous()
        self._see(w, inputs, targets, decay)
        self.problem.batch = batch
        self.problem.seed = seed
        found = torch.empty_like(w)
        drawn = None if asked is None else np.array(asked, np.int64)
        streams = np.array(keys, np.uint32) if self.random else None
        fine = self.functions.gradients(
            self.place,
            self.room,
            len(w),
            None if drawn is None else native.at(drawn),
            None if streams is None else native.at(streams),
            w.data_ptr(),
            found.data_ptr(),
        )
        if not fine:
            raise IndexError("a target is no class of the model")
        return found

    def judge(
        self, w: Tensor, inputs: Tensor, targets: Tensor, decay: float, *, count: bool
    ) -> tuple[float, int]:
        """As `Stack.judge`."""
        w = w.contiguous()
        inputs = inputs.contiguous()
        targets = targets.contiguous()
        self._see(w, inputs, targets, decay)
        self.right.value = 0
        right = ctypes.addressof(self.right) if count else None
        loss = self.functions.judged(self.place, self.room, w.data_ptr(), len(targets), right)
        return loss, self.right.value


class Free(dict[Any, list[Any]]):
    """Memory that nobody uses, by its kind; a copy of it, here or elsewhere, is empty."""

    def take(self, kind: Any) -> Any:
        """None where there is none. Several threads may ask at once."""
        try:
            return self.setdefault(kind, []).pop()
        except IndexError:
            return None

    def give(self, kind: Any, memory: Any) -> None:
        self.setdefault(kind, []).append(memory)

    def __reduce__(self) -> tuple[type[Free], tuple[()]]:
        return Free, ()
