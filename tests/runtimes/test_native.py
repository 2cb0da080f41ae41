"""steps.c computes what the stack computes, whatever the shape, and it can be absent."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from aspire import LogNormal
from aspire.compiled import native
from aspire.core.presets import NETWORK, USUAL
from aspire.methods import aspire
from aspire.problem import sites
from aspire.problem.problem import build
from aspire.runs import digest
from aspire.simulator import simulator
from aspire.simulator.blocks import rules_of
from aspire.simulator.blocks_native import Compiled
from aspire.simulator.blocks_work import Flight

SHAPES = [
    {"widths": (7, 64, 32, 16, 11), "bias": True, "relu": False, "batch": 64},
    {"widths": (3, 2), "bias": False, "relu": False, "batch": 1},
    {"widths": (1, 17, 40), "bias": True, "relu": True, "batch": 13},
    {"widths": (16, 5, 33, 3), "bias": False, "relu": False, "batch": 70},
    {"widths": (75, 3), "bias": True, "relu": False, "batch": 30},
    {"widths": (64, 1, 2), "bias": True, "relu": False, "batch": 3},
]


def problem(widths, bias, relu, batch, dtype, decay=0.01):
    torch.manual_seed(0)
    parts = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b, bias=bias), nn.ReLU())]
    model = nn.Sequential(*(parts if relu else parts[:-1])).to(dtype)
    data = [
        (torch.randn(50 + 40 * j, widths[0], dtype=dtype), torch.arange(50 + 40 * j) % widths[-1])
        for j in range(4)
    ]
    return build(model, data, batch_size=batch, weight_decay=decay)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_losses_and_digests_are_the_stacks(shape, dtype):
    if native.library(dtype) is None:
        pytest.skip("native.c was not compiled: there is no compiler")
    made = problem(**shape, dtype=dtype)
    method = aspire(form="consensus")
    master = simulator.begin(method, made, delays=LogNormal()).master
    master.constants = {"kappa": 1.0, "level": 1.0, **USUAL[NETWORK]}
    w = made.flat.start + 0.3 * torch.randn(4, len(made.flat.start), dtype=dtype)
    flight, draws = Flight(w.clone(), np.zeros(4), np.arange(4.0)), np.array([5, 1, 2, 2**33])
    rows = Compiled(rules_of(method), master, made, flight, 1, draws, threads=1)
    rows.tasks["reports"][:] = [1, 1, 1, 0]
    found = rows.flight
    expected = sites.gradients(made.sites, w, (draws + 1).tolist())
    tolerance = 2e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(rows.g, expected, rtol=tolerance, atol=10 * tolerance)
    losses = [made.sites[j].loss(w[j]) if j != 3 else 0.0 for j in range(4)]
    np.testing.assert_allclose(found.loss, losses, rtol=tolerance)
    numbers = torch.from_numpy(np.stack([found.loss, found.curvature], axis=1))
    expected = digest.rows(w) + digest.rows(numbers)
    assert rows.tasks["digests"].tolist() == expected.tolist()


def test_without_a_compiler_there_is_no_library(monkeypatch, tmp_path):
    ask = native.library.__wrapped__
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert ask(torch.float32) is None
    monkeypatch.setenv("ASPIRE_NATIVE", "0")
    monkeypatch.delenv("CC")
    assert ask(torch.float32) is None
    assert ask(torch.float16) is None


def test_a_library_is_made_once_and_a_bad_cache_does_not_matter(monkeypatch, tmp_path):
    ask = native.library.__wrapped__
    if native.library(torch.float64) is None:
        pytest.skip("native.c was not compiled: there is no compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ask(torch.float64) is not None
    (made,) = (tmp_path / "aspire").iterdir()
    before = made.stat().st_mtime_ns
    assert ask(torch.float64) is not None
    assert made.stat().st_mtime_ns == before
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ask(torch.float64) is not None
