"""`make bench`: every figure is a ratio of two things measured side by side in one run.

Writes benchmarks/results.json and prints a table.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from aspire.methods import aspire
from aspire.sets import CDNorm
from aspire.types import Facts, Report

RESULTS = Path(__file__).with_name("results.json")
P = 10_000


class MasterSteps:
    """A master of N workers that is fed ready-made reports: only `absorb` is timed."""

    def __init__(self, n: int) -> None:
        rng = torch.Generator().manual_seed(0)
        self.n, self.method = n, aspire()
        self.master, tasks = self.method.init(Facts(n, torch.zeros(P)), seed=0)
        self.losses = np.random.default_rng(0).uniform(0.5, 1.5, 64)
        self.vectors = [0.01 * torch.randn(P, generator=rng) for _ in range(64)]
        probes = []
        for task in tasks:
            scalars = {"loss": float(self.losses[task.worker % 64]), "curvature": 1.0}
            probes.append(Report(task.worker, task.id, {}, scalars))
        self.master, tasks, _ = self.method.absorb(self.master, probes)
        self.hands = {task.worker: task.id for task in tasks}
        self.order = np.random.default_rng(1).permutation(n)
        self.done = 0

    def step(self) -> None:
        j = int(self.order[self.done % self.n])
        scalars = {"loss": float(self.losses[(self.done * 7) % 64])}
        report = Report(j, self.hands[j], {"w": self.vectors[self.done % 64]}, scalars)
        self.master, tasks, _ = self.method.absorb(self.master, [report])
        self.hands[j] = tasks[0].id
        self.done += 1

    def seconds(self, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - began) / steps


def master_step() -> dict[str, float]:
    """One step with S = 1, p = 10,000: N = 10,000 against N = 10, over 2 k steps, interleaved.

    k = N for the default settings, so 2 k = 20,000 steps hold two calls of the oracle.
    """
    small, large = MasterSteps(10), MasterSteps(10_000)
    small.seconds(2000)  # warm up
    pieces: list[tuple[float, float]] = []
    for _ in range(20):  # 20 x 1,000 = 2 k steps of the large one
        pieces.append((small.seconds(1000), large.seconds(1000)))
    a, b = (statistics.fmean(x) for x in zip(*pieces, strict=True))
    return {
        "microseconds_n_10": 1e6 * a,
        "microseconds_n_10000": 1e6 * b,
        "ratio": b / a,
        "expected_at_most": 1.3,
    }


def oracle() -> dict[str, float]:
    """The CD-norm oracle against one np.argsort of as many numbers, N = 1,000,000."""
    n = 1_000_000
    rng = np.random.default_rng(0)
    f = rng.standard_normal(n)
    equal = CDNorm(radius=1.0 / n, budget=n / 4).for_sites(n)
    unequal = CDNorm(None, rng.uniform(0.1, 1.0, n) / n, n / 4)
    times: dict[str, list[float]] = {"argsort": [], "equal": [], "unequal": []}
    for _ in range(5):
        for name, work in (
            ("argsort", np.argsort),
            ("equal", equal.worst_case),
            ("unequal", unequal.worst_case),
        ):
            began = time.perf_counter()
            work(f)
            times[name].append(time.perf_counter() - began)
    best = {name: min(values) for name, values in times.items()}
    return {
        "argsort_seconds": best["argsort"],
        "equal_radii_ratio": best["equal"] / best["argsort"],
        "unequal_radii_ratio": best["unequal"] / best["argsort"],
    }


def main() -> None:
    torch.set_num_threads(1)
    results = {
        "machine": {"processor": platform.machine(), "torch": torch.__version__},
        "master_step": master_step(),
        "cd_norm_oracle": oracle(),
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for name, figures in results.items():
        print(name)
        for key, value in figures.items():
            print(f"  {key:<24}{value if isinstance(value, str) else format(value, '12.4g')}")
    print(f"written to {RESULTS.name}")


if __name__ == "__main__":
    main()
