"""A master step in blocks of columns: the same bits as in one piece, in memory of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aspire.methods import aspire, aspire_vectors
from aspire.runtimes.log import digest
from aspire.types import Facts, Report

N, P = 4, 3001


def trained(dtype: torch.dtype, quorum: int, **arguments: Any) -> Any:
    """The master after 40 reports of random rows, with what must not have been written to."""
    rng = torch.Generator().manual_seed(0)
    method, start = aspire(quorum=quorum, **arguments), torch.ones(P, dtype=dtype)
    master, tasks = method.init(Facts(N, start), 0)
    said = {"loss": 1.0, "curvature": 1.0, "slope": 1.0, "gradients": 13.0, "samples": 1.0}
    hands, sent = {}, []
    for task in tasks:
        master, new, _ = method.absorb(master, [Report(task.worker, task.id, {}, said)])
        hands |= {x.worker: x for x in new}
    for i in range(40):
        task = hands.pop(sorted(hands)[i * i % len(hands)])
        w = task.vectors["v"] + torch.randn(P, generator=rng, dtype=dtype)
        sent.append((w, w.clone()))
        report = Report(task.worker, task.id, {"w": w}, {"loss": 1.0 + i % 3})
        master, new, _ = method.absorb(master, [report])
        hands |= {x.worker: x for x in new}
        if i % 10 == 0:
            model = method.model(master)
            sent.append((model, model.clone()))
    return master, [(start, torch.ones_like(start)), *sent]


@pytest.mark.parametrize("quorum", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_change_no_bit(
    dtype: torch.dtype, quorum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = trained(dtype, quorum)
    monkeypatch.setattr(aspire_vectors, "BLOCK", 1024)
    assert len(list(aspire_vectors.blocks(quorum, whole.z))) == 3
    assert digest(trained(dtype, quorum)[0]) == digest(whole)


@pytest.mark.parametrize("bound", [None, 0.5, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_and_models_are_never_written_to(dtype: torch.dtype, bound: float | None) -> None:
    for given, as_it_was in trained(dtype, 1, pull_bound=bound)[1]:
        assert torch.equal(given, as_it_was)
