"""The digest of a vector, which the log holds of long ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aspire.compiled import native
from aspire.problem import batches
from aspire.runs import digest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_digest_is_a_sum_of_bits_times_odd_numbers(dtype):
    x = torch.randn(3, 50, dtype=dtype)
    bits = x.numpy().view(np.int32 if dtype == torch.float32 else np.int64)
    odd = batches.odd_integers(50).tolist()
    assert all(m % 2 == 1 or m % 2 == -1 for m in odd)
    for row, found in zip(bits.tolist(), digest.rows(x).tolist(), strict=True):
        assert (sum(b * m for b, m in zip(row, odd, strict=True)) - found) % 2**64 == 0
    changed = x.clone()
    changed[1, 7] += 1e-5
    assert (digest.rows(changed) != digest.rows(x)).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2**14, 3 * 2**14 + 5])
def test_the_digests_of_pieces_are_the_same_without_a_compiler(dtype, count, monkeypatch):
    x = torch.randn(count, dtype=dtype)
    found = digest.pieces(x)
    assert found[0] == digest.rows(x[None, : digest.PIECE])[0]
    monkeypatch.setattr(native, "library", lambda dtype: None)
    assert digest.pieces(x).tolist() == found.tolist()
    assert len(found) == -(-count // digest.PIECE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2**14, 3 * 2**14 + 5])
def test_the_digests_of_vectors_on_a_gpu_are_those_on_the_cpu(dtype, count):
    """`by_piece` is what a GPU computes; torch does the same on the CPU."""
    together = torch.randn(3, count, dtype=dtype)
    for x, found in zip(together, digest.by_piece(together), strict=True):
        assert found.tolist() == digest.pieces(x).tolist()
