"""One step of w: the method's own or an optimizer's, along reports of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from aspire.methods import clipping, optimisers
from aspire.methods.baselines.shared import Shared
from aspire.methods.baselines.state import State, model
from aspire.types import Report


def rate(shared: Shared, master: State) -> float:
    """Of this round: rate / sqrt(1 + t/T)."""
    return master.constants["rate"] * shared.slower(master.t)


def against(shared: Shared, master: State, direction: Tensor) -> Tensor:
    """The next w: w - rate direction, or where the optimizer goes along the direction."""
    if shared.optimizer is None:
        return master.w - rate(shared, master) * direction
    return optimised(shared, master, direction, master.constants["rate"])


def toward(shared: Shared, master: State, new: Tensor) -> Tensor:
    """The next w: the method's own `new`, or where the optimizer goes along w - new (FedOpt).

    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization,
    ICLR 2021.
    """
    if shared.optimizer is None:
        return new
    return optimised(shared, master, master.w - new, 1.0)


def optimised(shared: Shared, master: State, direction: Tensor, own: float) -> Tensor:
    """optimizer(w, direction). It stands on a copy: tasks and averages may hold the w of before."""
    live = optimisers.standing(
        master.moments,
        lambda: optimisers.opened(
            shared.maker(own), shared.schedule, master.w.clone(), master.moments, master.moves
        ),
    )
    live.z.copy_(master.w)
    optimisers.along(live, direction, slower=shared.slower(master.t))
    optimisers.remember(master.moments, live)
    master.moves += 1
    return live.z.clone()


def try_out(shared: Shared, master: State) -> None:
    """Make the optimizer once: where it cannot be made, that shows before the run."""
    if shared.optimizer is not None:
        optimisers.opened(shared.maker(1.0), shared.schedule, master.w.clone(), master.moments)


# ---------------------------------------------------------------- bounded influence


def within(
    shared: Shared, master: State, reports: list[Report], names: Sequence[str]
) -> list[Report]:
    """The reports of a phase with vectors `names`, none longer than `shared.clip` allows.

    The first of the names is what a norm is of. A point 'w...' counts by its way from the w that
    was handed out; the norms of all who report are known before any is bounded.
    """
    if shared.clip is None or not names:
        return reports
    here = model(master, master.w).double()
    zero = torch.zeros_like(here)
    moves = [
        {name: r.vectors[name].double() - (here if is_point(name) else zero) for name in names}
        for r in reports
    ]
    for report, move in zip(reports, moves, strict=True):
        master.norm[report.worker] = length(move[names[0]])
    most = clipping.threshold(master, shared.clip, shared.liars)
    return [
        replace(report, vectors=bounded(master, report, move, most, here))
        for report, move in zip(reports, moves, strict=True)
    ]


def bounded(
    master: State, report: Report, move: dict[str, Tensor], most: float, here: Tensor
) -> dict[str, Tensor]:
    """The vectors of one report; it counts as clipped once, by its norm."""
    first = next(iter(move))
    found = {}
    for name, x in move.items():
        long = length(x)
        scale = clipping.factor(master, report.worker, long, most) if name == first else 1.0
        if name != first and long > most:
            scale = most / long
        whole = report.vectors[name].double()
        found[name] = whole if scale == 1.0 else x * scale + (here if is_point(name) else 0.0)
    return found


def is_point(name: str) -> bool:
    """Whether a vector of that name is a model and not a direction."""
    return name.startswith("w")


def length(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
