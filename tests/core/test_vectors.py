"""A master step in blocks of columns, or compiled: the same bits, in memory of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aspire.core.presets import Auto, Paper
from aspire.core.schedules import Limits
from aspire.methods import aspire
from aspire.methods.aspire_ease import passes
from aspire.methods.aspire_ease import vectors as aspire_vectors
from aspire.runs.log import digest
from aspire.types import Facts, Report, Task

N, P = 4, 3001


def trained(dtype: torch.dtype, quorum: int, p: int = P, **arguments: Any) -> Any:
    """The master after 40 reports of random rows, with what must not have been written to."""
    rng = torch.Generator().manual_seed(0)
    method, start = aspire(quorum=quorum, **arguments), torch.ones(p, dtype=dtype)
    master, tasks = method.init(Facts(N, start), 0)
    cost = {"gradients": 1.0, "samples": 1.0}
    said = {**dict.fromkeys(method.kinds["probe"].scalars, 1.0), "gradients": 0.0, "samples": 1.0}
    hands, sent = {}, []
    for task in tasks:
        master, new, _ = method.absorb(master, [Report(task.worker, task.id, {}, said)])
        hands |= {x.worker: x for x in new}
    for i in range(40):
        task = hands.pop(sorted(hands)[i * i % len(hands)])
        w = task.vectors["v"] + torch.randn(p, generator=rng, dtype=dtype)
        sent.append((w, w.clone()))
        report = Report(task.worker, task.id, {"w": w}, {"loss": 1.0 + i % 3} | cost)
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
    monkeypatch.setattr(passes, "library", lambda: None)
    whole, _ = trained(dtype, quorum)
    monkeypatch.setattr(aspire_vectors, "BLOCK", 1024)
    assert len(list(aspire_vectors.blocks(quorum, whole.z))) == 3
    assert digest(trained(dtype, quorum)[0]) == digest(whole)


@pytest.mark.parametrize("bound", [None, 0.5, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_messages_and_models_are_never_written_to(dtype: torch.dtype, bound: float | None) -> None:
    for given, as_it_was in trained(dtype, 1, pull_bound=bound)[1]:
        assert torch.equal(given, as_it_was)


TIGHT = Paper(limits=Limits(a1=0.8, a4=0.02))


@pytest.mark.parametrize("p", [1, 37, 1024, 3001])
@pytest.mark.parametrize("quorum", [1, 2, 4])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"preset": TIGHT},
        {"preset": Auto(momentum=0.6)},
        {"pull_bound": 10.0, "local_steps": 3},
        {"pull_bound": 0.5},
        {"coordinate_bound": 3.0},
    ],
)
def test_the_compiled_passes_give_torchs_bytes(
    p: int, quorum: int, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if passes.library() is None:
        pytest.skip("passes.c is not compiled here, or torch rounds otherwise")
    compiled, sent = trained(torch.float32, quorum, p, **arguments)
    for given, as_it_was in sent:
        assert torch.equal(given, as_it_was)
    monkeypatch.setattr(passes, "library", lambda: None)
    plain, others = trained(torch.float32, quorum, p, **arguments)
    assert digest(compiled) == digest(plain)
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(sent, others, strict=True))


@pytest.mark.parametrize("p", [1, 15, 16, 100, 4097])
@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("reports", [1, 2, 8])
def test_a_pass_and_torch_agree(p: int, share: float, reports: int) -> None:
    if passes.library() is None:
        pytest.skip("passes.c is not compiled here, or torch rounds otherwise")
    assert passes.agrees(passes.library(), reports, share, p)


def test_passes_that_do_not_agree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "agrees", lambda *given: False)
    assert passes.library.__wrapped__() is None


def test_what_the_passes_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other types, many rows and views go by torch."""
    monkeypatch.setattr(passes, "library", lambda: "functions")
    rows = torch.zeros(2, 5)
    assert passes.functions_for(rows, rows) == "functions"
    for other in (rows.double(), torch.zeros(9, 5), torch.zeros(5, 2).T):
        assert passes.functions_for(other) is None


def test_a_task_of_another_length_is_refused() -> None:
    task = Task(0, 0, "step", scalars={"pi": 0.3, "kappa": 0.7, "rate": 0.1})
    row = torch.ones(1, 5)
    assert passes.worker_step(row, row, row, [task], 1.0).shape == (1, 5)
    with pytest.raises(RuntimeError, match="size"):
        passes.worker_step(row, row, torch.ones(1, 4), [task], 1.0)
