"""How long a task takes in virtual time: a function of (seed, worker, n), n the task's number.

`scale` stretches the delays of each worker; a scalar is for all of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aspire.arguments import is_number, real_number, shown
from aspire.problem.batches import DELAY, uniform, uniforms
from aspire.types import Array

_NORMAL = NormalDist()


class Delays(Protocol):
    def __call__(self, seed: int, worker: int, n: int) -> float: ...


def many(
    delays: Delays, seed: int, workers: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Array:
    """The delays of many tasks, each the same to the bit as asked for alone."""
    if isinstance(delays, LogNormal):
        return delays.many(seed, workers, numbers)
    pairs = zip(workers.tolist(), numbers.tolist(), strict=True)
    return np.array([delays(seed, j, n) for j, n in pairs])


def _of(values: float | Sequence[float], worker: int) -> float:
    return float(values) if isinstance(values, (int, float)) else float(values[worker])


def _check(**values: float | Sequence[float]) -> None:
    for name, value in values.items():
        several = value if isinstance(value, (Sequence, np.ndarray)) else [value]
        if not all(is_number(v) and math.isfinite(v) and v > 0 for v in several):
            raise ValueError(f"{name}={shown(value)}: expected positive finite numbers")


# AS 241 (Wichura 1988), which NormalDist uses too: quotients of polynomials, highest power first,
# for the middle and for the tails down to 1e-11; a uniform number of 32 bits is never further out.
_MIDDLE = (
    (
        2509.0809287301226727,
        33430.575583588128105,
        67265.770927008700853,
        45921.953931549871457,
        13731.693765509461125,
        1971.5909503065514427,
        133.14166789178437745,
        3.387132872796366608,
    ),
    (
        5226.495278852854561,
        28729.085735721942674,
        39307.89580009271061,
        21213.794301586595867,
        5394.1960214247511077,
        687.1870074920579083,
        42.313330701600911252,
        1.0,
    ),
)
_TAIL = (
    (
        7.7454501427834140764e-4,
        0.0227238449892691845833,
        0.24178072517745061177,
        1.27045825245236838258,
        3.64784832476320460504,
        5.7694972214606914055,
        4.6303378461565452959,
        1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9,
        5.475938084995344946e-4,
        0.0151986665636164571966,
        0.14810397642748007459,
        0.68976733498510000455,
        1.6763848301838038494,
        2.05319162663775882187,
        1.0,
    ),
)


def _inverse_normal(p: Array) -> Array:
    """inv_cdf of many numbers, to the bit; logarithms are math's, as numpy's may differ."""
    q = p - 0.5
    above, below = (_polynomial(c, 0.180625 - q * q) for c in _MIDDLE)
    found: Array = above * q / below
    tails = np.flatnonzero(np.abs(q) > 0.425)
    outer = np.where(q[tails] <= 0.0, p[tails], 1.0 - p[tails])
    r = np.sqrt(-np.fromiter(map(math.log, outer.tolist()), np.float64, len(tails))) - 1.6
    above, below = (_polynomial(c, r) for c in _TAIL)
    found[tails] = np.copysign(above / below, q[tails])
    return found


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    value = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value *= x
        value += c
    return value


@dataclass(frozen=True)
class Constant:
    """Always d_j."""

    delay: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        _check(delay=self.delay)

    def __call__(self, seed: int, worker: int, n: int) -> float:
        return _of(self.delay, worker)


@dataclass(frozen=True)
class LogNormal:
    """scale_j exp(mu + sigma g), g standard normal: LN(mu, sigma) of the paper."""

    mu: float = 1.0
    sigma: float = 0.4
    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        _check(scale=self.scale)
        real_number("mu", self.mu, "a number")
        real_number("sigma", self.sigma, "a number of at least 0", least=0.0)

    def __call__(self, seed: int, worker: int, n: int) -> float:
        normal = _NORMAL.inv_cdf(uniform(seed, worker, n, DELAY))
        return _of(self.scale, worker) * math.exp(self.mu + self.sigma * normal)

    def many(self, seed: int, workers: NDArray[np.int64], numbers: NDArray[np.int64]) -> Array:
        """numpy's exp may differ from math's in the last bit, so the exponentials are math's."""
        normal = _inverse_normal(uniforms(seed, workers, numbers, DELAY))
        powers = map(math.exp, (self.mu + self.sigma * normal).tolist())
        scale = (
            np.broadcast_to(self.scale, workers.shape)
            if np.ndim(self.scale) == 0
            else (np.asarray(self.scale, dtype=np.float64)[workers])
        )
        return scale * np.fromiter(powers, np.float64, len(workers))


@dataclass(frozen=True)
class Pareto:
    """scale_j u^(-1/shape), u uniform: heavy tails, infinite variance for shape <= 2."""

    shape: float = 2.0
    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        _check(shape=self.shape, scale=self.scale)

    def __call__(self, seed: int, worker: int, n: int) -> float:
        return _of(self.scale, worker) * uniform(seed, worker, n, DELAY) ** (-1.0 / self.shape)


@dataclass(frozen=True)
class Uniform:
    """Even between low and high."""

    low: float = 0.5
    high: float = 1.5
    scale: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        _check(low=self.low, high=self.high, scale=self.scale)
        if self.high < self.low:
            raise ValueError(f"high={self.high}: expected at least low={self.low}")

    def __call__(self, seed: int, worker: int, n: int) -> float:
        even = uniform(seed, worker, n, DELAY)
        return _of(self.scale, worker) * (self.low + even * (self.high - self.low))


class Trace:
    """Measured delays from a CSV file with the columns worker,delay; each worker's list repeats."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.delays: dict[int, list[float]] = {}
        if not Path(path).is_file():
            raise ValueError(f"trace={self.path!r}: expected a CSV file, and there is none")
        with open(path, newline="") as file:
            for line, row in enumerate(csv.DictReader(file), start=2):
                try:
                    worker = int(row["worker"])
                    delay = float(row["delay"])
                except (KeyError, TypeError, ValueError):
                    raise ValueError(
                        f"trace={self.path!r}, line {line}: expected the columns worker,delay"
                    ) from None
                _check(delay=delay)
                self.delays.setdefault(worker, []).append(delay)

    def __repr__(self) -> str:
        return f"Trace({self.path!r})"

    def __call__(self, seed: int, worker: int, n: int) -> float:
        if worker not in self.delays:
            raise ValueError(f"trace={self.path!r} has no delay for worker {worker}")
        return self.delays[worker][n % len(self.delays[worker])]


@dataclass(frozen=True)
class Absence:
    """A worker that is away from virtual time `leaves` to `returns` (infinity: for good)."""

    worker: int
    leaves: float
    returns: float = math.inf

    def __post_init__(self) -> None:
        times = (self.leaves, self.returns)
        if not (all(map(is_number, times)) and 0 <= self.leaves < self.returns):
            raise ValueError(
                f"leaves={shown(self.leaves)}, returns={shown(self.returns)}: expected "
                "0 <= leaves < returns"
            )
