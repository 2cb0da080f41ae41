"""The numbers of a block of steps on the CPU: tables of rows, and the paper's equations on them.

A step is `absorb` (the reports of Q: z, lam, phi) and `hand` (the next tasks of Q); what the
workers compute in between is `blocks_work`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.core import equations
from aspire.core.planes import Planes
from aspire.core.schedules import Member, learn, rises_above
from aspire.methods.aspire_state import Master, Rules, rebuild_sums, seen
from aspire.problem import Problem
from aspire.protocol import LARGEST
from aspire.runtimes.blocks_work import Bench, Flight, Plan
from aspire.runtimes.order import Integers
from aspire.types import Array


class Rows:
    """The state of a run as tables; the master's own tensors are changed in place."""

    def __init__(
        self,
        rules: Rules,
        master: Master,
        problem: Problem,
        flight: Flight,
        draws: Integers,
    ) -> None:
        """`draws`: the batches of the tasks in flight."""
        self.rules, self.master = rules, master
        self.lam_before = master.planes.lam
        self.bench = Bench(problem, master, flight)
        none = np.zeros_like(draws)
        self.bench.load(Plan(np.arange(len(draws)), draws, none, none))
        self.bench.hand(len(draws))

    @property
    def flight(self) -> Flight:
        """With every result that was not known yet."""
        self.bench.need(list(range(len(self.master.f))))
        return self.bench.flight

    def load(self, plan: Plan) -> None:
        self.plan, self.members = plan, plan.workers.tolist()
        self.numbers = np.zeros((len(plan.workers), 4))
        self.found = np.zeros(plan.workers.shape, dtype=np.int64)
        self.bench.load(plan.flat())

    def tune(self, first: int, numbers: Array) -> None:
        """c1, rho1, c2 and the weight of the newest z in the average, of the steps from `first`."""
        m = self.master
        self.numbers[first : first + len(numbers)] = numbers
        self.rates = self.rules.preset.rates(m.constants, m.t, len(m.planes), m.n, 1)
        self.kappa = torch.tensor(m.constants["kappa"], dtype=m.w.dtype)

    def steps(self, first: int, last: int) -> None:
        for i in range(first, last):
            self.absorb(i)
            self.hand(i)

    def digests(self) -> Callable[[], Integers]:
        """The digests of the reports of the loaded steps, once they are asked for."""
        found = self.found
        return lambda: found

    def absorb(self, i: int) -> None:
        """The reports of Q: (14); the vectors follow in `hand`, which (14) does not need."""
        workers = self.plan.workers[i]
        self.bench.need(self.members[i])
        self.found[i] = self.bench.digests[workers]
        self._dual(workers, *self.numbers[i, :2].tolist())

    def _dual(self, workers: Integers, c1: float, rho1: float) -> None:
        m, flight, F = self.master, self.bench.flight, self.master.planes.F
        new, curvature = flight.loss[workers], flight.curvature[workers]
        new = np.where(np.abs(new) <= LARGEST, seen(m, new), np.nan)  # nan: the run ends
        change = new - m.f[workers]
        if change.any():
            F = F + m.planes.P[:, workers] @ change
            m.f[workers] = new
        self.lam_before = m.planes.lam
        lam, m.h = equations.lam_simplex_step(m.planes.lam, F, c1=c1, rate=rho1)
        m.planes = Planes(m.planes.P, lam, F)
        learn(m.curvature, m.first, m.present, workers, curvature, rises_above(m.constants))

    def hand(self, i: int) -> None:
        """(12) and (15), then pi_j and a_w of Q and their steps (11)."""
        m, bench, workers = self.master, self.bench, self.plan.workers[i]
        c2, share = self.numbers[i, 2:].tolist()
        pi = m.planes.pi(workers)
        member: Any = Member(
            np.maximum(pi, m.prior[workers]), m.curvature[workers], self.plan.draws[i]
        )
        rate: Any = self.rules.preset.worker_rate(m.constants, m.t, len(m.planes), m.n, member)
        bench.pi[workers], bench.rate[workers] = pi, rate
        bench.kappa[workers], bench.flight.curvature[workers] = m.constants["kappa"], -1.0
        self._vectors(workers, pi, rate, c2, share)
        bench.hand((i + 1) * len(workers))

    def _vectors(self, workers: Integers, pi: Array, rate: Array, c2: float, share: float) -> None:
        """As in `methods.aspire_step.step`, and the workers' `equations.worker_step`."""
        m, bench, kappa = self.master, self.bench, self.master.constants["kappa"]
        w = taken(bench.flight.w, workers)
        replace(m.w, workers, w, taken(m.w, workers), m.sum_w)
        m.z = equations.z_step(
            m.z, m.sum_phi, m.sum_w, n=m.n, kappa=kappa, rate=self.rates.eta_z, limit=np.inf
        )
        z, old = m.z.to(w.dtype), taken(m.phi, workers)
        phi = equations.phi_step(old, z, w, c2=c2, rate=self.rates.rho2, limit=np.inf)
        replace(m.phi, workers, phi, old, m.sum_phi)
        m.average = m.z if share >= 1 else m.average.lerp(m.z, share)
        columns = torch.from_numpy(np.array((pi, rate))).to(w.dtype).unsqueeze(2)
        after = equations.worker_step(
            w, taken(bench.G, workers), torch.add(phi, z, alpha=kappa),
            pi=columns[0], kappa=self.kappa, rate=columns[1], limit=np.inf,
        )  # fmt: skip
        put(bench.flight.w, workers, after)

    def put_back(self) -> dict[int, int]:
        """Nobody: there are no bounds here."""
        return {}

    def fetch(self) -> None:
        """The master holds everything already."""

    def rebuild(self) -> None:
        rebuild_sums(self.master)

    def put_planes(self) -> None:
        """They are the master's own."""


def taken(table: Tensor, rows: Integers) -> Tensor:
    """Some rows of a table; a single one as a part of it."""
    if len(rows) == 1:
        return table[rows[0] : rows[0] + 1]
    return torch.from_numpy(table.numpy().take(rows, 0))


def put(table: Tensor, rows: Integers, new: Tensor) -> None:
    if len(rows) == 1:
        table[rows[0] : rows[0] + 1] = new
    else:
        table.numpy()[rows] = new.numpy()


def replace(table: Tensor, rows: Integers, new: Tensor, old: Tensor, total: Tensor) -> None:
    """As `methods.aspire_vectors.add_change`, and the rows change; `total` stays the sum of all."""
    change = torch.sub(new, old)
    total += change[0] if len(change) == 1 else change.sum(0, dtype=total.dtype)
    put(table, rows, new)
