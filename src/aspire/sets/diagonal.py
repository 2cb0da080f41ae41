"""The ellipsoid with a diagonal covariance v > 0: sum_j (p_j - q_j)^2 / v_j <= radius^2."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspire.sets.checks import Index, Vec
from aspire.sets.fill import last_prefix


def diagonal_argmax(f: Vec, q: Vec, v: Vec, radius: float) -> Vec:
    """p_j = (q_j + theta v_j (f_j - nu))+ at the theta whose distance from q is the radius.

    Before that: if the nearest point of the face of the largest losses is within reach, it wins.
    sum p = sum q throughout (less than 1 where other sites are pinned).
    """
    radius = radius * float(np.sqrt(v.max()))
    v = v / v.max()
    top = f == f.max()
    face = np.where(top, q + v * (q[~top].sum() / v[top].sum()), 0.0)
    if ((face - q) ** 2 / v).sum() <= radius**2:
        return face
    g = f - f.max()
    theta = _last_piece(g, q, v, radius)
    return _at(g, q, v, theta).p


class _Piece(NamedTuple):
    """p at theta, its squared distance from q, and the theta that is right if p's zeros stay."""

    p: Vec
    distance: float
    slope: float


def _at(g: Vec, q: Vec, v: Vec, theta: float) -> _Piece:
    """p = (c - v mu)+ with c = q + theta v g, and mu from sum p = sum q by sorting c/v."""
    c = q + theta * (v * g)
    level = c / v
    order = np.argsort(level)[::-1]
    mass = q.sum()
    mu = (np.cumsum(c[order]) - mass) / np.cumsum(v[order])
    on = order[: max(int(np.count_nonzero(level[order] > mu)), 1)]
    while True:  # on the sites left, around their own mean: exact also where c lost its digits
        weight = v[on] / v[on].sum()
        tilt = g[on] - weight @ g[on]
        tilt -= weight @ tilt
        kept = q[on] + v[on] * (theta * tilt) + weight * (mass - q[on].sum())
        if kept.min() >= 0:
            break
        on = on[kept > 0]
    p = np.zeros_like(q)
    p[on] = kept * (mass / kept.sum())
    return _Piece(p, float(((p - q) ** 2 / v).sum()), float(v[on] @ tilt**2))


def _last_piece(g: Vec, q: Vec, v: Vec, radius: float) -> float:
    """theta with distance(theta) = radius^2: on a piece with fixed zeros it is a + slope theta^2,

    so Newton in theta^2 ends exactly on the right piece; the bracket is the safeguard.
    """
    mean = v @ g / v.sum()
    theta = radius / float(np.sqrt(v @ (g - mean) ** 2))
    low = 0.0
    high = np.inf
    for _ in range(200):
        piece = _at(g, q, v, theta)
        miss = radius**2 - piece.distance
        if abs(miss) <= 1e-14 * radius**2:
            break
        low, high = (theta, high) if miss > 0 else (low, theta)
        square = theta**2 + miss / piece.slope if piece.slope > 0 else -1.0
        inside = low**2 < square < min(high, 8 * theta) ** 2
        last = theta
        theta = float(np.sqrt(square)) if inside else min((low + high) / 2, 8 * theta)
        if theta == last or not low < theta < high:
            break
    return theta


def diagonal_upper(q: Vec, v: Vec, radius: float) -> Vec:
    """u_j = q_j + m_j: the others are lowered by min(q_i, lam v_i), the cheapest way."""
    order = np.argsort(q / v, kind="stable")
    u = q.copy()
    u[order] += np.minimum(_largest_raises(q[order], v[order], radius), q.sum() - q[order])
    return u


def _largest_raises(q: Vec, v: Vec, radius: float) -> Vec:
    """m = sum_i min(q_i, lam v_i) at m^2/v_j + sum_i min(q_i, lam v_i)^2/v_i = radius^2, i != j.

    Sites come by rising q/v, the order in which they empty: k are empty, the rest share by v.
    """
    emptied = np.concatenate([[0.0], np.cumsum(q)])
    paid = np.concatenate([[0.0], np.cumsum(q**2 / v)])
    left = np.concatenate([np.cumsum(v[::-1])[::-1], [0.0]])
    rank = np.arange(q.size)

    def parts(k: Index) -> tuple[Vec, Vec, Vec]:
        """Amount and cost of the first k, and the variance of the others; all without j."""
        mine = np.where(k > rank, q, 0.0)
        share = left[k] - np.where(k > rank, 0.0, v)
        return emptied[k] - mine, paid[k] - mine * mine / v, np.where(share > 1e-12 * v, share, 0.0)

    def fits(k: Index) -> np.ndarray:
        """lam may rise to where the k-th site empties."""
        lam = np.where(k > 0, (q / v)[k - 1], 0.0)
        a, b, s = parts(k)
        return np.asarray((a + lam * s) ** 2 / v + b + lam**2 * s <= radius**2)

    a, b, s = parts(last_prefix(fits, q.size, q.size))
    # (a + lam s)^2 / v + b + lam^2 s = radius^2, the stable form of its positive root
    two = s * s / v + s
    one = 2 * a * s / v
    zero = a * a / v + b - radius**2
    below = one + np.sqrt(np.maximum(one * one - 4 * two * zero, 0.0))
    lam = np.divide(2 * np.maximum(-zero, 0.0), below, out=np.zeros_like(a), where=below > 0)
    return np.asarray(a + lam * s)
