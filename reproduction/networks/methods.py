"""The methods of the experiment."""

from __future__ import annotations

from typing import Any

import torch

from aspire.methods import aspire
from aspire.methods.aspire_ease.direct import direct
from aspire.types import Method

DIRECT = "direct"
CONSENSUS = "consensus"
REFERENCE = "reference"
OWN, WITHOUT = "direct-own", "direct-without"  # of the setting `noisy`
SITE_BUFFERS = "direct-site"  # statistics of batch norm stay at the sites
NAMES = (DIRECT, CONSENSUS, REFERENCE, OWN, WITHOUT, SITE_BUFFERS)


class Adam:
    """torch's Adam with its usual betas, for parameter groups that name their tensors."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, lr=self.rate)


def reference(sites: int, rate: float) -> Method:
    """Synchronous minimax Adam: every step has all sites' gradients at the same z.

    The planes, their multipliers and the losses that are heard are those of the direct form.
    """
    return direct(quorum=sites, staleness=1, loss_tasks=False, optimizer=Adam(rate))


def method_of(name: str, sites: int, rate: float | None) -> Method:
    """Untouched, but for a fixed learning rate where one is given."""
    if name == CONSENSUS:
        return aspire(form="consensus")
    if name == REFERENCE:
        if rate is None:
            raise ValueError("rate=None: expected a learning rate for the reference")
        return reference(sites, rate)
    if name == OWN:
        return direct(learning_rate=rate, reference="own-best")
    return direct(learning_rate=rate)
