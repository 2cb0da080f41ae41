"""What the direct form's clip and the floor of its second moment were chosen by.

    python benchmarks/clipping.py [--seeds 100 101 102 103 104] [--clips 1 2 3] [--floors 0.3 1 3]
        [--attacks honest reversed far] [--gradients 2000]

The small CNN of `aspire reproduce networks`, where two of ten sites may weigh .2/N at most, on
seeds that no table shows. Prints the eight honest sites' worst test accuracy in %, mean over seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from aspire.methods import optimisers
from reproduction.networks import liars, run
from reproduction.networks.plan import Plan


def accuracy(method: str, attack: str, seed: int, gradients: int) -> float:
    cell = Plan("small", {}).cell(liars.NETWORK, method, f"low-{attack}", seed)
    found = run.run(replace(cell, gradients=gradients), "cpu")
    return 100 * float(found.get("honest_accuracy", 0.0))


def row(name: str, method: str, attacks: list[str], options: argparse.Namespace) -> None:
    means = [
        np.mean([accuracy(method, attack, seed, options.gradients) for seed in options.seeds])
        for attack in attacks
    ]
    print(f"{name:<16}" + "".join(f"{mean:>10.1f}" for mean in means), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 105)))
    parser.add_argument("--clips", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    parser.add_argument("--floors", type=float, nargs="+", default=[0.3, 1.0, 3.0])
    parser.add_argument("--attacks", nargs="+", default=[liars.HONEST, "reversed", "far"])
    parser.add_argument("--gradients", type=int, default=2_000)
    options = parser.parse_args()
    print(f"{'clip, floor':<16}" + "".join(f"{attack:>10}" for attack in options.attacks))
    row("none", liars.UNCLIPPED, [liars.HONEST], options)
    for liars.CLIP in options.clips:
        for optimisers.FLOOR in options.floors:
            row(f"{liars.CLIP:g}, {optimisers.FLOOR:g}", liars.CLIPPED, options.attacks, options)


if __name__ == "__main__":
    main()
