"""ASPIRE-EASE's iteration t -> t + 1 at the master, and the stationarity gap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.core import equations, planes, pull, stationarity
from aspire.core.schedules import Rates
from aspire.methods.aspire_state import (
    Master,
    Rules,
    issue,
    rates_of,
    rebuild_sums,
    worker_rate,
)
from aspire.types import Array, Info, Noted, Report, Stepped, Task

TINY = float(np.finfo(np.float64).tiny)


def quorum_met(rules: Rules, master: Master) -> bool:
    """At least S of the present have reported, and no other is tau iterations behind."""
    if len(master.pending) < max(1, min(rules.quorum, master.n)):
        return False
    if rules.staleness is None:
        return True
    if master.t + 1 < rules.staleness:
        return True  # so early nobody can be
    behind = master.last <= master.t - rules.staleness
    behind &= master.present
    behind[list(master.pending)] = False
    return not behind.any()


def step(rules: Rules, master: Master, tasks: list[Task], infos: list[Info]) -> None:
    """t -> t + 1: (12), (13)-(14), (15), then EASE; O(S p) besides the planes."""
    members = sorted(master.pending)
    reports = [master.pending[j] for j in members]
    workers = np.array(members, dtype=np.int64)
    index = torch.from_numpy(workers).to(master.w.device)
    rates, limits = rates_of(rules, master, len(workers)), rules.preset.limits
    w, held = torch.stack([report.vectors["w"] for report in reports]), None
    if rules.bounded:
        w, held = held_back(rules, master, workers, w, infos)
    replace_rows(master.w, index, w, master.w.index_select(0, index), master.sum_w)
    master.z = equations.z_step(
        master.z, master.sum_phi, master.sum_w,
        n=master.n, kappa=master.constants["kappa"], rate=rates.eta_z, limit=limits.a1,
    )  # fmt: skip
    lam_before = dual_step(rules, master, reports, rates)
    learn_scale(master, reports)
    z, old = master.z.to(w.dtype), master.phi.index_select(0, index)
    phi = equations.phi_step(old, z, w, c2=rates.c2, rate=rates.rho2, limit=limits.a4)
    if held is not None:
        phi = held.on(phi)
    replace_rows(master.phi, index, phi, old, master.sum_phi)
    share = rules.preset.averaging(master.t)
    master.average = master.z if share >= 1 else master.average.lerp(master.z, share)
    revise_planes(rules, master, lam_before, infos)
    master.last[workers] = master.t
    infos.append(Stepped(master.t, tuple(members)))
    master.t += 1
    master.pending = {}
    if master.t % max(1000, 10 * len(master.f)) == 0:
        rebuild_sums(master)
    moved = None if held is None else held.moved
    tasks.extend(step_tasks(rules, master, workers, z, phi, resend=moved))


def replace_rows(rows: Tensor, index: Tensor, new: Tensor, old: Tensor, total: Tensor) -> None:
    """rows[index] <- new where `old` was, and `total` stays the sum of all rows.

    Where a value changes by less than a factor of two its difference is exact in any precision.
    """
    change = torch.sub(new, old)
    total += change[0] if len(change) == 1 else change.sum(0, dtype=total.dtype)
    rows.index_copy_(0, index, new)


def dual_step(rules: Rules, master: Master, reports: list[Report], rates: Rates) -> Array:
    """The new losses, then (13) and (14) or their simplex form. Returns the old lam."""
    limits, A = rules.preset.limits, master.planes
    told = [r for r in reports if "loss" in r.scalars]
    if told:
        new = np.array([r.scalars["loss"] for r in told])
        who = np.array([r.worker for r in told])
        A = planes.revalued(A, who, new - master.f[who])
        master.f[who] = new
    if rules.preset.simplex:
        lam, master.h = equations.lam_simplex_step(A.lam, A.F, c1=rates.c1, rate=rates.rho1)
    else:
        master.h = equations.h_step(master.h, A.lam, rate=rates.eta_h, limit=limits.a2)
        lam = equations.lam_step(
            A.lam, A.F, master.h, c1=rates.c1, rate=rates.rho1, limit=limits.a3
        )
    master.planes = planes.Planes(A.P, lam, A.F)
    return A.lam


def learn_scale(master: Master, reports: list[Report]) -> None:
    """A steeper L_j than was known, at most 10 medians, counts from now on."""
    for report in reports:
        j, found = report.worker, report.scalars.get("curvature", 0.0)
        if found and found > master.curvature[j]:
            most = 10.0 * float(np.median(master.curvature[master.present]))
            master.curvature[j] = max(float(master.curvature[j]), min(found, most))


def revise_planes(rules: Rules, master: Master, lam_before: Array, infos: list[Info]) -> None:
    """(17)-(20), when (t + 1) mod k == 0 and t < T_1."""
    due = (master.t + 1) % rules.preset.every(master.n) == 0
    if not due or master.t >= (rules.plane_iterations or math.inf):
        return
    f = master.f[master.present]
    master.constants = rules.preset.relevelled(master.constants, f)
    worst = master.uncertainty.worst_case(f)
    before = len(master.planes)
    master.planes = planes.ease(
        master.planes, lam_before, master.f, planes.spread(worst, master.present),
        most=rules.max_planes, drop=rules.drop, simplex=rules.preset.simplex,
        tolerance=1e-9 * master.constants["level"],
    )  # fmt: skip
    if len(master.planes) != before:
        infos.append(Noted(master.t, f"planes {before} -> {len(master.planes)}"))


@dataclass(frozen=True)
class Held:
    """What the bounds on the pull made of a step's reports."""

    far: Tensor  # put back to w = z, phi = 0
    most: Tensor | None  # |phi_j| in every coordinate
    moved: NDArray[np.bool_]  # whose w_j is no longer the worker's own

    def on(self, phi: Tensor) -> Tensor:
        phi = phi if self.most is None else pull.within(phi, self.most)
        return phi.masked_fill_(self.far[:, None], 0.0)


def held_back(
    rules: Rules, master: Master, workers: NDArray[np.int64], w: Tensor, infos: list[Info]
) -> tuple[Tensor, Held]:
    """The reported rows within the bounds of core.pull, and what was done to them."""
    pulls, kappa, z = master.pulls, master.constants["kappa"], master.z.to(w.dtype)
    index, told = torch.from_numpy(workers).to(w.device), w
    gradients = pull.implied(
        master.w.index_select(0, index), w, master.phi.index_select(0, index), z, kappa=kappa,
        rate=pull.column(pulls.rate[workers], w), weight=pull.column(pulls.weight[workers], w),
        steps=rules.local_steps,
    )  # fmt: skip
    far, most = np.zeros(len(workers), dtype=bool), None
    if rules.pull_bound is not None:
        far = pull.too_strong(pulls, workers, gradients, master.present, rules.pull_bound)
    if rules.coordinate_bound is not None:
        pull.learn(pulls, workers, gradients)
        if master.t % pull.REFRESH == 0 or not len(pulls.median):
            pull.refresh(pulls, master.n)
        if len(pulls.median):
            most = pull.column(rules.coordinate_bound * master.upper[workers], w) * pulls.median
            w = z + pull.within(w - z, most / kappa)
    if far.any():
        w[torch.from_numpy(far).to(w.device)] = z
        infos.append(Noted(master.t, f"pulls too hard, put back: workers {workers[far]}"))
    moved = far if most is None else (w != told).any(1).cpu().numpy()
    return w, Held(torch.from_numpy(far).to(w.device), most, moved)


def step_tasks(
    rules: Rules,
    master: Master,
    workers: NDArray[np.int64],
    z: Tensor,
    phi: Tensor,
    *,
    fresh: bool = False,
    resend: NDArray[np.bool_] | None = None,
) -> list[Task]:
    """v_j = phi_j + kappa z and pi_j; w_j too where the worker's own differs from ours.

    `fresh`: w_j = z and phi is one row, the same for all of them, so that they share two vectors.
    """
    kappa, pi = master.constants["kappa"], master.planes.pi(workers).tolist()
    v = torch.add(phi, z, alpha=kappa).unbind(0)
    if len(v) > 1:
        v = tuple(row.clone() for row in v)  # a view would keep the others in memory
    tasks = []
    for row, j in enumerate(workers.tolist()):
        vectors = {"v": v[0], "w": z} if fresh else {"v": v[row]}
        if resend is not None and resend[row]:
            vectors["w"] = master.w[j].clone()
        rate = worker_rate(rules, master, j, pi[row])
        if rules.bounded:
            master.pulls.rate[j] = rate
            master.pulls.weight[j] = max(pi[row], 0.1 * float(master.upper[j]), TINY)
        scalars = {"pi": pi[row], "kappa": kappa, "rate": rate}
        tasks.append(issue(master, j, "step", vectors, scalars))
    return tasks


def first_tasks(rules: Rules, master: Master, workers: NDArray[np.int64]) -> list[Task]:
    """For workers that have just come: w_j = z and phi_j = 0."""
    z = master.z.to(master.phi.dtype)
    return step_tasks(rules, master, workers, z, torch.zeros_like(z)[None], fresh=True)


def gap(
    rules: Rules,
    master: Master,
    gradient: Callable[[int, Tensor], Tensor],
    loss: Callable[[int, Tensor], float],
) -> float:
    """Definition 1 at the present state, with full-data gradients and losses."""
    here = np.flatnonzero(master.present)
    rates = rates_of(rules, master, min(rules.quorum, master.n))
    limits, pi = rules.preset.limits, master.planes.pi(here)
    f = np.zeros(len(master.f))
    slope_z = master.sum_phi + master.constants["kappa"] * (master.n * master.z - master.sum_w)
    squares = [stationarity.squared_block(master.z, slope_z, rates.eta_z, limits.a1)]
    for row, j in enumerate(int(j) for j in here):
        w, phi = master.w[j].double(), master.phi[j].double()
        f[j] = loss(j, master.w[j])
        rate = worker_rate(rules, master, j, float(pi[row]))
        slope = float(pi[row]) * gradient(j, master.w[j]).double() - phi
        slope += master.constants["kappa"] * (w - master.z)
        squares.append(stationarity.squared_block(w, slope, rate, limits.a1))
        squares.append(stationarity.squared_block(phi, w - master.z, rates.rho2, limits.a4))
    A = master.planes
    squares.append(
        stationarity.dual_blocks(
            A.lam, A.P @ f, master.h, rates, limits, simplex=rules.preset.simplex
        )
    )
    return stationarity.total(squares)
