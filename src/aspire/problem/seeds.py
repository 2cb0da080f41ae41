"""Where what draws at random draws from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(key: tuple[int, int]) -> Iterator[None]:
    """Dropout and random transforms draw from this key."""
    cards = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=cards):
        seed = key[0] << 31 ^ key[1]
        if cards:
            torch.manual_seed(seed)
        else:  # the same, without a note to each kind of card that it should seed itself later
            torch.default_generator.manual_seed(seed)
        yield
