"""What can be promised of the worst site, from the test parts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aspire.problem.intervals import highest_mean, level_of, lowest_share
from aspire.runs.figures import Answers
from aspire.sets import UncertaintySet
from aspire.types import Mask

ASSUMPTIONS = (
    "the test parts were not used to train, select or tune",
    "the samples of a test part are independent draws of what its site will meet",
)


@dataclass(frozen=True)
class OnTest:
    """What a site says of its test part; None: outputs that are neither right nor wrong, or a loss
    without a bound."""

    right: int | None
    judged: int | None
    loss: float | None  # the mean, with each sample's loss cut off at `bound`
    n: int | None
    bound: float | None


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
    tested: Sequence[OnTest | None],
    uncertainty: UncertaintySet | None,
    alpha: float = 0.05,
) -> Certificate | None:
    """From what every site says of its test part; None where no site has one.

    The least of the sites' lower bounds at level alpha needs no correction: it is above the worst
    site's true accuracy only if that one site's bound is. The worst case may weigh all sites, so
    their upper bounds are at level alpha/N.
    """
    alpha = level_of(alpha)
    here = np.array([x is not None for x in tested])
    if not here.any():
        return None
    known = [x for x in tested if x is not None]
    inside = [name for name, x in zip(names, tested, strict=True) if x is not None]
    lows = [
        lowest_share(x.right, x.judged, alpha) for x in known if x.right is not None and x.judged
    ]
    least = int(np.argmin(lows)) if len(lows) == len(known) else None
    loss, bound = worst_case(known, here, uncertainty, alpha)
    return Certificate(
        alpha,
        None if least is None else lows[least],
        None if least is None else inside[least],
        loss,
        bound,
        tuple(inside),
        tuple(name for name in names if name not in inside),
    )


def worst_case(
    known: Sequence[OnTest], here: Mask, uncertainty: UncertaintySet | None, alpha: float
) -> tuple[float | None, float | None]:
    """The set's worst case of the sites' upper bounds, and where losses are cut off."""
    level = alpha / len(known)
    highest = [
        x.bound * highest_mean(x.loss / x.bound, x.n, level)
        for x in known
        if x.bound and x.n and x.loss is not None
    ]
    if len(highest) < len(known) or uncertainty is None:
        return None, None
    try:
        over = uncertainty if here.all() else uncertainty.restrict(here)
    except ValueError:  # these sites alone carry no weight in it
        return None, None
    return over.value(highest), max(x.bound for x in known if x.bound)


def tested_of(answers: Answers) -> list[OnTest | None]:
    """What each site said; None: it has no test part, or did not answer."""
    return [
        _tested(said) if any(x.startswith("tested.") for x in said) else None for said in answers
    ]


def _tested(said: Mapping[str, float]) -> OnTest:
    right, judged, n = (
        None if x is None else int(x)
        for x in (said.get(f"tested.{name}") for name in ("right", "judged", "n"))
    )
    return OnTest(right, judged, said.get("tested.loss"), n, said.get("tested.bound"))


def read(told: Mapping[str, Any] | None) -> tuple[Certificate | None, list[OnTest | None]]:
    """From result.json: the certificate, and what each site said of its test part."""
    if told is None:
        return None, []
    found: dict[str, Any] = {n: tuple(x) if isinstance(x, list) else x for n, x in told.items()}
    tested = [x and OnTest(**x) for x in found.pop("tested")]
    return Certificate(**found), tested


def told(found: Certificate | None, tested: Sequence[OnTest | None]) -> dict[str, Any] | None:
    """As result.json has it."""
    if found is None:
        return None
    return {**vars(found), "tested": [None if x is None else vars(x) for x in tested]}
