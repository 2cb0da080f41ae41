"""Buffers of a module that change while it trains: batch-norm statistics and the like."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from aspire.types import Buffer


class Changing:
    """The changing buffers of a module, by name.

    Those of batch norm are known by type; `more` names others that were seen to move.
    """

    def __init__(self, training: nn.Module, more: Sequence[str]) -> None:
        moving = set(more) | {
            f"{name}.{leaf}" if name else leaf
            for name, module in training.named_modules()
            if keeps_statistics(module)
            for leaf, buffer in module._buffers.items()
            if buffer is not None
        }
        found = {name: x for name, x in training.named_buffers() if name in moving}
        self.names = list(found)
        self.first = [x.detach().clone() for x in found.values()]
        self.facts = tuple(
            Buffer(name, tuple(x.shape), role(name, x, moving)) for name, x in found.items()
        )
        self.norms = norms(training, self.names)

    def second_moments(self, before: Sequence[Tensor], after: list[Tensor]) -> None:
        """Let a step of batch norm move E x^2 = var + mean^2, not the variance, in place.

        With momentum m torch's step is mean' = mean + m (mean_B - mean), and alike for the
        variance. That of E x^2 has (1 - m)/m (mean' - mean)^2 more: without it, what differs
        between sites would count m times what it should.
        """
        for mean, variance, momentum in self.norms:
            moved = after[mean] - before[mean]
            after[variance] = after[variance] + (1.0 - momentum) / momentum * moved.square()

    def behind(self, vector: Tensor, buffers: Sequence[Tensor]) -> Tensor:
        """[vector | buffers]."""
        if not self.names:
            return vector
        return torch.cat([vector, *(x.detach().reshape(-1).to(vector) for x in buffers)])

    def unpacked(self, vector: Tensor) -> list[Tensor]:
        """The buffers in their own shapes and types, as copies."""
        parts = vector.split([fact.size for fact in self.facts])
        found = []
        for part, like in zip(parts, self.first, strict=True):
            exact = part if like.is_floating_point() else part.round()
            found.append(exact.to(like.dtype, copy=True).view(like.shape))
        return found


def keeps_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.track_running_stats and module.training


def norms(module: nn.Module, names: Sequence[str]) -> list[tuple[int, int, float]]:
    """Mean, variance and momentum of every batch norm; one without a momentum takes plain means."""
    number = {name: k for k, name in enumerate(names)}
    found = []
    for name, part in module.named_modules():
        stem = f"{name}." if name else ""
        mean = f"{stem}running_mean"
        variance = f"{stem}running_var"
        momentum = getattr(part, "momentum", None)
        if isinstance(part, _NormBase) and mean in number and momentum:
            found.append((number[mean], number[variance], float(momentum)))
    return found


def role(name: str, buffer: Tensor, names: set[str]) -> str:
    """How buffers of several sites become one."""
    stem, _, leaf = name.rpartition("running_")
    if leaf == "mean" and f"{stem}running_var" in names:
        return "mean"
    if leaf == "var" and f"{stem}running_mean" in names:
        return "variance"
    return "average" if buffer.is_floating_point() else "newest"
