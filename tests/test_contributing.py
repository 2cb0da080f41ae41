"""The diffs of CONTRIBUTING.md apply to this tree, touch few files, and do what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFFS = dict(re.findall(r"<!-- adds: (.*?) -->\n```diff\n(.*?)```\n", PAGE, re.DOTALL))
MOST = {"a method": 3, "a set": 3, "an engine": 4, "nothing": 2}

RUN = """
import hatch_build

hatch_build.LIBRARIES = {"passes": hatch_build.LIBRARIES["passes"]}
try:
    hatch_build.build()
except OSError as error:
    assert str(error) == "there is no C compiler"

import torch
from aspire import train
from aspire.engines.inline import Inline
from aspire.methods import make
from aspire.methods.aspire_ease import passes
from aspire.sets import Contaminated
from tests.methods.table import ROWS
from tests.test_every_engine import EVERY

assert "hedge" in ROWS and "hedge" in EVERY  # tested without more
loaded = passes.load("passes", passes._Step)
assert loaded is None or passes.library() is not None  # the trial: both texts of (12) agree
x = torch.randn(3, 40, 3, generator=torch.Generator().manual_seed(0))
sites = [(x[j], (x[j, :, 0] + j * x[j, :, 1] > 0).long()) for j in range(3)]
for how in ({"method": make("hedge")}, {"uncertainty": Contaminated(0.3)}):
    run = train(torch.nn.Linear(3, 2), sites, iterations=60, engine=Inline(), **how)
    assert run.worst_case_loss < 0.6, run
    assert max(run.weights) > 1 / 3
"""


def touched(diff: str) -> list[str]:
    return re.findall(r"^\+\+\+ b/(.*)$", diff, re.MULTILINE)


def test_there_is_one_of_each() -> None:
    assert {name: len(touched(diff)) for name, diff in DIFFS.items()} == MOST


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree with all diffs applied."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "hatch_build.py", folder)
    for name, diff in DIFFS.items():
        done = subprocess.run(
            ["git", "apply", "-"], input=diff, cwd=folder, capture_output=True, text=True
        )
        assert not done.returncode, f"{name}: {done.stderr}"
    return folder


def test_they_do_what_they_say(copy: Path) -> None:
    mine = {"PYTHONPATH": f"{copy / 'src'}:{copy}"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=copy, env=os.environ | mine, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
