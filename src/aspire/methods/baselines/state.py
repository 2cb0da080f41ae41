"""The baselines' master state: what was asked of whom, and who is here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from aspire.methods import optimisers
from aspire.protocol import report_objection
from aspire.types import (
    Array,
    Between,
    Count,
    Event,
    Facts,
    Id,
    Indices,
    Kind,
    Left,
    Mask,
    PerSite,
    Precise,
    Report,
    SiteCounts,
    SiteMask,
    Sized,
    Task,
    Worker,
)


@dataclass(frozen=True)
class Ask:
    """One phase: the same task for each of `workers`, drawn `counts` times (None: once each)."""

    kind: str
    workers: Indices
    vectors: Mapping[str, Tensor]
    scalars: Mapping[str, float] = field(default_factory=dict)
    counts: Array | None = None


@dataclass
class State:
    """What every baseline's master knows. Arrays have one entry per site."""

    t: Count
    seed: Annotated[int, Between(0, math.inf)]
    w: Precise
    average: Precise  # w itself where no average is asked for
    like: Annotated[Tensor, Sized("0")]  # the model's own number type
    prior: PerSite  # q over all sites
    weights: PerSite  # zero for the absent
    f: PerSite  # last known losses
    curvature: PerSite
    present: SiteMask
    arrived: SiteMask  # answered their probe, in from the next round
    asked: SiteMask  # in this phase
    took: SiteMask  # answered in this round
    draws: SiteCounts  # batches that j has drawn
    quorum: Count  # answers that close a phase; all who were asked where they are fewer
    moments: optimisers.Moments  # of the optimizer, if there is one
    norm: PerSite  # of j's last report, where reports are bounded; 0: none yet
    clipped: SiteCounts  # reports of j that were scaled down
    counts: PerSite  # how often j was drawn for this phase
    hands: dict[Worker, tuple[Id, str]] = field(default_factory=dict)  # id and kind of j's task
    answers: dict[Worker, Report] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)  # empty: not started
    phase: str = ""  # "": nobody to ask
    next_id: Count = 0
    moves: Count = 0  # steps of the optimizer


def fields(facts: Facts, seed: int, prior: Array, quorum: int | None = None) -> dict[str, Any]:
    """The fields of a fresh State: w at the start, nobody here yet."""
    n = facts.sites
    w = facts.start.double()
    if quorum is not None and quorum > n:
        raise ValueError(f"quorum={quorum}: expected at most the {n} sites")
    nobody = np.zeros(n, dtype=bool)
    masks = {name: nobody.copy() for name in ("present", "arrived", "asked", "took")}
    zeros = {name: np.zeros(n) for name in ("f", "curvature", "counts", "norm")}
    return (
        {
            "t": 0,
            "seed": seed,
            "w": w,
            "average": w,
            "like": torch.zeros_like(facts.start[:0]),
            "prior": prior,
            "weights": prior.copy(),
            "draws": np.zeros(n, dtype=np.int64),
            "clipped": np.zeros(n, dtype=np.int64),
            "quorum": n if quorum is None else quorum,
            "moments": optimisers.moments_of(w, facts.tensors),
        }
        | masks
        | zeros
    )


def probes(master: State, facts: Facts) -> list[Task]:
    """The first task of everybody who is here."""
    first = range(facts.sites) if facts.present is None else facts.present
    return [issue(master, j, "probe", {"w": model(master, master.w)}, {}) for j in first]


def model(master: State, w: Tensor | None = None) -> Tensor:
    """w (the average, if none is given) in the model's own number type."""
    return (master.average if w is None else w).to(master.like.dtype)


def issue(
    master: State,
    j: int,
    kind: str,
    vectors: Mapping[str, Tensor],
    scalars: Mapping[str, float],
) -> Task:
    numbers = {**scalars, "draws": float(master.draws[j])}
    task = Task(j, master.next_id, kind, vectors, numbers)
    master.hands[j] = (task.id, kind)
    master.next_id += 1
    return task


# ---------------------------------------------------------------- who is here


def leave(master: State, j: int) -> None:
    """Its task, its answer and its norm are forgotten, its weight goes to the others."""
    master.hands.pop(j, None)
    master.norm[j] = 0.0
    master.answers.pop(j, None)
    master.arrived[j] = master.asked[j] = master.took[j] = False
    if master.present[j]:
        master.present[j] = False
        settle(master, np.zeros_like(master.present))


def free(master: State) -> Indices:
    """Present and without a task."""
    idle = master.present
    if master.hands:
        idle = idle.copy()
        idle[list(master.hands)] = False
    return idle.nonzero()[0]


def admit(master: State) -> None:
    """Those who arrived take part from now on."""
    if np.count_nonzero(master.arrived):  # cheaper than any()
        master.present |= master.arrived
        settle(master, master.arrived.copy())
        master.arrived[:] = False


def settle(master: State, new: Mask) -> None:
    """Weights over the present: newcomers get their share of the prior, the rest keep ratios."""
    if not master.present.any():
        return
    share = restricted(master.prior, master.present)
    kept = np.where(master.present & ~new, master.weights, 0.0)
    total = float(kept.sum())
    if total > 0:
        master.weights = kept / total * (1.0 - float(share[new].sum()))
        master.weights[new] = share[new]
    else:
        master.weights = share


def restricted(prior: Array, present: Mask) -> Array:
    """q over the present, summing to one; even where they had nothing of it."""
    if np.count_nonzero(present) == len(present):
        return prior.copy()
    kept = np.where(present, prior, 0.0)
    return kept / kept.sum() if kept.sum() > 0 else present / float(present.sum())


# ---------------------------------------------------------------- what is refused


def objection(master: State, event: Event, kinds: Mapping[str, Kind]) -> str | None:
    """Why an event must be refused, or None. Reads only."""
    j = event.worker
    n = len(master.f)
    if not (isinstance(j, int) and 0 <= j < n):
        return f"unknown worker {j!r}: expected 0 to {n - 1}"
    if not isinstance(event, Report):
        probing = master.hands.get(j, (0, ""))[1] == "probe"
        here = bool(master.present[j] or master.arrived[j] or probing)
        if isinstance(event, Left):
            return None if here else f"worker {j} left but is not here"
        return f"worker {j} joined but is here already" if here else None
    if j not in master.hands:
        return f"worker {j} reports task {event.task}: expected none, it has no task"
    task, kind = master.hands[j]
    if event.task != task:
        return f"worker {j} reports task {event.task}: expected task {task}"
    return report_objection(event, kinds[kind], parameters=len(master.w), dtype=master.like.dtype)
