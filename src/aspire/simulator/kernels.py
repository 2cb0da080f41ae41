"""Triton kernels of one asynchronous step; what each computes stands in `core.equations`.

A row is a worker. The gradient of a stack of Linear and ReLU layers is one program a row: products
run over scratch memory that stays in the caches, samples are drawn by the counter hash of
`batches`. Everything the master does is local to a column, so one program takes a few columns
through all rows of Q; sums are float64 in a fixed order. Rows that a kernel has nothing to do for
leave at once, so its grid never changes and whole steps can be replayed as a CUDA graph.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aspire.simulator.kernels_step import DECAY

# How the products are cut: the fastest of those tried on an H200. Three TF32 products give what a
# float32 product gives, up to its rounding.
TUNED = {"C": 16, "HOW": "tf32x3", "num_warps": 4, "num_stages": 1}

# ---------------------------------------------------------------- batches


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _samples(seed, worker, draw, size, first, count: tl.constexpr):
    """Samples first .. first + count - 1 of batch `draw`: `batches.indices`, from its keys on."""
    early = seed.to(tl.uint32)
    state = _mix((early + 0x9E3779B9) ^ _mix(worker.to(tl.uint32)))
    state = _mix((state + 0x9E3779B9) ^ _mix(draw.to(tl.uint32)))
    state = _mix(state + 0x9E3779B9)  # the upper half of `draw` and the purpose are zero,
    state = _mix(state + 0x9E3779B9)  # and so is the hash of zero
    counter = (first + tl.arange(0, count)).to(tl.uint32)
    found = _mix(_mix(counter * 0x9E3779B9 + _mix(state + early)) ^ _mix(state ^ 0xB7E15162))
    return ((found.to(tl.uint64) * size.to(tl.uint64)) >> 32).to(tl.int64)


# ---------------------------------------------------------------- a stack of layers


@triton.jit
def _product(
    a,
    am,
    ak,
    b,
    bk,
    bn,
    m,
    k,
    n,
    M: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    C: tl.constexpr,
    HOW: tl.constexpr,
):
    """(m, k) times (k, n) from memory, in tiles of C along k; beyond the edges are zeros."""
    row = tl.arange(0, M)
    column = tl.arange(0, N)
    part = tl.arange(0, C)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, K, C):
        at = start + part
        left = tl.load(
            a + row[:, None] * am + at[None, :] * ak,
            mask=(row[:, None] < m) & (at[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + at[:, None] * bk + column[None, :] * bn,
            mask=(at[:, None] < k) & (column[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=HOW)
    return total


@triton.jit
def _forward(
    w,
    h,
    samples,
    inputs,
    live,
    D: tl.constexpr,
    W: tl.constexpr,
    V: tl.constexpr,
    A: tl.constexpr,
    PAD: tl.constexpr,
    RELU: tl.constexpr,
    L: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
    HOW: tl.constexpr,
):
    """The features of B samples before each layer into h (layer l at A[l]); the outputs (B, d)."""
    sample = tl.arange(0, B)
    column = tl.arange(0, PAD[0])
    x = tl.load(
        inputs + samples[:, None] * D[0] + column[None, :],
        mask=live[:, None] & (column[None, :] < D[0]),
        other=0.0,
    )
    tl.store(h + sample[:, None] * PAD[0] + column[None, :], x)
    for l in tl.static_range(L):
        tl.debug_barrier()
        x = _product(
            h + A[l],
            PAD[l],
            1,
            w + W[l],
            1,
            D[l],
            B,
            D[l],
            D[l + 1],
            B,
            PAD[l],
            PAD[l + 1],
            C,
            HOW,
        )
        column = tl.arange(0, PAD[l + 1])
        if V[l] >= 0:
            x += tl.load(w + V[l] + column, mask=column < D[l + 1], other=0.0)[None, :]
        if RELU[l]:
            x = tl.maximum(x, 0.0)
        if l < L - 1:
            tl.store(h + A[l + 1] + sample[:, None] * PAD[l + 1] + column[None, :], x)
        elif RELU[l]:
            tl.store(h + A[l + 1] + sample[:, None] * PAD[l + 1] + column[None, :], x)
            tl.debug_barrier()
    return x


@triton.jit
def gradients(
    rows,
    found,
    workers,
    draws,
    flags,
    inputs,
    targets,
    starts,
    sizes,
    scratch,
    fixed,
    seed,
    p,
    batch,
    D: tl.constexpr,
    W: tl.constexpr,
    V: tl.constexpr,
    A: tl.constexpr,
    PAD: tl.constexpr,
    RELU: tl.constexpr,
    L: tl.constexpr,
    B: tl.constexpr,
    ROOM: tl.constexpr,
    C: tl.constexpr,
    HOW: tl.constexpr,
):
    """found[k] = gradient of site workers[k] at rows[workers[k]] on batch draws[k]."""
    k = tl.program_id(0)
    if tl.load(flags + k) == 0:
        return
    j = tl.load(workers + k)
    draw = tl.load(draws + k)
    size = tl.load(sizes + j)
    start = tl.load(starts + j)
    w = rows + j * p
    g = found + k * p
    h = scratch + k.to(tl.int64) * ROOM
    sample = tl.arange(0, B)
    decay = tl.load(fixed + DECAY).to(tl.float32)
    for first in range(0, batch, B):
        live = first + sample < batch
        samples = start + _samples(seed, j, draw, size, first, B)
        x = _forward(w, h, samples, inputs, live, D, W, V, A, PAD, RELU, L, B, C, HOW)
        column = tl.arange(0, PAD[L])
        x = tl.where(column[None, :] < D[L], x, float("-inf"))
        x = tl.exp(x - tl.max(x, 1)[:, None])
        target = tl.load(targets + samples)
        slope = x / tl.sum(x, 1)[:, None] - (column[None, :] == target[:, None]).to(tl.float32)
        slope = tl.where(live[:, None], slope / batch, 0.0)
        for l in tl.static_range(L - 1, -1, -1):
            column = tl.arange(0, PAD[l + 1])
            if RELU[l]:
                before = tl.load(h + A[l + 1] + sample[:, None] * PAD[l + 1] + column[None, :])
                slope = tl.where(before > 0, slope, 0.0)
            s = h + A[L + 1 + (L - 1 - l) % 2]
            tl.store(s + sample[:, None] * PAD[l + 1] + column[None, :], slope)
            tl.debug_barrier()
            change = _product(
                s,
                1,
                PAD[l + 1],
                h + A[l],
                PAD[l],
                1,
                D[l + 1],
                B,
                D[l],
                PAD[l + 1],
                B,
                PAD[l],
                C,
                HOW,
            )
            inner = tl.arange(0, PAD[l])
            at = W[l] + column[:, None] * D[l] + inner[None, :]
            inside = (column[:, None] < D[l + 1]) & (inner[None, :] < D[l])
            old = decay * tl.load(w + at, mask=inside, other=0.0)
            if first > 0:
                old = tl.load(g + at, mask=inside, other=0.0)
            tl.store(g + at, change + old, mask=inside)
            if V[l] >= 0:
                old = decay * tl.load(w + V[l] + column, mask=column < D[l + 1], other=0.0)
                if first > 0:
                    old = tl.load(g + V[l] + column, mask=column < D[l + 1], other=0.0)
                tl.store(g + V[l] + column, tl.sum(slope, 0) + old, mask=column < D[l + 1])
            if l > 0:
                slope = _product(
                    s,
                    PAD[l + 1],
                    1,
                    w + W[l],
                    D[l],
                    1,
                    B,
                    D[l + 1],
                    D[l],
                    B,
                    PAD[l + 1],
                    PAD[l],
                    C,
                    HOW,
                )
        tl.debug_barrier()


@triton.jit
def losses(
    rows,
    parts,
    workers,
    flags,
    inputs,
    targets,
    judged,
    firsts,
    counts,
    scratch,
    p,
    D: tl.constexpr,
    W: tl.constexpr,
    V: tl.constexpr,
    A: tl.constexpr,
    PAD: tl.constexpr,
    RELU: tl.constexpr,
    L: tl.constexpr,
    B: tl.constexpr,
    ROOM: tl.constexpr,
    SPLIT: tl.constexpr,
    C: tl.constexpr,
    HOW: tl.constexpr,
):
    """parts[k, s] = sum of the cross-entropies over every SPLIT-th tile of site workers[k]."""
    k = tl.program_id(0)
    s = tl.program_id(1)
    if tl.load(flags + k) == 0:
        return
    j = tl.load(workers + k)
    count = tl.load(counts + j)
    start = tl.load(firsts + j)
    w = rows + j * p
    h = scratch + (k.to(tl.int64) * SPLIT + s) * ROOM
    total = tl.zeros((B,), dtype=tl.float64)
    column = tl.arange(0, PAD[L])
    for first in range(s * B, count, SPLIT * B):
        number = first + tl.arange(0, B)
        live = number < count
        samples = tl.load(judged + start + number, mask=live, other=0)
        x = _forward(w, h, samples, inputs, live, D, W, V, A, PAD, RELU, L, B, C, HOW)
        x = tl.where(column[None, :] < D[L], x, float("-inf"))
        top = tl.max(x, 1)
        target = tl.load(targets + samples, mask=live, other=0)
        hit = tl.sum(tl.where(column[None, :] == target[:, None], x, 0.0), 1)
        value = tl.log(tl.sum(tl.exp(x - top[:, None]), 1)) + top - hit
        total += tl.where(live, value, 0.0).to(tl.float64)
        tl.debug_barrier()
    tl.store(parts + k * SPLIT + s, tl.sum(total, 0))


@triton.jit
def mean_losses(
    rows, parts, told, workers, flags, counts, fixed, p, SPLIT: tl.constexpr, B: tl.constexpr
):
    """told[j] = mean of the parts + decay/2 |w_j|^2."""
    k = tl.program_id(0)
    if tl.load(flags + k) == 0:
        return
    j = tl.load(workers + k)
    value = tl.sum(tl.load(parts + k * SPLIT + tl.arange(0, SPLIT)), 0) / tl.load(counts + j)
    decay = tl.load(fixed + DECAY)
    if decay > 0:
        square = tl.zeros((B,), dtype=tl.float64)
        for first in range(0, p, B):
            at = first + tl.arange(0, B)
            w = tl.load(rows + j * p + at, mask=at < p, other=0.0).to(tl.float64)
            square += w * w
        value += 0.5 * decay * tl.sum(square, 0)
    tl.store(told + j, value)
