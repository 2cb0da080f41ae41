"""The master's peak memory with few sites and with many, for the direct form on real engines.

    python benchmarks/memory.py [--parameters 10000000] [--few 10] [--many 1000] [--actors 2]

Each run is a process of its own, whose peak is what the kernel says it was (VmHWM, shared memory
counted). On Ray the sites share `--actors` actors, and the run has a folder. In the federation one
client speaks for all sites over mutual TLS (`crowd`). Gradients are made up, but on Ray with
`--compute`, which takes ten times as long. Every site is asked for about one: two steps of half of
the sites each, as by default. Writes memory.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from aspire.api import predict, prepare
from aspire.api.engines import crew_and_job, train_on
from aspire.api.job import Job
from aspire.engines import serve
from aspire.engines.driver import Driver, begin
from aspire.methods import direct
from aspire.problem.sites import Scores
from aspire.runs.log import EventLog
from aspire.types import Method

HERE = Path(__file__)
RESULTS = HERE.with_suffix(".json")
INPUTS = 100
CLASSES = 10
SAMPLES = 4
STEPS = 2
GIB = 2**30


def network(parameters: int) -> nn.Module:
    """The smallest of three layers, two of them equally wide, with so many parameters."""
    width = 1
    while count(width) < parameters:
        width += 1
    torch.manual_seed(0)
    sizes = (INPUTS, width, width, CLASSES)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def count(width: int) -> int:
    return (INPUTS + 1) * width + (width + 1) * width + (width + 1) * CLASSES


def samples(sites: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(sites, SAMPLES, INPUTS, generator=made)
    targets = torch.randint(0, CLASSES, (sites, SAMPLES), generator=made)
    return {f"s{j:04d}": (inputs[j], targets[j]) for j in range(sites)}


def peak() -> int:
    """Bytes, of this process."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+)", status)
    assert found is not None
    return 1024 * int(found[1])


# ---------------------------------------------------------------- one run, in a process of its own


@dataclass(frozen=True)
class MadeUp:
    """A site whose gradient costs nothing: of the master's memory it tells as much as another."""

    number: int
    objective: torch.Tensor  # what the sites of an actor share; of a real one, the model
    batch_samples: int = SAMPLES
    loss_samples: int = SAMPLES
    notes: tuple[str, ...] = ()
    train: Any = field(default_factory=lambda: SimpleNamespace(device="cpu", size=SAMPLES))
    test: None = None
    val: None = None

    def gradient(self, w: torch.Tensor, draw: int) -> torch.Tensor:
        return self.objective

    def loss(self, w: torch.Tensor) -> float:
        return 1.0 + self.number / 1e4

    def scores(self, w: torch.Tensor) -> Scores:
        return Scores(self.loss(w), None, None)


def member(number: int, parameters: int) -> tuple[Method, Any]:
    """Runs in an actor's process. A site without samples has no figures to give at the end."""
    serve.figures_of = lambda *_: {}
    return method(), MadeUp(number, torch.full((parameters,), 1e-3))


def method() -> Method:
    """Every site is asked for gradients, none rests."""
    return direct(loss_tasks=False)


def job_of(sites: int, parameters: int) -> Job:
    """The master's part; the sites are elsewhere."""
    names = [f"s{j:04d}" for j in range(sites)]
    return prepare(
        network(parameters),
        dict.fromkeys(names),
        method=method(),
        iterations=STEPS,
        evaluate_every=0,
        elsewhere=True,
    )


def on_ray(sites: int, parameters: int, actors: int, compute: bool) -> dict[str, Any]:
    """With a run folder, and about as many checkpoints whatever the sites."""
    from aspire.engines.ray import Ray

    engine = Ray(actors=min(actors, sites))
    job = job_of(sites, parameters)
    began = perf_counter()
    crew: Any = [partial(member, j, len(job.problem.flat.start)) for j in range(sites)]
    if compute:
        arguments = {"method": method(), "batch_size": SAMPLES, "iterations": STEPS}
        crew, job = crew_and_job(network(parameters), samples(sites), arguments)
    with tempfile.TemporaryDirectory() as folder:
        often = 0.05 * sites  # seconds
        run = train_on(engine, job, crew, out=Path(folder) / "run", checkpoint_seconds=often)
    absences = [absence["reason"] for absence in run.absences]
    gradients = int(run.history[-1]["gradients"])
    return {"gradients": gradients, "seconds": perf_counter() - began, "absences": absences}


def in_federation(sites: int, parameters: int) -> dict[str, Any]:
    """The server; the crowd comes when it has said its port."""
    from aspire.engines.grpc import kits
    from aspire.engines.grpc.connections import Terms
    from aspire.engines.grpc.messages import shape_of
    from aspire.engines.grpc.server import Server
    from aspire.engines.grpc.wire_pb2 import Settings

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    job = job_of(sites, parameters)
    names = job.problem.names
    start = job.problem.flat.start
    began = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kits.init(Path(folder) / "kits", names, ["localhost", "127.0.0.1"], 2)
        kit = kits.read(Path(folder) / "kits" / "server")
        terms = Terms(shape_of(start), Settings(), b"crowd")
        server = Server(kit, names, "127.0.0.1:0", terms)
        words = [str(HERE.with_name("crowd.py")), f"{folder}/kits", str(server.port)]
        crowd = subprocess.Popen([sys.executable, *words, str(len(start))])
        try:
            state = begin(job.method, job.problem.facts(), 0)
            log = EventLog("full", Path(folder) / "events.jsonl")
            driver = Driver(job.method, server, names, state, log, patience=60.0)
            driver.run(job.done)
            log.close()
        finally:
            crowd.kill()
            server.close()
            crowd.wait()
    seconds = perf_counter() - began
    away = [absence["reason"] for absence in state.absences]
    return {"gradients": int(state.gradients), "seconds": seconds, "absences": away}


def child(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if options.child == "ray":
        found = on_ray(options.sites, options.parameters, options.actors, options.compute)
    else:
        found = in_federation(options.sites, options.parameters)
    print(json.dumps(found | {"peak": peak()}))


# ---------------------------------------------------------------- all of them


def measured(engine: str, sites: int, options: argparse.Namespace) -> dict[str, Any]:
    given = {"child": engine, "sites": sites, "parameters": options.parameters}
    given["actors"] = options.actors
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    words += ["--compute"] if options.compute else []
    done = subprocess.run(
        [sys.executable, str(HERE), *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = json.loads(done.stdout.splitlines()[-1])
    kept = engine == "ray"  # it has a folder
    said = predict(sites, options.parameters, form="direct", simulated=False, kept=kept).total
    row = {"engine": engine, "sites": sites, "gib_peak": found.pop("peak") / GIB}
    row |= {"gib_predicted": said / GIB, **found}
    print(
        f"{engine}: {sites} sites, {row['gradients']} gradients, peak {row['gib_peak']:.3f} GiB "
        f"in {row['seconds']:.0f} s"
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=10**7)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--compute", action="store_true")
    parser.add_argument("--engines", nargs="+", default=["ray", "federation"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--sites", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    runs = []
    ratios = {}
    for engine in options.engines:
        few, many = (measured(engine, n, options) for n in (options.few, options.many))
        runs += [few, many]
        ratios[engine] = many["gib_peak"] / few["gib_peak"]
        print(f"{engine}: {ratios[engine]:.3f} times the peak of {options.few} sites")
    about = {"parameters": options.parameters, "actors": options.actors, "steps": STEPS}
    options.out.write_text(json.dumps({**about, "ratios": ratios, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
