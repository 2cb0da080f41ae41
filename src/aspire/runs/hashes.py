"""Hashes of states and of reports' vectors."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from aspire.runs.digest import pieces

SHORT = 2**12  # numbers: shorter vectors are hashed byte by byte
OF_DIGESTS = "q"  # what such a hash begins with: no hexadecimal digit
PLAIN = {torch.float32, torch.float64}  # what numpy has, and hashes as it lies


def fingerprint(value: Any, into: Any) -> None:
    """Feed a state, field by field, into a hash: tensors and arrays by their bytes."""
    if isinstance(value, torch.Tensor):
        into.update(repr((str(value.dtype), tuple(value.shape))).encode())
        _feed(value.detach().cpu().contiguous(), into)
    elif isinstance(value, np.ndarray):
        into.update(repr((str(value.dtype), value.shape)).encode())
        into.update(np.ascontiguousarray(value).data)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            into.update(field.name.encode())
            fingerprint(getattr(value, field.name), into)
    elif isinstance(value, dict):
        for key in sorted(value):
            into.update(repr(key).encode())
            fingerprint(value[key], into)
    elif isinstance(value, (list, tuple)):
        for item in value:
            fingerprint(item, into)
    else:
        into.update(repr(value).encode())


def _feed(x: torch.Tensor, into: Any) -> None:
    """The bytes of a tensor, without a copy; some of its types are unknown to numpy."""
    if x.dtype in PLAIN:
        into.update(x.numpy())
    else:
        into.update(x.view(-1).view(torch.uint8).numpy().data if x.numel() else b"")


@lru_cache(maxsize=64)
def _heading(name: str, dtype: torch.dtype, shape: torch.Size) -> bytes:
    return repr(name).encode() + repr((str(dtype), tuple(shape))).encode()


def digest(state: Any) -> str:
    """sha256 of a whole master state."""
    sha = hashlib.sha256()
    fingerprint(state, sha)
    return sha.hexdigest()


def content(vectors: Mapping[str, torch.Tensor], *, every_byte: bool) -> str:
    """The hash of a report's vectors."""
    sha = hashlib.sha256()
    if every_byte or max((x.numel() for x in vectors.values()), default=0) <= SHORT:
        for name in sorted(vectors):  # as `fingerprint` of them, without asking what they are
            x = vectors[name]
            sha.update(_heading(name, x.dtype, x.shape))
            _feed(x.detach().cpu().contiguous(), sha)
        return sha.hexdigest()[:16]
    for name, x in sorted(vectors.items()):
        sha.update(repr((name, str(x.dtype), tuple(x.shape))).encode())
        sha.update(pieces(x.detach() if x.requires_grad else x).tobytes())
    return OF_DIGESTS + sha.hexdigest()[:15]
