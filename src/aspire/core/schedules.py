"""Step sizes and regularisation: the presets `auto`, `paper` and `theorem1`.

A preset turns what the start-up probes said (`Scale`) into a few numbers that then stay
(`constants`), and those into the rates of iteration t. No preset sees a clock or a generator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aspire.arguments import real_number
from aspire.types import Array

Constants = Mapping[str, float]


STEEPER, EASE_OFF = 1.5, 0.8  # L_j rises to a curvature above 1.5 L_j, else it falls to 0.8 L_j


def rises_above(constants: Constants) -> float:
    """How many L_j a curvature must be to raise it; none does where L_j stays the probe's."""
    return STEEPER if constants["follow"] else math.inf


@dataclass(frozen=True)
class Limits:
    """The boxes: |w|inf, |z|inf <= a1; 0 <= h <= a2; 0 <= lam_l <= a3; |phi|inf <= a4."""

    a1: float = math.inf
    a2: float = math.inf
    a3: float = math.inf
    a4: float = math.inf

    def __post_init__(self) -> None:
        for name in ("a1", "a2", "a3", "a4"):
            value = getattr(self, name)
            real_number(name, value, "a positive number", above=0.0, finite=False)


@dataclass(frozen=True)
class Scale:
    """What the probes said, over the present sites: losses f_j, curvatures L_j, |grad f_j|."""

    losses: Array
    curvature: Array
    slope: Array
    upper: Array  # u_j, the largest weight the set allows site j
    most: int
    staleness: int | None
    kind: str = "convex"  # of presets.USUAL

    @property
    def n(self) -> int:
        return len(self.losses)


@dataclass(frozen=True)
class Member:
    """One worker, as its step size sees it: max(pi_j, q_j), L_j, and its reports so far."""

    weight: float
    curvature: float
    reports: int


@dataclass(frozen=True)
class Rates:
    """The numbers of one master iteration, besides kappa, which is among the constants."""

    eta_z: float
    eta_h: float
    rho1: float
    rho2: float
    c1: float
    c2: float


class Preset(Protocol):
    """How a preset is asked; the three below are all there is."""

    @property
    def simplex(self) -> bool:
        """lam on the simplex with h eliminated, instead of the pair (13)-(14)."""

    @property
    def power(self) -> int:
        """Power iterations in a probe; 0: the probe gives losses only."""

    @property
    def checks(self) -> bool:
        """Workers see now and then whether their step is not too long."""

    @property
    def momentum(self) -> float:
        """What of a worker's last move its next one begins with; 0: nothing, as in the paper."""

    @property
    def limits(self) -> Limits: ...

    def every(self, n: int) -> int:
        """k: planes are revised every k iterations."""

    def averaging(self, t: int) -> float:
        """Weight of the newest z in model(master); 1: the newest z itself."""

    def constants(self, scale: Scale) -> Constants:
        """What stays: `kappa`, and whatever else the preset needs."""

    def revised(self, constants: Constants, scale: Scale) -> Constants:
        """The constants after another look at the sites, each time the planes are revised."""

    def rates(self, constants: Constants, t: int, planes: int, n: int, active: int) -> Rates:
        """Of the step t -> t + 1 with n workers present, `active` of them in Q."""

    def worker_rate(
        self, constants: Constants, t: int, planes: int, n: int, member: Member
    ) -> float:
        """a_w in the next task of one worker."""

    def central_rates(self, constants: Constants, t: int, planes: int) -> tuple[float, Rates]:
        """eta_w and the rates of the centralised algorithm (Appendix D)."""


def median(x: Array) -> float:
    """numpy's, which takes ten times as long for a few numbers."""
    if len(x) > 1000:
        return float(np.median(x))
    ordered: list[float] = np.sort(x).tolist()
    half = len(x) // 2
    return ordered[half] if len(x) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def usual(x: Array) -> float:
    """The median; of two numbers the smaller one if it is not zero: neither can raise it alone."""
    if len(x) == 2 and x.min() > 0:
        return float(x.min())
    return median(x)


def robust(x: Array) -> Array:
    """L_j, or |grad f_j|, capped at 10 times the usual one: no site sets the constants alone."""
    return np.minimum(x, 10.0 * usual(x))


def learn(
    known: Array,
    first: Array,
    present: NDArray[np.bool_],
    workers: NDArray[np.int64],
    found: Array,
    above: float = STEEPER,
) -> None:
    """L_j after checked steps, in place: what they found where that is much steeper than was known,
    at most 10 medians; elsewhere a little flatter, but not below the probe's. found < 0: unchecked.
    """
    steep = found > (above * known[workers] if math.isfinite(above) else math.inf)
    fine = workers[(found >= 0) & ~steep]
    known[fine] = np.maximum(first[fine], EASE_OFF * known[fine])
    for j, new in zip(workers[steep], found[steep], strict=True):
        most = 10.0 * median(known[present])
        known[j] = max(float(known[j]), min(float(new), most))


def positive(**values: float) -> None:
    """Refuse an argument that is not a positive finite number, by name."""
    for name, value in values.items():
        real_number(name, value, "a positive finite number", above=0.0)
