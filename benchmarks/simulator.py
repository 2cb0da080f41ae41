"""Worker updates per second: a plain PyTorch loop against whole asynchronous runs.

    python benchmarks/simulator.py [--threads 1 2] [--profile]

Both sides have the Person Activity network (7-64-32-16-11), random data of that shape, batch 64,
and the same number of threads. The plain loop does forward and backward of one module on one batch
and nothing else. Ours is `train` with untouched defaults: events, oracle, master, workers, loss
reports, evaluation every 1,000 iterations, the full log and a run folder. Writes
benchmarks/simulator.json. On a busy machine the wall says little: the processor's time with one
thread is what can be compared, since two threads that wait for each other burn it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aspire import train

WIDTHS = (7, 64, 32, 16, 11)
BATCH = 64
SAMPLES = 2000
NOTE = "on a busy machine two threads stall the plain loop: compare with its figures at one thread"
CASES = (
    {"sites": 64, "quorum": 8, "iterations": 4000},
    {"sites": 5, "quorum": 1, "iterations": 6000},
)


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
    between = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*between[:-1])


def data(sites: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(SAMPLES, WIDTHS[0], generator=made),
            torch.randint(0, WIDTHS[-1], (SAMPLES,), generator=made),
        )
        for _ in range(sites)
    ]


def plain(seconds: float) -> tuple[float, float]:
    """Gradients per second, of the wall and of the processor, of the loop that everybody writes."""
    module = network()
    (inputs, targets) = data(1)[0]
    count = 0
    began = time.perf_counter()
    spent = time.process_time()
    while time.perf_counter() - began < seconds:
        for start in range(0, SAMPLES - BATCH, BATCH):
            batch = slice(start, start + BATCH)
            module.zero_grad()
            nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
            count += 1
    return count / (time.perf_counter() - began), count / (time.process_time() - spent)


def ours(sites: int, quorum: int, iterations: int) -> tuple[float, float]:
    """Worker updates per second of a whole run, of the wall and of the processor."""
    made = data(sites)
    spent = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            network(),
            made,
            form="consensus",
            quorum=quorum,
            iterations=iterations,
            evaluate_every=1000,
            out=Path(folder) / "run",
        )
    updates = quorum * iterations
    return updates / run.wall_seconds, updates / (time.process_time() - spent)


def measure(case: dict[str, int], threads: int, repeats: int) -> dict[str, Any]:
    """Both sides in turn, so that both see the same neighbours on the machine."""
    pairs = []
    for _ in range(repeats):
        torch.set_num_threads(threads)
        pairs.append((plain(2.0), ours(**case)))
    found: dict[str, Any] = {"threads": threads, **case}
    for place, clock in enumerate(("wall", "processor")):
        loops, runs = ([round(side[place]) for side in sides] for sides in zip(*pairs, strict=True))
        found[clock] = {
            "plain_per_second": loops,
            "ours_per_second": runs,
            "ratio_of_medians": round(statistics.median(runs) / statistics.median(loops), 2),
            "ratio_of_bests": round(max(runs) / max(loops), 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="say where the time goes instead")
    arguments = parser.parse_args()
    if arguments.profile:
        torch.set_num_threads(1)
        for case in CASES:
            profiler = cProfile.Profile()
            profiler.runcall(ours, **case)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
        return
    found = {
        "load_before": [round(x, 1) for x in os.getloadavg()],
        "torch": torch.__version__,
        "note": NOTE,
        "cases": [
            measure(case, threads, arguments.repeats)
            for threads in arguments.threads
            for case in CASES
        ],
    }
    text = json.dumps(found, indent=2)
    Path(__file__).with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
