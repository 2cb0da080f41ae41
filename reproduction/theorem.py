"""The preset `theorem1` where the conditions of Theorem 1 hold, and are checked.

Two sites with f_j(w) = (w - a_j)^2 / 4 + C over one number w in [-a1, a1], S = 1, tau = 2. L is
the spectral norm of the matrix of the largest sizes of L_p's second derivatives over the boxes, so
no Hessian there is larger. C changes no derivative of f_j; it lets h stay above 0, without which
sum lam = 1 takes (rho1 f)^-6 iterations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from aspire.api import Job, prepare
from aspire.core.presets import Theorem1
from aspire.core.schedules import Limits
from aspire.methods import consensus
from aspire.sets import CDNorm
from aspire.simulator import simulator
from aspire.simulator.delays import LogNormal
from aspire.types import Array, look_at
from reproduction.provenance import MADE_BY

OPTIMA = (1.0, -0.5)  # a_j
START = 2.0
SLOPE = 0.5  # x of every sample, so f_j'' = 2 SLOPE^2
OFFSET = 30.0  # C is its square
PLANES = 2  # M
STALENESS = 2  # tau
LIMITS = Limits(a1=2.0, a2=1e4, a3=1.0, a4=10.0)
KAPPA = 1.0
EPSILON = 0.1


def smoothness() -> float:
    """L, with the variables in the order w_1 .. w_N, z, h, lam_1 .. lam_M, phi_1 .. phi_N."""
    n = len(OPTIMA)
    z = n
    h = n + 1
    lam = range(n + 2, n + 2 + PLANES)
    phi = range(n + 2 + PLANES, 2 * n + 2 + PLANES)
    bend = 2.0 * SLOPE**2
    top: Array = np.zeros((len(phi) + phi.start, len(phi) + phi.start))
    top[z, z] = n * KAPPA
    for j in range(n):
        top[j, j] = PLANES * LIMITS.a3 * bend + KAPPA
        top[j, z] = KAPPA
        top[j, list(lam)] = bend * (LIMITS.a1 + abs(OPTIMA[j]))
        top[j, phi[j]] = 1.0
        top[z, phi[j]] = 1.0
    top[h, list(lam)] = 1.0
    whole = np.maximum(top, top.T)
    return float(np.linalg.norm(whole, 2))


def conditions(constants: dict[str, float]) -> bool:
    """rho1 < min(2(1-theta)/L, 1/(15 tau k1 N L^2)), rho2 <= 2(1-theta)/L, gamma > 2, and the
    floors of c1 and c2: M c1^2 + N c2^2 <= epsilon^2/4. k1 = 1."""
    preset = Theorem1()
    n = len(OPTIMA)
    L = smoothness()
    most = 2.0 * (1.0 - preset.theta) / L
    floors = PLANES * constants["floor1"] ** 2 + n * constants["floor2"] ** 2
    return (
        constants["rho1"] < min(most, 1.0 / (15.0 * STALENESS * n * L**2))
        and constants["rho2"] <= most
        and preset.gamma > 2.0
        and floors <= EPSILON**2 / 4.0 * (1.0 + 1e-12)
    )


def job_of(seed: int, iterations: int) -> Job:
    x = torch.full((2, 1), SLOPE, dtype=torch.float64)
    away = torch.tensor([[OFFSET], [-OFFSET]], dtype=torch.float64)
    sites = {f"optimum {a:g}": (x, a * x + away) for a in OPTIMA}
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(model.weight, START)
    n = len(OPTIMA)
    method = consensus(
        CDNorm(radius=1.0 / n, budget=float(n)),
        preset=Theorem1(smoothness=smoothness(), epsilon=EPSILON, kappa=KAPPA, limits=LIMITS),
        quorum=1,
        staleness=STALENESS,
        max_planes=PLANES,
    )
    return prepare(
        model,
        sites,
        loss="mse",
        method=method,
        iterations=iterations,
        batch_size=None,
        delays=LogNormal(1.0, 0.4),
        seed=seed,
        evaluate_every=0,
    )


def descend(seed: int, iterations: int, points: int) -> dict[str, Any]:
    """The squared gap along a run, at iterations evenly spread in their logarithm."""
    job = job_of(seed, iterations)
    due = set(np.geomspace(1, iterations, points).astype(int).tolist())
    history: dict[str, list[float]] = {"t": [], "gap": []}

    def look(simulation: simulator.Simulation) -> None:
        if simulation.master.t in due:
            history["t"].append(simulation.master.t)
            history["gap"].append(float(f"{squared_gap(job, simulation):.5g}"))

    simulation = simulator.run(job.begin(), job.done, on_step=look)
    constants = {name: float(value) for name, value in simulation.master.constants.items()}
    if not conditions(constants):
        raise ValueError(f"constants={constants}: expected those of Theorem 1")
    made = {"history": history, "gap": history["gap"][-1], "constants": constants}
    return made | {MADE_BY: job.method.name}


def squared_gap(job: Job, simulation: simulator.Simulation) -> float:
    sites = job.problem.sites
    look = look_at(job.method, simulation.master, len(sites))
    assert look.gap is not None
    gap = look.gap(
        lambda j, w: sites[j].full_gradient(w),
        lambda j, w: sites[j].full_loss(w),
    )
    return float(gap) ** 2
