"""`aspire status` and the scalars for TensorBoard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aspire.api import train
from aspire.cli import main
from aspire.cli.status import read
from aspire.engines.status import simulated
from aspire.runs import files as rundir
from aspire.runs.folder import RunFolder
from aspire.trackers.figures import scalars
from aspire.trackers.tensorboard import FOLDER
from tests.helpers import blobs, linear


def status(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["status", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


SITE = {"alive": True, "away": None, "weight": 0.25, "loss": 0.5, "staleness": 3, "reports": 7}
SITE |= {"late": 2, "refused": 1}


def engine_folder(folder: Path) -> Path:
    """What the driver of an engine leaves behind while it runs."""
    sites = [
        {"name": "north", **SITE, "silent_seconds": 0.25},
        {"name": "east", **SITE, "alive": False, "away": "silent for 60 s", "silent_seconds": 61.0},
    ]
    now = {"iteration": 120, "time": 9.5, "reports_per_second": 13.4, "planes": 4}
    now |= {"worst_site": "east", "gradients": 140, "waiting_for": ["north"], "sites": sites}
    now |= {"clock": "wall"}
    with RunFolder(folder) as run:
        run.write_settings({"sites": ["north", "east"], "log": "full"})
        run.show(now)
    return folder


def test_status_of_an_engine(tmp_path: Path) -> None:
    lines = status(str(engine_folder(tmp_path))).splitlines()
    assert lines[0] == (
        "iteration 120, 9.5 wall seconds, 13.4 reports/s, 4 planes, "
        "largest training loss at east, 1 away"
    )
    head = ("site", "state", "weight", "train loss", "behind", "reports", "late", "refused")
    assert re.split(r"  +", lines[1]) == [*head, "silent"]
    assert lines[2].split() == ["north", "here", "0.250", "0.5000", "3", "7", "2", "1", "0.2", "s"]
    assert lines[3].split()[:2] == ["east", "away"]
    assert lines[4:] == ["east: silent for 60 s", "waiting for north"]


def test_watching_ends_with_the_run(tmp_path: Path) -> None:
    engine_folder(tmp_path)
    rundir.write_json(tmp_path / "result.json", {}, sealed=True)
    assert status(str(tmp_path), "--watch").splitlines()[0].endswith("ended")


def test_status_of_the_simulator(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs pip install 'aspire-ease[tensorboard]'")
    run = train(
        linear(), blobs(3), iterations=40, evaluate_every=20, out=tmp_path / "run", tensorboard=True
    )
    now = read(tmp_path / "run")
    assert (now["iteration"], now["planes"], now["ended"]) == (40, run.planes, True)
    assert now["worst_site"] == run.sites[int(run.losses.argmax())]
    assert [row["weight"] for row in now["sites"]] == pytest.approx(run.weights.tolist())
    lines = status(str(tmp_path / "run")).splitlines()
    assert lines[0].startswith("iteration 40, ")
    assert lines[0].endswith("ended")
    assert [line.split()[:2] for line in lines[2:]] == [[name, "-"] for name in run.sites]
    assert_in_tensorboard(tmp_path / "run" / FOLDER, run.history, run.sites)


def assert_in_tensorboard(folder: Path, history: list[dict[str, Any]], sites: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    for name, value in scalars(history[-1], sites):
        assert [event.step for event in found.Scalars(name)] == [20, 40]
        assert found.Scalars(name)[-1].value == pytest.approx(value, rel=1e-6)
    assert "worst/accuracy" in found.Tags()["scalars"]


def test_status_at_the_very_start_and_of_no_run(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.write_settings({"sites": ["a", "b"], "log": "full"})
        run.show(simulated(["a", "b"], {}))
        assert status(str(tmp_path)).splitlines()[0] == "iteration 0, 0.0 virtual seconds"
        run.show(simulated(["a", "b"], {"t": 5, "time": 2.0, "losses": [1.0, 2.0]}))
    assert status(str(tmp_path)).splitlines()[0] == (
        "iteration 5, 2.0 virtual seconds, largest training loss at b"
    )
    done = CliRunner().invoke(main, ["status", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "expected the folder of a run" in done.output


def test_scalars_leave_out_what_is_not_known() -> None:
    line = {"planes": 2, "worst_loss": 1.0, "worst_case_loss": float("nan"), "accuracies": None}
    line |= {"worst_accuracy": None, "train_losses": [1.0, None], "weights": [0.5, 0.5]}
    line |= {"test_losses": [None, 3.0]}
    assert dict(scalars(line, ["a", "b"])) == {
        "planes": 2.0,
        "worst/train_loss": 1.0,
        "worst/test_loss": 3.0,
        "train_losses/a": 1.0,
        "test_losses/b": 3.0,
        "weights/a": 0.5,
        "weights/b": 0.5,
    }
