"""The command line, in process and as a real process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from aspire.cli import main
from tests.helpers import forged

FILE = """
import torch
from aspire.sets import CDNorm

def model():
    return torch.nn.Linear(3, 2)

def site(name):
    rng = torch.Generator().manual_seed(ord(name))
    x = torch.randn(40, 3, generator=rng)
    return x, (x[:, 0] > 0.1 * ord(name) - 10).long()

def sites():
    return ["a", "b", "c"]

def uncertainty():
    return CDNorm(radius=0.2, budget=2.0)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def call(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    return result.exit_code, result.output


def test_train_and_replay(file, tmp_path):
    out = tmp_path / "run"
    code, text = call("train", file, "--iterations", 40, "--batch-size", 8, "--out", out)
    assert code == 0
    assert "worst site" in text
    assert json.loads((out / "run.json").read_text())["source"]["options"]["iterations"] == 40
    code, text = call("replay", out)
    assert code == 0
    assert "bit for bit" in text


def test_replay_notices_another_file_and_another_log(file, tmp_path):
    out = tmp_path / "run"
    call("train", file, "--iterations", 20, "--out", out)
    events = out / "events.jsonl"
    lines = events.read_text().splitlines()
    record = json.loads(lines[5])
    forged(events, 5, gradients=9.0)
    code, text = call("replay", out)
    assert code == 2
    assert f"event {record['n']}," in text
    events.write_text("\n".join([*lines[:5], *lines[6:]]))
    assert "expected a log of level full" in call("replay", out)[1]
    file.write_text(FILE + "\n# changed\n")
    code, text = call("replay", out)
    assert code == 2
    assert "has changed since" in text


def test_the_sites_may_be_given_themselves(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE.replace('["a", "b", "c"]', '{n: site(n) for n in "ab"}'))
    code, text = call("train", path, "--iterations", 10)
    assert code == 0
    assert "\nb " in text


SPOILT = {
    "unknown file": (None, [], "expected a Python file"),
    "syntax": ("def model(:", [], "does not load: SyntaxError"),
    "no model": ("def sites(): return []", [], "has no function model()"),
    "model raises": (FILE.replace("Linear(3, 2)", "Linear(3, 0/0)"), [], "ZeroDivisionError"),
    "not a module": (FILE.replace("torch.nn.Linear(3, 2)", "3"), [], "expected a torch module"),
    "empty site": (FILE.replace("randn(40", "randn(0"), [], "is empty"),
    "negative radius": (FILE.replace("radius=0.2", "radius=-0.2"), [], "radius"),
    "quorum": (FILE, ["--quorum", "9"], "quorum=9"),
    "iterations": (FILE, ["--iterations", "-3"], "iterations=-3"),
    "not a number": (FILE, ["--iterations", "many"], "many"),
    "preset": (FILE, ["--preset", "best"], "preset='best'"),
    "device": (FILE, ["--device", "tpu9"], "device='tpu9'"),
    "wrong output": (FILE.replace("Linear(3, 2)", "Linear(4, 2)"), [], "do not take inputs"),
}


@pytest.mark.parametrize(("text", "options", "sentence"), SPOILT.values(), ids=SPOILT.keys())
def test_bad_input_is_one_sentence_and_code_two(text, options, sentence, tmp_path):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    code, output = call("train", path, *options, "--out", tmp_path / "run")
    assert code == 2
    assert sentence in output
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_not_touched(file, tmp_path):
    out = tmp_path / "run"
    call("train", file, "--iterations", 10, "--out", out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    code, text = call("train", file, "--iterations", 20, "--out", out)
    assert code == 2
    assert "expected a new or an empty folder" in text
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_replay_of_nothing(tmp_path):
    code, text = call("replay", tmp_path)
    assert code == 2
    assert "expected a file of a run" in text


def begun(file, out, iterations, *options):
    """A real process that trains, stopped by the test once it has written some history."""
    command = [sys.executable, "-m", "aspire", "train", file, "--iterations", str(iterations)]
    process = subprocess.Popen(
        [*command, "--evaluate-every", "50", "--out", out, *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    while not (out / "history.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_resumes_to_the_same_bytes(file, tmp_path, number):
    """An interrupt leaves a checkpoint; a kill loses what came after the last one, no more."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    process = begun(file, out, 3000, "--checkpoint-seconds", "0.05")
    with process:
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "Interrupted: stopped after " in errors
        assert errors.endswith(f"; continue with: aspire resume {shlex.quote(str(out))}\n")
    assert "Traceback" not in errors
    assert not (out / "result.json").exists()
    code, text = call("replay", out)
    assert code == 2
    assert "did not finish" in text
    code, text = call("resume", out)
    assert code == 0
    code, _ = call("train", file, "--iterations", 3000, "--evaluate-every", 50, "--out", whole)
    assert code == 0
    for name in ("events.jsonl", "history.jsonl", "model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert call("replay", out)[0] == 0
    code, text = call("resume", out)
    assert code == 2
    assert "has ended" in text


def test_resume_needs_the_same_job(file, tmp_path):
    out = tmp_path / "run"
    process = begun(file, out, 100000)
    with process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    settings = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(settings | {"seed": 5}))
    code, text = call("resume", out)
    assert code == 2
    assert "checksum" in text
    del settings["checksum"]  # who changes the file by hand leaves it out
    (out / "run.json").write_text(json.dumps(settings | {"seed": 5}))
    code, text = call("resume", out)
    assert code == 2
    assert "seed was 5" in text
    for path in (out / "checkpoints").iterdir():
        path.write_bytes(b"nothing")
    (out / "run.json").write_text(json.dumps(settings))
    code, text = call("resume", out)
    assert code == 2
    assert "expected a whole checkpoint" in text


def test_version_and_help():
    assert call("--version")[0] == 0
    assert "demo" in call("--help")[1]


@pytest.mark.parametrize("command", ["data", "demo", "reproduce"])
def test_commands_of_a_checkout_say_what_is_missing(command, monkeypatch):
    elsewhere = [path for path in sys.path if not Path(path, "reproduction").is_dir()]
    monkeypatch.setattr(sys, "path", elsewhere)
    for module in ("reproduction", "reproduction.commands"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    code, text = call(command, "--help")
    assert code == 2
    assert "are part of the repository" in text
    assert len(text.strip().splitlines()) == 1
    assert f"\n  {command} " not in call("--help")[1]


def test_a_checkout_has_all_commands():
    text = call("--help")[1]
    for command in ("data", "demo", "report", "reproduce", "train", "replay"):
        assert f"\n  {command} " in text
