"""`aspire new`: each template trains at once, and its README names commands that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aspire.cli import main
from aspire.cli.new import TEMPLATES

TASKS = [name for name in TEMPLATES if name != "federation"]


def aspire(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("template", TASKS)
def test_a_template_trains_on_data_that_it_makes(template, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = aspire("new", "mine", "--template", template)
    first = said.splitlines()[1].split()
    assert first[:2] == ["aspire", "train"]
    options = ["--iterations", "4", "--batch-size", "8"]
    aspire("train", "mine/task.py", *options, "--out", "mine/run")
    result = json.loads((tmp_path / "mine/run/result.json").read_text())
    assert result["evaluated_on"] == "test"
    assert min(result["val_samples"]) >= 100
    assert len(result["sites"]) == len(result["accuracies"]) >= 4


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_readme_of_a_template_names_commands_that_exist(template, tmp_path):
    target = tmp_path / "mine"
    next_steps = aspire("new", str(target), "--template", template)
    text = (target / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ aspire (.*)$", text, flags=re.MULTILINE)
    commands += re.findall(r"^  aspire (.*)$", next_steps, flags=re.MULTILINE)
    assert len(commands) >= 4
    for command in commands:
        found: click.Command = main
        words = shlex.split(command)
        while isinstance(found, click.Group):
            name, found, words = found.resolve_command(click.Context(main), words)
        found.make_context(name, words)  # parses the options


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    result = CliRunner().invoke(main, ["new", str(tmp_path / "mine")])
    assert result.exit_code == 2
    assert "expected a folder that is not there yet" in result.output
    assert os.listdir(tmp_path / "mine") == []


def test_an_unknown_template_is_refused(tmp_path):
    result = CliRunner().invoke(main, ["new", str(tmp_path / "x"), "--template", "audio"])
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_templates_hold_no_leftovers(tmp_path):
    """Python keeps compiled files beside installed ones; they are not copied."""
    for template in TEMPLATES:
        aspire("new", str(tmp_path / template), "--template", template)
    kinds = {path.suffix for path in Path(tmp_path).rglob("*") if path.is_file()}
    assert kinds == {".py", ".md"}
