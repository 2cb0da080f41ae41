"""`make bench`: every figure is a ratio of two things measured side by side in one run.

    python benchmarks/run.py [--quick]

One thread. Prints a table and writes benchmarks/results.json; takes about three minutes. `--quick`
does the same on smaller problems and writes nothing: it shows that the benchmark works.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simulator
import torch
from master import MasterSteps
from scipy.optimize import linprog

from aspire.sets import CDNorm

RESULTS = Path(__file__).with_name("results.json")
TOUCHED = 88  # bytes a parameter: w, phi, v and three sums, z and its average, read and written
EXACT = {"dual_feasibility_tolerance": 1e-10, "primal_feasibility_tolerance": 1e-10}
COPIED = 8  # bytes a parameter: a float32 vector, read and written


def master_sites(quick: bool) -> dict[str, Any]:
    """A step with S = 1, p = 10,000: N = 10,000 against N = 10 over 2 k steps, interleaved.

    k = N for the default settings, so 2 k = 20,000 steps hold two calls of the oracle.
    """
    n, pieces = (1000, 2) if quick else (10_000, 20)
    small = MasterSteps(10, 10_000)
    large = MasterSteps(n, 10_000)
    small.seconds(1000)  # warm up
    pairs = [(small.seconds(1000), large.seconds(1000)) for _ in range(pieces)]
    a, b = (statistics.fmean(x) for x in zip(*pairs, strict=True))
    return {"ours_us": 1e6 * b, "baseline_us": 1e6 * a, "ratio": b / a, "at_most": 1.3}


def master_copy(quick: bool) -> dict[str, Any]:
    """A step at p = 10^6 in copies of one float32 vector of that length, from memory to memory."""
    p = 10**5 if quick else 10**6
    rows = 32
    steps = MasterSteps(8, p, kinds=8)
    source = torch.randn(rows, p)
    target = torch.empty_like(source)
    steps.seconds(3)
    pairs = [
        (least(lambda: target.copy_(source), 2) / rows, least(steps.step, 3))
        for _ in range(2 if quick else 10)
    ]
    copy, step = (min(x) for x in zip(*pairs, strict=True))
    found = {"ours_us": 1e6 * step, "baseline_us": 1e6 * copy, "ratio": step / copy}
    return found | {"limit": TOUCHED / COPIED}


def least(work: Callable[[], Any], times: int) -> float:
    """Seconds of the best of a few."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def oracle_sort(quick: bool) -> dict[str, dict[str, Any]]:
    """The CD-norm oracle against one np.argsort of as many numbers, N = 10^6."""
    n = 10**5 if quick else 10**6
    f, equal, unequal = instance(n)
    works: dict[str, Callable[[], Any]] = {
        "sort": lambda: np.argsort(f),
        "equal": lambda: equal.worst_case(f),
        "unequal": lambda: unequal.worst_case(f),
    }
    rounds = [{name: least(work, 1) for name, work in works.items()} for _ in range(5)]
    best = {name: min(times[name] for times in rounds) for name in works}
    return {
        f"CD-norm oracle, {kind} radii, N = {n:,} / np.argsort": {
            "ours_us": 1e6 * best[kind],
            "baseline_us": 1e6 * best["sort"],
            "ratio": best[kind] / best["sort"],
            "at_most": most,
        }
        for kind, most in (("equal", 2.0), ("unequal", 8.0))
    }


def instance(n: int) -> tuple[np.ndarray, CDNorm, CDNorm]:
    rng = np.random.default_rng(0)
    f = rng.standard_normal(n)
    equal = CDNorm(radius=1.0 / n, budget=n / 4).for_sites(n)
    return f, equal, CDNorm(None, rng.uniform(0.1, 1.0, n) / n, n / 4)


def oracle_highs(quick: bool) -> dict[str, Any]:
    """scipy's HiGHS on the same linear program against our oracle, N = 10^5, unequal radii.

    Both get numbers near 1 (weights times N), since solvers work to absolute tolerances.
    """
    n = 2000 if quick else 10**5
    f, _, ours = instance(n)
    r = n * np.asarray(ours.radius)
    q = np.ones(n)
    up_and_down = np.concatenate([1.0 / r, 1.0 / r])[None]
    program: dict[str, Any] = {
        "c": np.concatenate([-f, f]),
        "A_ub": up_and_down,
        "b_ub": [n / 4],
        "A_eq": np.concatenate([np.ones(n), -np.ones(n)])[None],
        "b_eq": [0.0],
        "bounds": np.stack([np.zeros(2 * n), np.concatenate([r, np.minimum(r, q)])], 1),
    }
    began = time.perf_counter()
    solved = linprog(**program, method="highs", options=EXACT)
    seconds = time.perf_counter() - began
    there = float(f.mean() - solved.fun / n)
    here = ours.value(f)
    step = least(lambda: ours.worst_case(f), 5)
    found = {"ours_us": 1e6 * step, "baseline_us": 1e6 * seconds, "ratio": seconds / step}
    return found | {"at_least": 300.0, "difference": abs(there - here), "difference_at_most": 1e-9}


def updates(quick: bool) -> dict[str, dict[str, Any]]:
    """Worker updates per second of whole runs against a plain PyTorch loop, one thread."""
    found = {}
    for case in simulator.CASES:
        short = case | {"iterations": 200} if quick else case
        measured = simulator.measure(short, 1, 1 if quick else 3)["processor"]
        name = f"worker updates / plain loop, N = {case['sites']}, S = {case['quorum']}"
        found[name] = {
            "ours_us": 1e6 / statistics.median(measured["ours_per_second"]),
            "baseline_us": 1e6 / statistics.median(measured["plain_per_second"]),
            "ratio": measured["ratio_of_medians"],
        }
    return found


def table(figures: dict[str, dict[str, Any]]) -> str:
    """One line a figure."""
    wide = max(map(len, figures))
    lines = [f"{'':<{wide}}  {'ours us':>10}  {'baseline us':>11}  {'ratio':>8}"]
    for name, found in figures.items():
        more = "  ".join(
            f"{key.replace('_', ' ')} {value:.3g}"
            for key, value in found.items()
            if key not in {"ours_us", "baseline_us", "ratio"}
        )
        numbers = f"{found['ours_us']:10,.0f}  {found['baseline_us']:11,.0f}  {found['ratio']:8.2f}"
        lines.append(f"{name:<{wide}}  {numbers}  {more}".rstrip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    load = [round(x, 1) for x in os.getloadavg()]
    figures = updates(quick) | oracle_sort(quick)
    figures["HiGHS / CD-norm oracle, N = 100,000"] = oracle_highs(quick)
    figures["master step, N = 10,000 / N = 10"] = master_sites(quick)
    figures["master step, p = 1,000,000 / copy of one row"] = master_copy(quick)
    print(table(figures))
    if quick:
        print("quick: smaller than the names say, nothing is written")
        return
    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "load_before": load}
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    results = {"machine": machine | versions, "figures": figures}
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.name}")


if __name__ == "__main__":
    main()
