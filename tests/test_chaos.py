"""Twenty of the events of benchmarks/chaos.py; the two hundred are that command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDS = {"federation": "grpc", "ray": "ray"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", NEEDS)
def test_a_run_outlives_its_surroundings(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[engine], reason=f"needs pip install 'aspire-ease[{engine}]'")
    script, answers = str(ROOT / "benchmarks" / "chaos.py"), str(tmp_path / "answers.json")
    options = ["--events", "20", "--minutes", "0.4", "--stop-seconds", "8", "--json", answers]
    done = subprocess.run(
        [sys.executable, script, "--engine", engine, *options],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert (tmp_path / "answers.json").exists(), done.stdout + done.stderr
    (answer,) = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))
    assert answer["ended"], answer
    assert answer["replay equal"], answer
    assert answer["each report once"], answer
    assert answer["nothing lost before a checkpoint"], answer
    assert answer["injected"] >= 15, answer  # an event that finds nobody to hit does not count
