"""What a block of steps is told, and the results of tasks in flight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aspire.simulator.order import Integers
from aspire.types import Array


@dataclass(frozen=True)
class Plan:
    """What steps need to know beside the state; row i belongs to the i-th step, S columns."""

    workers: Integers  # Q, in worker order
    draws: Integers  # of the task that each is handed
    checks: Integers  # 1 where its step is checked
    losses: Integers  # 1 where its loss is reported


@dataclass
class Flight:
    """The results in flight: what each worker will report to the task in its hands."""

    w: Tensor  # (N, p)
    loss: Array  # the last known one where none is reported
    curvature: Array  # what the check found; -1 where there was none
    own: Tensor | None = None  # (2, p) of the site that lies about w_j: its w_j before and after
