"""One seed, one result: what is logged, kept, shown or evaluated never changes a number."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

from aspire import train
from aspire.api import prepare, resume
from aspire.api.stopping import USUAL
from aspire.api.user_file import OF_METHODS, parts_of, read
from aspire.cli import main

PROBLEM = """
import torch


def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


def sites():
    rng = torch.Generator().manual_seed(7)
    x = torch.randn(3, 80, 3, generator=rng)
    y = (x[..., 0] + torch.arange(3)[:, None] * x[..., 1] > 0).long()
    part = lambda j, k: (x[j, k : k + 40], y[j, k : k + 40])
    return {f"site {j}": {"train": part(j, 0), "val": part(j, 40)} for j in range(3)}
"""
METHODS = ("direct", "consensus", "afl")
OPTIONS: dict[str, Any] = {"seed": 3, "batch_size": 8, "iterations": 120, "select": "last"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.py"
    path.write_text(PROBLEM)
    return path


def trained(file: Path, name: str, **how: Any) -> dict[str, Tensor]:
    """The parameters after a run from the module that the command line makes of this file."""
    model, sites, arguments = parts_of(read(file), OPTIONS | {"method": name})
    return train(model, sites, **(arguments | how)).model.state_dict()


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[n]) for n, x in one.items())


@pytest.mark.parametrize("name", METHODS)
def test_how_one_looks_at_a_run_changes_no_number(name: str, file: Path, tmp_path: Path) -> None:
    expected = trained(file, name, evaluate_every=1)
    ways: dict[str, dict[str, Any]] = {f"every {k}": {"evaluate_every": k} for k in (0, 100)}
    for level in ("full", "vectors", "digest", "off"):
        ways[level] = {"log": level}
        ways[f"kept, {level}"] = {"log": level, "out": tmp_path / level}
    ways["kept"] = {"out": tmp_path / "kept", "checkpoint_seconds": 1e-6}
    for way, how in ways.items():
        assert same(trained(file, name, **how), expected), way
    out = tmp_path / "command"
    options = ["--seed", 3, "--batch-size", 8, "--iterations", 120, "--select", "last"]
    given = ["train", file, "--method", name, "--out", out, *options]
    done = CliRunner().invoke(main, [str(x) for x in given])
    assert done.exit_code == 0, done.output
    assert same(load_file(out / "model.safetensors"), expected)


@pytest.mark.parametrize("name", METHODS)
def test_run_json_says_what_the_bytes_depend_on(name: str, file: Path, tmp_path: Path) -> None:
    trained(file, name, out=tmp_path / "run", execution="plain")
    said = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (said["device"], said["precision"], said["execution"]) == ("cpu", "float32", "plain")
    assert said["versions"]["threads"] == torch.get_num_threads()
    assert isinstance(said["versions"]["compiled"], bool)
    assert {"torch", "numpy", "python", "aspire"} <= said["versions"].keys()


# ---------------------------------------------------------------- defaults


@pytest.mark.parametrize(("name", "function"), [("train", train), ("resume", resume)])
def test_the_command_line_has_pythons_defaults(name: str, function: Any) -> None:
    """An option of a method that is not given is not passed on, so the method's default counts."""
    arguments = {**inspect.signature(prepare).parameters, **inspect.signature(function).parameters}
    python = {key: one.default for key, one in arguments.items()} | {"iterations": USUAL}
    if name == "resume":
        python["iterations"] = None
    elif python["batch_size"] == "auto":  # the same as an option that is not given
        python["batch_size"] = None
    given = [key for key, default in python.items() if default is inspect.Parameter.empty]
    said = main.commands[name].make_context(name, ["file"]).params
    for key in said.keys() & python.keys() - set(given):
        if said[key] is not None or key not in OF_METHODS:
            assert said[key] == python[key], key


def test_without_a_limit_both_run_as_long() -> None:
    job = prepare(torch.nn.Linear(3, 2), [(torch.randn(9, 3), torch.arange(9) % 2)])
    assert job.iterations == USUAL
