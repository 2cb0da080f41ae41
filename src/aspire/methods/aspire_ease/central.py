"""The centralised algorithm: all N groups on one node (Appendix D of the paper).

One model w instead of N copies: every iteration takes the gradient of sum_j pi_j f_j at one w, so
there is no z, no phi and no staleness. As a method it is synchronous: each group answers a task at
w with its gradient, and its loss there when it is due. Order of this file: worker, master state,
factory, init, absorb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from aspire.core import equations, planes, stationarity
from aspire.core.preset_names import name_at_sites, preset_of
from aspire.core.presets import Auto
from aspire.core.schedules import Constants, Preset, Scale
from aspire.methods.arguments import refit
from aspire.methods.descent import GRADIENT, alone, answers, gradient_rows
from aspire.protocol import probe_kind, report_objection
from aspire.sets import CDNorm, UncertaintySet
from aspire.types import (
    Count,
    Event,
    Facts,
    Fast,
    Info,
    Kind,
    Look,
    Method,
    Noted,
    PerSite,
    Precise,
    Refused,
    Report,
    Sized,
    Stepped,
    Task,
    Worker,
)

# -------------------------------------------------- worker: descent.gradient_rows; master


@dataclass
class Master:
    """w, its running average, and the duals."""

    t: Count
    w: Precise
    average: Precise
    h: float
    planes: planes.Planes
    f: PerSite
    curvature: PerSite
    slope: PerSite
    uncertainty: UncertaintySet
    like: Annotated[Tensor, Sized("0")]  # the model's own number type
    round: Count = 0
    answers: dict[Worker, Report] = field(default_factory=dict)
    constants: Constants = field(default_factory=dict)


def central(
    uncertainty: UncertaintySet | None = None,
    *,
    drop: bool = True,
    max_planes: int | None = 50,
    plane_iterations: int | None = None,
    preset: str | Preset | None = None,
) -> Method:
    """Return the method as a value; arguments as in `consensus`."""
    preset = Auto() if preset is None else preset_of(preset)
    rules = Rules(uncertainty, drop, max_planes, plane_iterations, preset)
    settings = {"uncertainty": uncertainty, "drop": drop, "max_planes": max_planes}
    many = partial(answers, kinds={"gradient": gradient_rows}, power=preset.power)
    known = name_at_sites(preset)
    return Method(
        name="aspire-central",
        settings=settings | {"plane_iterations": plane_iterations, "preset": preset},
        init=rules.init,
        work=partial(alone, many),
        absorb=rules.absorb,
        model=lambda master: master.average.to(master.like.dtype),
        look=rules.look,
        fit=refit(central, rules),
        fast=Fast(many),
        kinds=rules.kinds,
        states=(Master,) if uncertainty is None else (Master, type(uncertainty)),
        site_arguments=None if known is None else {"preset": known},
    )


@dataclass(frozen=True)
class Rules:
    """The arguments of `central`, and the master's side of the method."""

    uncertainty: UncertaintySet | None
    drop: bool
    max_planes: int | None
    plane_iterations: int | None
    preset: Preset

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        return {"probe": probe_kind(self.preset.power), **GRADIENT}

    def init(self, facts: Facts, seed: int) -> tuple[Master, list[Task]]:
        n = facts.sites
        if facts.present is not None and len(facts.present) < n:
            raise ValueError("the centralised algorithm has all groups on one node: none is absent")
        base = (self.uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)
        w = facts.start.double()
        zero = np.zeros(n)
        master = Master(
            0,
            w,
            w,
            0.0,
            planes.only(base.nominal(), zero),
            zero.copy(),
            zero.copy(),
            zero.copy(),
            base,
            torch.zeros_like(facts.start[:0]),
        )
        return master, self.tasks(master, "probe")

    def tasks(self, master: Master, kind: str) -> list[Task]:
        n = len(master.f)
        w = master.w.to(master.like.dtype)
        scalars = {"draws": float(master.round)}
        return [Task(j, master.round * n + j, kind, {"w": w}, scalars) for j in range(n)]

    def absorb(
        self, master: Master, events: Sequence[Event]
    ) -> tuple[Master, list[Task], list[Info]]:
        tasks: list[Task] = []
        infos: list[Info] = []
        for event in events:
            reason = objection(master, event, self.kinds)
            if reason is not None or not isinstance(event, Report):
                infos.append(Refused(event, reason or "not a report"))
                continue
            master.answers[event.worker] = event
            if len(master.answers) < len(master.f):
                continue
            reports = [master.answers[j] for j in range(len(master.f))]
            master.answers = {}
            master.round = master.round + 1
            if master.constants:
                self.step(master, reports, infos)
            else:
                self.start(master, reports, infos)
            tasks.extend(self.tasks(master, "gradient"))
        return master, tasks, infos

    def start(self, master: Master, reports: list[Report], infos: list[Info]) -> None:
        master.f = np.array([r.scalars["loss"] for r in reports])
        master.curvature = np.array([r.scalars.get("curvature", 0.0) for r in reports])
        master.slope = np.array([r.scalars.get("slope", 0.0) for r in reports])
        master.constants = self.preset.constants(self.scale(master))
        master.planes = planes.only(master.uncertainty.nominal(), master.f)
        c1 = self.preset.central_rates(master.constants, 0, 1)[1].c1
        master.h = min(max(float(master.planes.F[0]) - c1, 0.0), self.preset.limits.a2)
        infos.append(Noted(0, "started"))

    def scale(self, master: Master) -> Scale:
        upper = master.uncertainty.upper()
        return Scale(master.f, master.curvature, master.slope, upper, self.max_planes or 50, None)

    def step(self, master: Master, reports: list[Report], infos: list[Info]) -> None:
        """(D.8)-(D.9) at the w that was just evaluated, EASE, then (D.7): the next w.

        lam^t needs f(w^t), which arrives together with the gradients at w^t; so one round first
        finishes iteration t - 1 and then moves w. Where no loss was due, the last known one counts.
        """
        known = zip(reports, master.f, strict=True)
        master.f = np.array([r.scalars.get("loss", f) for r, f in known])
        if master.t > 0:
            self.dual_step(master, master.t - 1)
        eta, _ = self.preset.central_rates(master.constants, master.t, len(master.planes))
        pi = master.planes.pi(np.arange(len(master.f)))
        slopes = torch.stack([r.vectors["g"] for r in reports]).double()
        slope = torch.from_numpy(pi).to(slopes.device) @ slopes
        master.w = equations.clip(master.w - eta * slope, self.preset.limits.a1)
        share = self.preset.averaging(master.t)
        master.average = master.w if share >= 1 else master.average.lerp(master.w, share)
        infos.append(Stepped(master.t, tuple(range(len(master.f)))))
        master.t += 1

    def dual_step(self, master: Master, t: int) -> None:
        """h with the old lam, lam with the new h and f(w new), then EASE; all of iteration t."""
        A = master.planes
        limits = self.preset.limits
        rates = self.preset.central_rates(master.constants, t, len(A))[1]
        F = A.P @ master.f
        if self.preset.simplex:
            lam, master.h = equations.lam_simplex_step(A.lam, F, c1=rates.c1, rate=rates.rho1)
        else:
            master.h = equations.h_step(master.h, A.lam, rate=rates.eta_h, limit=limits.a2)
            lam = equations.lam_step(
                A.lam, F, master.h, c1=rates.c1, rate=rates.rho1, limit=limits.a3
            )
        master.planes = planes.Planes(A.P, lam, F)
        if (t + 1) % self.preset.every(1) == 0 and t < (self.plane_iterations or math.inf):
            master.constants = self.preset.revised(master.constants, self.scale(master))
            worst = master.uncertainty.worst_case(master.f)
            master.planes = planes.ease(
                master.planes,
                A.lam,
                master.f,
                worst,
                most=self.max_planes,
                drop=self.drop,
                simplex=self.preset.simplex,
                tolerance=1e-9 * master.constants["level"],
            )

    def look(self, master: Master) -> Look:
        A = master.planes
        return Look(
            weights=A.lam @ A.P / max(float(A.lam.sum()), 1e-300),
            planes=len(A),
            waiting=[j for j in range(len(master.f)) if j not in master.answers],
            gap=partial(self.gap, master) if master.constants else None,
        )

    def gap(
        self,
        master: Master,
        gradient: Callable[[int, Tensor], Tensor],
        loss: Callable[[int, Tensor], float],
    ) -> float:
        """Definition D.1 at the present state."""
        w = master.w.to(master.like.dtype)
        A = master.planes
        eta, rates = self.preset.central_rates(master.constants, master.t, len(A))
        everybody = np.arange(len(master.f))
        slope = torch.zeros_like(master.w)
        for j, weight in zip(everybody, A.pi(everybody), strict=True):
            slope += float(weight) * gradient(int(j), w).double()
        f = np.array([loss(int(j), w) for j in everybody])
        limits = self.preset.limits
        return stationarity.total(
            [
                stationarity.squared_block(master.w, slope, eta, limits.a1),
                stationarity.dual_blocks(
                    A.lam, A.P @ f, master.h, rates, limits, simplex=self.preset.simplex
                ),
            ]
        )


def objection(master: Master, event: Event, kinds: Mapping[str, Kind]) -> str | None:
    """Why an event must be refused, or None."""
    n = len(master.f)
    if not isinstance(event, Report):
        return "the centralised algorithm has all groups on one node: none leaves or joins"
    if not (isinstance(event.worker, int) and 0 <= event.worker < n):
        return f"unknown worker {event.worker!r}: expected 0 to {n - 1}"
    expected = master.round * n + event.worker
    if event.task != expected or event.worker in master.answers:
        return f"worker {event.worker} reports task {event.task}: expected {expected}, once"
    kind = kinds["gradient" if master.constants else "probe"]
    return report_objection(event, kind, parameters=len(master.w), dtype=master.like.dtype)
