"""The example project by `flwr run`: a SuperLink and three SuperNodes on 127.0.0.1."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("flwr", reason="needs the extra: pip install 'aspire-ease[flower]'")

from aspire.cli import main

ROOT = Path(__file__).parent.parent.parent


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_flwr_run_trains_the_example(tmp_path: Path) -> None:
    flower = script("flower")
    with flower.federation(flower.SITES, tmp_path) as env:
        result = flower.flwr_run(
            flower.EXAMPLE, env, tmp_path / "run", 400.0, iterations=4, local_steps=20
        )
    assert result["iterations"] == 4
    assert result["worker_gradients"] >= 4 * 20 + 3 * 13  # the steps, and a probe from each site
    assert sorted(result["sites"]) == sorted(flower.SITES)
    assert np.isfinite(result["losses"]).all()
    assert result["evaluated_on"] == "test"
    replayed = CliRunner().invoke(main, ["replay", str(tmp_path / "run")])
    assert replayed.exit_code == 0, replayed.output
    assert "the same state, bit for bit" in replayed.output
