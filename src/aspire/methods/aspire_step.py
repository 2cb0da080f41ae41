"""ASPIRE-EASE's iteration t -> t + 1 at the master, and the stationarity gap."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.core import equations, planes, pull, stationarity
from aspire.core.pieces import piecewise
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


def quorum_met(rules: Rules, master: Master) -> bool:
    """At least S of the present have reported, and no other is tau iterations behind."""
    if len(master.pending) < max(1, min(rules.quorum, master.n)):
        return False
    if rules.staleness is None:
        return True
    waiting = master.present.copy()
    waiting[list(master.pending)] = False
    return bool((master.t - master.last[waiting] < rules.staleness).all())


def step(rules: Rules, master: Master, tasks: list[Task], infos: list[Info]) -> None:
    """t -> t + 1: (12), (13)-(14), (15), then EASE; O(S p) besides the planes."""
    workers = np.array(sorted(master.pending), dtype=np.int64)
    reports = [master.pending[int(j)] for j in workers]
    rates = rates_of(rules, master, len(workers))
    first = reports[0].vectors["w"]
    w = torch.stack([r.vectors["w"] for r in reports]) if len(reports) > 1 else first.unsqueeze(0)
    far = np.zeros(len(workers), dtype=bool)
    if rules.pull_bound is not None:
        far = outliers(master, workers, w, rules.pull_bound)
        if far.any():
            w = w.clone()
            w[torch.from_numpy(far).to(w.device)] = master.z.to(w.dtype)
            infos.append(Noted(master.t, f"far from z, put back: workers {workers[far]}"))
    phi = primal_step(rules, master, workers, w, rates)
    lam_before = dual_step(rules, master, workers, reports, rates)
    learn_scale(master, reports)
    if rules.pull_bound is not None:
        phi = bounded_phi(master, workers, phi, rules.pull_bound)
        phi[torch.from_numpy(far).to(phi.device)] = 0.0
    keep_phi(master, workers, phi)
    revise_planes(rules, master, lam_before, infos)
    master.last[workers] = master.t
    infos.append(Stepped(master.t, tuple(int(j) for j in workers)))
    master.t += 1
    master.pending = {}
    if master.t % max(1000, 10 * len(master.f)) == 0:
        rebuild_sums(master)
    tasks.extend(step_tasks(rules, master, workers, resend=far))


def rows_of(x: Tensor, workers: NDArray[np.int64]) -> Tensor:
    """The rows of these workers: a view of one, a copy of several."""
    if len(workers) == 1:
        return x[int(workers[0]) : int(workers[0]) + 1]
    return x.index_select(0, torch.from_numpy(workers).to(x.device))


def put_rows(x: Tensor, workers: NDArray[np.int64], new: Tensor) -> None:
    if len(workers) == 1:
        x[int(workers[0])] = new[0]
    else:
        x.index_copy_(0, torch.from_numpy(workers).to(x.device), new)


def change(new: Tensor, old: Tensor) -> Tensor:
    """sum_j (new_j - old_j) in float64."""
    rows = new.double() - old.double()
    return rows[0] if len(rows) == 1 else rows.sum(0)


def primal_step(
    rules: Rules, master: Master, workers: NDArray[np.int64], w: Tensor, rates: Rates
) -> Tensor:
    """The new rows w_j, then (12) and the average, then (15): the new rows phi_j, not yet kept."""
    limits, kappa, n = rules.preset.limits, master.constants["kappa"], master.n
    share = rules.preset.averaging(master.t)

    def move(
        w: Tensor, old: Tensor, phi: Tensor, z: Tensor, mean: Tensor, sum_w: Tensor, sum_phi: Tensor
    ) -> tuple[Tensor, ...]:
        sum_w += change(w, old)
        z = equations.z_step(
            z, sum_phi, sum_w, n=n, kappa=kappa, rate=rates.eta_z, limit=limits.a1
        )  # fmt: skip
        phi = equations.phi_step(
            phi, z.to(w.dtype), w, c2=rates.c2, rate=rates.rho2, limit=limits.a4
        )
        return (phi, z) if share >= 1 else (phi, z, mean.lerp(z, share))

    rows = (w, rows_of(master.w, workers), rows_of(master.phi, workers))
    vectors = (*rows, master.z, master.average, master.sum_w, master.sum_phi)
    like = (w, master.z) if share >= 1 else (w, master.z, master.z)
    phi, master.z, *mean = piecewise(move, vectors, like)
    master.average = mean[0] if mean else master.z
    put_rows(master.w, workers, w)
    return phi


def keep_phi(master: Master, workers: NDArray[np.int64], phi: Tensor) -> None:
    """The new rows phi_j and their sum."""

    def add(new: Tensor, old: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        total += change(new, old)
        return ()

    piecewise(add, (phi, rows_of(master.phi, workers), master.sum_phi), ())
    put_rows(master.phi, workers, phi)


def dual_step(
    rules: Rules, master: Master, workers: NDArray[np.int64], reports: list[Report], rates: Rates
) -> Array:
    """The new losses, then (13) and (14) or their simplex form. Returns the old lam."""
    limits, old = rules.preset.limits, master.f[workers]
    new = np.array([r.scalars.get("loss", f) for r, f in zip(reports, old, strict=True)])
    master.f[workers] = new
    A = planes.revalued(master.planes, workers, new - old)
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
    """A steeper L_j than was known, at most 10 medians, counts from now on; so does |grad|."""
    for report in reports:
        j = report.worker
        master.slope[j] = report.scalars.get("slope", master.slope[j])
        found = report.scalars.get("curvature", 0.0)
        if found > master.curvature[j]:
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


def outliers(
    master: Master, workers: NDArray[np.int64], w: Tensor, factor: float
) -> NDArray[np.bool_]:
    """Whose w_j lies too far from z to be believed."""
    most = factor * float(np.median(master.distance[master.present]))
    master.distance[workers] = pull.norms(w.double() - master.z)
    return master.distance[workers] > most


def bounded_phi(master: Master, workers: NDArray[np.int64], phi: Tensor, factor: float) -> Tensor:
    """|phi_j| <= factor u_j times the median gradient norm."""
    most = factor * float(np.median(master.slope[master.present]))
    return pull.shortened(phi, most * master.upper[workers])


def step_tasks(
    rules: Rules,
    master: Master,
    workers: NDArray[np.int64],
    *,
    fresh: bool = False,
    resend: NDArray[np.bool_] | None = None,
) -> list[Task]:
    """v_j = phi_j + kappa z and pi_j; w_j too where the worker's own differs from ours."""
    kappa = master.constants["kappa"]
    phi = rows_of(master.phi, workers)
    (v,) = piecewise(lambda phi, z: (phi + kappa * z.to(phi.dtype),), (phi, master.z), (phi,))
    pi = master.planes.pi(workers)
    tasks = []
    for row, j in enumerate(int(j) for j in workers):
        rate = worker_rate(rules, master, j, float(pi[row]))
        vectors = {"v": v[row]}
        if fresh or (resend is not None and resend[row]):
            vectors["w"] = master.w[j].clone()
        scalars = {"pi": float(pi[row]), "kappa": kappa, "rate": rate}
        tasks.append(issue(master, j, "step", vectors, scalars))
    return tasks


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
