"""A scale for the budget Gamma of the CD-norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from aspire.sets.checks import floats, site_count


def gamma_for(outage: float, n: int) -> float:
    """Return the smallest Gamma with B(n, Gamma) <= outage, for n sites with a positive radius.

    B(n, Gamma) = 2^-n [(1 - mu) sum_{l >= k} C(n,l) + mu sum_{l > k} C(n,l)],
    v = (Gamma + n)/2, k = floor(v), mu = v - k.

    B bounds the probability that a random deviation does more harm than the set allows for. It
    is proved for deviations that are independent and symmetric, and for the D-norm, which has no
    sum p = 1. It is NOT a guarantee for CDNorm (two sites: outage 0.5 where B says 0.275): read
    it as a scale for Gamma. Below 2^-n the answer is n, where every site may use its radius.
    """
    n = site_count(n)
    chance: Any = floats("outage", outage)
    if chance.ndim != 0 or not 0 < chance < 1:
        raise ValueError(f"outage must be one number between 0 and 1, got {outage!r}")
    first = n // 2  # v = n/2 at Gamma = 0
    l = np.arange(first, n + 1)
    # C(n, l) over C(n, first), then scaled so that both halves of the binomial sum to one.
    log_ratio = np.log((n - l[1:] + 1) / l[1:])
    mass = np.exp(np.concatenate([[0.0], np.cumsum(log_ratio)]))
    mass *= 0.5 / (mass.sum() - (mass[0] / 2 if n % 2 == 0 else mass[0]))
    tail = np.append(np.cumsum(mass[::-1])[::-1], 0.0)  # P(X >= l) for l = first .. n + 1
    k = int(np.count_nonzero(tail > chance)) - 1
    if k < 0:
        return 0.0
    mu = (tail[k] - chance) / (tail[k] - tail[k + 1])
    return float(min(max(2 * (first + k + mu) - n, 0.0), n))
