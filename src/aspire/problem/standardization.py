"""Inputs brought to mean 0 and std 1 over all sites, from each site's own means and variances.

Every entry of a sample is a feature of its own. The std is floored at a tenth of its mean over the
features: one that is nearly constant must not become a huge input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from aspire.arguments import kind
from aspire.problem.samples import Samples
from aspire.problem.seeds import seeded

FLOOR = 0.1  # of the mean std
WHEN_ASKED = "when asked"  # a site tells its moments when it is asked


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each feature over the training part of one site, as flat vectors."""

    samples: int
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class Standardization:
    """(x - mean) / std, in the model's type, as flat vectors; `of` one sample's numbers."""

    mean: Tensor
    std: Tensor
    notes: tuple[str, ...] = ()  # what was done to the std

    def __call__(self, x: Tensor) -> Tensor:
        if prod(x.shape[1:]) != len(self.mean):
            raise ValueError(
                f"inputs have {prod(x.shape[1:])} numbers in a sample: expected {len(self.mean)}, "
                "as they are standardised"
            )
        mean, std = (s.to(x.device).view(x.shape[1:]) for s in (self.mean, self.std))
        return (x - mean) / std

    def of(self, model: nn.Module) -> Standardized:
        """The model with this before it."""
        return Standardized(model, self)

    def __repr__(self) -> str:
        return f"Standardization of {len(self.mean)} features"


class Standardized(nn.Module):
    """A model that takes inputs as they were measured."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, by: Standardization) -> None:
        super().__init__()
        device = next(model.parameters()).device
        self.model = model
        self.register_buffer("mean", by.mean.to(device))
        self.register_buffer("std", by.std.to(device))
        self.training = model.training

    def forward(self, x: Tensor) -> Any:
        return self.model(Standardization(self.mean, self.std)(x.to(self.mean.dtype)))


def moments_of(part: Samples, site: int, dtype: torch.dtype) -> Moments:
    """Of a training part whose samples are converted; sums are formed in float64."""
    with seeded((0, site)):
        return _moments(part, dtype)


def _moments(part: Samples, dtype: torch.dtype) -> Moments:
    first = _real(part, part.take(torch.zeros(1, dtype=torch.int64))[0])[0].double()
    total = torch.zeros_like(first)
    squares = torch.zeros_like(first)
    for inputs, _, _ in part.chunks():
        x = _real(part, inputs)
        if x.shape[1:] != first.shape:
            raise ValueError(f"{part.where}: standardize=True: expected samples of one shape")
        beside = x.double() - first  # sums of what differs from one sample keep their digits
        total += beside.sum(0)
        squares += beside.square().sum(0)
    shift = total / part.size
    variance = (squares / part.size - shift.square()).clamp(min=0.0)
    flat = [y.reshape(-1).to("cpu", dtype) for y in (first + shift, variance)]
    return Moments(part.size, *flat)


def _real(part: Samples, inputs: Any) -> Tensor:
    if isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.ndim > 1:
        return inputs
    what = f"{kind(inputs)}"
    if isinstance(inputs, Tensor):
        what = f"shape {tuple(inputs.shape)} and type {str(inputs.dtype).removeprefix('torch.')}"
    raise ValueError(
        f"{part.where}: standardize=True with inputs of {what}: expected one tensor of real "
        "numbers, with one row for each sample"
    )


def combined(sites: Sequence[Moments]) -> Standardization:
    """Mean and std over all samples of all sites."""
    if len({len(one.mean) for one in sites}) > 1:
        raise ValueError("standardize=True: expected as many features at every site")
    total = sum(one.samples for one in sites)
    means = torch.stack([one.mean.double() for one in sites])
    shares = torch.tensor([one.samples / total for one in sites], dtype=torch.float64)[:, None]
    mean = (shares * means).sum(0)
    within = torch.stack([one.variance.double() for one in sites])
    std = (shares * (within + (means - mean).square())).sum(0).sqrt()
    floor = FLOOR * float(std.mean()) or 1.0  # where nothing differs at all
    low = int((std < floor).sum())
    raised = f"the std of {low} of {len(std)} inputs to {floor:.3g}, a tenth of the mean one"
    dtype = sites[0].mean.dtype
    std = std.clamp(min=floor)
    return Standardization(mean.to(dtype), std.to(dtype), (raised,) if low else ())
