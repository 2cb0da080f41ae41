"""Bounded influence: no report is longer than those of the other sites allow."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from aspire.types import PerSite, SiteCounts, SiteMask


class Measured(Protocol):
    """A master that knows how long the sites' reports were."""

    present: SiteMask
    norm: PerSite  # of j's last report; 0: none yet
    clipped: SiteCounts  # reports of j that were scaled down


def threshold(master: Measured, clip: float, liars: int) -> float:
    """clip times the (liars + 1)-th largest of the sites' last norms; inf while none is known."""
    known = np.sort(master.norm[master.present & (master.norm > 0)])[::-1]
    return clip * float(known[min(liars, len(known) - 1)]) if len(known) else math.inf


def factor(master: Measured, j: int, length: float, most: float) -> float:
    """What scales a report of j down to the threshold; such a report is counted."""
    if length <= most:
        return 1.0
    master.clipped[j] += 1
    return most / length
