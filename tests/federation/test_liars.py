"""Lies over the wire: a false loss gains at most u_j, a false w_j is put back; the rest goes on.

The demo's digits at six sites; site A may lie. The others' worst accuracy is compared with that of
a run in which A is honest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
pytest.importorskip("sklearn", reason="needs aspire-ease[demo]")
from aspire.engines.driver import Driver, begin
from aspire.engines.grpc import kits
from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.messages import shape_of
from aspire.engines.grpc.server import Server
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.methods.aspire_ease.consensus import consensus as aspire
from aspire.methods.aspire_ease.consensus_state import weights
from aspire.problem.problem import Problem, build
from aspire.runs.log import EventLog
from aspire.types import Facts, Info, Method, Report, Stepped
from reproduction import demo
from tests.federation.parties import Sites

NAMES = tuple("ABCDEF")
STEPS = 1200


def inflates_its_loss(report: Report) -> Report:
    scalars = dict(report.scalars)
    if "loss" in scalars:
        scalars["loss"] *= 1000.0
    return replace(report, scalars=scalars)


def invents_its_model(report: Report) -> Report:
    return replace(report, vectors={n: torch.full_like(w, 1e6) for n, w in report.vectors.items()})


def lying(method: Method, lie: Any) -> Method:
    def work(worker: Any, task: Any, local: Any) -> Any:
        worker, report = method.work(worker, task, local)
        return worker, lie(report)

    return replace(method, work=work)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("liars") / "f"
    kits.init(made, list(NAMES), ["localhost", "127.0.0.1"], 2)
    return made


@pytest.fixture(scope="module")
def problem() -> Problem:
    torch.manual_seed(0)
    data = dict(zip(NAMES, demo.sites(0).values(), strict=True))
    return build(torch.nn.Linear(64, 10), data, weight_decay=demo.DECAY)


@pytest.fixture(scope="module")
def honest(folder: Path, problem: Problem) -> float:
    return trained(folder, problem, None)


def trained(folder: Path, problem: Problem, lie: Any) -> float:
    """The worst accuracy of sites B to F after a run over real lines, checked at every step."""
    method, start = aspire(pull_bound=10.0), problem.flat.start
    terms = Terms(shape_of(start), Settings(batch_size=64), b"f")
    server = Server(kits.read(folder / "server"), NAMES, "127.0.0.1:0", terms)

    def make(name: str) -> Any:
        mine = method if lie is None or name != "A" else lying(method, lie)
        return mine, problem.sites[NAMES.index(name)]

    sites = Sites(folder, NAMES, make, terms.shape, server.port)
    state = begin(method, Facts(len(NAMES), start), 0)
    driver = Driver(method, server, NAMES, state, EventLog("off"), patience=30.0)
    steps = []

    def look(info: Info) -> None:
        if isinstance(info, Stepped):
            steps.append(info.t)
            found = weights(state.master)
            assert (found <= state.master.upper + 1e-9).all()
            assert np.isfinite(found).all()

    driver.run(lambda s: s.master.t >= STEPS, on_info=look)
    server.close()
    assert set(sites.join().values()) == {"over"}
    assert steps == list(range(STEPS))
    w = method.model(state.master)
    assert bool(torch.isfinite(w).all())
    return min(site.accuracy(w) for site in problem.sites[1:])


@pytest.mark.slow
@pytest.mark.parametrize("lie", [inflates_its_loss, invents_its_model])
def test_the_others_are_served_all_the_same(
    lie: Any, folder: Path, problem: Problem, honest: float
) -> None:
    assert trained(folder, problem, lie) > honest - 0.05
