"""What to do about errors of torch that many models meet: the end of a sentence about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from aspire.problem.failures import Failed
from aspire.problem.objective import Objective

# part of torch's words, and what to do
KNOWN = (
    (
        "Expected more than 1 value per channel",
        "batch norm needs two samples in a batch: use a larger batch_size, or GroupNorm",
    ),
    (
        "all elements of input should be between 0 and 1",
        "end the model in Sigmoid, or use loss='bce', which takes logits",
    ),
    (
        "all elements of target should be between 0 and 1",
        "this loss takes targets from 0 to 1",
    ),
    (
        "index out of range in self",
        "an embedding needs as many rows as the largest number among its inputs and one more",
    ),
    (
        "Expected tensor for argument #1 'indices'",
        "an embedding takes whole numbers: use inputs.long()",
    ),
    (
        "mat1 and mat2 shapes cannot be multiplied",
        "the layer's inputs must be as many as the numbers that reach it",
    ),
    (
        "arget size",  # of the binary losses
        "targets must have the shape of the model's output; for one logit use loss='bce'",
    ),
)


def advice(objective: Objective, inputs: Any, targets: Any, error: Failed) -> str:
    """Begins with a semicolon; empty where there is none."""
    said = str(error)
    for words, what in KNOWN:
        if words in said:
            return f"; {what}"
    if said.startswith("the loss"):
        return _about_targets(objective, targets)
    return _about_inputs(inputs, said)


def _about_targets(objective: Objective, targets: Any) -> str:
    if objective.labels is None or not isinstance(targets, Tensor):
        return ""
    if targets.is_floating_point():
        return "; class numbers are whole: use targets.long()" if targets.ndim == 1 else ""
    return "; class numbers have shape (n,), class probabilities are real: use targets.float()"


def _about_inputs(inputs: Any, said: str) -> str:
    if not said.startswith("the model raised TypeError"):
        return ""
    if isinstance(inputs, Mapping):
        names = ", ".join(map(str, inputs))
        return f"; inputs by name are called as model(**inputs): expected forward() to take {names}"
    if isinstance(inputs, tuple | list):
        return f"; several inputs are called as model(*inputs): expected {len(inputs)} in forward()"
    return ""
