"""Every method sees the same batches: batch n of worker j, whoever asks and whenever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from aspire.problem.problem import Problem, Samples, Site
from aspire.simulator import simulator
from aspire.simulator.delays import LogNormal
from tests.helpers import blob_problem
from tests.methods.table import ROWS

Log = dict[tuple[int, int], Tensor]


class Watched(Site):
    """A site that writes down which samples each of its gradients is taken on."""

    log: Log

    def gradient(self, w: Tensor, draw: int) -> Tensor:
        self.train.draw = (self.number, draw)  # type: ignore[attr-defined]
        return super().gradient(w, draw)


class Recorder:
    """A site's samples, with a log of what was taken of them."""

    def __init__(self, samples: Samples, log: Log) -> None:
        self.samples, self.log = samples, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self.samples, name)

    def take(self, index: Tensor) -> Any:
        seen = self.log.setdefault(self.draw, index)
        assert torch.equal(seen, index), f"(worker, n) = {self.draw} drew two batches"
        return self.samples.take(index)


def batches_of(name: str, seed: int = 0) -> Log:
    log: Log = {}
    problem = blob_problem(4, batch_size=5, seed=seed)
    sites = []
    for site in problem.sites:
        parts = {field: getattr(site, field) for field in site.__dataclass_fields__}
        sites.append(Watched(**parts | {"train": Recorder(site.train, log)}))
    watched: Problem = replace(problem, sites=tuple(sites))
    run = simulator.begin(ROWS[name](), watched, delays=LogNormal(), seed=seed)
    while run.gradients < 150:
        run.absorb(run.next_event())
    return log


@pytest.fixture(scope="module")
def reference() -> Log:
    return batches_of("aspire")


@pytest.mark.parametrize("name", list(ROWS))
def test_batch_n_of_worker_j_is_the_same_for_all(name: str, reference: Log) -> None:
    log = batches_of(name)
    shared = set(log) & set(reference)
    assert len(shared) >= 10
    assert all(torch.equal(log[key], reference[key]) for key in shared)


@pytest.mark.parametrize("name", list(ROWS))
def test_batches_are_drawn_in_order_and_none_is_left_out(name: str) -> None:
    log = batches_of(name)
    for j in {worker for worker, _ in log}:
        drawn = sorted(n for worker, n in log if worker == j)
        first = 0 if 0 in drawn else 1  # batch 0 is the probe's, who takes losses alone has none
        assert drawn == list(range(first, first + len(drawn)))


def test_another_seed_draws_others(reference: Log) -> None:
    log = batches_of("afl", seed=1)
    shared = set(log) & set(reference)
    assert not any(torch.equal(log[key], reference[key]) for key in shared)
