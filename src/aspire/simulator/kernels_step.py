"""Triton kernels of the master's step and of the worker's; see `kernels`."""

from __future__ import annotations

import triton
import triton.language as tl

# Where the numbers of all steps lie: float arguments would arrive as float32.
KAPPA, ETA_Z, RHO2, SETTLE, DECAY, MOST, STEEPER, EASE_OFF = (tl.constexpr(i) for i in range(8))
STRIDE = tl.constexpr(8)
MOST_LOSS = tl.constexpr(9)
LARGE = tl.constexpr(1e6)  # as in core/equations.py
LARGEST = tl.constexpr(1e12)  # as in protocol.py

# ---------------------------------------------------------------- absorb


@triton.jit
def absorb(
    r,
    w,
    phi,
    z,
    average,
    sum_w,
    sum_phi,
    digests,
    multipliers,
    workers,
    numbers,
    fixed,
    n,
    p,
    S,
    R: tl.constexpr,
    B: tl.constexpr,
):
    """(12) and (15) for B columns: sums, z and its average, phi_j and w_j of Q, digests of w_j."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    row = tl.arange(0, R)
    inside = at < p
    kappa = tl.load(fixed + KAPPA)
    eta = tl.load(fixed + ETA_Z)
    rho2 = tl.load(fixed + RHO2).to(tl.float32)
    c2 = tl.load(numbers + 2).to(tl.float32)
    share = tl.load(numbers + 3)
    multiplier = tl.load(multipliers + at, mask=inside, other=0)
    change = tl.zeros((B,), dtype=tl.float64)
    for first in range(0, S, R):
        k = first + row
        j = tl.load(workers + k, mask=k < S, other=0)
        both = (k < S)[:, None] & inside[None, :]
        place = j[:, None] * p + at[None, :]
        new = tl.load(r + place, mask=both, other=0.0)
        old = tl.load(w + place, mask=both, other=0.0)
        change += tl.sum(new.to(tl.float64) - old.to(tl.float64), 0)
        bits = new.to(tl.int32, bitcast=True).to(tl.int64) * multiplier[None, :]
        tl.atomic_add(digests + k, tl.sum(bits, 1), mask=k < S, sem="relaxed")
        tl.store(w + place, new, mask=both)
    total = tl.load(sum_w + at, mask=inside, other=0.0) + change
    tl.store(sum_w + at, total, mask=inside)
    pull = tl.load(sum_phi + at, mask=inside, other=0.0)
    old_z = tl.load(z + at, mask=inside, other=0.0)
    new_z = old_z - eta * (pull + kappa * (n * old_z - total))
    tl.store(z + at, new_z, mask=inside)
    mean = tl.load(average + at, mask=inside, other=0.0)
    tl.store(average + at, tl.where(share >= 1, new_z, mean + share * (new_z - mean)), mask=inside)
    short = new_z.to(tl.float32)
    change = tl.zeros((B,), dtype=tl.float64)
    for first in range(0, S, R):
        k = first + row
        j = tl.load(workers + k, mask=k < S, other=0)
        both = (k < S)[:, None] & inside[None, :]
        place = j[:, None] * p + at[None, :]
        new = tl.load(r + place, mask=both, other=0.0)
        old = tl.load(phi + place, mask=both, other=0.0)
        found = old + rho2 * (short[None, :] - new - c2 * old)
        found = tl.where(both, found, 0.0)
        change += tl.sum(found.to(tl.float64) - old.to(tl.float64), 0)
        tl.store(phi + place, found, mask=both)
    tl.store(sum_phi + at, pull + change, mask=inside)


@triton.jit
def _kth(values, n, k, B: tl.constexpr):
    """The k-th smallest of n numbers >= 0, by halving the range of their bits."""
    low = tl.zeros((1,), dtype=tl.int64)
    high = low + 0x7FF0000000000000
    while tl.max(high - low, 0) > 0:
        middle = low + (high - low) // 2
        below = tl.zeros((B,), dtype=tl.int64)
        for first in range(0, n, B):
            at = first + tl.arange(0, B)
            bits = tl.load(values + at, mask=at < n, other=0.0).to(tl.int64, bitcast=True)
            below += ((bits <= middle) & (at < n)).to(tl.int64)
        enough = tl.sum(below, 0) > k
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle + 1)
    return tl.max(low, 0).to(tl.float64, bitcast=True)


@triton.jit
def dual(
    f,
    told,
    curvature,
    least,
    revealed,
    P,
    lam,
    before,
    F,
    height,
    planes,
    workers,
    numbers,
    digests,
    multipliers,
    fixed,
    n,
    S,
    M: tl.constexpr,
    R: tl.constexpr,
):
    """The losses of Q, F = P f, (14) on the simplex, and the curvatures that checks revealed."""
    c1 = tl.load(numbers)
    rho1 = tl.load(numbers + 1)
    plane = tl.arange(0, M)
    live = plane < tl.load(planes)
    value = tl.load(F + plane, mask=live, other=0.0)
    steeper = 0
    for first in range(0, S, R):
        k = first + tl.arange(0, R)
        j = tl.load(workers + k, mask=k < S, other=0)
        new = tl.load(told + j, mask=k < S, other=0.0)
        most = tl.load(fixed + MOST_LOSS)
        seen = tl.minimum(tl.maximum(new, -most), most)
        seen = tl.where(tl.abs(new) <= LARGEST, seen, float("nan"))  # nan: the run ends
        change = seen - tl.load(f + j, mask=k < S, other=0.0)
        tl.store(f + j, seen, mask=k < S)
        at = plane[:, None] * n + j[None, :]
        part = tl.load(P + at, mask=live[:, None] & (k < S)[None, :], other=0.0)
        value += tl.sum(part * change[None, :], 1)
        found = tl.load(revealed + j, mask=k < S, other=-1.0)
        known = tl.load(curvature + j, mask=k < S, other=0.0)
        steep = found > tl.load(fixed + STEEPER) * known
        steeper += tl.sum(((k < S) & steep).to(tl.int32), 0)
        flatter = tl.maximum(tl.load(least + j), tl.load(fixed + EASE_OFF) * known)
        fine = (k < S) & (found >= 0) & ~steep
        tl.store(curvature + j, flatter, mask=fine)
        tl.store(revealed + j, -1.0, mask=fine)
        bits = new.to(tl.int64, bitcast=True) * tl.load(multipliers)
        bits += found.to(tl.int64, bitcast=True) * tl.load(multipliers + 1)
        tl.atomic_add(digests + k, bits, mask=k < S, sem="relaxed")
    tl.store(F + plane, value, mask=live)
    old = tl.load(lam + plane, mask=live, other=0.0)
    y = old + rho1 * (value - c1 * old)
    large = tl.max(tl.where(live, tl.abs(y), 0.0), 0) > LARGE
    shift = tl.where(large, tl.max(tl.where(live, y, float("-inf")), 0), 0.0)
    y = tl.where(live, tl.where(large, tl.maximum(y - shift, -2.0), y), float("-inf"))
    above = tl.maximum(y[None, :] - tl.where(live, y, float("inf"))[:, None], 0.0)
    support = live & (tl.sum(above, 1) < 1.0)
    count = tl.sum(support.to(tl.float64), 0)
    threshold = (tl.sum(tl.where(support, y, 0.0), 0) - 1.0) / count
    tl.store(before + plane, old, mask=live)
    tl.store(lam + plane, tl.maximum(y - threshold, 0.0), mask=live)
    tl.store(height, (threshold + shift) / rho1)
    if steeper > 0:
        tl.debug_barrier()
        for k in range(0, S):
            j = tl.load(workers + k)
            found = tl.load(revealed + j)
            known = tl.load(curvature + j)
            if found >= 0:
                low = _kth(curvature, n, (n - 1) // 2, 256)
                most = 5.0 * (low + _kth(curvature, n, n // 2, 256))
                tl.store(curvature + j, tl.maximum(known, tl.minimum(found, most)))
                tl.debug_barrier()


# ---------------------------------------------------------------- hand


@triton.jit
def hand(
    r,
    w,
    phi,
    g,
    z,
    P,
    lam,
    planes,
    prior,
    curvature,
    revealed,
    pis,
    rates,
    workers,
    draws,
    fixed,
    n,
    p,
    M: tl.constexpr,
    B: tl.constexpr,
):
    """pi_j and a_w of the tasks of Q, then (11): r_j = w_j - a_w (pi_j g_j + kappa w_j - v_j)."""
    k = tl.program_id(0)
    j = tl.load(workers + k)
    kappa = tl.load(fixed + KAPPA)
    plane = tl.arange(0, M)
    live = plane < tl.load(planes)
    part = tl.load(P + plane * n + j, mask=live, other=0.0)
    pi = tl.sum(part * tl.load(lam + plane, mask=live, other=0.0), 0)
    full = tl.maximum(pi, tl.load(prior + j)) * tl.load(curvature + j) + kappa
    settled = tl.sqrt(1.0 + tl.load(draws + k).to(tl.float64) / tl.load(fixed + SETTLE))
    rate = tl.load(fixed + STRIDE) / full / settled
    tl.store(pis + k, pi)
    tl.store(rates + k, rate)
    tl.store(revealed + j, -1.0)
    pi = pi.to(tl.float32)
    rate = rate.to(tl.float32)
    pull = kappa.to(tl.float32)
    for first in range(0, p, B):
        at = first + tl.arange(0, B)
        inside = at < p
        held = tl.load(w + j * p + at, mask=inside, other=0.0)
        v = tl.load(phi + j * p + at, mask=inside, other=0.0)
        v += pull * tl.load(z + at, mask=inside, other=0.0).to(tl.float32)
        slope = pi * tl.load(g + k * p + at, mask=inside, other=0.0)
        tl.store(r + j * p + at, held - rate * (slope + pull * held - v), mask=inside)


@triton.jit
def check(r, w, g, again, revealed, pis, rates, workers, flags, fixed, p, B: tl.constexpr):
    """A step that went too far is cut; `methods.worker.checked_step`."""
    k = tl.program_id(0)
    if tl.load(flags + k) == 0:
        return
    j = tl.load(workers + k)
    tl.store(revealed + j, 0.0)
    length = tl.zeros((B,), dtype=tl.float64)
    bend = tl.zeros((B,), dtype=tl.float64)
    for first in range(0, p, B):
        at = first + tl.arange(0, B)
        inside = at < p
        step = tl.load(r + j * p + at, mask=inside, other=0.0)
        step -= tl.load(w + j * p + at, mask=inside, other=0.0)
        turn = tl.load(again + k * p + at, mask=inside, other=0.0)
        turn -= tl.load(g + k * p + at, mask=inside, other=0.0)
        length += step.to(tl.float64) * step.to(tl.float64)
        bend += turn.to(tl.float64) * step.to(tl.float64)
    pi = tl.load(pis + k)
    total = tl.sum(length, 0)
    if (total > 0) & (pi > 0):
        found = tl.sum(bend, 0) / total
        tl.store(revealed + j, tl.maximum(found, 0.0))
        over = tl.load(rates + k) * (pi * found + tl.load(fixed + KAPPA))
        if over > tl.load(fixed + MOST):
            for first in range(0, p, B):
                at = first + tl.arange(0, B)
                inside = at < p
                held = tl.load(w + j * p + at, mask=inside, other=0.0)
                step = tl.load(r + j * p + at, mask=inside, other=0.0) - held
                tl.store(r + j * p + at, held + step / over.to(tl.float32), mask=inside)
