"""Worker updates per second on one CUDA card: whole asynchronous runs beside their limits.

    python benchmarks/gpu.py [--cases 256,64 4096,1024] [--seconds 2]

Needs torch (with Triton) and numpy only. The Person Activity network (7-64-32-16-11, p = 3,627),
random data of that shape, batch 64. Per (N, S): `ours`, full ASPIRE-EASE iterations with untouched
defaults (events, oracle, planes, loss reports, overshoot checks, digest log); `gradients`, our
kernel for S gradients and nothing else, as a graph; `products`, the same from torch's batched
products, as a graph; `plain`, the loop that everybody writes; and how long one copy of a table of
all rows takes. First the blocks on the card are compared with the simulator on the CPU. Writes
gpu.json beside this file, or where --out says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from aspire.methods import aspire
from aspire.problem.problem import Problem, build
from aspire.runs.log import EventLog
from aspire.simulator import blocks, simulator
from aspire.simulator.delays import LogNormal

WIDTHS = (7, 64, 32, 16, 11)
BATCH = 64
SAMPLES = 2000
CASES = ((16, 4), (64, 16), (256, 64), (1024, 256), (4096, 1024))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
    between = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*between[:-1])


def problem(sites: int, device: str, samples: int = SAMPLES) -> Problem:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(sites, samples, WIDTHS[0], generator=made)
    y = torch.randint(0, WIDTHS[-1], (sites, samples), generator=made)
    return build(network(), list(zip(x, y, strict=True)), batch_size=BATCH, device=device)


def begun(made: Problem, quorum: int) -> simulator.Simulation:
    simulation = simulator.begin(aspire(quorum=quorum), made, delays=LogNormal())
    simulation.log = EventLog("digest")
    return simulation


def compare(sites: int, quorum: int, steps: int) -> dict[str, Any]:
    """Blocks on the card beside the simulator on the CPU, and beside themselves."""
    found = []
    for device, run in (("cuda", blocks.run), ("cuda", blocks.run), ("cpu", simulator.run)):
        simulation = begun(problem(sites, device, samples=700), quorum)
        more = {"last": steps, "every": steps} if device == "cuda" else {}
        run(simulation, lambda s: s.master.t >= steps, **more)
        found.append(simulation)
    (a, again, b) = found
    (x, _, y) = (simulation.master for simulation in found)
    same = (x.last == y.last).all() and (x.task == y.task).all() and a.time == b.time
    planes = len(x.planes), len(y.planes)
    return {
        "sites": sites,
        "quorum": quorum,
        "steps": steps,
        "same_order": bool(same),
        "same_cost": a.gradients == b.gradients and a.samples == b.samples,
        "same_bytes_again": a.log.state() == again.log.state(),
        "z": float((x.z.cpu() - y.z).abs().max()),
        "f": float(np.abs(x.f - y.f).max()),
        "planes": planes,
        "lam": float(np.abs(x.planes.lam - y.planes.lam).max()) if len(set(planes)) == 1 else None,
    }


def ours(made: Problem, quorum: int, seconds: float) -> dict[str, Any]:
    """From the second thousand steps on; the first thousand build the kernels and the graphs."""
    marks: list[tuple[float, float, int]] = []

    def look(simulation: simulator.Simulation) -> None:
        torch.cuda.synchronize()
        marks.append((time.perf_counter(), time.process_time(), simulation.master.t))

    def done(simulation: simulator.Simulation) -> bool:
        enough = len(marks) > 2 and marks[-1][0] - marks[0][0] > seconds
        return enough and len(marks) > 6

    simulation = begun(made, quorum)
    assert blocks.fits(simulation)
    assert blocks.on_card(made)
    began = time.perf_counter()
    blocks.run(simulation, done, last=10**9, every=1000, on_step=look)
    rates = [quorum * (b[2] - a[2]) / (b[0] - a[0]) for a, b in pairwise(marks)]
    whole = quorum * (marks[-1][2] - marks[0][2]) / (marks[-1][0] - marks[0][0])
    host = (marks[-1][1] - marks[0][1]) / (marks[-1][0] - marks[0][0])
    return {
        "per_second": round(whole),
        "best": round(max(rates)),
        "median": round(statistics.median(rates)),
        "steps": marks[-1][2] - marks[0][2],
        "start_up_seconds": round(marks[0][0] - began, 1),
        "host_busy": round(host, 2),
        "planes": len(simulation.master.planes),
        "events": simulation.log.count,
        "mean_loss": round(float(simulation.master.f.mean()), 4),
    }


def timed(call: Callable[[], Any], repeats: int = 30) -> float:
    """Seconds of one call, as a graph, the median of many."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    found = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        found.append(first.elapsed_time(last) / 1e4)
    return statistics.median(found)


def engine(made: Problem, quorum: int) -> blocks.Engine:
    """An engine some steps into its run, with a step of work in slot 0."""
    simulation = begun(made, quorum)
    blocks.run(simulation, lambda s: s.master.t >= 40, last=40, every=40)
    found = blocks.Engine(simulation, lambda note: None, last=10**9, every=60)
    found.advance()
    return found


def replayed(made: blocks.Engine) -> float:
    """Seconds of one whole step on the device alone: 512 of them, laid out before."""
    card = made.rows
    found = []
    made.every = 512
    for _ in range(4):
        block, plan = made._next()
        card.load(plan)
        card.tune(0, made._numbers(len(block)))
        torch.cuda.synchronize()
        began = time.perf_counter()
        card.steps(0, len(block) // 16 * 16)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / (len(block) // 16 * 16))
        card.steps(len(block) // 16 * 16, len(block))
        made.master.t += len(block)
    return min(found)


def parts(made: Problem, quorum: int) -> dict[str, float]:
    """Microseconds of each part of a step, by itself."""
    found_engine = engine(made, quorum)
    card = found_engine.rows
    every = card.all
    nobody = torch.zeros_like(card.all)
    slot = card.slots[0]
    kept = card.slots[0].clone()
    calls: dict[str, Callable[[], Any]] = {
        "gradients": lambda: card._gradients(card.flight.w, card.again, 0, every),
        "gradients of nobody": lambda: card._gradients(card.flight.w, card.again, 0, nobody),
        "dual": lambda: card._dual(0),
        "vectors": lambda: card._vectors(0),
    }
    found = {"whole step": replayed(found_engine)}
    began = time.perf_counter()
    found_engine.order.block(100)
    found["order of a step, on the host"] = (time.perf_counter() - began) / 100
    found |= {name: timed(call) for name, call in calls.items()}
    for name, share in (("nobody", 10**9), ("one in 11", 11), ("everybody", 1)):
        slot[3] = (torch.arange(slot.shape[1], device=slot.device) % share == share - 1).long()
        found[f"losses of {name}"] = timed(lambda: card._losses(0))
    slot.copy_(kept)
    return {name: round(1e6 * value, 1) for name, value in found.items()}


def products(made: Problem, rows: int) -> float:
    """Gradients per second from torch's batched products."""
    first = made.sites[0]
    stack = first.objective.stack
    pool = first.pool
    w = made.flat.start.expand(rows, -1).contiguous()
    index = torch.randint(0, first.train.size, (rows, BATCH), device=w.device)
    return rows / timed(lambda: stack.gradients(w, *pool.take(index), 0.0))


def plain(seconds: float = 1.0) -> float:
    module = network().cuda()
    x = torch.randn(BATCH, WIDTHS[0]).cuda()
    y = torch.randint(0, WIDTHS[-1], (BATCH,)).cuda()
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(50):
            module.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
        torch.cuda.synchronize()
        count += 50
    return count / (time.perf_counter() - began)


def bandwidth() -> float:
    """Bytes read and written per second by a large copy."""
    x = torch.zeros(2**30, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)
    return 8.0 * x.numel() / timed(lambda: y.copy_(x), repeats=3)


def measure(sites: int, quorum: int, seconds: float) -> dict[str, Any]:
    made = problem(sites, "cuda")
    found: dict[str, Any] = {"sites": sites, "quorum": quorum, "ours": ours(made, quorum, seconds)}
    found["microseconds"] = parts(made, quorum)
    found["gradients_per_second"] = round(1e6 * quorum / found["microseconds"]["gradients"])
    found["products_per_second"] = round(products(made, quorum))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=[f"{n},{s}" for n, s in CASES])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as `train` does for a small model
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "plain_per_second": round(plain()),
        "copy_bytes_per_second": bandwidth(),
        "compared": [compare(5, 1, 150), compare(16, 4, 150), compare(64, 16, 150)],
        "cases": [],
    }
    print(json.dumps(found, indent=1), flush=True)
    for case in arguments.cases:
        found["cases"].append(measure(*map(int, case.split(",")), arguments.seconds))
        print(json.dumps(found["cases"][-1]), flush=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("| N | S | ours, updates/s | our gradients alone | torch's products alone | plain loop |")
    for row in found["cases"]:
        print(
            f"| {row['sites']:,} | {row['quorum']:,} | {row['ours']['per_second']:,} | "
            f"{row['gradients_per_second']:,} | {row['products_per_second']:,} | "
            f"{found['plain_per_second']:,} |"
        )


if __name__ == "__main__":
    main()
