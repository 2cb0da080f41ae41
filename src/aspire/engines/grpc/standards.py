"""How inputs are standardised, as the settings of a federation carry it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.messages import DTYPES, OVERHEAD
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.problem.standardization import Standardization

MOST = OVERHEAD - 8 * 2**10  # bytes: a Welcome is a small message


def with_standardization(terms: Terms, by: Standardization) -> Terms:
    """Terms that say so; ValueError where there are too many features for a Welcome."""
    dtype = DTYPES[terms.shape.dtype]
    mean, std = (x.numpy().astype(dtype).tobytes() for x in (by.mean, by.std))
    if len(mean) + len(std) > MOST:
        raise ValueError(
            f"standardize=True with {len(by.mean)} numbers in a sample: expected at most "
            f"{MOST // (2 * dtype.itemsize)} in a federation; standardise in site(name)"
        )
    settings = Settings()
    settings.CopyFrom(terms.settings)
    settings.mean = mean
    settings.std = std
    return replace(terms, settings=settings)


def standardization_in(settings: Settings, dtype: str) -> Standardization | None:
    """What a server says; None: nothing of it."""
    if not settings.mean and not settings.std:
        return None
    mean, std = (_numbers(x, dtype) for x in (settings.mean, settings.std))
    fine = len(mean) == len(std) and bool((std > 0).all())
    if not (fine and bool(torch.isfinite(torch.stack([mean, std])).all())):
        raise ValueError("mean and std of the inputs: expected as many finite numbers, std above 0")
    return Standardization(mean, std)


def _numbers(sent: bytes, dtype: str) -> Tensor:
    kind = DTYPES[dtype]
    if len(sent) % kind.itemsize:
        raise ValueError(f"mean and std of {len(sent)} bytes: expected numbers of {dtype}")
    return torch.from_numpy(np.frombuffer(sent, kind).astype(kind.newbyteorder("=")))
