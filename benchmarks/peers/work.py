"""The same unit of work for every peer: one local step of one client.

The Person Activity network (7-64-32-16-11), 100 clients with 2,000 random samples each, batches of
64, SGD, THREADS threads. A peer's file in this folder calls `measured` with a function that does a
number of rounds of its own federated averaging; the plain loop is timed before and after it in the
same process. Needs torch alone, since it runs in the peers' environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

WIDTHS = (7, 64, 32, 16, 11)
CLIENTS = 100
BATCH = 64
SAMPLES = 2000
RATE = 0.05
SECONDS = 2.0  # of the plain loop, each time
THREADS = int(os.environ.get("THREADS", "1"))


def without_torchvision() -> None:
    """Peers import it for data sets that are not used here; its wheel may not fit torch's."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for part in ("", ".transforms", ".datasets", ".models", ".io", ".utils"):
            sys.modules[f"torchvision{part}"] = MagicMock()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
    between = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*between[:-1])


def samples(samples_each: int = SAMPLES) -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(samples_each, WIDTHS[0], generator=made),
            torch.randint(0, WIDTHS[-1], (samples_each,), generator=made),
        )
        for _ in range(CLIENTS)
    ]


def plain(clock: Callable[[], float]) -> float:
    """Gradients per second by this clock, of the loop that everybody writes."""
    module = network()
    (inputs, targets) = samples()[0]
    count = 0
    began = clock()
    while clock() - began < SECONDS:
        for start in range(0, SAMPLES - BATCH, BATCH):
            batch = slice(start, start + BATCH)
            module.zero_grad()
            nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
            count += 1
    return count / (clock() - began)


def measured(rounds: Callable[[int], int], few: int, many: int, *, processes: bool = False) -> None:
    """Print what a peer reaches: `rounds(n)` does n rounds and says how many local steps it did.

    What `few` rounds cost is taken off, so that starting up does not count. Where the peer has
    processes of its own, or threads, the wall counts, else the processor's time.
    """
    torch.set_num_threads(THREADS)
    clock = time.perf_counter if processes or THREADS > 1 else time.process_time
    before = plain(clock)
    cost = []
    steps = []
    for n in (few, many):
        began = clock()
        steps.append(rounds(n))
        cost.append(clock() - began)
    loop = (before + plain(clock)) / 2
    per_second = (steps[1] - steps[0]) / (cost[1] - cost[0])
    found = {"updates_per_second": per_second, "plain_per_second": loop}
    found |= {"ratio_to_plain": per_second / loop, "clock": clock.__name__}
    print("\n" + json.dumps(found))
    sys.stdout.flush()
