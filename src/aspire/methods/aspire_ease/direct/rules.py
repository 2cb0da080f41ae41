"""The arguments of the direct form, checked, and what follows from them alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from aspire.methods import optimisers
from aspire.methods.aspire_ease import references
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import Kind

GRADIENTS = ("gradient", "both")  # kinds of tasks that ask for a gradient
PROBES = ("probe", "compare", "own")  # a site's first: its loss, and perhaps its reference
LOSSES = (*PROBES, "both", "loss")  # kinds that ask for a loss


@dataclass(frozen=True)
class Rules:
    """The arguments of `direct`, checked."""

    uncertainty: UncertaintySet | None
    quorum: int | None
    staleness: int | None
    local_steps: int
    accumulate: int
    drop: bool
    max_planes: int | None
    loss_tasks: bool
    clip: float | None
    liars: int
    reference: references.Reference | None
    own: references.Own | None
    optimizer: optimisers.Make
    schedule: optimisers.Schedule | None

    @cached_property
    def batches(self) -> int:
        """In one report."""
        return self.local_steps * self.accumulate

    @property
    def measured(self) -> bool:
        """Whether the sites say what their r_j are."""
        return self.own is not None or isinstance(self.reference, nn.Module)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        told = ("loss", "loss_samples")
        given = ("w",) if self.local_steps == 1 else ("w", "metric")
        first = Kind(scalars=told, delays=0)
        if self.clip is not None:
            first = Kind(1, scalars=(*told, "slope"), delays=0)
        compared = replace(first, scalars=(*first.scalars, "reference"))
        found = {} if self.own is None else {"own": self.alone(compared)}
        return found | {
            "probe": first,
            "compare": replace(compared, given=("w", "reference")),
            "gradient": Kind(self.batches, vectors=("g",), given=given),
            "both": Kind(self.batches, vectors=("g",), scalars=told, given=given),
            "loss": Kind(scalars=told),
        }

    def alone(self, first: Kind) -> Kind:
        """A probe before which a site trains alone; a slope, too, costs a gradient."""
        assert self.own is not None
        count = self.own.batches
        cost = count + first.most_gradients
        return replace(first, batches=max(count, first.batches), gradients=cost, delays=count)


def whole_set(rules: Rules, n: int) -> UncertaintySet:
    return (rules.uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)


def quorum_of(rules: Rules, present: int) -> int:
    """S, by default half of the present."""
    return max(1, present // 2) if rules.quorum is None else rules.quorum
