"""Gradients per second of the direct form against a plain PyTorch loop, side by side.

    python benchmarks/direct.py [--device cpu|cuda] [--only NAME ...] [--quick] [--profile]

The plain loop is what everybody writes: forward, backward and an AdamW step of one module on
batches of 64, and nothing else. Ours is `train` with the direct form in a new run folder: events,
delays, loss reports, oracle, optimiser, default log, checkpoint and the evaluation at the end. Both
have one thread, the same module and the same precision, and take turns. Ratios are of the
processor's time on the CPU, so that other programs count for little, and of the wall's on CUDA.
Writes benchmarks/direct-cpu.json or direct-cuda.json.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aspire import train
from aspire.methods import direct
from reproduction.networks import cases, models

BATCH = 64
SAMPLES = {"mlp": 2000, "cnn": 200}  # a site's
WIDTHS = (7, 64, 32, 16, 11)  # Person Activity
Activation = Callable[[], nn.Module]


def mlp(activation: Activation = nn.ReLU, dropout: float = 0.0) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(WIDTHS):
        layers += [nn.Linear(wide, narrow), activation()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers[: -2 if dropout else -1])


def cnn() -> nn.Module:
    """Of 421,642 parameters, for 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@dataclass(frozen=True)
class Case:
    """A run of ours, and the target for its ratio to the plain loop with the same module."""

    name: str
    model: Callable[[], nn.Module]
    data: str
    sites: int
    gradients: int
    method: dict[str, Any] = field(default_factory=dict)
    target: float | None = None
    beside: tuple[str, float] | None = None  # a case, and by how much this one may be slower
    per_second: float | None = None  # the target for its gradients per second


def gelu() -> nn.Module:
    return mlp(nn.GELU)


def dropped() -> nn.Module:
    return mlp(nn.ReLU, 0.1)


MANY = {"quorum": 8}
ON_CPU = (
    Case("cnn", cnn, "cnn", 10, 400, {"quorum": 5}, 0.75),
    Case("mlp-64", mlp, "mlp", 64, 20_000, MANY, 4.0),
    Case("mlp-5", mlp, "mlp", 5, 6_000, {"quorum": 1}, 1.5),
    Case("gelu", gelu, "mlp", 64, 20_000, MANY, None, ("mlp-64", 2.5)),
    Case("dropout", dropped, "mlp", 64, 20_000, MANY, None, ("mlp-64", 2.0)),
    Case("staleness", mlp, "mlp", 64, 20_000, MANY | {"staleness": 20}, None, ("mlp-64", 2.0)),
    Case("local", mlp, "mlp", 64, 20_000, MANY | {"local_steps": 2}, None, ("mlp-64", 2.0)),
)
VIT = partial(cases.vit, False)
RESNET = partial(cases.resnet, models.group_norm, False)
ON_CUDA = (
    Case("cnn", cnn, "cnn", 64, 16_000, MANY, 3.0),
    Case("vit", VIT, "cnn", 64, 6_000, MANY, 3.0),
    Case("resnet", RESNET, "cnn", 64, 2_000, MANY, 1.3),
    Case("mlp-4096", mlp, "mlp", 4096, 16_000, {"quorum": 1024}, per_second=500_000),
)
CASES = {"cpu": ON_CPU, "cuda": ON_CUDA}


def data(kind: str, sites: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(0)
    count = SAMPLES[kind]
    shape, classes = ((1, 28, 28), 10) if kind == "cnn" else (WIDTHS[:1], WIDTHS[-1])
    return [
        (
            torch.randn(count, *shape, generator=made),
            torch.randint(0, classes, (count,), generator=made),
        )
        for _ in range(sites)
    ]


def clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def plain(case: Case, device: str, seconds: float) -> float:
    """Gradients per second of the loop that everybody writes."""
    torch.manual_seed(0)
    module = case.model().to(device)
    inputs, targets = (x.to(device) for x in data(case.data, 1)[0])
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    count = 0
    began = clock(device)
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for start in range(0, len(inputs) - BATCH + 1, BATCH):
            batch = slice(start, start + BATCH)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs[batch]), targets[batch]).backward()
            optimizer.step()
            count += 1
    return count / (clock(device) - began)


def ours(case: Case, device: str, gradients: int) -> float:
    """Gradients per second of a whole run."""
    torch.manual_seed(0)
    module = case.model()
    sites = data(case.data, case.sites)
    with tempfile.TemporaryDirectory() as folder:
        began = clock(device)
        run = train(
            module,
            sites,
            method=direct(**case.method),
            gradients=gradients,
            batch_size=BATCH,
            evaluate_every=0,
            device=device,
            out=Path(folder) / "run",
        )
        spent = clock(device) - began
    return float(run.history[-1]["gradients"]) / spent


def large(device: str) -> dict[str, Any]:
    """A model of 10^8 parameters over four sites: whether it trains, and what it takes."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), *models.mlp((784, 9_600, 9_600, 10)))
    sites = data("cnn", 4)
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = train(
            module,
            sites,
            method=direct(quorum=2),
            gradients=200,
            batch_size=BATCH,
            evaluate_every=50,
            device=device,
            out=Path(folder) / "run",
        )
        seconds = time.perf_counter() - began
    return {
        "parameters": sum(x.numel() for x in module.parameters()),
        "sites": len(sites),
        "gradients": run.history[-1]["gradients"],
        "worst_losses": [round(max(row["losses"]), 4) for row in run.history],
        "seconds": round(seconds, 1),
        "peak_gib_on_the_device": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def measure(case: Case, device: str, repeats: int, *, quick: bool) -> dict[str, Any]:
    """Both sides in turn, so that both see the same neighbours on the machine."""
    gradients, seconds = (case.gradients // 50, 0.05) if quick else (case.gradients, 2.0)
    pairs = []
    for _ in range(repeats):
        pairs.append((plain(case, device, seconds), ours(case, device, gradients)))
    loops, runs = ([round(rate, 1) for rate in side] for side in zip(*pairs, strict=True))
    return {
        "case": case.name,
        "sites": case.sites,
        "gradients": gradients,
        "method": case.method,
        "plain_per_second": loops,
        "ours_per_second": runs,
        "ratio": round(statistics.median(b / a for a, b in pairs), 2),
        "target": case.target,
        "target_per_second": case.per_second,
    }


def compare(found: list[dict[str, Any]], known: Sequence[Case]) -> None:
    """By how much some are slower than the case that they differ from in one argument."""
    speed = {one["case"]: statistics.median(one["ours_per_second"]) for one in found}
    for one in found:
        beside = next(case.beside for case in known if case.name == one["case"])
        if beside is not None and beside[0] in speed:
            one["slower_than"], one["at_most"] = beside
            one["times_slower"] = round(speed[beside[0]] / speed[one["case"]], 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", metavar="CASE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a trial that writes nothing")
    parser.add_argument("--profile", action="store_true", help="say where the time goes instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = CASES[arguments.device]
    chosen = [case for case in known if arguments.only is None or case.name in arguments.only]
    if arguments.profile:
        for case in chosen:
            profiler = cProfile.Profile()
            profiler.runcall(ours, case, arguments.device, case.gradients)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
        return
    repeats = 1 if arguments.quick else arguments.repeats
    about: dict[str, Any] = {"device": arguments.device, "torch": torch.__version__, "threads": 1}
    if arguments.device == "cuda":
        about["name"] = torch.cuda.get_device_name()
    measured: list[dict[str, Any]] = []
    path = Path(__file__).with_name(f"direct-{arguments.device}.json")
    text = ""
    for case in chosen:
        measured.append(measure(case, arguments.device, repeats, quick=arguments.quick))
        compare(measured, known)
        if case is chosen[-1] and arguments.device == "cuda" and arguments.only is None:
            about["large"] = large(arguments.device)
        found = about | {"load": round(os.getloadavg()[0], 1), "cases": measured}
        text = json.dumps(found, indent=2)
        if not arguments.quick and arguments.only is None:
            path.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
