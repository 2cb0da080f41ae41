"""The run folder: one process at a time, the log and the checkpoint together, a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from aspire.api import Interrupted, prepare, resume, train
from aspire.api.engines import train_on
from aspire.cli import main
from aspire.runs import checkpoint, folder, log
from aspire.runs import files as rundir
from aspire.runs.errors import Stopped
from aspire.runs.folder import LOCK, RunFolder
from aspire.runs.log import EventLog
from aspire.types import Report
from tests.helpers import blobs, linear
from tests.runtimes import damage
from tests.runtimes.damage import ask, contents, outcome

QUICK = {"iterations": 60, "batch_size": 8, "evaluate_every": 20}


def call(*arguments: Any) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage.simulated(tmp_path_factory.mktemp("runs"), "full", finished=False)


@pytest.fixture(scope="module")
def ended(stopped: Path) -> dict[str, bytes]:
    """What the same run ends with when it is not stopped."""
    return outcome(damage.simulated(stopped.parent, "full", finished=True))


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


# ---------------------------------------------------------------- one process at a time


def test_a_second_process_is_told_and_changes_nothing(run):
    """A real one holds the folder; it is let in when that one is killed."""
    hold = (
        "import sys, time; from pathlib import Path; from aspire.runs.folder import RunFolder\n"
        "RunFolder.open(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, run], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        before = contents(run)
        answers = [ask("resume", run) for _ in range(2)]
        assert ask("status", run).code == 0
        assert ask("replay", run).code == 2
        holder.kill()
    assert all(answer.sentence for answer in answers)
    assert "another process is at work on this run" in answers[0].text
    assert contents(run) == before
    assert ask("resume", run).code == 0


def test_a_run_that_trains_holds_its_folder(tmp_path):
    seen = []

    def look(t):
        if t == 20:
            seen.append(ask("resume", tmp_path / "run").text)
            with pytest.raises(ValueError, match="expected a new or an empty folder"):
                train(linear(), blobs(), out=tmp_path / "run", **QUICK)

    train(linear(), blobs(), out=tmp_path / "run", progress=look, **QUICK)
    assert "not started by aspire train" in seen[0]
    job = prepare(linear(), blobs(), **QUICK)
    with RunFolder.create(tmp_path / "other"), pytest.raises(ValueError, match="another process"):
        RunFolder(tmp_path / "other")
    with pytest.raises(ValueError, match="has ended"):
        resume(tmp_path / "run", job)
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_lock_that_was_taken_away_is_no_lock(tmp_path, monkeypatch):
    """Whoever opened a lock that its owner then removed has not got the folder."""
    first = RunFolder.create(tmp_path / "run")

    def late(descriptor, how):
        (tmp_path / "run" / LOCK).unlink()

    monkeypatch.setattr(folder.fcntl, "flock", late)
    with pytest.raises(ValueError, match="another process"):
        RunFolder(tmp_path / "run")
    first.close()


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def none(descriptor, how):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(folder.fcntl, "flock", none)
    train(linear(), blobs(), out=tmp_path / "run", **QUICK)
    assert "let no other process resume it" in caplog.text


@dataclass
class Nowhere:
    name: ClassVar[str] = "nowhere"

    def open(self, crew: Any, names: Any, run: str) -> Any:
        raise ValueError("no machine")


def test_a_train_that_fails_to_begin_leaves_nothing(tmp_path):
    job = prepare(linear(), blobs(), **QUICK)
    with pytest.raises(ValueError, match="no machine"):
        train_on(Nowhere(), job, None, out=tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


# ---------------------------------------------------------------- the log and the checkpoint


def test_a_short_log_is_not_made_longer(run, ended):
    """Resume goes back to the checkpoint before, and ends as if nothing had happened."""
    trail = run / log.NAME
    data = trail.read_bytes()
    trail.write_bytes(data[:-1])
    newest, older, _ = checkpoint.files(run)
    code, text = call("resume", run)
    assert code == 0, text
    assert "the log is not what it was" in text
    assert "trying the one before" in text
    assert newest.name != older.name
    assert outcome(run) == ended
    assert call("replay", run)[0] == 0


@pytest.mark.parametrize("at", [0, 1000, -300])
def test_a_changed_log_is_noticed(run, ended, at):
    trail = run / log.NAME
    data = bytearray(trail.read_bytes())
    data[at] ^= 1
    trail.write_bytes(data)
    before = contents(run)
    answer = ask("resume", run)
    if at < 0:  # after the checkpoint before the last
        assert answer.code == 0
        assert outcome(run) == ended
    else:
        assert answer.sentence
        assert "expected a whole checkpoint and the log that belongs to it" in answer.text
        assert contents(run) == before


def test_checkpoints_that_were_passed_over_are_gone(run, ended):
    newest, older, oldest = checkpoint.files(run)
    for path in (newest, older):
        path.write_bytes(path.read_bytes()[:-3])
    job = damage.job_of(damage.read(damage.file_in(run.parent)), damage.OPTIONS)
    job.settings["log"] = "full"
    with pytest.raises(Interrupted):
        resume(run, job, stop=lambda: True)
    assert checkpoint.files(run) == [oldest]
    assert call("resume", run)[0] == 0
    assert outcome(run) == ended


@pytest.mark.parametrize("level", ["digest", "off"])
def test_other_levels_have_no_events_to_compare(tmp_path, level):
    """At `digest` the file has a hash; at `off` there is no file."""
    stopped = damage.simulated(tmp_path, level, finished=False)
    if level == "digest":
        trail = stopped / log.NAME
        whole = trail.read_bytes()
        assert whole
        trail.write_bytes(whole[:10] + b"x" + whole[11:])
        assert ask("resume", stopped).sentence
        trail.write_bytes(whole + b"more")
    else:
        assert not (stopped / log.NAME).exists()
    assert ask("resume", stopped).code == 0


def test_history_is_what_the_checkpoint_says(run, ended):
    (run / rundir.HISTORY).write_text('{"t": 1}\nnothing')
    assert call("resume", run)[0] == 0
    assert outcome(run) == ended


SLOW = """

class Slow(torch.nn.Linear):
    def forward(self, x):
        import os, time
        if os.path.exists({flag!r}):
            time.sleep(0.02)
        return super().forward(x)
"""


def test_an_interrupt_also_of_a_resumed_run_leaves_one_that_goes_on(tmp_path):
    file, out, flag = damage.file_in(tmp_path), tmp_path / "run", tmp_path / "slow"
    text = file.read_text().replace("torch.nn.Linear(3, 2)", "Slow(3, 2)")
    file.write_text(text + SLOW.format(flag=str(flag)))
    flag.touch()
    options = ["--iterations", "300", "--evaluate-every", "0", "--checkpoint-seconds", "0.05"]
    begin = ["train", file, "--out", out, *options]
    for command, number in ((begin, signal.SIGINT), (["resume", out], signal.SIGTERM)):
        known = set(checkpoint.files(out))
        process = subprocess.Popen(
            [sys.executable, "-m", "aspire", *command], stderr=subprocess.PIPE, text=True
        )
        with process:
            while len(set(checkpoint.files(out)) - known) < 2 and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(number)
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
        assert f"aspire resume {out}" in errors
        assert "Traceback" not in errors
    flag.unlink()
    assert call("resume", out)[0] == 0
    assert "bit for bit" in call("replay", out)[1]


# ---------------------------------------------------------------- a full disk


class Counting:
    """A file on a full disk that counts how much it was asked to write."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self.bytes += len(data)
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        pass


def test_lines_that_wait_cost_linear_work_and_are_bounded(tmp_path, monkeypatch):
    rundir.write_json(tmp_path / "run.json", {"source": {}})
    monkeypatch.setattr(log, "WAITING", 100_000)
    trail = EventLog("full", tmp_path / log.NAME)
    trail._file = full = Counting()
    n = 0
    with pytest.raises(Stopped, match=r"No space left on device.*aspire resume"):  # noqa: PT012
        while n < 10_000:
            trail.add(float(n), Report(0, n, {}, {"loss": 1.0}))
            n += 1
    assert 500 < n < 10_000
    line = 100_000 / trail.count
    assert full.bytes < 2 * line * trail.count  # one line at a time, not all that wait


def limited(bytes_: int) -> Any:
    """Before exec: no file of the process grows beyond this; a write that would is EFBIG."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    return limit


def test_a_disk_that_is_full_all_the_time_ends_in_a_sentence(tmp_path):
    """A log that cannot grow: the run says so, and goes on when it can."""
    file, out = damage.file_in(tmp_path), tmp_path / "run"
    options = ["--iterations", "150", "--batch-size", "4", "--evaluate-every", "0"]
    command = [sys.executable, "-m", "aspire", "train", file, "--out", out, *options]
    done = subprocess.run(
        [*command, "--checkpoint-seconds", "0.1"], preexec_fn=limited(24_000),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert f"aspire resume {out}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (out / "result.json").exists()
    assert call("resume", out)[0] == 0
    assert call("replay", out)[0] == 0
    whole = tmp_path / "whole"
    assert call("train", file, "--out", whole, *options)[0] == 0
    assert outcome(out) == outcome(whole)


def test_a_small_file_system_that_is_full(tmp_path):
    """Really: a tmpfs with no room left while the run trains."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        file, out = damage.file_in(tmp_path), disk / "run"
        options = ["--iterations", "400", "--batch-size", "4", "--log", "vectors"]
        options += ["--checkpoint-seconds", "0.02"]
        code, text = call("train", file, "--out", out, *options)
        assert code == 2
        assert "No space left" in text
        assert f"aspire resume {out}" in text
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert call("resume", out)[0] == 0
        assert "bit for bit" in call("replay", out)[1]
        whole = tmp_path / "whole"
        assert call("train", file, "--out", whole, *options)[0] == 0
        assert outcome(out) == outcome(whole)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def moved(out: Path) -> Path:
    """A file stands where the checkpoints were."""
    place = out / checkpoint.FOLDER
    away = place.rename(out.with_name("away"))
    place.touch()
    return away


def restored(out: Path, away: Path) -> None:
    (out / checkpoint.FOLDER).unlink()
    away.rename(out / checkpoint.FOLDER)


def saved_state() -> checkpoint.Saved:
    return checkpoint.Saved(state={}, history=[], log=log.Place(0, "", 0, ""))


def test_checkpoints_out_of_sight_stop_no_run_that_has_one(tmp_path, caplog):
    with RunFolder.create(tmp_path / "run") as made:
        made.save(0, saved_state)
        away = moved(made.path)
        made.save(1, saved_state)
        assert "no checkpoint at iteration 1" in caplog.text
        restored(made.path, away)
        made.save(2, saved_state)
        assert [int(path.stem) for path in checkpoint.files(made.path)] == [2, 0]


def test_a_resumed_run_has_a_checkpoint_also_when_it_is_out_of_sight(run, ended, monkeypatch):
    take_up = RunFolder.take_up

    def and_lose(self, level, saved):
        trail = take_up(self, level, saved)
        moved(self.path)
        return trail

    monkeypatch.setattr(RunFolder, "take_up", and_lose)
    assert ask("resume", run).code == 0
    assert outcome(run) == ended


def test_no_run_begins_without_a_checkpoint(tmp_path):
    with RunFolder.create(tmp_path / "run") as made:
        (made.path / checkpoint.FOLDER).touch()
        with pytest.raises(Stopped, match="no checkpoint can be written"):
            made.save(0, saved_state)


@pytest.mark.parametrize("name", [rundir.MODEL, rundir.RESULT])
def test_the_result_is_there_with_its_model_or_the_run_goes_on(run, ended, monkeypatch, name):
    replace, full = os.replace, [True]

    def refuse(source, target):
        if Path(target).name == name and full:
            raise OSError(28, "No space left on device", str(target))
        replace(source, target)

    monkeypatch.setattr(rundir.os, "replace", refuse)
    answer = ask("resume", run)
    assert answer.sentence
    assert "continue with: aspire resume" in answer.text
    assert not (run / rundir.RESULT).exists()
    assert "ended" not in ask("status", run).text
    full.clear()
    assert ask("resume", run).code == 0
    assert outcome(run) == ended
    assert ask("status", run).text.splitlines()[0].endswith("ended")


def test_files_have_the_mode_of_their_neighbours(run):
    assert call("resume", run)[0] == 0
    modes = {stat.S_IMODE((run / name).stat().st_mode) for name in (rundir.RUN, rundir.MODEL)}
    assert len(modes) == 1
