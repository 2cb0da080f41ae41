"""The exact worst case of the CD-norm, fast for many sites.

maximise sum_j f_j d_j  over  -min(r_j, q_j) <= d_j <= r_j,  sum_j |d_j|/r_j <= Gamma,  sum d = 0.

For a fixed multiplier nu of sum d = 0 this is a knapsack: fill Gamma in the order of
r_j |f_j - nu|. Its value F - nu D (F = sum f d, D = sum d) is a line below the convex dual g, and
D falls as nu grows. Where a line with D >= 0 meets one with D <= 0, the mix of their two fills
has D = 0 and attains the height of the crossing: if g is no higher there, the mix is optimal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspire.sets.checks import Index, Vec, centred
from aspire.sets.fill import threshold

SAMPLE_ABOVE = 20_000  # more sites than this: bracket nu with a sample first
SAMPLE = 4096
GAP = 1e-14  # stop once the duality gap is this small a part of the value


def best_moves(f: Vec, q: Vec, r: Vec, budget: float) -> Vec:
    """The optimal d = p - q."""
    free = r > 0
    if not free.all():
        d = np.zeros_like(q)
        if np.count_nonzero(free) >= 2:
            d[free] = best_moves(f[free], q[free], r[free], budget)
        return d
    g = centred(f)
    if budget <= 0 or not g.any():
        return np.zeros_like(q)
    room = np.minimum(r, q)
    if r.min() == r.max():
        return _equal_radii(g, room, float(r[0]), budget)
    return _unequal_radii(g, room, r, budget)


def _equal_radii(f: Vec, room: Vec, r: float, budget: float) -> Vec:
    """Every unit moved costs 2/r, so Gamma r / 2 goes from the lowest losses to the highest.

    If the two fronts meet before that, the move stops at the loss nu where they do.
    """
    up = np.full(f.size, r)
    amount = budget * r / 2
    top, top_share = threshold(f, up, amount)
    bottom, bottom_share = threshold(-f, room, amount)
    if top > -bottom:
        d = np.where(f > top, r, 0.0)
        d[f == top] = top_share * r
        low = f < -bottom
        d[low] = -room[low]
        ties = f == -bottom
        d[ties] = -bottom_share * room[ties]
        return d
    nu, _ = threshold(f, up + room, float(room.sum()))
    d = np.where(f > nu, r, np.where(f < nu, -room, 0.0))
    ties = f == nu
    rest = -d.sum()
    side = up[ties] if d.sum() < 0 else room[ties]
    if side.any():
        d[ties] = rest * (side / side.sum())
    return d


class _Sites(NamedTuple):
    """The sites still undecided, and what the decided ones add up to."""

    site: Index
    f: Vec
    r: Vec
    room: Vec
    budget: float
    total: float
    gain: float

    def take(self, keep: Index | slice) -> _Sites:
        return self._replace(
            site=self.site[keep], f=self.f[keep], r=self.r[keep], room=self.room[keep]
        )


class _Fill(NamedTuple):
    """The knapsack solution at nu: its margin theta, its moves, D = total and F = gain."""

    nu: float
    theta: float
    d: Vec
    total: float
    gain: float


def _fill(s: _Sites, nu: float) -> _Fill:
    """argmax of sum_j (f_j - nu) d_j without sum d = 0."""
    gap = s.f - nu
    up = gap > 0
    rate = s.r * np.abs(gap)
    side = np.where(up, s.r, -s.room)
    theta, share = threshold(rate, np.abs(side) / s.r, s.budget)
    if theta <= 0:
        theta = 0.0
        share = 0.0
    d = np.where(rate > theta, side, 0.0)
    ties = rate == theta
    d[ties] = share * side[ties]
    return _Fill(nu, theta, d, s.total + float(d.sum()), s.gain + float(s.f @ d))


def _unequal_radii(f: Vec, room: Vec, r: Vec, budget: float) -> Vec:
    d = np.zeros_like(f)
    s = _Sites(np.arange(f.size), f, r, room, budget, 0.0, 0.0)
    s, low, high = _close(s, d, *_bracket(s))
    if low.total <= 0:
        d[s.site] = low.d
    elif high.total >= 0:
        d[s.site] = high.d
    else:
        part = -high.total / (low.total - high.total)
        d[s.site] = part * low.d + (1 - part) * high.d
    return d


def _bracket(s: _Sites) -> tuple[_Fill, _Fill]:
    """Two fills with D >= 0 >= D; for many sites close to what a sample of them says."""
    least = float(s.f.min())
    most = float(s.f.max())
    if s.f.size <= SAMPLE_ABOVE:
        return _fill(s, least), _fill(s, most)
    some = s.take(slice(None, None, s.f.size // SAMPLE))
    some = some._replace(budget=s.budget * some.f.size / s.f.size)
    _, low, high = _close(some, np.zeros_like(s.f), *_bracket(some))
    step = max(3 * float(some.f.std()) / SAMPLE**0.5, 1e-3 * (most - least))
    low = high = _fill(s, (low.nu + high.nu) / 2)
    while low.total < 0 and low.nu > least:
        high = low
        low = _fill(s, max(least, low.nu - step))
        step *= 4
    while high.total > 0 and high.nu < most:
        low = high
        high = _fill(s, min(most, high.nu + step))
        step *= 4
    return low, high


def _close(s: _Sites, d: Vec, low: _Fill, high: _Fill) -> tuple[_Sites, _Fill, _Fill]:
    """Shrink the bracket until the crossing of its two lines is the optimum."""
    for turn in range(300):
        if low.total <= 0 or high.total >= 0:
            break
        s, low, high = _decide(s, d, low, high)
        nu = crossing = (low.gain - high.gain) / (low.total - high.total)
        height = low.gain - crossing * low.total
        # Crossings end the search, secants of D speed it up, midpoints bound it.
        if turn % 3 == 1:
            nu = low.nu + (high.nu - low.nu) * low.total / (low.total - high.total)
        if turn % 3 == 2 or not low.nu < nu < high.nu:
            nu = (low.nu + high.nu) / 2
        if not low.nu < nu < high.nu:
            break
        new = _fill(s, nu)
        if new.gain - nu * new.total <= height + GAP * abs(height) and nu == crossing:
            break
        low, high = (new, high) if new.total >= 0 else (low, new)
    return s, low, high


def _decide(s: _Sites, d: Vec, low: _Fill, high: _Fill) -> tuple[_Sites, _Fill, _Fill]:
    """Write to d what is certain for every nu in the bracket, and keep the rest.

    Rates change by at most reach = max r (nu_high - nu_low), hence so does the margin theta.
    """
    reach = float(s.r.max()) * (high.nu - low.nu)
    most = (min(low.theta, high.theta) + reach) * (1 + 1e-12)
    least = (max(low.theta, high.theta) - reach) * (1 - 1e-12)
    below = s.r * (high.nu - s.f)
    above = s.r * (s.f - low.nu)
    width = s.r * (high.nu - low.nu)
    up = above - width > most
    down = below - width > most
    keep = np.flatnonzero(~(up | down) & (np.maximum(below, above) >= least))
    if keep.size > 0.7 * s.f.size:
        return s, low, high
    d[s.site[up]], d[s.site[down]] = s.r[up], -s.room[down]
    budget = s.budget - np.count_nonzero(up) - float((s.room[down] / s.r[down]).sum())
    total = s.total + float(s.r[up].sum() - s.room[down].sum())
    gain = s.gain + float(s.f[up] @ s.r[up] - s.f[down] @ s.room[down])
    rest = s.take(keep)._replace(budget=max(budget, 0.0), total=total, gain=gain)
    return rest, low._replace(d=low.d[keep]), high._replace(d=high.d[keep])
