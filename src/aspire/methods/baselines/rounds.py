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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from aspire.methods.arguments import POWER
from aspire.methods.baselines import steps
from aspire.methods.baselines.shared import Shared
from aspire.methods.baselines.state import (
    Ask,
    State,
    admit,
    free,
    issue,
    leave,
    model,
    objection,
)
from aspire.methods.descent import Rows, alone, answers
from aspire.protocol import probe_kind
from aspire.types import (
    Event,
    Facts,
    Fast,
    Info,
    Joined,
    Kind,
    Left,
    Look,
    Method,
    Noted,
    Refused,
    Report,
    Stepped,
    Task,
)

FORGET = 0.3  # as in `auto`: the newest w counts min(1, 2/(2 + 0.3 t)) in the average
WORK = ("local_steps", "rate")  # what a worker depends on; of rate, whether it is None


M = TypeVar("M", bound=State)
Contra = TypeVar("Contra", bound=State, contravariant=True)


class Rules(Protocol[Contra]):
    """The arguments of a baseline, and its own part of the master."""

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Of its tasks, besides the probe."""

    @property
    def rate(self) -> float | None:
        """Of the step of w; None: from the probe."""

    @property
    def shared(self) -> Shared: ...

    def init(self, facts: Facts, seed: int) -> tuple[Any, list[Task]]:
        """The master's first state, and the first tasks."""

    def constants(self, master: Contra) -> dict[str, float]:
        """The rates, once the probes are in."""

    def ask(self, master: Contra) -> Ask:
        """The first phase of a round; at least one worker is free."""

    def close(self, master: Contra, reports: list[Report]) -> Ask | None:
        """Use the answers, in worker order; the next phase, or None: the round is over."""


# ---------------------------------------------------------------- factory


def method(
    name: str,
    settings: Mapping[str, Any],
    rules: Any,
    kinds: Mapping[str, Rows],
    state: type[State] = State,
) -> Method:
    """A baseline as a value: its own rows and rules, and the rounds that all of them share.

    kinds  what workers do with each kind of task; power iterations only where a rate is missing
    state  its master's
    """
    many = partial(answers, kinds=kinds, power=power_of(rules))
    return Method(
        name=name,
        settings={**settings, **rules.shared.settings},
        init=partial(init, rules),
        work=partial(alone, many),
        absorb=partial(absorb, rules),
        model=model,
        look=lambda master: Look(master.weights.copy(), waiting=waiting(master)),
        fast=Fast(many),
        kinds=kinds_of(rules),
        states=(state,),
        site_arguments={name: settings[name] for name in WORK if name in settings},
    )


def power_of(rules: Rules[Any]) -> int:
    """Power iterations in a probe: only where a rate is missing."""
    return POWER if rules.rate is None else 0


def kinds_of(rules: Rules[Any]) -> dict[str, Kind]:
    """Of all its tasks."""
    return {"probe": probe_kind(power_of(rules)), **rules.kinds}


def init(rules: Rules[M], facts: Facts, seed: int) -> tuple[M, list[Task]]:
    """The method's own, and a look at whether its optimizer can be made."""
    master, tasks = rules.init(facts, seed)
    steps.try_out(rules.shared, master)
    return master, tasks


# ---------------------------------------------------------------- absorb


def absorb(rules: Rules[M], master: M, events: Sequence[Event]) -> tuple[M, list[Task], list[Info]]:
    """Take the events in their order; each may close a phase, and that may end a round."""
    tasks: list[Task] = []
    infos: list[Info] = []
    kinds = kinds_of(rules)
    for event in events:
        reason = objection(master, event, kinds)
        if reason is not None:
            infos.append(Refused(event, reason))
            continue
        match event:
            case Report():
                receive(master, event, kinds, infos)
            case Left(worker=j):
                leave(master, j)
            case Joined(worker=j):
                tasks.append(issue(master, j, "probe", {"w": model(master, master.w)}, {}))
        tasks.extend(advance(rules, master, infos))
    return master, tasks, infos


def receive(master: State, report: Report, kinds: Mapping[str, Kind], infos: list[Info]) -> None:
    j = report.worker
    kind = master.hands.pop(j)[1]
    master.draws[j] += kinds[kind].batches
    if kind == "probe":
        master.f[j] = report.scalars["loss"]
        master.curvature[j] = report.scalars.get("curvature", 0.0)
        master.arrived[j] = True
        return
    if master.asked[j]:
        master.answers[j] = report
    else:
        infos.append(Noted(master.t, f"late report of worker {j} ignored"))


def advance(rules: Rules[M], master: M, infos: list[Info]) -> list[Task]:
    """Close the phase if it is complete, and ask what comes next."""
    if not master.constants and not start(rules, master, infos):
        return []
    ask = None
    if master.phase:
        if len(master.answers) < min(master.quorum, int(np.count_nonzero(master.asked))):
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


def waiting(master: State) -> list[int]:
    """Those without whom the phase cannot close; nobody where any of several will do."""
    if not master.constants:
        return sorted(master.hands)
    asked = [int(j) for j in np.flatnonzero(master.asked) if j not in master.answers]
    missing = min(master.quorum, int(np.count_nonzero(master.asked))) - len(master.answers)
    return asked if missing >= len(asked) else []


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
    vectors = rules.kinds[master.phase].vectors
    for report in reports:
        master.took[report.worker] = True
        master.f[report.worker] = report.scalars.get("loss", master.f[report.worker])
    ask = rules.close(master, steps.within(rules.shared, master, reports, vectors))
    if ask is not None:
        return ask
    share = min(1.0, 2.0 / (2.0 + FORGET * master.t)) if rules.shared.average else 1.0
    master.average = master.w if share >= 1 else master.average.lerp(master.w, share)
    infos.append(Stepped(master.t, tuple(master.took.nonzero()[0].tolist())))
    master.t += 1
    return None
