"""What can be promised of the worst site, from the test parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aspire.intervals import highest_mean, level_of, lowest_share
from aspire.runs.figures import Answers, Figure
from aspire.sets import UncertaintySet

ASSUMPTIONS = (
    "the test parts were not used to train, select or tune",
    "the samples of a test part are independent draws of what its site will meet",
)


@dataclass(frozen=True)
class CutOff:
    """A site's mean test loss, with each sample's loss cut off at `bound`."""

    value: float
    n: int
    bound: float


@dataclass(frozen=True)
class Certificate:
    """Two bounds, each of which holds with confidence 1 - alpha over all sites together.

    accuracy    no site's true accuracy is below it; None: outputs are no class scores
    site        the site that it is the bound of
    loss        no worst-case loss over the set is above it, with the loss of each sample cut off at
                `loss_bound`; None: there is no bound at which to cut
    sites       the sites that it is about: those with a test part that answered
    left_out    the others
    """

    alpha: float
    accuracy: float | None
    site: str | None
    loss: float | None
    loss_bound: float | None
    sites: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ASSUMPTIONS

    def __str__(self) -> str:
        lines = [f"certificate, confidence {1 - self.alpha:.4g}, {len(self.sites)} sites:"]
        if self.accuracy is not None:
            lines.append(f"no site's accuracy is below {100 * self.accuracy:.1f} % ({self.site})")
        if self.loss is not None:
            lines.append(
                f"the worst-case loss over the set is at most {self.loss:.4f}, each sample's loss "
                f"cut off at {self.loss_bound:.4g}"
            )
        if self.left_out:
            lines.append(f"left out, without figures of a test part: {', '.join(self.left_out)}")
        return "\n".join([*lines, *(f"assumed: {x}" for x in self.assumptions)])


def certificate(
    names: Sequence[str],
    accuracies: Sequence[Figure | None],
    losses: Sequence[CutOff | None],
    uncertainty: UncertaintySet | None,
    alpha: float = 0.05,
) -> Certificate | None:
    """From every site's figures on its test part; None where no site has one.

    The least of the sites' lower bounds at level alpha needs no correction: it is above the worst
    site's true accuracy only if that one site's bound is. The worst case may weigh all sites, so
    their upper bounds are at level alpha/N.
    """
    alpha = level_of(alpha)
    tested = [j for j, pair in enumerate(zip(accuracies, losses, strict=True)) if any(pair)]
    if not tested:
        return None
    lows = {
        names[j]: lowest_share(round(x.value * x.n), x.n, alpha)
        for j, x in enumerate(accuracies)
        if x is not None
    }
    site = min(lows, key=lambda name: lows[name]) if len(lows) == len(tested) else None
    loss, bound = worst_case(losses, tested, uncertainty, alpha)
    here = tuple(names[j] for j in tested)
    left_out = tuple(name for name in names if name not in here)
    lowest = None if site is None else lows[site]
    return Certificate(alpha, lowest, site, loss, bound, here, left_out)


def worst_case(
    losses: Sequence[CutOff | None],
    tested: Sequence[int],
    uncertainty: UncertaintySet | None,
    alpha: float,
) -> tuple[float | None, float | None]:
    """The set's worst case of the sites' upper bounds, and where losses are cut off."""
    known = [x for x in losses if x is not None]
    if len(known) < len(tested) or uncertainty is None:
        return None, None
    level = alpha / len(known)
    highest = [x.bound * highest_mean(x.value / x.bound, x.n, level) for x in known]
    here = np.isin(np.arange(len(losses)), tested)
    try:
        over = uncertainty if here.all() else uncertainty.restrict(here)
    except ValueError:  # these sites alone carry no weight in it
        return None, None
    return over.value(highest), max(x.bound for x in known)


def cut_off(answers: Answers) -> list[CutOff | None]:
    """Of each site that has a test part and a bound."""
    return [
        CutOff(said["clipped_loss"], int(said["clipped_n"]), said["loss_bound"])
        if "clipped_loss" in said
        else None
        for said in answers
    ]


def told(found: Certificate | None, losses: Sequence[CutOff | None]) -> dict[str, Any] | None:
    """As result.json has it."""
    if found is None:
        return None
    return {**vars(found), "cut_off_losses": [None if x is None else vars(x) for x in losses]}
