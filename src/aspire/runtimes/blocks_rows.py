"""The numbers of a block of steps on the CPU: tables of rows, and the paper's equations on them.

A step is `absorb` (the reports of Q: z, lam, phi) and `hand` (the next tasks of Q, evaluated at
once: all that a task's result depends on is known when it is handed out).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire import sites
from aspire.core import equations
from aspire.core.planes import Planes
from aspire.core.schedules import Member, learn
from aspire.methods.aspire_state import Master, Rules, rebuild_sums
from aspire.methods.worker import checked_step
from aspire.problem import Problem
from aspire.runtimes import digest
from aspire.runtimes.order import Integers
from aspire.types import Array, Task

ROWS = 16  # in one call of the gradients: their numbers stay in the cache of one core


@dataclass(frozen=True)
class Plan:
    """What steps need to know beside the state; row i belongs to the i-th step, S columns."""

    workers: Integers  # Q, in worker order
    draws: Integers  # of the task that each is handed
    checks: Integers  # 1 where its step is checked
    losses: Integers  # 1 where its loss is reported


@dataclass
class Flight:
    """The results in flight: what each worker will report to the task in its hands."""

    w: Tensor  # (N, p)
    loss: Array  # the last known one where none is reported
    curvature: Array  # what the check found; -1 where there was none


class Rows:
    """The state of a run as tables; the master's own tensors are changed in place."""

    def __init__(self, rules: Rules, master: Master, problem: Problem, flight: Flight) -> None:
        self.rules, self.master, self.problem, self.flight = rules, master, problem, flight
        self.lam_before = master.planes.lam

    def load(self, plan: Plan) -> None:
        self.plan = plan
        self.numbers = np.zeros((len(plan.workers), 4))
        self.found = np.zeros(plan.workers.shape, dtype=np.int64)

    def tune(self, first: int, numbers: Array) -> None:
        """c1, rho1, c2 and the weight of the newest z in the average, of the steps from `first`."""
        self.numbers[first : first + len(numbers)] = numbers

    def steps(self, first: int, last: int) -> None:
        for i in range(first, last):
            self.absorb(i)
            self.hand(i)

    def digests(self) -> Callable[[], Integers]:
        """The digests of the reports of the loaded steps, once they are asked for."""
        found = self.found
        return lambda: found

    def absorb(self, i: int) -> None:
        """(12), (14), (15) with the reports of Q; as in `methods.aspire_step.step`."""
        m, workers = self.master, self.plan.workers[i]
        c1, rho1, c2, share = self.numbers[i]
        index, kappa = torch.from_numpy(workers), m.constants["kappa"]
        rates = self.rules.preset.rates(m.constants, m.t, len(m.planes), m.n, len(workers))
        w = self.flight.w.index_select(0, index)
        self.found[i] = reported(w, self.flight.loss[workers], self.flight.curvature[workers])
        m.sum_w += (w.double() - m.w.index_select(0, index).double()).sum(0)
        m.w.index_copy_(0, index, w)
        m.z = equations.z_step(
            m.z, m.sum_phi, m.sum_w, n=m.n, kappa=kappa, rate=rates.eta_z, limit=np.inf
        )
        self._dual(workers, c1, rho1)
        old = m.phi.index_select(0, index)
        phi = equations.phi_step(old, m.z.to(w.dtype), w, c2=c2, rate=rates.rho2, limit=np.inf)
        m.sum_phi += (phi.double() - old.double()).sum(0)
        m.phi.index_copy_(0, index, phi)
        m.average = m.z if share >= 1 else m.average.lerp(m.z, share)

    def _dual(self, workers: Integers, c1: float, rho1: float) -> None:
        m, new = self.master, self.flight.loss[workers]
        F = m.planes.F + m.planes.P[:, workers] @ (new - m.f[workers])
        m.f[workers] = new
        self.lam_before = m.planes.lam
        lam, m.h = equations.lam_simplex_step(m.planes.lam, F, c1=c1, rate=rho1)
        m.planes = Planes(m.planes.P, lam, F)
        learn(m.curvature, m.first, m.present, workers, self.flight.curvature[workers])

    def hand(self, i: int) -> None:
        """v_j, pi_j and a_w for Q, then (11), its check and its loss where they are due."""
        m, workers, draws = self.master, self.plan.workers[i], self.plan.draws[i]
        kappa, index, pi = m.constants["kappa"], torch.from_numpy(workers), m.planes.pi(workers)
        member = Member(np.maximum(pi, m.prior[workers]), m.curvature[workers], draws)
        rate: Any = self.rules.preset.worker_rate(m.constants, m.t, len(m.planes), m.n, member)
        w = m.w.index_select(0, index)
        v = m.phi.index_select(0, index) + kappa * m.z.to(w.dtype)
        gradient = self._gradients(workers, w, draws)
        after = equations.worker_step(
            w, gradient, v, pi=_column(pi, w), kappa=torch.tensor(kappa, dtype=w.dtype),
            rate=_column(rate, w), limit=np.inf,
        )  # fmt: skip
        self.flight.curvature[workers] = -1.0
        due = np.flatnonzero(self.plan.checks[i])
        if len(due):
            again = self._gradients(workers[due], after[due], draws[due])
            for k, row in zip(due, again, strict=True):
                task = Task(
                    int(workers[k]), 0, "step", {}, {"pi": pi[k], "kappa": kappa, "rate": rate[k]}
                )
                after[k], found = checked_step(w[k], after[k], gradient[k], row, task)
                self.flight.curvature[workers[k]] = found
        self.flight.w.index_copy_(0, index, after)
        for k in np.flatnonzero(self.plan.losses[i]):
            self.flight.loss[workers[k]] = self.problem.sites[workers[k]].loss(after[k])

    def _gradients(self, workers: Integers, w: Tensor, draws: Integers) -> Tensor:
        found = [
            sites.gradients(
                [self.problem.sites[j] for j in workers[a : a + ROWS]],
                w[a : a + ROWS],
                draws[a : a + ROWS].tolist(),
            )
            for a in range(0, len(w), ROWS)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    def fetch(self) -> None:
        """The master holds everything already."""

    def rebuild(self) -> None:
        rebuild_sums(self.master)

    def put_planes(self) -> None:
        """They are the master's own."""


def reported(w: Tensor, loss: Array, curvature: Array) -> Integers:
    """The digests of many reports: the vector and the two numbers that training computed."""
    numbers = torch.from_numpy(np.stack([loss, curvature], axis=1))
    found: Integers = (digest.rows(w).cpu() + digest.rows(numbers)).numpy()
    return found


def _column(x: Array | float, like: Tensor) -> Tensor:
    return torch.as_tensor(x, dtype=like.dtype)[:, None]
