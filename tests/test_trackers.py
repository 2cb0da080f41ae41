"""Trackers show the figures of result.json; killed or broken, they leave the run's bytes alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlflow", reason="needs pip install 'aspire-ease[trackers]'")
pytest.importorskip("trackio", reason="needs pip install 'aspire-ease[trackers]'")

from aspire import train
from aspire.api import prepare, resume
from aspire.runs import callbacks
from aspire.trackers import MLflow, TensorBoard, WandB
from aspire.trackers.figures import final, scalars
from aspire.trackers.mlflow import site_names
from tests.helpers import blobs, linear, validated

QUICK: dict[str, Any] = {"iterations": 60, "evaluate_every": 10, "batch_size": 8}
BYTES = ("events.jsonl", "history.jsonl", "model.safetensors")
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1", "TRACKIO_DIR": ""}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the trackers keep what they are told: on this machine alone."""
    folder = tmp_path_factory.mktemp("stores")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value or str(folder / "trackio"))
        patch.setattr("trackio.utils.TRACKIO_DIR", folder / "trackio")
        patch.setattr("trackio.sqlite_storage.TRACKIO_DIR", folder / "trackio")
        yield folder


def trackers(stores: Path, name: str) -> list[Any]:
    return [
        MLflow("tests", tracking_uri=f"sqlite:///{stores}/mlflow.db", name=name),
        WandB("tests", library="trackio", name=name, auto_log_cpu=False),
        TensorBoard(stores / name),
    ]


def in_mlflow(tracker: MLflow) -> dict[str, float]:
    from mlflow import MlflowClient

    return dict(MlflowClient(tracker.tracking_uri).get_run(tracker.run_id).data.metrics)


def in_trackio(name: str) -> dict[str, float]:
    from trackio.sqlite_storage import SQLiteStorage

    found: dict[str, float] = {}
    for logged in SQLiteStorage.get_logs("tests", name):
        found |= {key: value for key, value in logged.items() if "/" in key or key == "planes"}
    return found


def in_tensorboard(folder: Path) -> dict[str, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: found.Scalars(name)[-1].value for name in found.Tags()["scalars"]}


def test_every_tracker_has_the_figures_of_result_json(stores: Path, tmp_path: Path) -> None:
    mlflow, trackio, tensorboard = trackers(stores, "all")
    arguments = QUICK | {"callbacks": [mlflow, trackio, tensorboard]}
    run = train(linear(), validated(), out=tmp_path / "run", **arguments)
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    expected = dict(final(result, run.sites))
    assert expected["final/worst_loss"] == result["worst_loss"]
    assert expected["final/test_losses/s2"] == result["test_losses"][2]
    assert expected["final/selected/worst_val_loss"] == result["selected"]["worst_val_loss"]
    assert len(expected) > 50
    last = dict(scalars(run.history[-1], run.sites))
    assert in_mlflow(mlflow) == last | expected
    assert in_trackio("all") == last | expected
    assert in_tensorboard(stores / "all") == pytest.approx(last | expected, rel=1e-6)


def test_mlflow_knows_how_a_run_ended_and_goes_on_with_it(stores: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    mlflow = trackers(stores, "stopped")[0]
    steps: list[int] = []
    arguments = {"progress": steps.append, "stop": lambda: len(steps) >= 30, **QUICK}
    with pytest.raises(RuntimeError, match="stopped after 30"):
        train(linear(), blobs(), out=tmp_path / "run", callbacks=[mlflow], **arguments)
    client = MlflowClient(mlflow.tracking_uri)
    assert client.get_run(mlflow.run_id).info.status == "KILLED"
    again = MLflow("tests", tracking_uri=mlflow.tracking_uri, run_id=mlflow.run_id)
    resume(tmp_path / "run", prepare(linear(), blobs(), **QUICK), callbacks=[again])
    assert client.get_run(mlflow.run_id).info.status == "FINISHED"
    steps = [x.step for x in client.get_metric_history(mlflow.run_id, "worst/train_loss")]
    assert steps == [10, 20, 30, 40, 50, 60]
    assert client.get_run(mlflow.run_id).data.params["iterations"] == "60"


# ---------------------------------------------------------------- whatever happens to a tracker


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BYTES}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of the run without trackers."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(linear(), blobs(), out=folder, **QUICK)
    return contents(folder)


class At:
    """Does something in the middle of a run."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def on_evaluate(self, line: dict[str, Any]) -> None:
        if line["t"] == 30:
            self.act()


def until(fact: Callable[[], bool]) -> None:
    """Wait for a tracker, which works in a thread of its own."""
    end = time.monotonic() + 120
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("way", ["raises", "exits"])
def test_trackers_that_raise_in_mid_run(
    way: str,
    stores: Path,
    tmp_path: Path,
    plain: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = OSError("no space left") if way == "raises" else SystemExit(1)

    def broken(self: Any, *arguments: Any, **more: Any) -> None:
        if 30 in (*arguments, *more.values()) or "'step': 30" in str(arguments):
            raise error
        return None

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", broken)
    monkeypatch.setattr("trackio.run.Run.log", broken)
    monkeypatch.setattr(MLflow, "_log", broken)
    given = trackers(stores, f"broken {way}")
    train(linear(), blobs(), out=tmp_path / "run", callbacks=given, **QUICK)
    assert contents(tmp_path / "run") == plain
    said = [x.message for x in caplog.records if "goes on without it" in x.message]
    assert sorted(text.split(" raised ")[0] for text in said) == [
        f"on_evaluate of {name}" for name in ("MLflow", "TensorBoard", "WandB")
    ]


@pytest.mark.filterwarnings("ignore")  # the libraries say what became of their stores
def test_stores_that_are_destroyed_in_mid_run(
    stores: Path, tmp_path: Path, plain: dict[str, bytes]
) -> None:
    """MLflow's database becomes rubbish, and trackio's; TensorBoard's folder goes away."""
    from trackio.sqlite_storage import SQLiteStorage

    own = tmp_path / "stores"
    own.mkdir()
    shutil.copy(stores / "mlflow.db", own)

    mlflow = MLflow("tests", tracking_uri=f"sqlite:///{own}/mlflow.db")
    board = own / "board"

    def destroy() -> None:
        until(lambda: mlflow.run_id is not None and board.is_dir())
        (own / "mlflow.db").write_bytes(b"rubbish" * 1000)
        shutil.rmtree(board)
        SQLiteStorage.get_project_db_path("rubbish").write_bytes(b"rubbish" * 1000)

    given = [
        At(destroy),
        mlflow,
        WandB("rubbish", library="trackio", auto_log_cpu=False),
        TensorBoard(board),
    ]
    train(linear(), blobs(), out=tmp_path / "run", callbacks=given, **QUICK)
    assert contents(tmp_path / "run") == plain


@pytest.mark.parametrize("killed", [False, True], ids=["silent", "killed"])
def test_a_server_that_never_answers(
    killed: bool,
    stores: Path,
    tmp_path: Path,
    plain: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes a connection and says nothing; one that is killed cuts it in mid-run."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(callbacks, "WAIT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120.0)
        mlflow = MLflow("tests", tracking_uri=f"http://127.0.0.1:{server.getsockname()[1]}")

        def kill() -> None:
            server.accept()[0].close()
            server.close()

        given = [mlflow, *([At(kill)] if killed else [])]
        train(linear(), blobs(), out=tmp_path / "run", callbacks=given, **QUICK)
    assert contents(tmp_path / "run") == plain
    said = [x.message for x in caplog.records if "MLflow" in x.message]
    assert any("the run goes on without it" in text for text in said)


def test_a_process_that_is_killed_with_its_trackers(
    stores: Path, tmp_path: Path, plain: dict[str, bytes]
) -> None:
    """Killed in mid-run and resumed, each time with all trackers."""
    code = f"""
    import os, signal
    from tests.test_trackers import *
    class Killed:
        def on_evaluate(self, line):
            if line["t"] == 30:
                os.kill(os.getpid(), signal.SIGKILL)
    given = [*trackers(Path({str(stores)!r}), "killed"), Killed()]
    train(linear(), blobs(), callbacks=given, checkpoint_seconds=0.0, out="run", **QUICK)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
    )
    assert done.returncode == -9, done.stderr.decode()
    job = prepare(linear(), blobs(), **QUICK)
    resume(tmp_path / "run", job, callbacks=trackers(stores, "killed again"))
    assert contents(tmp_path / "run") == plain


# ---------------------------------------------------------------- small things


def test_site_names_that_mlflow_takes() -> None:
    found = site_names(["north", "a+b", "a*b", "x" * 200])
    assert found == ["north", "a_b_1", "a_b_2", "x" * 125 + "_3"]


def test_final_figures_leave_out_what_is_no_number() -> None:
    result = {"a": 1, "b": None, "c": "x", "d": True, "e": [1.0, None], "f": {"g": [2, 3]}}
    result |= {"h": [1], "i": np.array([5.0, np.nan])}
    assert dict(final(result, ["x", "y"])) == {
        "final/a": 1,
        "final/e/x": 1,
        "final/f/g/x": 2,
        "final/f/g/y": 3,
        "final/i/x": 5,
    }


def test_a_tracker_whose_library_is_missing() -> None:
    with pytest.raises(ImportError, match="nowhere is not installed: pip install nowhere"):
        WandB("tests", library="nowhere")
