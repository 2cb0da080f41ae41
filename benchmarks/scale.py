"""Very many sites in one simulated run: memory, seconds, and the cost of a worker update.

    python benchmarks/scale.py [--sites 100000] [--updates 50000] [--threads 2] [--log full]

Logistic regression on generated samples (200 features, 10 classes, p = 2,010; 10 samples a site),
`train` with untouched defaults but batches of 10. Each size runs in a process of its own, whose
peak is what the kernel says it was. The cost of a worker update is the time between the first and
the last step, evaluations left out, divided by the updates, by the wall's clock and by the
processor's; it is compared with that of few sites with one thread each and with `--threads` each.
Writes benchmarks/scale.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from aspire import train
from aspire.api import predict

FEATURES = 200
CLASSES = 10
SAMPLES = 10
PARAMETERS = CLASSES * (FEATURES + 1)
RESULTS = Path(__file__).with_suffix(".json")
GIB = 2**30


def samples(sites: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Slices of one tensor; labels from one linear rule, with a shift of each site's own."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(sites * SAMPLES, FEATURES, generator=made)
    rule = torch.randn(FEATURES, CLASSES, generator=made) / FEATURES**0.5
    shift = torch.randn(sites, CLASSES, generator=made).repeat_interleave(SAMPLES, 0)
    targets = (inputs @ rule + 0.5 * shift).argmax(1)
    return list(zip(inputs.split(SAMPLES), targets.split(SAMPLES), strict=True))


def peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Clock:
    """The time of the steps between the first and the last time `train` calls it, by the wall's
    clock and the processor's; of a run so short that it calls only once, of all of it."""

    def __init__(self) -> None:
        self.made = (0, time.perf_counter(), time.process_time())
        self.seen: list[tuple[int, float, float]] = []

    def __call__(self, t: int) -> None:
        self.seen = [*self.seen[:1], (t, time.perf_counter(), time.process_time())]

    def microseconds(self) -> list[float]:
        """For one step."""
        (first, *began), (last, *ended) = [self.made, *self.seen][-2:]
        return [1e6 * (b - a) / (last - first) for a, b in zip(began, ended, strict=True)]


def one(sites: int, updates: int, quorum: int, log: str | None) -> dict[str, Any]:
    """A whole run, and what it took."""
    began = time.perf_counter()
    made = samples(sites)
    clock = Clock()
    ready = time.perf_counter()
    spent = time.process_time()
    held = peak()
    iterations = updates // quorum
    torch.manual_seed(0)
    run = train(
        torch.nn.Linear(FEATURES, CLASSES),
        made,
        quorum=quorum,
        iterations=iterations,
        batch_size=SAMPLES,
        evaluate_every=0,
        progress=clock,
        log=log,
    )
    wall, processor = (round(x / quorum, 1) for x in clock.microseconds())
    return {
        "sites": sites,
        "parameters": PARAMETERS,
        "quorum": quorum,
        "updates": quorum * iterations,
        "gradients": run.worker_gradients,
        "threads": torch.get_num_threads(),
        "samples_seconds": round(ready - began, 1),
        "train_seconds": round(time.perf_counter() - ready, 1),
        "train_processor_seconds": round(time.process_time() - spent, 1),
        "microseconds_per_update": wall,
        "processor_microseconds_per_update": processor,
        "gib_before_training": round(held / GIB, 3),
        "gib_peak": round(peak() / GIB, 3),
        "gib_predicted": round((held + predict(sites, PARAMETERS, lines=2).total) / GIB, 3),
        "worst_case_loss": round(run.worst_case_loss, 4),
        "mean_accuracy": round(float(run.mean_accuracy or 0.0), 4),
        "planes": run.planes,
    }


def apart(threads: int, **case: Any) -> dict[str, Any]:
    """`one` in a process of its own."""
    command = [sys.executable, __file__, "--one", json.dumps(case), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--quorum", type=int, default=1)
    parser.add_argument("--log", help="full: event by event")
    parser.add_argument("--baseline", type=int, default=100, help="sites to compare with")
    parser.add_argument(
        "--threads", type=int, default=2, help="of the runs that are timed, beside one"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        torch.set_num_threads(arguments.threads)
        print(json.dumps(one(**arguments.one)))
        return
    load = round(os.getloadavg()[0], 1)
    case = {"updates": arguments.updates, "quorum": arguments.quorum, "log": arguments.log}
    runs = []
    ratios = {}
    for threads in sorted({1, arguments.threads}):
        sizes = arguments.baseline, arguments.sites, arguments.baseline
        few, many, again = (apart(threads, sites=sites, **case) for sites in sizes)
        runs += [few, many, again]
        for clock in ("", "processor_"):
            cost = f"{clock}microseconds_per_update"
            ratio = 2 * many[cost] / (few[cost] + again[cost])
            ratios[f"{clock}threads_{threads}"] = round(ratio, 3)
    results = {
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load_before_and_after": [load, round(os.getloadavg()[0], 1)],
        "runs": runs,
        "update_cost_ratios": ratios,
        "update_cost_ratio": max(ratios.values()),
        "update_cost_ratio_at_most": 1.5,
        "gib_peak": max(run["gib_peak"] for run in runs),
        "gib_at_most": 8.0,
        "seconds": max(run["samples_seconds"] + run["train_seconds"] for run in runs),
        "processor_seconds": max(run["train_processor_seconds"] for run in runs),
        "seconds_at_most": 300.0,
    }
    arguments.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in results.items() if k != "runs"}, indent=2))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
