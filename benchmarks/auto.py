"""The evidence for `auto`: nothing tuned, the same rule on convex problems and on a network.

    python benchmarks/auto.py convex [--jobs 2]     all committed problems, exact minimax values
    python benchmarks/auto.py convex --simplex      the same with the whole simplex as the set
    python benchmarks/auto.py network [--data DIR]  Person Activity, 15,000 gradients, 3 seeds

Writes benchmarks/auto-convex.json or benchmarks/auto-network.json and prints the table.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aspire import train
from aspire.sets import CDNorm
from reproduction.convex import ConvexProblem, exact_value, problems, solve
from reproduction.data import load

HERE = Path(__file__).parent


def excess(problem: ConvexProblem, simplex: bool = False) -> dict[str, Any]:
    """How far above the exact minimax value both ways of training end, in percent."""
    n = problem.workers
    uncertainty = CDNorm(radius=1.0 if simplex else 1.0 / n, budget=float(n))
    exact, _ = exact_value(problem, 1.0 if simplex else 1.0 / n, float(n))
    line: dict[str, Any] = {"problem": problem.name, "exact": exact}
    for name, batch in (("full", None), ("batch_32", 32)):
        run = solve(problem, batch, uncertainty=uncertainty)
        line[name] = 100 * (run.worst_case_loss / exact - 1)
        line[f"planes_{name}"] = run.planes
    return line


def convex(jobs: int, seeds: int, simplex: bool) -> dict[str, Any]:
    began = time.perf_counter()
    lines = []
    print(f"{'problem':<36}{'exact':>11}{'full, %':>10}{'batch 32, %':>13}{'planes':>10}")
    with ProcessPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for line in pool.map(partial(excess, simplex=simplex), problems(tuple(range(seeds)))):
            lines.append(line)
            planes = f"{line['planes_full']}, {line['planes_batch_32']}"
            print(
                f"{line['problem']:<36}{line['exact']:>11.5g}{line['full']:>10.3f}"
                f"{line['batch_32']:>13.3f}{planes:>10}",
                flush=True,
            )
    worst = {name: max(line[name] for line in lines) for name in ("full", "batch_32")}
    print(f"worst of {len(lines)}: full {worst['full']:.3f} %, batch 32 {worst['batch_32']:.3f} %")
    return {"worst": worst, "seconds": time.perf_counter() - began, "problems": lines}


def person_activity(seed: int, data: str | None, gamma: float | None = None) -> dict[str, Any]:
    """S = 1, batches of 100, 15,000 worker gradients with the probes: the `paper` protocol."""
    federation = load("person-activity", data, protocol="paper", seed=seed)
    torch.manual_seed(seed)
    widths = (7, 64, 32, 16, 11)
    layers: list[torch.nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    n = len(federation.sites)
    run = train(
        torch.nn.Sequential(*layers[:-1]),
        federation.sites,
        form="consensus",
        uncertainty=CDNorm(radius=1.0 / n, budget=float(n) if gamma is None else gamma),
        gradients=15_000,
        batch_size=100,
        seed=seed,
        evaluate_every=0,
        log="off",
    )
    assert run.worker_gradients in (15_000, 15_001)
    assert run.accuracies is not None
    return {
        "seed": seed,
        "worst_accuracy": 100 * float(run.accuracies.min()),
        "std": 100 * float(run.accuracies.std()),
        "accuracies": (100 * run.accuracies).round(2).tolist(),
        "weights": run.weights.round(3).tolist(),
        "planes": run.planes,
        "seconds": run.wall_seconds,
    }


def network(jobs: int, seeds: int, data: str | None) -> dict[str, Any]:
    with ProcessPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        lines = list(pool.map(person_activity, range(seeds), [data] * seeds))
    for line in lines:
        print(
            f"seed {line['seed']}: Acc_w {line['worst_accuracy']:.2f}, Std {line['std']:.2f}, "
            f"sites {line['accuracies']}, weights {line['weights']}, planes {line['planes']}, "
            f"{line['seconds']:.0f} s"
        )
    mean = {key: float(np.mean([line[key] for line in lines])) for key in ("worst_accuracy", "std")}
    print(f"mean of {seeds}: Acc_w {mean['worst_accuracy']:.2f}, Std {mean['std']:.2f}")
    return {"mean": mean, "runs": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("convex", "network"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--data")
    parser.add_argument("--simplex", action="store_true")
    given = parser.parse_args()
    if given.what == "convex":
        result = convex(given.jobs, given.seeds or 1, given.simplex)
    else:
        result = network(given.jobs, given.seeds or 3, given.data)
    name = f"{given.what}-simplex" if given.simplex else given.what
    (HERE / f"auto-{name}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
