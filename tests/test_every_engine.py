"""The contract of docs/methods.md: every method runs on every engine, and every run replays.

Each method takes 50 steps on the simulator, on Ray, in a federation of real processes and, three of
them, on Flower's apps. The replay then computes the final state once more in one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aspire.cli import main
from aspire.methods.by_name import METHODS
from tests.method_files import OWN, PROBLEM

STEPS = 50
COMMON = ("--iterations", str(STEPS), "--batch-size", "8", "--evaluate-every", "25")
OWN_METHOD = "method() of FILE.py"
EVERY: dict[str, str | None] = {name: name for name in METHODS} | {
    "aspire": "aspire(form='direct')",  # `consensus` is the other form
    "ind": "ind(site=1)",
    "afl": "afl(optimizer='adam', settle=200, clip=2.0)",
    "fedavg": "fedavg(local_steps=2, quorum=1)",
    OWN_METHOD: None,
}
ON_FLOWER = ("consensus", "afl", OWN_METHOD)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.py"
    path.write_text(PROBLEM)
    return path


def chosen(name: str, file: Path) -> list[str]:
    """What `aspire train` is told beside the file, which holds the method itself if none is named.

    Args:
        name: A key of EVERY.
        file: FILE.py; rewritten where the method is its own.
    """
    text = EVERY[name]
    if text is None:
        file.write_text(OWN)
        return []
    return ["--method", text]


def aspire(*arguments: object) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def check(run: Path, name: str) -> None:
    """The run is of that method, took all its steps, learned something and replays."""
    result = json.loads((run / "result.json").read_text())
    assert result["iterations"] == STEPS
    assert result["mean_accuracy"] > 0.5
    assert (result["method"] == "mine") == (EVERY[name] is None)
    assert "bit for bit" in aspire("replay", run)
    if name == "aspire":
        assert "Page: " in aspire("report", run)


@pytest.mark.parametrize("name", EVERY)
def test_on_the_simulator(name: str, file: Path, tmp_path: Path) -> None:
    aspire("train", file, "--out", tmp_path / "run", *COMMON, *chosen(name, file))
    check(tmp_path / "run", name)


# ---------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """One cluster on this machine for all runs."""
    ray = pytest.importorskip("ray", reason="needs aspire-ease[ray]")
    from aspire.engines.ray.engine import connect

    connect(None)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", EVERY)
def test_on_ray(name: str, file: Path, tmp_path: Path) -> None:
    engine = ("--engine", "ray", "--actors", "1", "--out", tmp_path / "run")
    aspire("train", file, *engine, *COMMON, *chosen(name, file))
    check(tmp_path / "run", name)


# ---------------------------------------------------------------- the federation


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
    from aspire.engines.grpc import kits

    folder = tmp_path_factory.mktemp("federation") / "kits"
    kits.init(folder, ["a", "b"], ["127.0.0.1"], 2)
    return folder


@pytest.mark.parametrize("name", EVERY)
def test_in_a_federation(name: str, file: Path, kits: Path, tmp_path: Path) -> None:
    """A server and two sites, each a process with a folder of its own."""
    from tests.federation.processes import federation

    options = (*COMMON, "--log", "vectors", *chosen(name, file))
    with federation(file, kits, tmp_path, options) as parties:
        codes = [party.wait(120) for party in parties]
        assert codes == [0, 0, 0], [party.said for party in parties]
    check(tmp_path / "server" / "run", name)


# ---------------------------------------------------------------- Flower


@pytest.mark.parametrize("name", ON_FLOWER)
def test_on_flower(name: str, file: Path, tmp_path: Path) -> None:
    """Both apps, and Flower's own messages between them."""
    pytest.importorskip("flwr", reason="needs aspire-ease[flower]")
    from aspire.engines.flower.apps import client_app, train_over
    from tests.flower.grid import Here, as_in_a_run

    as_in_a_run()
    config: dict[str, Any] = {"iterations": STEPS, "batch-size": 8, "out": str(tmp_path / "run")}
    if chosen(name, file):
        config["method"] = EVERY[name]
    nodes = {11: {"site": "a"}, 12: {"partition-id": 1}}
    train_over(Here(client_app(file), nodes, config), file, config)
    check(tmp_path / "run", name)
