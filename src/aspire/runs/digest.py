"""The digest of a vector: 64 bits that are the same on the CPU and on CUDA.

    d(x) = sum_i m_i bits(x_i)  modulo 2^64,   m_i odd, a hash of i

Integer sums do not depend on their order, so many rows can be digested where they lie, in any
order of additions. Every m_i is odd, hence invertible: a change of one entry always shows. It
tells whether a replay gives the same numbers; it is no defence against somebody who wants two
vectors to look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.weak import WeakIdKeyDictionary

from aspire.compiled import native
from aspire.problem import batches

PIECE = 2**14  # numbers of a long vector that share a digest: their m_i stay in the cache
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@lru_cache(maxsize=16)
def multipliers(count: int, device: str = "cpu") -> Tensor:
    """m_0 .. m_(count - 1), int64."""
    return batches.odd_integers(count).to(device)


def rows(x: Tensor) -> Tensor:
    """The digest of every row of (R, p): int64, (R,)."""
    bits = x.contiguous().view(BITS[x.element_size()]).to(torch.int64)
    return (bits * multipliers(x.shape[1], str(x.device))).sum(1)


class Taken:
    """The pieces of several vectors on a GPU, which come to the CPU in one copy, once asked for."""

    def __init__(self, vectors: Sequence[Tensor]) -> None:
        self.found: Any = by_piece(torch.stack(list(vectors)))

    def row(self, number: int) -> NDArray[np.int64]:
        if isinstance(self.found, Tensor):
            self.found = self.found.cpu().numpy()
        row: NDArray[np.int64] = self.found[number]
        return row


_taken = WeakIdKeyDictionary()  # by vector: its version, the call that it was taken in, its row


def ahead(vectors: Sequence[Tensor]) -> None:
    """Take the pieces of vectors that were computed together on a GPU, for `pieces`."""
    together = Taken(vectors)
    for number, x in enumerate(vectors):
        _taken[x] = (x._version, together, number)


def by_piece(x: Tensor) -> Tensor:
    """The pieces of every row of (R, p), where they lie."""
    bits = x.contiguous().view(BITS[x.element_size()])
    bits = pad(bits, (0, -x.shape[1] % PIECE)).view(len(x), -1, PIECE).to(torch.int64)
    return (bits * multipliers(PIECE, str(x.device))).sum(2)


def pieces(x: Tensor) -> NDArray[np.int64]:
    """The digests of PIECE numbers of x each, the last of fewer."""
    if x.device.type != "cpu":
        version, together, number = _taken.get(x, (None, None, 0))
        if version == x._version:
            row: NDArray[np.int64] = together.row(number)
            return row
        return Taken([x.view(-1)]).row(0)
    flat = x.contiguous().view(-1)
    found = np.zeros(-(-len(flat) // PIECE), dtype=np.int64)
    functions = native.library(x.dtype)
    if functions is not None:
        odd = multipliers(PIECE)
        functions.digests(flat.data_ptr(), len(flat), PIECE, odd.data_ptr(), native.at(found))
        return found
    for k, piece in enumerate(flat.split(PIECE)):
        found[k] = int(rows(piece[None])[0])
    return found
