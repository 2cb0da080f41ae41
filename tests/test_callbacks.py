"""Callbacks see a run and may end it; whatever they do, it has the same bytes."""

from __future__ import annotations

import copy
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from aspire import train
from aspire.api import Interrupted, prepare, replay, resume
from aspire.api.engines import crew_and_job
from aspire.cli import main
from aspire.runs import callbacks
from aspire.runs.errors import Stopped
from tests.helpers import blobs, linear
from tests.runtimes.threads import ThreadEngine

QUICK: dict[str, Any] = {"iterations": 60, "evaluate_every": 10, "batch_size": 8}
BYTES = ("events.jsonl", "history.jsonl", "model.safetensors")


class Seen:
    """Writes down what it is told."""

    def __init__(self, stop_at: float = np.inf) -> None:
        self.stop_at = stop_at
        self.told: list[tuple[str, Any]] = []

    def on_start(self, facts: Any) -> None:
        self.told.append(("start", facts))

    def on_evaluate(self, line: dict[str, Any]) -> str | None:
        self.told.append(("evaluate", line))
        return "stop" if line["t"] >= self.stop_at else None

    def on_end(self, run: Any) -> None:
        self.told.append(("end", run))

    def on_error(self, error: BaseException) -> None:
        self.told.append(("error", error))

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def of(self, name: str) -> list[Any]:
        return [x for told, x in self.told if told == name]


def trained(out: Path, *given: Any, **arguments: Any) -> Any:
    return train(linear(), blobs(), out=out, callbacks=given, **QUICK | arguments)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in BYTES}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of the run without callbacks."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    trained(folder)
    return contents(folder)


def test_a_callback_sees_the_run(tmp_path: Path, plain: dict[str, bytes]) -> None:
    seen = Seen()
    run = trained(tmp_path / "run", seen)
    assert seen.names() == ["start", *["evaluate"] * 6, "end"]
    (facts,) = seen.of("start")
    assert (facts.sites, facts.folder, facts.iteration) == (run.sites, tmp_path / "run", 0)
    assert facts.settings["iterations"] == 60
    assert seen.of("evaluate") == run.history
    assert seen.of("end") == [run]
    assert contents(tmp_path / "run") == plain


def test_only_the_hooks_that_a_callback_has_are_called(tmp_path: Path) -> None:
    class Ends:
        def on_end(self, run: Any) -> None:
            ended.append(run.iterations)

    ended: list[int] = []
    train(linear(), blobs(), callbacks=[Ends()], **QUICK)
    assert ended == [60]


@pytest.mark.parametrize("hook", callbacks.HOOKS)
def test_a_callback_that_raises_is_reported_once(
    hook: str, tmp_path: Path, plain: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __init__(self, error: BaseException) -> None:
            setattr(self, hook, self._raise)
            self._error = error

        def _raise(self, _: Any) -> None:
            raise self._error

    seen = Seen()
    for number, error in enumerate((ZeroDivisionError("1/0"), SystemExit(3))):
        trained(tmp_path / f"run-{number}", Broken(error), seen)
        assert contents(tmp_path / f"run-{number}") == plain
    assert seen.names() == ["start", *["evaluate"] * 6, "end"] * 2
    said = [x.message for x in caplog.records if "Broken" in x.message]
    if hook == "on_error":
        assert said == []
        return
    place = f"({__file__}, line {Broken._raise.__code__.co_firstlineno + 1}, in _raise)"
    assert said == [
        f"{hook} of Broken raised ZeroDivisionError: 1/0 {place}; the run goes on without it",
        f"{hook} of Broken raised SystemExit: 3 {place}; the run goes on without it",
    ]


def test_nothing_that_a_callback_does_changes_a_number(
    tmp_path: Path, plain: dict[str, bytes]
) -> None:
    class Meddler:
        def on_start(self, facts: Any) -> None:
            facts.settings["seed"] = 7
            facts.settings["delays"] = None

        def on_evaluate(self, line: dict[str, Any]) -> None:
            torch.manual_seed(7)
            np.random.seed(7)
            random.seed(7)
            torch.set_num_threads(2)
            line["losses"].clear()
            line.clear()

        def on_end(self, run: Any) -> None:
            with torch.no_grad():
                run.model.weight.zero_()

    run = trained(tmp_path / "run", Meddler())
    assert contents(tmp_path / "run") == plain
    assert run.settings["seed"] == 0
    assert run.settings["delays"] is not None


@pytest.mark.parametrize("engine", [None, ThreadEngine()], ids=["simulator", "engine"])
def test_a_callback_ends_the_run(engine: Any, tmp_path: Path) -> None:
    seen = Seen(stop_at=30)
    more = {} if engine is None else {"engine": engine}
    run = trained(tmp_path / "run", seen, iterations=100_000, **more)
    assert run.ended_by == "callbacks"
    assert seen.of("end") == [run]
    assert 30 <= run.iterations < 100_000
    assert "stopped early: a callback asked for it (callbacks)" in repr(run)
    job = prepare(linear(), blobs(), **QUICK | {"iterations": 100_000})
    assert replay(tmp_path / "run", job)[0] > 30
    if engine is None:
        assert run.iterations == 30
        same = train(linear(), blobs(), **QUICK | {"iterations": 30, "evaluate_every": 10})
        assert all(map(torch.equal, run.model.parameters(), same.model.parameters()))


def test_an_answer_that_is_not_stop_means_nothing() -> None:
    class Chatty:
        def __init__(self, answer: Any) -> None:
            self.answer = answer

        def on_evaluate(self, line: dict[str, Any]) -> Any:
            return self.answer

    answers = [True, "go on", np.array(["stop", "stop"]), torch.ones(3), ["stop"]]
    given = [Chatty(answer) for answer in answers]
    assert train(linear(), blobs(), callbacks=given, **QUICK).iterations == 60


def test_an_error_that_cannot_be_shown_harms_no_run() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Strange:
        def on_evaluate(self, line: dict[str, Any]) -> None:
            raise Mute

        @property
        def on_end(self) -> Any:
            raise Mute

    assert train(linear(), blobs(), callbacks=[Strange()], **QUICK).iterations == 60


@pytest.mark.parametrize("engine", [None, ThreadEngine()], ids=["simulator", "engine"])
def test_callbacks_of_a_run_that_is_interrupted_and_resumed(engine: Any, tmp_path: Path) -> None:
    first, then, steps = Seen(), Seen(), list[int]()
    more: dict[str, Any] = {} if engine is None else {"engine": engine}
    with pytest.raises(Interrupted):
        trained(
            tmp_path / "run",
            first,
            progress=steps.append,
            stop=lambda: len(steps) >= 35,
            **more,
        )
    assert first.names()[0] == "start"
    assert first.names()[-1] == "error"
    assert isinstance(first.of("error")[0], Interrupted)
    if engine is None:
        crew, job = None, prepare(linear(), blobs(), **QUICK)
    else:
        crew, job = crew_and_job(linear(), blobs(), QUICK)
    run = resume(tmp_path / "run", job, callbacks=[then], crew=crew, **more)
    assert (then.of("start")[0].iteration, run.iterations) == (35, 60)
    assert [*first.of("evaluate"), *then.of("evaluate")] == run.history
    assert then.names()[-1] == "end"


def test_a_run_that_breaks_down_says_so_to_its_callbacks() -> None:
    seen = Seen()
    sites = {name: {"train": (1e30 * x["train"][0], x["train"][1])} for name, x in blobs().items()}
    with pytest.raises((Stopped, ValueError)):
        train(linear(), sites, callbacks=[seen], method=None, preset="paper", **QUICK)
    assert seen.names()[-1] == "error"


def test_a_callback_in_the_background_delays_no_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    plain: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hangs(Seen):
        in_background = True

        def on_evaluate(self, line: dict[str, Any]) -> None:
            never.wait()

    monkeypatch.setattr(callbacks, "WAIT", 0.01)
    never, seen = threading.Event(), Hangs()
    trained(tmp_path / "run", seen)
    assert contents(tmp_path / "run") == plain
    assert "the end of Hangs has not come in 0.01 s" in caplog.text
    monkeypatch.setattr(callbacks, "BEHIND", 3)
    trained(tmp_path / "other", copy.copy(seen))
    assert contents(tmp_path / "other") == plain
    assert "on_evaluate of Hangs is 3 calls behind; the run goes on without it" in caplog.text
    monkeypatch.setattr(callbacks, "BEHIND", 8)  # on_start to on_end, one of them in its hands
    trained(tmp_path / "last", copy.copy(seen))
    assert contents(tmp_path / "last") == plain
    never.set()


def test_a_callback_in_the_background_has_seen_all_when_train_returns() -> None:
    class Thread(Seen):
        in_background = True

    seen = Thread()
    run = train(linear(), blobs(), callbacks=[seen], **QUICK)
    assert seen.names() == ["start", *["evaluate"] * 6, "end"]
    assert seen.of("evaluate") == run.history


FILE = """
from tests.helpers import blobs, linear
from tests.test_callbacks import Wrote

def model():
    return linear()

def sites():
    return blobs()

def callbacks():
    return {given}
"""


class Wrote:
    """Ends a run after 30 steps, and writes down what it was told."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_start(self, facts: Any) -> None:
        self._write(f"start {facts.iteration}")

    def on_evaluate(self, line: dict[str, Any]) -> str | None:
        return "stop" if line["t"] == 30 else None

    def on_end(self, run: Any) -> None:
        self._write(f"end {run.iterations} {run.ended_by}")

    def _write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")


def test_callbacks_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    told = tmp_path / "told"
    file.write_text(FILE.format(given=f"[Wrote({str(told)!r})]"))
    run = ["--out", str(tmp_path / "run"), "--iterations", "60", "--evaluate-every", "10"]
    done = CliRunner().invoke(main, ["train", str(file), *run])
    assert done.exit_code == 0, done.output
    assert "stopped early: a callback asked for it" in done.stdout
    assert told.read_text() == "start 0\nend 30 callbacks\n"
    done = CliRunner().invoke(main, ["resume", str(tmp_path / "run"), "--iterations", "80"])
    assert done.exit_code == 0, done.output
    assert told.read_text().splitlines()[2:] == ["start 30", "end 80 iterations"]
    done = CliRunner().invoke(main, ["replay", str(tmp_path / "run")])
    assert "the same state, bit for bit" in done.stdout
    file.write_text(FILE.format(given="[Wrote]"))
    done = CliRunner().invoke(main, ["train", str(file), "--out", str(tmp_path / "other")])
    assert (done.exit_code, (tmp_path / "other").exists()) == (2, False)
    assert "callbacks has the class Wrote: expected objects with on_start" in done.output


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    train(linear(), blobs(), progress=True, **QUICK)
    tenths = "".join(f"{t} of 60\n" for t in range(6, 61, 6))
    assert capsys.readouterr() == ("", tenths)
    train(linear(), blobs(), progress=True, engine=ThreadEngine(), **QUICK)
    assert capsys.readouterr().err == tenths
    train(linear(), blobs(), progress=True, gradients=400, batch_size=8)
    assert capsys.readouterr().err.splitlines()[0] == "100 iterations"
