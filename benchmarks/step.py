"""What the default step of the direct form was chosen by.

    python benchmarks/step.py [--networks cnn lstm ...] [--factors 0.2 0.4 0.8]
        [--settle 500 2000 inf] [--size small] [--seed 100]

Networks of `aspire reproduce networks` on a seed that no table shows, with other numbers in the
place of 0.4 / depth and of the 2000 steps after which the rate is 0.71 of its first.
Prints the worst training loss at the end.
"""

from __future__ import annotations

import argparse
import itertools

from aspire.methods import optimisers
from reproduction.networks import plan, run
from reproduction.networks.methods import DIRECT


def loss(network: str, size: str, seed: int) -> float:
    cell = plan.Plan(size, {}).cell(network, DIRECT, "end", seed)
    return float(run.run(cell, "cpu").get("worst_loss") or float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(plan.NINE))
    parser.add_argument("--factors", type=float, nargs="+", default=[0.2, 0.4, 0.8])
    parser.add_argument("--settle", type=float, nargs="+", default=[500.0, 2000.0, float("inf")])
    parser.add_argument("--size", choices=("small", "full"), default="small")
    parser.add_argument("--seed", type=int, default=plan.SEARCH_SEED)
    options = parser.parse_args()
    tried = list(itertools.product(options.factors, options.settle))
    print(f"{'factor, settle':<18}" + "".join(f"{f'{a:g}, {b:g}':>12}" for a, b in tried))
    for network in options.networks:
        found = []
        for optimisers.RELATIVE, optimisers.SETTLE in tried:
            found.append(loss(network, options.size, options.seed))
        print(f"{network:<18}" + "".join(f"{value:>12.4g}" for value in found), flush=True)


if __name__ == "__main__":
    main()
