"""What COVER and GCIVR share: min_w T log sum_j q_j exp(f_j(w)/T) as a composition psi(g(w)).

g(w) = sum_j q_j g_j(w), g_j = exp(f_j/T), psi = T log. Both methods keep an estimate u of g and V
of its gradient and take w <- w - eta psi'(u) V = w - eta T V/u. Every g_j is computed as
exp((f_j - c)/T), c the largest known loss; u and V are rescaled when c changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from aspire.methods import arguments
from aspire.methods.baselines import state, steps
from aspire.methods.baselines.shared import Shared
from aspire.methods.baselines.state import Ask, State
from aspire.methods.descent import cost, drawn
from aspire.methods.worker import loss_is_due
from aspire.problem import sites
from aspire.types import Array, Indices, Kind, Local, Mask, Report, Sized, Task

KINDS = {
    "checkpoint": Kind(1, vectors=("g",), optional=("loss",)),
    "difference": Kind(
        1,
        gradients=2,
        vectors=("g", "g_before"),
        optional=("loss", "loss_before"),
        given=("w", "before"),
    ),
}
SLACK = 50.0  # c falls by at most this many T in one step, so that no rescaling overflows
FAR = 500.0  # as many T below c is as good as any number more, and leaves something to divide by

# ---------------------------------------------------------------- worker


def rows(tasks: Sequence[Task], locals_: Sequence[Local]) -> list[Report]:
    """The gradient at w; for a 'difference' also at the w before, on the same batch.

    The losses there, when they are due.
    """
    names = {"": "w"} if tasks[0].kind == "checkpoint" else {"": "w", "_before": "before"}
    w = torch.stack([task.vectors[name] for name in names.values() for task in tasks])
    found = sites.gradients([*locals_] * len(names), w, drawn(tasks) * len(names)).unbind(0)
    made = []
    for r, (task, local) in enumerate(zip(tasks, locals_, strict=True)):
        vectors = {f"g{when}": found[i * len(tasks) + r] for i, when in enumerate(names)}
        losses = {}
        if loss_is_due(local, int(task.scalars["draws"]), 1):
            losses = {f"loss{when}": local.loss(task.vectors[v]) for when, v in names.items()}
        numbers = losses | cost(local, gradients=len(names), losses=len(losses))
        made.append(Report(task.worker, task.id, vectors, numbers))
    return made


ROWS = {"checkpoint": rows, "difference": rows}

# ---------------------------------------------------------------- master

Vector = Annotated[Tensor, Sized("p|0", "float64")]  # empty: not formed yet


@dataclass
class Master(State):
    """The estimates u and V, both times exp(-c/T)."""

    u: float = 1.0
    V: Vector = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    c: float = 0.0
    before: Vector = field(  # w of the last step
        default_factory=lambda: torch.zeros(0, dtype=torch.float64)
    )
    slope: Annotated[Array, Sized("N|0")] = field(  # last known |grad f_j|
        default_factory=lambda: np.zeros(0)
    )
    members: Annotated[Mask, Sized("N|0")] = field(  # whom u and V are of
        default_factory=lambda: np.zeros(0, dtype=bool)
    )


def constants(master: State, temperature: float | None, rate: float | None) -> dict[str, float]:
    """T: 0.1 f_0 unless given. A first rate of 1/L is too much for the recursive estimates."""
    guess = 0.1 * arguments.first_rate(master, None)
    T = temperature or 0.1 * arguments.first_loss(master)
    return {"rate": rate or guess, "temperature": T}


def stale(master: Master) -> bool:
    """No estimates yet, or the sites have changed since: they have to be formed anew."""
    return not np.array_equal(master.members, master.present)


def ask(master: Master, kind: str, workers: Indices, counts: Array) -> Ask:
    vectors = {"w": state.model(master, master.w)}
    if kind == "checkpoint":
        master.members = master.present.copy()
    else:
        vectors["before"] = state.model(master, master.before)
    return Ask(kind, workers, vectors, counts=counts)


def step(shared: Shared, master: Master, reports: list[Report], a: float) -> None:
    """u <- g(w) + (1 - a)(u - g(w_before)), V likewise; w <- w - eta T V/u.

    a = 1 forgets the past: a checkpoint. T V/u stands for a mean of gradients. Differences of
    exponentials can leave the range of what they estimate, u half of what the last known losses
    say, or T V/u the longest of the gradients: then the past is forgotten as well.
    """
    T = master.constants["temperature"]
    pull = state.restricted(master.prior, master.present)
    carrying = pull.nonzero()[0]
    shift(master, reports, T, carrying)
    pull[carrying] *= above(master.f[carrying], master.c, T)
    known = float(pull.sum())
    u, V = estimate(master, reports, T, 1.0 - a)
    if not (u >= 0.5 * known and T * length(V) <= u * longest(master, reports)):
        u, V = estimate(master, reports, T, 0.0)
    master.weights = pull / known
    master.u = u
    master.V = V
    master.before = master.w
    if shared.optimizer is None:
        master.w = master.w.sub(V, alpha=steps.rate(shared, master) * T / u)
    else:
        master.w = steps.against(shared, master, T / u * V)


def longest(master: Master, reports: list[Report]) -> float:
    """The longest last known gradient of a present worker."""
    for report in reports:
        master.slope[report.worker] = length(report.vectors["g"])
    return float(master.slope[master.present].max())


def length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def shift(master: Master, reports: list[Report], T: float, carrying: Indices) -> None:
    """c <- the largest known loss that carries weight; u and V times exp((c_old - c_new)/T)."""
    known = [float(master.f[carrying].max())]
    known += [r.scalars["loss_before"] for r in reports if "loss_before" in r.scalars]
    started = len(master.V) > 0
    c = max(*known, master.c - SLACK * T) if started else max(known)
    if started and c != master.c:
        factor = math.exp((master.c - c) / T)
        master.u = master.u * factor
        master.V = master.V * factor
    master.c = c


def estimate(master: Master, reports: list[Report], T: float, keep: float) -> tuple[float, Tensor]:
    """u <- g(w) + keep (u - g(w_before)), V likewise; the g are means over the reports, by counts.

    V is formed in one product, V <- keep V + sum_i k_i grad f_i(w)/T - keep k'_i grad f_i(w')/T
    with k_i = s_i exp((f_i - c)/T) and w' the w before.
    """
    k = kernels(master, reports, T, ("", "_before") if keep else ("",))
    u = float(k[0].sum())
    rows = [r.vectors["g"] for r in reports]
    if keep:
        k[1] *= -keep
        u += keep * master.u + float(k[1].sum())
        rows += [r.vectors["g_before"] for r in reports]
    slopes = torch.stack(rows).double()
    V = torch.from_numpy(k.ravel() / T).to(slopes.device) @ slopes
    return u, V.add_(master.V, alpha=keep) if keep else V


def kernels(master: Master, reports: list[Report], T: float, points: tuple[str, ...]) -> Array:
    """s_i exp((f_i - c)/T), a row for each point; where no loss was due, the last known one stands
    for both points."""
    f = np.array([[r.scalars.get(f"loss{p}", master.f[r.worker]) for r in reports] for p in points])
    counts = master.counts[[r.worker for r in reports]]
    k: Array = counts / counts.sum() * above(f, master.c, T)
    return k


def above(f: Array, c: float, T: float) -> Array:
    """exp((f - c)/T)."""
    found: Array = np.exp(np.maximum((f - c) / T, -FAR))
    return found
