"""All methods: the rows of the contract table. A method has one without a word here."""

from __future__ import annotations

from collections.abc import Callable

from aspire.methods import (
    METHODS,
    afl,
    aspire,
    cover,
    direct,
    drfa_prox,
    fedavg,
    fedbuff,
    gdmax,
    ind,
    q_ffl,
)
from aspire.sets import CDNorm, Simplex
from aspire.types import Method
from tests.helpers import linear

VARIANTS: dict[str, Callable[[], Method]] = {
    "aspire-sync": lambda: aspire(Simplex(), quorum=3, staleness=1),
    "aspire-cp": lambda: aspire(Simplex(), drop=False),
    "aspire-per": lambda: aspire(local_steps=3),
    "mix-even": lambda: aspire(CDNorm(radius=0.1, budget=0.0)),
    "direct-sync": lambda: direct(Simplex(), quorum=3, staleness=1, loss_tasks=False),
    "direct-clip": lambda: direct(quorum=1, clip=1.0, accumulate=2),
    "direct-own": lambda: direct(quorum=1, reference="own-best", own_gradients=3),
    "direct-own-clip": lambda: direct(clip=2.0, reference="own-best", own_gradients=2),
    "direct-model": lambda: direct(reference=linear(7)),
    "ind": lambda: ind(1),
    "fedavg-quorum": lambda: fedavg(2, 0.3, quorum=2, average=True),
    "afl-quorum": lambda: afl(quorum=2, average=True),
    "drfa-prox-quorum": lambda: drfa_prox(3, quorum=2, average=True),
    "q-ffl-quorum": lambda: q_ffl(2.0, 1, quorum=2),
    "gdmax": lambda: gdmax(average=True),
    "fedavg-median": lambda: fedavg(2, 0.3, aggregation="median"),
    "fedavg-centred": lambda: fedavg(2, 0.3, aggregation="centred_clipping", settle=20),
    "fedavg-adam": lambda: fedavg(2, 0.3, optimizer="adam", settle=20, average=True),
    "fedbuff-adam-clip": lambda: fedbuff(2, 0.2, buffer=2, optimizer="adam", clip=2.0, settle=20),
    "afl-momentum-clip": lambda: afl(0.3, optimizer="momentum", clip=1.0, quorum=2),
    "drfa-prox-adam-clip": lambda: drfa_prox(2, optimizer="adam", clip=2.0),
    "cover-adam-clip": lambda: cover(optimizer="adam", clip=1.5, sampled=2, settle=20),
}
ROWS = {name: METHODS[name] for name in METHODS if name != "consensus"} | VARIANTS
MEAN = {
    "fedavg",
    "fedavg-adam",
    "fedavg-quorum",
    "fedavg-median",
    "fedavg-centred",
    "fedbuff",
    "fedbuff-adam-clip",
    "mix-even",
    "q-ffl-quorum",
}  # no minimax methods
STEADY = {"central"}  # nobody leaves or joins
