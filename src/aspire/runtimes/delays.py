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

from aspire.batches import DELAY, uniform

_NORMAL = NormalDist()


class Delays(Protocol):
    def __call__(self, seed: int, worker: int, n: int) -> float: ...


def _of(values: float | Sequence[float], worker: int) -> float:
    return float(values) if isinstance(values, (int, float)) else float(values[worker])


def _check(**values: float | Sequence[float]) -> None:
    for name, value in values.items():
        several = [value] if isinstance(value, (int, float)) else value
        if not all(math.isfinite(v) and v > 0 for v in several):
            raise ValueError(f"{name}={value}: expected positive finite numbers")


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
        if not self.sigma >= 0:
            raise ValueError(f"sigma={self.sigma}: expected a number of at least 0")

    def __call__(self, seed: int, worker: int, n: int) -> float:
        normal = _NORMAL.inv_cdf(uniform(seed, worker, n, DELAY))
        return _of(self.scale, worker) * math.exp(self.mu + self.sigma * normal)


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
                    worker, delay = int(row["worker"]), float(row["delay"])
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
        if not 0 <= self.leaves < self.returns:
            raise ValueError(
                f"leaves={self.leaves}, returns={self.returns}: expected 0 <= leaves < returns"
            )
