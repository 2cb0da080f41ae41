"""How gradients are computed: one rule over the device, the module and the shapes of its samples.

plain          torch's autograd on the module as it is, one task at a time
channels_last  the same, with the weights of two-dimensional convolutions in the order of memory
               that the CPU's convolutions and pooling read fastest
rows           stacks of Linear layers, elementwise activations and dropout: many tasks in one call
compiled       the same rows in C
vmap           on a GPU: tasks that were handed the same model in one call, replayed as a CUDA graph
graph          on a GPU: one task after the other, replayed as a CUDA graph

All give the same numbers up to rounding, but for dropout, whose masks differ between the first two
and the last two. The rule is never a timing; run.json records what it chose, and the runs that go
on from there or repeat it do the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from aspire.arguments import one_of
from aspire.problem import graphs as replayed
from aspire.problem.graphs import REPLAYED
from aspire.problem.objective import Objective
from aspire.problem.samples import Samples
from aspire.problem.seeds import seeded

NAMES = ("plain", "channels_last", "rows", "compiled", "vmap", "graph")
FEW = 8  # samples that are tried
# in this order, the first that serves
FASTEST = ("compiled", "vmap", "rows", "graph", "channels_last", "plain")


def decide(asked: str, objective: Objective, part: Samples) -> str:
    """The way that was asked for, or with 'auto' the first that serves samples like these."""
    one_of("execution", asked, ("auto", *NAMES))
    with seeded((0, 0)):
        samples = part.take(torch.arange(min(part.size, FEW)))
    if asked == "auto":
        return next(name for name in FASTEST if objection(name, objective, part, samples) is None)
    reason = objection(asked, objective, part, samples)
    if reason is not None:
        raise ValueError(f"execution={asked!r}: {reason}")
    return asked


def objection(
    name: str, objective: Objective, part: Samples, samples: tuple[Any, Any]
) -> str | None:
    """Why it cannot be computed so, or None."""
    if name == "plain":
        return None
    if name in REPLAYED:
        if part.pair is None:
            return "expected tensors on a CUDA device"
        return replayed.objection(objective, *samples, vmap=name == "vmap")
    if name == "channels_last":
        return _objection_to_channels_last(objective, *samples)
    found = replace(objective, execution=name)
    start = objective.flat.start
    if found.stack is None:
        return "expected a Sequential of Linear layers, activations and dropout, in float32"
    if part.pair is None or not found.by_hand(start, *samples):
        return "expected tensors of vectors, with class numbers or vectors as targets"
    if name == "compiled" and not found.stack.compiled(start):
        return (
            "expected the package's compiled code, the CPU, a cross-entropy and activations that "
            "are compiled; 'rows' needs none of these"
        )
    return None


def _objection_to_channels_last(objective: Objective, inputs: Any, targets: Any) -> str | None:
    start = objective.flat.start
    convolutions = any(isinstance(m, nn.Conv2d) for m in objective.flat.training.modules())
    if not convolutions or start.device.type != "cpu" or start.dtype != torch.float32:
        return "expected a model with Conv2d layers, in float32 on the CPU"
    try:
        with seeded((0, 0)), objective.flat.in_channels_last():
            objective.gradient(start, inputs, targets)
    except ValueError as error:  # such as view() where reshape() would do
        return f"expected a model that takes other orders of memory ({error})"
    return None
