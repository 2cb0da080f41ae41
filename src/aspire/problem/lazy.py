"""Lazy layers, which learn how many inputs they have from the first samples that they see."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from aspire.arguments import shown
from aspire.problem.conversion import fits
from aspire.problem.copies import called
from aspire.problem.failures import calling
from aspire.problem.samples import parts_of
from aspire.problem.seeds import seeded
from aspire.problem.sources import Collate

FEW = 8  # samples that are shown to the model


def first_lazy(model: Any) -> str | None:
    """The first parameter that has no values yet."""
    if not isinstance(model, nn.Module):
        return None
    named = model.named_parameters()
    return next((name for name, p in named if isinstance(p, nn.UninitializedParameter)), None)


def initialised(
    model: nn.Module, known: Mapping[Any, Any], seed: int, collate: Collate | None = None
) -> nn.Module:
    """The model, or a copy without lazy layers: it has seen samples of the first site that is here.

    Its values are drawn by the seed. Modes and batch-norm statistics stay as they were.
    """
    lazy = first_lazy(model)
    if lazy is None:
        return model
    here = [(name, data) for name, data in known.items() if data is not None]
    if not here:
        raise ValueError(
            f"model has no values for its parameter {lazy} yet, and no site's data is here: "
            "expected a model that was called once"
        )
    name, data = here[0]
    part = parts_of(data, "cpu", f"site {shown(name)}", collate)[0]
    given = part.take(torch.arange(min(part.size, FEW)))
    said: list[ValueError] = []
    for fit in fits(next(model.parameters()).dtype):
        try:
            return _shown(model, fit(*given)[0], seed, part.where)
        except ValueError as error:
            said.append(error)
    raise said[0]


def _shown(model: nn.Module, inputs: Any, seed: int, where: str) -> nn.Module:
    """A copy that was called with these inputs."""
    found = copy.deepcopy(model)
    modes = {id(module): module.training for module in found.modules()}
    found.eval()
    with seeded((0, seed)), torch.no_grad(), calling(f"{where}: the model"):
        called(found, inputs)
    for module in found.modules():
        module.training = modes.get(id(module), True)
    return found
