"""The template `federation`: its README's commands train on localhost."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")

from aspire.cli import main


def test_the_template_trains_on_localhost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        "new clinics --template federation",
        "federation init clinics/kits --sites north,south,west --server localhost,127.0.0.1",
    ):
        assert CliRunner().invoke(main, command.split()).exit_code == 0
    done = subprocess.run(
        [sys.executable, "together.py"],
        cwd="clinics",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "clinics/run/result.json").read_text())
    assert result["sites"] == ["north", "south", "west"]
    assert result["iterations"] == 400
    assert result["evaluated_on"] == "test"
