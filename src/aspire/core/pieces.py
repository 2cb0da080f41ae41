"""Long vectors, piece by piece: what is made on the way stays in the cache of a core."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PIECE = 2**16  # numbers in a piece, over all rows


def piecewise(
    function: Callable[..., tuple[Tensor, ...]], vectors: Sequence[Tensor], like: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """function(*vectors), which must act on each column alone; its results look like `like`."""
    first = vectors[0]
    size = max(1024, PIECE // len(first))
    if first.shape[-1] <= size:
        return function(*vectors)
    found = tuple(torch.empty_like(x) for x in like)
    n = len(vectors)
    for parts in zip(*(x.split(size, dim=-1) for x in (*vectors, *found)), strict=True):
        for place, value in zip(parts[n:], function(*parts[:n]), strict=True):
            place.copy_(value)
    return found
