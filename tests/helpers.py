"""Small problems that many tests share."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.problem.problem import Problem, build
from aspire.runs.log import chained
from aspire.types import Event, Facts, Local, Method, Report, Task


class Quadratic(Local):
    """f(w) = curvature/2 |w - centre|^2 + offset: everything about it is known."""

    batch_samples = 1
    loss_samples = 1

    def __init__(self, centre: Sequence[float], curvature: float = 1.0, offset: float = 0.0):
        self.centre = torch.tensor(centre, dtype=torch.float64)
        self.curvature, self.offset = curvature, offset

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        return self.curvature * (w - self.centre)

    def loss(self, w: Tensor) -> float:
        return 0.5 * self.curvature * float((w - self.centre).square().sum()) + self.offset


class Board:
    """A runtime by hand: tasks wait until the test says whose turn it is."""

    def __init__(self, method: Method, locals_: Sequence[Local], start: Tensor, **facts: Any):
        self.method, self.locals = method, locals_
        self.master, tasks = method.init(Facts(len(locals_), start, **facts), seed=0)
        self.hands: dict[int, Task] = {}
        self.workers: dict[int, Any] = {}
        self.infos: list[Any] = []
        self.take(tasks)

    def take(self, tasks: Sequence[Task]) -> None:
        self.hands.update((task.worker, task) for task in tasks)

    def report(self, j: int) -> Report:
        self.workers[j], report = self.method.work(
            self.workers.get(j), self.hands.pop(j), self.locals[j]
        )
        return report

    def absorb(self, *events: Event) -> list[Any]:
        self.master, tasks, infos = self.method.absorb(self.master, events)
        self.take(tasks)
        self.infos += infos
        return infos

    def turn(self, *workers: int) -> list[Any]:
        return [info for j in workers for info in self.absorb(self.report(j))]

    def probe(self) -> None:
        """Answer every probe."""
        for j in sorted(j for j, task in self.hands.items() if task.kind == "probe"):
            self.turn(j)


def same(a: Any, b: Any) -> bool:
    """Two states, to the bit."""
    from aspire.runs.log import digest

    return digest(a) == digest(b)


def forged(path: Path, at: int, **changes: Any) -> None:
    """Change an event in a log, and the hashes with it, so that only a replay can tell."""
    lines = path.read_text().splitlines()
    lines[at] = json.dumps(json.loads(lines[at]) | changes)
    chain = ""
    for line in lines:
        if "event" in json.loads(line):
            chain = chained(chain, line.encode())
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"sha256": chain})
    path.write_text("\n".join(lines) + "\n")


def snapshot(state: Any) -> Any:
    return copy.deepcopy(state)


def blobs(n: int = 4, samples: int = 60, seed: int = 0) -> dict[str, Any]:
    """Sites that disagree about a linear boundary, with train and test parts."""
    rng = np.random.default_rng(seed)
    sites = {}
    for j in range(n):
        x = rng.standard_normal((samples, 3)).astype(np.float32) + 0.3 * j
        y = (x @ rng.standard_normal(3) > 0.2 * j).astype(np.int64)
        half = samples // 2
        parts = (torch.tensor(x), torch.tensor(y))
        sites[f"s{j}"] = {
            "train": tuple(p[:half] for p in parts),
            "test": tuple(p[half:] for p in parts),
        }
    return sites


def validated(n: int = 4, **arguments: Any) -> dict[str, Any]:
    """Such sites with a val part, a third of the training part."""
    sites = blobs(n, **arguments)
    for parts in sites.values():
        count = len(parts["train"][1]) // 3
        parts["val"] = tuple(x[:count] for x in parts["train"])
        parts["train"] = tuple(x[count:] for x in parts["train"])
    return sites


def linear(seed: int = 0, inputs: int = 3, outputs: int = 2) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(inputs, outputs)


def blob_problem(n: int = 4, **arguments: Any) -> Problem:
    return build(linear(), blobs(n), **arguments)
