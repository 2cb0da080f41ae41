"""ASPIRE-EASE's iteration t -> t + 1 at the master, and the stationarity gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.core import equations, planes, pull, stationarity
from aspire.core.schedules import Rates, learn, rises_above
from aspire.methods.aspire_ease.consensus_state import (
    Master,
    Rules,
    issue,
    rates_of,
    rebuild_sums,
    scale,
    seen,
    worker_rate,
)
from aspire.methods.aspire_ease.passes import implied_lengths, move
from aspire.methods.aspire_ease.vectors import Held, Implied, implied_gradients, implied_of, step_of
from aspire.problem import sites
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


def waiting(rules: Rules, master: Master) -> list[int]:
    """Those without whom the next step cannot be taken."""
    if not master.started:
        return [int(j) for j in np.flatnonzero(master.probing)]
    others = np.flatnonzero(master.present)
    others = others[~np.isin(others, list(master.pending))]
    missing = max(1, min(rules.quorum, master.n)) - len(master.pending)
    if missing < len(others):
        if rules.staleness is None:
            return []
        others = others[master.last[others] <= master.t - rules.staleness]
    return [int(j) for j in others]


def step(rules: Rules, master: Master, tasks: list[Task], infos: list[Info]) -> None:
    """t -> t + 1: (13)-(14), EASE, then (12) and (15); O(S p) besides the planes."""
    members = sorted(master.pending)
    reports = [master.pending[j] for j in members]
    workers = np.array(members, dtype=np.int64)
    rates = rates_of(rules, master, len(workers))
    w = sites.stacked([report.vectors["w"] for report in reports])
    held = None
    moved = None
    if rules.bounded:
        w, held, moved = held_back(rules, master, workers, w, infos)
    lam_before = dual_step(rules, master, reports, rates)
    learn_scale(master, reports)
    kappa = master.constants["kappa"]
    revise_planes(rules, master, lam_before, infos)
    if master.constants["kappa"] != kappa:
        rates = rates_of(rules, master, len(workers))
    share = rules.preset.averaging(master.t)
    pushed = push(rules, master, workers)
    v = move(step_of(master, workers, w, rates, rules.preset.limits, share, pushed), held)
    master.last[workers] = master.t
    infos.append(Stepped(master.t, tuple(members)))
    master.t += 1
    master.pending = {}
    if master.t % max(1000, 10 * len(master.f)) == 0:
        rebuild_sums(master)
    tasks.extend(step_tasks(rules, master, workers, sites.rows_of(v), resend=moved))


def dual_step(rules: Rules, master: Master, reports: list[Report], rates: Rates) -> Array:
    """The new losses, then (13) and (14) or their simplex form. Returns the old lam."""
    limits = rules.preset.limits
    A = master.planes
    told = [r for r in reports if "loss" in r.scalars]
    if told:
        new = seen(master, np.array([r.scalars["loss"] for r in told]))
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
    """L_j of those whose step was checked."""
    checked = [r for r in reports if "curvature" in r.scalars]
    if checked:
        workers = np.array([r.worker for r in checked])
        found = np.array([r.scalars["curvature"] for r in checked])
        limit = rises_above(master.constants)
        learn(master.curvature, master.first, master.present, workers, found, limit)


def revise_planes(rules: Rules, master: Master, lam_before: Array, infos: list[Info]) -> None:
    """EASE, (17)-(20), when (t + 1) mod k == 0 and t < T_1."""
    due = (master.t + 1) % rules.preset.every(master.n) == 0
    if not due or master.t >= (rules.plane_iterations or math.inf):
        return
    master.constants = rules.preset.revised(master.constants, scale(rules, master))
    worst = master.uncertainty.worst_case(master.f[master.present])
    before = len(master.planes)
    master.planes = planes.ease(
        master.planes,
        lam_before,
        master.f,
        planes.spread(worst, master.present),
        most=rules.max_planes,
        drop=rules.drop,
        simplex=rules.preset.simplex,
        tolerance=1e-9 * master.constants["level"],
    )
    if len(master.planes) != before:
        infos.append(Noted(master.t, f"planes {before} -> {len(master.planes)}"))


def push(rules: Rules, master: Master, workers: NDArray[np.int64]) -> Array | None:
    """beta/(a_w K) of these workers: with that much of its move in v_j, (11) goes on by beta of it.

    K local steps share it. None: there is no momentum.
    """
    beta = rules.preset.momentum
    if not beta:
        return None
    pi = master.planes.pi(workers).tolist()
    rates = [worker_rate(rules, master, j, w) for j, w in zip(workers.tolist(), pi, strict=True)]
    return beta / (rules.local_steps * np.array(rates))


def held_back(
    rules: Rules, master: Master, workers: NDArray[np.int64], w: Tensor, infos: list[Info]
) -> tuple[Tensor, Held | None, NDArray[np.bool_] | None]:
    """The reported rows within the bounds of core.pull, what was done, and whose w_j it moved."""
    told = w
    most = None
    strong = [False] * len(workers)
    implied = implied_of(master, workers, w, rules.local_steps)
    if rules.pull_bound is not None:
        bounds = implied_lengths(implied), master.present, rules.pull_bound
        strong = pull.too_strong(master.pulls, workers.tolist(), *bounds)
    if rules.coordinate_bound is not None:
        w, most = within_coordinates(rules, master, implied)
    if most is None and not any(strong):
        return w, None, None
    far = np.array(strong)
    if any(strong):
        w = w.clone()
        w[torch.from_numpy(far).to(w.device)] = master.z.to(w.dtype)
        infos.append(Noted(master.t, f"pulls too hard, put back: workers {workers[far]}"))
    moved = far if most is None else (w != told).any(1).cpu().numpy()
    return w, Held(torch.from_numpy(far).to(w.device), any(strong), most), moved


def within_coordinates(
    rules: Rules, master: Master, implied: Implied
) -> tuple[Tensor, Tensor | None]:
    """The rows within the bound on every coordinate, and that bound on phi_j once it is known."""
    pulls = master.pulls
    w = implied.told
    workers = implied.workers
    pull.learn(pulls, workers, torch.cat(list(implied_gradients(implied)), dim=1))
    if master.t % pull.REFRESH == 0 or not len(pulls.common):
        pull.refresh(pulls, master.n)
    if not len(pulls.common):
        return w, None
    assert rules.coordinate_bound is not None
    z = master.z.to(w.dtype)
    most = pull.column(rules.coordinate_bound * master.upper[workers], w) * pulls.common
    return z + pull.within(w - z, most / master.constants["kappa"]), most


def step_tasks(
    rules: Rules,
    master: Master,
    workers: NDArray[np.int64],
    v: Sequence[Tensor],
    *,
    start: Tensor | None = None,
    resend: NDArray[np.bool_] | None = None,
) -> list[Task]:
    """v_j and pi_j; w_j too where the worker's own differs from ours.

    `start`: the w_j of them all, who then share it and the one v.
    """
    kappa = master.constants["kappa"]
    pi = master.planes.pi(workers).tolist()
    tasks = []
    for row, j in enumerate(workers.tolist()):
        vectors = {"v": v[row]} if start is None else {"v": v[0], "w": start}
        if resend is not None and resend[row]:
            vectors["w"] = master.w[j].clone()
        rate = worker_rate(rules, master, j, pi[row])
        if rules.bounded:
            master.pulls.rate[j] = rate
            master.pulls.kappa[j] = kappa
            master.pulls.weight[j] = max(pi[row], 0.1 * float(master.upper[j]), TINY)
        scalars = {"pi": pi[row], "kappa": kappa, "rate": rate}
        tasks.append(issue(master, j, "step", vectors, scalars))
    return tasks


def first_tasks(rules: Rules, master: Master, workers: NDArray[np.int64]) -> list[Task]:
    """For workers that have just come: w_j = z and phi_j = 0."""
    z = master.z.to(master.phi.dtype)
    return step_tasks(rules, master, workers, [master.constants["kappa"] * z], start=z)


def gap(
    rules: Rules,
    master: Master,
    gradient: Callable[[int, Tensor], Tensor],
    loss: Callable[[int, Tensor], float],
) -> float:
    """Definition 1 at the present state, with full-data gradients and losses."""
    here = np.flatnonzero(master.present)
    rates = rates_of(rules, master, min(rules.quorum, master.n))
    limits = rules.preset.limits
    pi = master.planes.pi(here)
    f = np.zeros(len(master.f))
    slope_z = master.sum_phi + master.constants["kappa"] * (master.n * master.z - master.sum_w)
    squares = [stationarity.squared_block(master.z, slope_z, rates.eta_z, limits.a1)]
    for row, j in enumerate(int(j) for j in here):
        w = master.w[j].double()
        phi = master.phi[j].double()
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
