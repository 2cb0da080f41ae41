"""--method and method() of FILE.py, on the simulator: what is chosen, recorded and refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from aspire.api import train
from aspire.api.user_file import parts_of, read
from aspire.cli import main
from aspire.methods import afl, direct
from tests.method_files import METHODS, OWN, PROBLEM

OPTIMIZER = """
def optimizer(groups):
    return torch.optim.SGD(groups, lr=0.3)

def schedule(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
"""
USES_AFL = """
from aspire.methods import afl, aspire

def method():
    return afl(rate=0.3)
"""
ROBUST = """
from aspire.sets import CDNorm

def uncertainty():
    return CDNorm(radius=0.1, budget=1.0)
"""


def call(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    return result.exit_code, result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PROBLEM)
    return path


def trained(file: Path, *options: Any, steps: int = 30) -> dict[str, Any]:
    """run.json of a run with a folder beside the file."""
    out = file.parent / "run"
    code, text = call(
        "train", file, "--iterations", steps, "--batch-size", 8, "--out", out, *options
    )
    assert code == 0, text
    return json.loads((out / "run.json").read_text())


@pytest.mark.parametrize("text", METHODS)
def test_a_named_method_trains_and_replays(file: Path, text: str) -> None:
    settings = trained(file, "--method", text)
    assert settings["method"] == text.partition("(")[0]
    assert settings["source"]["options"]["method"] == text
    code, said = call("replay", file.parent / "run")
    assert code == 0
    assert "bit for bit" in said


def test_a_named_method_is_the_one_of_python(file: Path) -> None:
    file.write_text(PROBLEM + ROBUST)
    trained(file, "--method", "afl(rate=0.3, quorum=1)")
    found = json.loads((file.parent / "run" / "result.json").read_text())
    options = {"iterations": 30, "batch_size": 8, "seed": 0}
    model, sites, arguments = parts_of(read(file), options)
    run = train(model, sites, **{**arguments, "method": afl(rate=0.3, quorum=1)})
    assert found["losses"] == run.losses.tolist()


def test_options_are_arguments_of_the_method(file: Path) -> None:
    settings = trained(file, "--method", "fedavg(rate=0.1)", "--local-steps", 3, "--quorum", 1)
    assert (settings["local_steps"], settings["quorum"], settings["rate"]) == (3, 1, 0.1)


def test_nothing_chosen_is_aspire_with_its_options(file: Path) -> None:
    settings = trained(file, "--staleness", 5, "--preset", "paper(eta_w=0.1)")
    assert settings["method"] == "aspire"
    assert (settings["quorum"], settings["staleness"], settings["local_steps"]) == (1, 5, 1)
    assert "eta_w=0.1" in settings["preset"]


def test_method_of_the_file_and_what_counts_more(file: Path) -> None:
    file.write_text(PROBLEM + USES_AFL)
    settings = trained(file)
    assert (settings["method"], settings["rate"]) == ("afl", 0.3)
    assert settings["source"]["options"]["method"] is None
    assert call("replay", file.parent / "run")[0] == 0
    (file.parent / "run").rename(file.parent / "before")
    assert trained(file, "--method", "fedavg")["method"] == "fedavg"


def test_the_set_of_the_file_goes_to_a_named_method_that_takes_one(file: Path) -> None:
    file.write_text(PROBLEM + ROBUST)
    _, _, arguments = parts_of(read(file), {"batch_size": 8, "seed": 0, "method": "gdmax"})
    assert arguments["method"].settings["uncertainty"] == arguments["uncertainty"]
    _, _, arguments = parts_of(read(file), {"batch_size": 8, "seed": 0, "method": "afl"})
    assert "uncertainty" not in arguments["method"].settings


def test_optimizer_and_schedule_of_the_file(file: Path) -> None:
    """Used by a method that takes them, as if they were given in Python."""
    file.write_text(PROBLEM + OPTIMIZER)
    settings = trained(file, "--method", "direct")
    assert (settings["optimizer"], settings["schedule"]) == ("optimizer", "schedule")
    found = json.loads((file.parent / "run" / "result.json").read_text())
    space: dict[str, Any] = {}
    exec(PROBLEM + OPTIMIZER, space)
    torch.manual_seed(0)
    run = train(
        space["model"](), {n: space["site"](n) for n in space["sites"]()}, iterations=30,
        batch_size=8,
        method=direct(optimizer=space["optimizer"], schedule=space["schedule"]),
    )  # fmt: skip
    assert found["losses"] == run.losses.tolist()
    assert call("replay", file.parent / "run")[0] == 0


REFERENCE = """
def reference():
    return {"b": 0.3, "a": 0.1}
"""
WITH_VAL = PROBLEM.replace('{"train"', '{"val": (x[:10], y[:10]), "train"')


def test_a_reference_of_the_file_and_what_counts_more(file: Path) -> None:
    file.write_text(WITH_VAL + REFERENCE)
    settings = trained(file, "--method", "direct")
    assert settings["reference"] == {"b": 0.3, "a": 0.1}
    assert call("replay", file.parent / "run")[0] == 0
    (file.parent / "run").rename(file.parent / "before")
    settings = trained(file, "--reference", "own-best")
    assert (settings["form"], settings["reference"]) == ("direct", "own-best")
    assert settings["own_gradients"] == 15  # 30 steps of one gradient at two sites
    assert call("replay", file.parent / "run")[0] == 0


def test_a_file_may_give_a_model_as_reference(file: Path) -> None:
    file.write_text(PROBLEM + "\n\ndef reference():\n    return model()\n")
    assert trained(file, "--method", "direct")["reference"].startswith("model ")
    assert call("replay", file.parent / "run")[0] == 0


def test_an_optimizer_that_the_method_does_not_take_is_said(file: Path) -> None:
    file.write_text(PROBLEM + OPTIMIZER)
    code, said = call("train", file, "--iterations", 5, "--method", "central")
    assert code == 0
    assert f"optimizer() of {file} is not used: central takes none" in said


def test_an_optimizer_by_name_counts_more_than_that_of_the_file(file: Path) -> None:
    file.write_text(PROBLEM + OPTIMIZER)
    settings = trained(file, "--method", "afl(optimizer='adam', settle=20)")
    assert (settings["optimizer"], settings["schedule"]) == ("adam", "schedule")
    assert call("replay", file.parent / "run")[0] == 0


REFUSED = {
    "name": (PROBLEM, ("--method", "alf"), "expected one of afl, .*did you mean 'afl'"),
    "argument": (PROBLEM, ("--method", "afl(rat=1)"), "no argument 'rat'"),
    "code": (PROBLEM, ("--method", "afl(rate=exit())"), "expected NAME"),
    "staleness": (
        PROBLEM,
        ("--method", "afl", "--staleness", "3"),
        "staleness=3: expected no such option, since afl has no staleness",
    ),
    "preset": (PROBLEM, ("--method", "fedavg", "--preset", "auto"), "fedavg has no preset"),
    "steps": (PROBLEM, ("--method", "gda", "--local-steps", "2"), "gda has no local_steps"),
    "twice": (
        PROBLEM,
        ("--method", "afl(quorum=1)", "--quorum", "1"),
        "quorum=1 is also in method='afl.quorum=1.'",
    ),
    "an option and method()": (
        PROBLEM + USES_AFL,
        ("--quorum", "1"),
        "quorum=1: expected no such option, since .* has a method",
    ),
    "no method": (PROBLEM + "def method(): return 3", (), "method.. gave an int: expected"),
    "reference() raises": (
        PROBLEM + "def reference(): return 1/0",
        ("--method", "direct"),
        "reference.. raised ZeroDivision",
    ),
    "no val": (
        PROBLEM,
        ("--reference", "own-best"),
        "reference='own-best' compares losses on val parts: .*site 'a' has none",
    ),
    "method() raises": (PROBLEM + "def method(): return 1/0", (), "method.. raised ZeroDivision"),
    "another set": (
        PROBLEM + ROBUST + USES_AFL.replace("afl(rate=0.3)", "aspire()"),
        (),
        "without the set of uncertainty.*expected aspire.uncertainty",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, file: Path) -> None:
    text, options, sentence = REFUSED[name]
    file.write_text(text)
    code, said = call("train", file, "--iterations", 5, *options)
    assert code == 2, said
    with pytest.raises(ValueError, match=sentence):
        raise ValueError(said)


@pytest.mark.parametrize("text", [*METHODS, None])
def test_a_stopped_run_is_resumed_with_the_same_method(
    file: Path, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --method it is method() of the file, one that no package has."""
    if text is None:
        file.write_text(OWN)
    chosen = () if text is None else ("--method", text)
    name = trained(file, *chosen)["method"]
    whole = json.loads((file.parent / "run" / "result.json").read_text())

    @contextlib.contextmanager
    def soon() -> Iterator[Any]:
        asked = iter(range(10**6))
        yield lambda: next(asked) > 12

    out = file.parent / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr("aspire.cli.run.stoppable", soon)
        code, said = call(
            "train", file, "--iterations", 30, "--batch-size", 8, "--out", out, *chosen
        )
        assert code == 130, said
    code, said = call("resume", out)
    assert code == 0, said
    result = json.loads((out / "result.json").read_text())
    assert (result["method"], result["losses"]) == (name, whole["losses"])
    assert call("replay", out)[0] == 0
