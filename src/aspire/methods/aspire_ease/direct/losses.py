"""What the direct form's adversary does with the losses: multipliers and planes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aspire.core import planes
from aspire.core.equations import lam_simplex_step
from aspire.core.schedules import usual
from aspire.methods.aspire_ease.direct.rules import Rules
from aspire.methods.aspire_ease.direct.state import Master, regret, weigh
from aspire.types import Info, Noted

ASCENT = 0.1  # rho1 n m of one report
REGULAR = 0.02  # c1_0 / m


def hear(rules: Rules, master: Master, infos: list[Info]) -> None:
    """lam after all reports since the last step; every n reports EASE, (17)-(20)."""
    A = master.planes
    f = regret(master)
    reports = master.reports - master.stepped
    level = max(usual(np.abs(master.f[master.present])), 1e-3 * master.first)
    c1 = REGULAR * level / math.sqrt(master.t + 1)
    F = A.P @ f
    lam, _ = lam_simplex_step(A.lam, F, c1=c1, rate=ASCENT * reports / (master.n * level))
    master.planes = planes.Planes(A.P, lam, F)
    if master.reports // master.n > master.stepped // master.n:
        revise_planes(rules, master, A.lam, level, infos)
    master.stepped = master.reports
    weigh(master)


def revise_planes(
    rules: Rules, master: Master, lam_before: Any, level: float, infos: list[Info]
) -> None:
    f = regret(master)
    before = len(master.planes)
    worst = planes.spread(master.uncertainty.worst_case(f[master.present]), master.present)
    master.planes = planes.ease(
        master.planes,
        lam_before,
        f,
        worst,
        most=rules.max_planes,
        drop=rules.drop,
        simplex=True,
        tolerance=1e-9 * level,
    )
    if len(master.planes) != before:
        infos.append(Noted(master.t, f"planes {before} -> {len(master.planes)}"))
