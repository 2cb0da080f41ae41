"""A master that is fed ready-made reports, so that only `absorb` is timed."""

from __future__ import annotations

import time

import numpy as np
import torch

from aspire.core.planes import Planes
from aspire.methods import aspire
from aspire.types import Facts, Report


class MasterSteps:
    """N workers, p parameters, S reports a step; with `planes` a fixed number of them."""

    def __init__(
        self, n: int, p: int, quorum: int = 1, planes: int | None = None, kinds: int = 64
    ) -> None:
        rng = torch.Generator().manual_seed(0)
        self.n = n
        self.quorum = quorum
        self.kinds = kinds
        self.method = aspire(quorum=quorum, plane_iterations=None if planes is None else 1)
        self.master, tasks = self.method.init(Facts(n, torch.zeros(p)), seed=0)
        self.losses = np.random.default_rng(0).uniform(0.5, 1.5, kinds)
        self.vectors = [0.01 * torch.randn(p, generator=rng) for _ in range(kinds)]
        probes = []
        for task in tasks:
            scalars = {"loss": float(self.losses[task.worker % kinds]), "curvature": 1.0}
            scalars |= {"slope": 1.0, "gradients": 13.0, "samples": 1300.0}
            probes.append(Report(task.worker, task.id, {}, scalars))
        self.master, tasks, _ = self.method.absorb(self.master, probes)
        self.hands = {task.worker: task.id for task in tasks}
        self.order = np.random.default_rng(1).permutation(n)
        self.done = 0
        if planes is not None:
            P = np.random.default_rng(2).dirichlet(np.ones(n), planes)
            lam = np.full(planes, 1.0 / planes)
            self.master.planes = Planes(P, lam, P @ self.master.f)

    def reports(self) -> list[Report]:
        """The next S workers', one after the other in a fixed order."""
        made = []
        for _ in range(self.quorum):
            j = int(self.order[self.done % self.n])
            scalars = {"loss": float(self.losses[(self.done * 7) % self.kinds])}
            scalars |= {"gradients": 1.0, "samples": 100.0}
            w = self.vectors[self.done % self.kinds]
            made.append(Report(j, self.hands[j], {"w": w}, scalars))
            self.done += 1
        return made

    def step(self) -> None:
        self.master, tasks, _ = self.method.absorb(self.master, self.reports())
        for task in tasks:
            self.hands[task.worker] = task.id

    def seconds(self, steps: int) -> float:
        """The processor's, a step."""
        began = time.process_time()
        for _ in range(steps):
            self.step()
        return (time.process_time() - began) / steps
