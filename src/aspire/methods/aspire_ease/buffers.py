"""Buffers that change while a model trains, such as batch-norm statistics, beside its parameters.

They lie behind the parameters in one vector: a task hands out [z | b], a report brings [g_j | b_j]
with b_j as the site's batches left them. The master averages them with z's weights. Variances are
pooled by second moments, E x^2 = var + mean^2, since the sites' means differ; counters are taken
from the newest report.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aspire.types import Buffer, Count

AVERAGE = "average"
MEAN = "mean"
VARIANCE = "variance"
NEWEST = "newest"
Spans = tuple[tuple[Count, Count], ...]


@dataclass(frozen=True)
class Layout:
    """Where what lies in [z | b], as (begin, end); a variance has its mean at the same place."""

    parameters: Count
    means: Spans = ()
    variances: Spans = ()
    newest: Spans = ()

    def check(self) -> None:
        if len(self.means) != len(self.variances):
            raise ValueError("expected a mean for each variance")


def layout_of(parameters: int, buffers: tuple[Buffer, ...]) -> Layout:
    spans: dict[str, list[tuple[int, int]]] = {MEAN: [], VARIANCE: [], NEWEST: [], AVERAGE: []}
    begin = parameters
    for buffer in buffers:
        spans[buffer.role].append((begin, begin + buffer.size))
        begin += buffer.size
    means, variances, newest = (tuple(spans[role]) for role in (MEAN, VARIANCE, NEWEST))
    return Layout(parameters, means, variances, newest)


def objection(layout: Layout, report: Tensor) -> str | None:
    """Why these buffers are none, or None."""
    for begin, end in layout.variances:
        if bool((report[begin:end] < 0).any()):
            return "reports a negative variance among its buffers"
    return None


def as_moments(layout: Layout, x: Tensor) -> Tensor:
    """[. | b] with second moments in place of variances; a copy of the part behind the model."""
    b = x[layout.parameters :].clone()
    for mean, variance in _pairs(layout, b):
        variance += mean.square()
    return b


def from_moments(layout: Layout, b: Tensor) -> None:
    """And back, in place."""
    for mean, variance in _pairs(layout, b):
        variance -= mean.square()
        variance.clamp_(min=0.0)


def _pairs(layout: Layout, b: Tensor) -> list[tuple[Tensor, Tensor]]:
    spans = zip(layout.means, layout.variances, strict=True)
    p = layout.parameters
    return [(b[m - p : n - p], b[v - p : w - p]) for (m, n), (v, w) in spans]


def gather(layout: Layout, gathered: Tensor, moments: Tensor, weight: float) -> None:
    """Add one report's buffers to what is gathered."""
    p = layout.parameters
    gathered[p:].add_(moments, alpha=weight)
    for begin, end in layout.newest:
        gathered[begin:end] = moments[begin - p : end - p]


def step(layout: Layout, z: Tensor, gathered: Tensor, mass: float, reports: int) -> None:
    """b <- b + min(1, mass/|Q|) (weighted mean of b_j - b), in moments."""
    p = layout.parameters
    if len(z) == p or mass <= 0:
        return
    b = as_moments(layout, z)
    newest = [gathered[begin:end].clone() for begin, end in layout.newest]
    b.lerp_(gathered[p:] / mass, min(1.0, mass / reports))
    from_moments(layout, b)
    z[p:] = b
    for (begin, end), value in zip(layout.newest, newest, strict=True):
        z[begin:end] = value


def near(layout: Layout, z: Tensor, moments: Tensor, most: float) -> tuple[Tensor, float]:
    """The buffers no farther than `most` from the master's, and how far they were."""
    here = as_moments(layout, z)
    away = float(torch.linalg.vector_norm(moments - here, dtype=torch.float64))
    if away > most:
        moments = here + (moments - here) * (most / away)
    return moments, away
