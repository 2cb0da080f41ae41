"""All methods: the rows of the contract table."""

from __future__ import annotations

from collections.abc import Callable

from aspire.methods import (
    afl,
    aspire,
    central,
    cover,
    direct,
    drfa_prox,
    fedavg,
    gcivr,
    gda,
    gdmax,
    ind,
    q_ffl,
)
from aspire.sets import CDNorm, Simplex
from aspire.types import Method
from tests.helpers import linear

ROWS: dict[str, Callable[[], Method]] = {
    "aspire-ease": aspire,
    "aspire-ease-sync": lambda: aspire(Simplex(), quorum=3, staleness=1),
    "aspire-cp": lambda: aspire(Simplex(), drop=False),
    "aspire-ease-per": lambda: aspire(local_steps=3),
    "aspire-ease-central": central,
    "mix-even": lambda: aspire(CDNorm(radius=0.1, budget=0.0)),
    "direct": direct,
    "direct-sync": lambda: direct(Simplex(), quorum=3, staleness=1, loss_tasks=False),
    "direct-clip": lambda: direct(quorum=1, clip=1.0, accumulate=2),
    "direct-own": lambda: direct(quorum=1, reference="own-best", own_gradients=3),
    "direct-own-clip": lambda: direct(clip=2.0, reference="own-best", own_gradients=2),
    "direct-model": lambda: direct(reference=linear(7)),
    "ind": lambda: ind(1),
    "fedavg": fedavg,
    "fedavg-quorum": lambda: fedavg(2, 0.3, quorum=2, average=True),
    "afl": afl,
    "afl-quorum": lambda: afl(quorum=2, average=True),
    "drfa-prox": drfa_prox,
    "drfa-prox-quorum": lambda: drfa_prox(3, quorum=2, average=True),
    "q-ffl": q_ffl,
    "q-ffl-quorum": lambda: q_ffl(2.0, 1, quorum=2),
    "gda": gda,
    "gdmax": lambda: gdmax(average=True),
    "cover": cover,
    "gcivr": gcivr,
}
MEAN = {"fedavg", "fedavg-quorum", "mix-even", "q-ffl-quorum"}  # no minimax methods
STEADY = {"aspire-ease-central"}  # nobody leaves or joins
