"""Rounds: the bookkeeping that the baselines share. Who is here, was asked, and answered.

A round has one or more phases. In each the master asks some workers for one kind of task, and the
phase closes when all of them have answered, or the first `quorum` of them. The method's own `close`
then says what to ask next; None ends the round, which is the master step t -> t + 1. A phase whose
workers have all left is void, and the round starts again.

The first task of every worker is a probe at the start: its loss, and with rate=None its curvature.
Who joins is probed and takes part from the next round. With a quorum the late keep working; their
reports are ignored, and they are asked again in the round after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.core.schedules import positive, robust_curvature
from aspire.sets.checks import distribution
from aspire.types import (
    Array,
    Event,
    Facts,
    Info,
    Joined,
    Left,
    Noted,
    Refused,
    Report,
    Stepped,
    Task,
)

Mask = NDArray[np.bool_]
Indices = NDArray[np.int64]
FORGET = 0.3  # as in `auto`: the newest w counts min(1, 2/(2 + 0.3 t)) in the average
POWER = 12  # power iterations of a probe, where a rate is to be guessed

# ---------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class Kind:
    """A kind of task: the batches it draws, and what its report must carry."""

    batches: int = 0
    vectors: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()


PROBE = Kind(1, scalars=("loss",))


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

    t: int
    seed: int
    w: Tensor  # float64
    average: Tensor  # float64, w itself where no average is asked for
    like: Tensor  # empty: the model's own number type
    prior: Array  # q over all sites
    weights: Array  # zero for the absent
    f: Array  # last known losses
    curvature: Array
    present: Mask
    arrived: Mask  # answered their probe, in from the next round
    asked: Mask  # in this phase
    took: Mask  # answered in this round
    draws: Indices  # batches that j has drawn
    counts: Array  # how often j was drawn for this phase
    hands: dict[int, tuple[int, str]] = field(default_factory=dict)  # id and kind of j's task
    answers: dict[int, Report] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)  # empty: not started
    phase: str = ""  # "": nobody to ask
    next_id: int = 0


M = TypeVar("M", bound=State)
Contra = TypeVar("Contra", bound=State, contravariant=True)


class Rules(Protocol[Contra]):
    """The arguments of a baseline, and its own part of the master."""

    @property
    def kinds(self) -> Mapping[str, Kind]: ...

    @property
    def quorum(self) -> int | None:
        """S, the answers that close a phase; None: all, as in the papers."""

    @property
    def average(self) -> bool: ...

    def constants(self, master: Contra) -> dict[str, float]:
        """The rates, once the probes are in."""

    def ask(self, master: Contra) -> Ask:
        """The first phase of a round; at least one worker is free."""

    def close(self, master: Contra, reports: list[Report]) -> Ask | None:
        """Use the answers, in worker order; the next phase, or None: the round is over."""


# ---------------------------------------------------------------- arguments


def check(
    counts: Mapping[str, int | None], rates: Mapping[str, float | None]
) -> dict[str, int | float | None]:
    """Refuse a count below one and a rate that is not positive, by name; give all of them back."""
    for name, value in counts.items():
        if value is not None and (value != int(value) or value < 1):
            raise ValueError(f"{name}={value}: expected a whole number of at least 1")
    positive(**{name: value for name, value in rates.items() if value is not None})
    return {**counts, **rates}


def prior_over(n: int, prior: Any) -> Array:
    """q over n sites; None: even."""
    q = distribution(prior)
    if q is None:
        return np.full(n, 1.0 / n)
    if len(q) != n:
        raise ValueError(f"prior has {len(q)} entries: expected one for each of the {n} sites")
    return q


def first_rate(master: State, rate: float | None) -> float:
    """The given rate, or 1 / max_j L_j with L_j capped at 10 times the median."""
    if rate is not None:
        return rate
    steepest = float(robust_curvature(master.curvature[master.present]).max())
    return 1.0 / steepest if steepest > 0 else 1.0


def first_loss(master: State) -> float:
    """f_0, the median first loss; tiny where that is not positive."""
    return max(float(np.median(master.f[master.present])), float(np.finfo(np.float64).tiny))


# ---------------------------------------------------------------- init


def fields(facts: Facts, seed: int, prior: Array, quorum: int | None = None) -> dict[str, Any]:
    """The fields of a fresh State: w at the start, nobody here yet."""
    n, w = facts.sites, facts.start.double()
    if quorum is not None and quorum > n:
        raise ValueError(f"quorum={quorum}: expected at most the {n} sites")
    nobody = np.zeros(n, dtype=bool)
    masks = {name: nobody.copy() for name in ("present", "arrived", "asked", "took")}
    zeros = {name: np.zeros(n) for name in ("f", "curvature", "counts")}
    return {
        "t": 0, "seed": seed, "w": w, "average": w, "like": torch.zeros_like(facts.start[:0]),
        "prior": prior, "weights": prior.copy(), "draws": np.zeros(n, dtype=np.int64),
    } | masks | zeros  # fmt: skip


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


# ---------------------------------------------------------------- absorb


def absorb(
    rules: Rules[M], master: M, events: Sequence[Event]
) -> tuple[M, list[Task], list[Info]]:
    """Take the events in their order; each may close a phase, and that may end a round."""
    tasks: list[Task] = []
    infos: list[Info] = []
    for event in events:
        reason = objection(master, event, rules.kinds)
        if reason is not None:
            infos.append(Refused(event, reason))
            continue
        match event:
            case Report():
                receive(master, event, rules.kinds, infos)
            case Left(worker=j):
                leave(master, j)
            case Joined(worker=j):
                tasks.append(issue(master, j, "probe", {"w": model(master, master.w)}, {}))
        tasks.extend(advance(rules, master, infos))
    return master, tasks, infos


def receive(
    master: State, report: Report, kinds: Mapping[str, Kind], infos: list[Info]
) -> None:
    j = report.worker
    kind = master.hands.pop(j)[1]
    if kind == "probe":
        master.draws[j] += PROBE.batches
        master.f[j] = report.scalars["loss"]
        master.curvature[j] = report.scalars.get("curvature", 0.0)
        master.arrived[j] = True
        return
    master.draws[j] += kinds[kind].batches
    if master.asked[j]:
        master.answers[j] = report
    else:
        infos.append(Noted(master.t, f"late report of worker {j} ignored"))


def leave(master: State, j: int) -> None:
    """Its task and its answer are forgotten, its weight goes to the others."""
    master.hands.pop(j, None)
    master.answers.pop(j, None)
    master.arrived[j] = master.asked[j] = master.took[j] = False
    if master.present[j]:
        master.present[j] = False
        settle(master, np.zeros_like(master.present))


def advance(rules: Rules[M], master: M, infos: list[Info]) -> list[Task]:
    """Close the phase if it is complete, and ask what comes next."""
    if not master.constants and not start(rules, master, infos):
        return []
    ask = None
    if master.phase:
        quorum = len(master.asked) if rules.quorum is None else rules.quorum
        if len(master.answers) < min(quorum, int(master.asked.sum())):
            return []
        ask = close(rules, master, infos)
    if ask is None:
        admit(master)
        master.took[:] = False
        if len(free(master)):
            ask = rules.ask(master)
    master.phase = "" if ask is None or not len(ask.workers) else ask.kind
    if ask is None:
        return []
    master.asked[ask.workers] = True
    master.counts[:] = 0.0
    master.counts[ask.workers] = 1.0 if ask.counts is None else ask.counts
    return [issue(master, int(j), ask.kind, ask.vectors, ask.scalars) for j in ask.workers]


def start(rules: Rules[M], master: M, infos: list[Info]) -> bool:
    """All have answered their probe or are away: form the constants."""
    if any(kind == "probe" for _, kind in master.hands.values()) or not master.arrived.any():
        return False
    admit(master)
    master.constants = rules.constants(master)
    text = ", ".join(f"{name} {value:.6g}" for name, value in master.constants.items())
    infos.append(Noted(0, f"started: {text}"))
    return True


def close(rules: Rules[M], master: M, infos: list[Info]) -> Ask | None:
    """The phase is complete: the new losses, the method's own equations, maybe t -> t + 1."""
    reports = [master.answers[j] for j in sorted(master.answers)]
    master.answers = {}
    master.asked[:] = False
    if not reports:
        return None
    for report in reports:
        master.took[report.worker] = True
        master.f[report.worker] = report.scalars.get("loss", master.f[report.worker])
    ask = rules.close(master, reports)
    if ask is not None:
        return ask
    share = min(1.0, 2.0 / (2.0 + FORGET * master.t)) if rules.average else 1.0
    master.average = master.w if share >= 1 else master.average.lerp(master.w, share)
    infos.append(Stepped(master.t, tuple(int(j) for j in np.flatnonzero(master.took))))
    master.t += 1
    return None


# ---------------------------------------------------------------- who is here


def free(master: State) -> Indices:
    """Present and without a task."""
    idle = master.present.copy()
    idle[list(master.hands)] = False
    return np.flatnonzero(idle)


def admit(master: State) -> None:
    """Those who arrived take part from now on."""
    if master.arrived.any():
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
    if present.all():
        return prior.copy()
    kept = np.where(present, prior, 0.0)
    return kept / kept.sum() if kept.sum() > 0 else present / float(present.sum())


def objection(master: State, event: Event, kinds: Mapping[str, Kind]) -> str | None:
    """Why an event must be refused, or None. Reads only."""
    j, n = event.worker, len(master.f)
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
    return incomplete(event, PROBE if kind == "probe" else kinds[kind], master)


def incomplete(report: Report, kind: Kind, master: State) -> str | None:
    """What a report lacks or has wrong: names, finite numbers, shapes and types."""
    j = report.worker
    if not {*kind.scalars} <= {*report.scalars} or not {*kind.vectors} <= {*report.vectors}:
        return f"worker {j} reports {sorted({*report.scalars, *report.vectors})}: incomplete"
    for name, value in report.scalars.items():
        if not math.isfinite(value):
            return f"worker {j} reports {name}={value}: expected a finite number"
    for name in kind.vectors:
        x = report.vectors[name]
        if x.shape != master.w.shape or x.dtype != master.like.dtype:
            return (
                f"worker {j} reports {name} of shape {tuple(x.shape)} and type {x.dtype}: "
                f"expected {tuple(master.w.shape)} and {master.like.dtype}"
            )
        if not bool(torch.isfinite(x).all()):
            return f"worker {j} reports {name} with values that are not finite"
    return None
