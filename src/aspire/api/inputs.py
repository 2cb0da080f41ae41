"""What a batch of a model's inputs looks like, in words that go into result.json."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from aspire.problem.conversion import each, is_array, tensor_of
from aspire.problem.copies import called
from aspire.problem.failures import calling
from aspire.problem.problem import Problem
from aspire.problem.samples import CHUNK

LEAF = {"shape", "dtype"}


def description_of(problem: Problem) -> Any:
    """The shape of one sample's inputs and their type; None where it cannot be had here."""
    site = problem.sites[0]
    if site is None:
        return None
    with suppress(Exception), site._seeded(0):  # the run has ended: nothing may harm it any more
        return described(site.train.take(torch.arange(1))[0])
    return None


def described(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return {"shape": list(inputs.shape[1:]), "dtype": str(inputs.dtype).removeprefix("torch.")}
    if isinstance(inputs, Mapping):
        return {str(name): described(x) for name, x in inputs.items()}
    if isinstance(inputs, tuple | list):
        return [described(x) for x in inputs]
    return None


def zeros(description: Any, count: int) -> Any:
    """A batch of that kind."""
    if is_leaf(description):
        dtype = getattr(torch, description["dtype"])
        return torch.zeros(count, *description["shape"], dtype=dtype)
    if isinstance(description, Mapping):
        return {name: zeros(x, count) for name, x in description.items()}
    return tuple(zeros(x, count) for x in description)


def known(description: Any) -> bool:
    """Whether such a batch can be made."""
    if description is None or is_leaf(description):
        return description is not None
    inner = description.values() if isinstance(description, Mapping) else description
    return bool(inner) and all(map(known, inner))


def is_leaf(description: Any) -> bool:
    return isinstance(description, Mapping) and description.keys() == LEAF


def as_inputs(given: Any, description: Any, dtype: torch.dtype) -> Any:
    """What a user has as the model takes it: with the types it was trained on, else real ones in
    `dtype`."""
    if isinstance(given, Mapping) and not is_array(given):
        named = description if isinstance(description, Mapping) else {}
        return {name: as_inputs(x, named.get(name), dtype) for name, x in given.items()}
    if isinstance(given, tuple):
        several = description if isinstance(description, list) else [None] * len(given)
        if len(given) != len(several):
            raise ValueError(f"inputs has {len(given)} parts: expected {len(several)}")
        return tuple(as_inputs(x, d, dtype) for x, d in zip(given, several, strict=True))
    found = tensor_of(given, "inputs")
    if is_leaf(description):
        return found.to(getattr(torch, description["dtype"]))
    return found.to(dtype) if found.is_floating_point() else found


def outputs_of(model: nn.Module, given: Any, description: Any) -> Any:
    """What the model gives in eval mode, in pieces that fit in memory, put together on the CPU."""
    first = next(model.parameters())
    batch = as_inputs(given, description, first.dtype)
    model = copy.deepcopy(model).eval()
    count = len(leaf(batch))
    found = []
    with torch.no_grad(), calling("the model"):
        for start in range(0, max(count, 1), CHUNK):
            piece = slice(start, start + CHUNK)
            some = each(lambda x: x[piece].to(first.device), batch)  # noqa: B023
            found.append(each(lambda x: x.cpu(), called(model, some)))
    return joined(found)


def leaf(batch: Any) -> Tensor:
    """Its first tensor."""
    if isinstance(batch, Tensor):
        return batch
    return leaf(next(iter(batch.values() if isinstance(batch, Mapping) else batch)))


def joined(pieces: list[Any]) -> Any:
    """Outputs of several pieces as those of one."""
    first = pieces[0]
    if isinstance(first, Tensor):
        return torch.cat(pieces)
    if isinstance(first, Mapping):
        return {name: joined([piece[name] for piece in pieces]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(joined(list(parts)) for parts in zip(*pieces, strict=True))
    return pieces[0] if len(pieces) == 1 else pieces


def batch_for_export(given: Any, description: Any) -> Any:
    if given is not None:
        return as_inputs(given, description, torch.get_default_dtype())
    if not known(description):
        raise ValueError(
            "inputs=None: the shape of the model's inputs is not known here: expected a batch of "
            "at least two samples"
        )
    return zeros(description, 2)
