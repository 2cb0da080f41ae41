"""The digest of a vector: 64 bits that are the same on the CPU and on CUDA.

    d(x) = sum_i m_i bits(x_i)  modulo 2^64,   m_i odd, a hash of i

Integer sums do not depend on their order, so many rows can be digested where they lie, in any
order of additions. Every m_i is odd, hence invertible: a change of one entry always shows. It
tells whether a replay gives the same numbers; it is no defence against somebody who wants two
vectors to look alike.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


def pieces(x: Tensor) -> NDArray[np.int64]:
    """The digests of PIECE numbers of x each, the last of fewer."""
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
