"""Batch-norm statistics that stay at the sites (`buffers="site"`), as a run gives them back."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from aspire.methods.aspire_ease import buffers
from aspire.problem.problem import Flat, Problem

logger = logging.getLogger("aspire")
Named = dict[str, Tensor]


def site_buffers(problem: Problem, w: Tensor) -> dict[str, Named] | None:
    """Every site's own buffers at w, by name; None: they travel, or the data is elsewhere."""
    if not problem.flat.local:
        return None
    if any(site is None for site in problem.sites):
        logger.warning(
            "batch-norm statistics stay at the sites: those of the model that comes back are as "
            "they were given"
        )
        return None
    found = {}
    for name, site in zip(problem.names, problem.sites, strict=True):
        own = site.own_buffers(w) or []
        found[name] = dict(zip(problem.flat.changing.names, own, strict=True))
    return found


def fill(model: nn.Module, flat: Flat, found: dict[str, Named]) -> None:
    """Give a model the sites' buffers pooled, each site counting the same."""
    layout = buffers.layout_of(0, flat.changing.facts)
    rows = [
        buffers.as_moments(layout, flat.changing.behind(torch.empty(0), list(own.values())))
        for own in found.values()
    ]
    pooled = torch.stack(rows).mean(0)
    buffers.from_moments(layout, pooled)
    load(model, dict(zip(flat.changing.names, flat.changing.unpacked(pooled), strict=True)))


def load(model: nn.Module, own: Named) -> None:
    places = dict(model.named_buffers())
    for name, x in own.items():
        places[name].copy_(x)
