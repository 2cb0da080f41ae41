"""Counter-based randomness: number i of stream (seed, worker, n, purpose) is a hash of its name.

So batch n of worker j depends on (seed, j, n) alone, every method sees the same batches, resuming
needs no generator state, and numpy, torch on the CPU and torch on CUDA give the same integers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = 0xFFFFFFFF
_WEYL = 0x9E3779B9
# Purposes: streams that never share numbers
BATCH, SAMPLE, DELAY, FORWARD, POWER, DIGEST, TASK = range(7)

FEW = 24  # streams: fewer are named one by one
Words = NDArray[np.uint32]
Integers = TypeVar("Integers", int, Tensor, "np.ndarray[tuple[int], np.dtype[np.int64]]")


def _mix(x: Integers) -> Integers:
    """A bijection of 32-bit integers that spreads every input bit; wraps in int64, then masks."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def keys(seed: int, worker: int, n: int, purpose: int) -> tuple[int, int]:
    """Two 32-bit keys of the stream (seed, worker, n, purpose)."""
    early, state, last = _worker_state(seed, worker, purpose)
    state = _mix((state + _WEYL ^ _mix(n & _MASK)) & _MASK)
    state = _mix((state + _WEYL ^ (_mix(n >> 32 & _MASK) if n >> 32 else 0)) & _MASK)
    state = _mix((state + _WEYL ^ last) & _MASK)
    return _mix((state + early) & _MASK), _mix(state ^ 0xB7E15162)


@lru_cache(maxsize=4096)
def _worker_state(seed: int, worker: int, purpose: int) -> tuple[int, int, int]:
    """What the seed alone and the seed with the worker make of the keys, and the last word."""
    early = _seed_state(seed, purpose)
    return early, _mix((early + _WEYL ^ _mix(worker & _MASK)) & _MASK), _mix(purpose & _MASK)


@lru_cache(maxsize=64)
def _seed_state(seed: int, purpose: int) -> int:
    """What the seed alone makes of the keys."""
    state = 0x243F6A88 + purpose
    for word in (seed, seed >> 32):
        state = _mix((state + _WEYL ^ _mix(word & _MASK)) & _MASK)
    return state


def _hash(counter: Integers, key: tuple[Any, Any]) -> Integers:
    x: Integers = _mix(counter * _WEYL + key[0] & _MASK) ^ key[1]
    return _mix(x)


def uniform(seed: int, worker: int, n: int, purpose: int) -> float:
    """One number in (0, 1)."""
    return (_hash(0, keys(seed, worker, n, purpose)) + 0.5) / 2.0**32


def uniforms(
    seed: int,
    workers: np.ndarray[tuple[int], np.dtype[np.int64]],
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    purpose: int,
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """`uniform` of many streams at once, the same numbers."""
    first, second = many_keys(seed, workers, numbers, purpose)
    with np.errstate(over="ignore"):
        found = _mix32(_mix32(first) ^ second)
    numbered: np.ndarray[tuple[int], np.dtype[np.float64]] = (found + 0.5) / 2.0**32
    return numbered


def many_keys(
    seed: int,
    workers: np.ndarray[tuple[int], np.dtype[np.int64]],
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    purpose: int,
) -> tuple[Words, Words]:
    """`keys` of many streams at once; in 32 bits, which wrap by themselves."""
    early = np.uint32(_seed_state(seed, purpose))
    weyl = np.uint32(_WEYL)
    state: Any = early
    with np.errstate(over="ignore"):
        for word in (workers, numbers, numbers >> 32, purpose):
            state = _mix32((state + weyl) ^ _mix32(np.asarray(word).astype(np.uint32)))
        return _mix32(state + early), _mix32(state ^ np.uint32(0xB7E15162))


def _mix32(x: Any) -> Any:
    """`_mix` of uint32 arrays."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def odd_integers(count: int) -> Tensor:
    """Odd 64-bit integers, number i a hash of i."""
    counter = torch.arange(count, dtype=torch.int64)
    high, low = (_hash(counter, keys(0, i, 0, DIGEST)) for i in (0, 1))
    return high << 32 | low | 1


def kept(
    keys: Sequence[tuple[int, int]], first: int, count: int, share: float, device: torch.device
) -> Tensor:
    """Which numbers dropout keeps: of each stream those `first` to `first + count`, (R, count)."""
    counter = torch.arange(first, first + count, dtype=torch.int64, device=device) & _MASK
    streams = torch.tensor(keys, dtype=torch.int64, device=device)
    return _hash(counter, (streams[:, :1], streams[:, 1:])) >= int(share * 2.0**32)


def indices(
    seed: int, worker: int, n: int, *, size: int, count: int, device: str = "cpu"
) -> Tensor:
    """Batch n of worker j: `count` indices below `size`, drawn evenly with replacement."""
    if device == "cpu":
        return torch.from_numpy(indices_numpy(seed, worker, n, size=size, count=count))
    counter = torch.arange(count, dtype=torch.int64, device=device)
    return _hash(counter, keys(seed, worker, n, BATCH)) * size >> 32


def indices_numpy(
    seed: int, worker: int, n: int, *, size: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The same integers as `indices`, without torch."""
    first, second = keys(seed, worker, n, BATCH)
    words = _mix_words(_weyl(count) + np.uint32(first))
    words ^= np.uint32(second)
    found = _mix_words(words).astype(np.int64)
    found *= size
    found >>= 32
    return found


@lru_cache(maxsize=64)
def _weyl(count: int) -> Words:
    return np.arange(count, dtype=np.uint32) * np.uint32(_WEYL)


# ---------------------------------------------------------------- by a secret key


def secret_words(key: bytes, n: int, purpose: int, count: int) -> NDArray[np.uint64]:
    """The first 64-bit words of the stream (key, purpose, n): nobody without the key can tell."""
    name = key + purpose.to_bytes(1, "little") + n.to_bytes(8, "little")
    return np.frombuffer(hashlib.shake_256(name).digest(8 * count), "<u8")


def secret_indices(key: bytes, n: int, *, size: int, count: int) -> Tensor:
    """As `indices`, by a key in place of the seed."""
    words = secret_words(key, n, BATCH, count) % np.uint64(size)
    return torch.from_numpy(words.astype(np.int64))


def secret_sample(key: bytes, *, size: int, count: int) -> Tensor:
    """As `sample`, by a key in place of the seed."""
    order = np.argsort(secret_words(key, 0, SAMPLE, size), kind="stable")
    return torch.from_numpy(np.sort(order[:count]))


# ---------------------------------------------------------------- many batches at once


def rows(
    seed: int,
    workers: Sequence[int],
    draws: Sequence[int],
    sizes: Sequence[int] | NDArray[np.int64],
    starts: Sequence[int] | NDArray[np.int64],
    *,
    count: int,
    device: str = "cpu",
) -> Tensor:
    """Batch draws[r] of workers[r] as row r, each counted from starts[r]: (R, count)."""
    if len(workers) < FEW:
        named = [keys(seed, worker, n, BATCH) for worker, n in zip(workers, draws, strict=True)]
        first, second = np.array(named, dtype=np.uint32).T
    else:
        j, n = (np.array(x, dtype=np.int64) for x in (workers, draws))
        first, second = many_keys(seed, j, n, BATCH)
    hashes = _mix_words(_weyl(count) + first[:, None]) ^ second[:, None]
    found = _mix_words(hashes).astype(np.int64)  # below 2^32, and sizes are far below 2^31
    found *= np.array(sizes)[:, None]
    found >>= 32
    found += np.array(starts)[:, None]
    return torch.from_numpy(found).to(device)


def _mix_words(x: Words) -> Words:
    """`_mix` of 32-bit words, which wrap by themselves; in place."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> shift
        x *= factor
    x ^= x >> 16
    return x


def signs(seed: int, worker: int, n: int, *, count: int, device: str = "cpu") -> Tensor:
    """A vector of -1 and +1, int64: the start of a power iteration."""
    counter = torch.arange(count, dtype=torch.int64, device=device)
    return (_hash(counter, keys(seed, worker, n, POWER)) & 1) * 2 - 1


def sample(seed: int, worker: int, *, size: int, count: int) -> Tensor:
    """A fixed sample without replacement: the indices of the `count` smallest hashes, sorted."""
    if count >= size:
        return torch.arange(size)
    hashes = _hash(torch.arange(size, dtype=torch.int64), keys(seed, worker, 0, SAMPLE))
    return torch.sort(torch.argsort(hashes, stable=True)[:count]).values
