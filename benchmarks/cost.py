"""What a master iteration costs against N, p, S and the number of planes, with fitted exponents.

    python benchmarks/cost.py [--quick]

A master that is fed ready-made reports, default settings, one thread, the processor's time. One
quantity varies, the others stay at N = 1,000, p = 2,010, S = 1 and the planes that the run makes.
Pieces of all sizes take turns, and the median counts. The exponent is the slope of log(cost) over
the whole range, and over its last factor of ten, where the fixed cost of a call matters least.
Writes benchmarks/cost.json and docs/cost.png; `--quick` writes nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from master import MasterSteps

RESULTS = Path(__file__).with_suffix(".json")
PICTURE = Path(__file__).parent.parent / "docs" / "cost.png"
USUAL = {"n": 1000, "p": 2010, "quorum": 1}
SWEEPS: dict[str, list[int]] = {
    "n": [10, 100, 1000, 10_000, 100_000],
    "p": [100, 1000, 10_000, 100_000, 1_000_000],
    "quorum": [1, 3, 10, 30, 100, 300, 1000],
    "planes": [1, 3, 10, 30, 100, 300, 1000],
}
TITLES = {"n": "sites N", "p": "parameters p", "quorum": "reports a step S", "planes": "planes"}


def measure(name: str, values: list[int], rounds: int) -> list[float]:
    """Microseconds a step at each value."""
    made = []
    steps = []
    for value in values:
        case = USUAL | {name: value}
        if name == "p" and value > 10_000:
            case |= {"n": 20}  # rows of many sites would fill the memory
        master = MasterSteps(**case, kinds=8 if value >= 10**6 else 64)
        once = min(master.seconds(3) for _ in range(3))
        made.append(master)
        steps.append(max(2, min(500, int(0.1 / once))))
    turns = [[m.seconds(k) for m, k in zip(made, steps, strict=True)] for _ in range(rounds)]
    return [1e6 * statistics.median(column) for column in zip(*turns, strict=True)]


def exponent(values: list[int], cost: list[float]) -> float:
    return float(np.polyfit(np.log(values), np.log(cost), 1)[0])


def sweep(name: str, values: list[int], rounds: int) -> dict[str, Any]:
    cost = measure(name, values, rounds)
    last = [i for i, value in enumerate(values) if value >= values[-1] / 10]
    ends = [values[i] for i in last], [cost[i] for i in last]
    found = {"values": values, "microseconds": [round(c, 1) for c in cost]}
    return found | {
        "exponent": round(exponent(values, cost), 3),
        "exponent_of_last_decade": round(exponent(*ends), 3),
    }


def draw(found: dict[str, dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(11, 2.8), sharey=True)
    for axis, (name, one) in zip(axes, found.items(), strict=True):
        axis.loglog(one["values"], one["microseconds"], "o-", color="#20639b", markersize=4)
        axis.set_xlabel(TITLES[name])
        axis.set_title(
            f"exponent {one['exponent']:.2f}, last decade {one['exponent_of_last_decade']:.2f}",
            fontsize=8,
        )
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds an iteration")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    found = {}
    for name, values in SWEEPS.items():
        found[name] = sweep(name, values[:3] if quick else values, 1 if quick else 7)
        print(json.dumps({name: found[name]}), flush=True)
    if not quick:
        results = {"torch": torch.__version__, "usual": USUAL, "sweeps": found}
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        draw(found)
        print(f"written to {RESULTS.name} and {PICTURE.name}")


if __name__ == "__main__":
    main()
