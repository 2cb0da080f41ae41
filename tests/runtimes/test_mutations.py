"""1,000 checkpoints that hold something else than they should, each with a checksum that fits.

Reading one, and going on from it, gives an outcome or one of our own errors: nothing else escapes.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aspire.api import Interrupted, resume
from aspire.api.user_file import crew_of, job_of, read
from aspire.engines import driver
from aspire.runs import checkpoint
from aspire.runs.errors import Stopped
from tests.runtimes import damage, mutations
from tests.runtimes.threads import ThreadEngine

TURNS = 300  # of a driver, after which it is stopped: made-up workers never answer


class Case:
    """A stopped run and its newest checkpoint, to be changed again and again."""

    def __init__(self, folder: Path, level: str, **options: Any) -> None:
        self.folder, self.options = folder, options
        first, *others = checkpoint.files(folder)
        self.name, (self.tree, self.tensors) = first.name, checkpoint.load(first)
        for path in (first, *others):
            path.unlink()
        sites = [] if "engine" in options else None
        self.job = job_of(read(folder.parent / "file.py"), damage.OPTIONS, sites)
        self.job.settings["log"] = level

    def goes_on(self, copy: Path, seed: int) -> str:
        """How it ended with the checkpoint changed by this seed."""
        shutil.copytree(self.folder, copy)
        changed = mutations.mutated(Random(seed), self.tree, self.tensors)
        mutations.written(copy / checkpoint.FOLDER / self.name, *changed)
        turns = iter(range(TURNS))
        try:
            resume(copy, self.job, stop=lambda: next(turns, None) is None, **self.options)
            return "ended"
        except Interrupted:
            return "stopped"
        except (ValueError, Stopped) as error:
            return "no state of this run" if "expected a whole" in str(error) else "broke down"
        finally:
            shutil.rmtree(copy)


def case(kind: str, place: Path) -> Case:
    if kind != "engine":
        return Case(damage.simulated(place, kind, finished=False), kind)
    engine = ThreadEngine()
    folder = damage.federated(place, engine, finished=False)
    crew = crew_of(read(place / "file.py"), damage.OPTIONS, ["a", "b", "c"])
    return Case(folder, "vectors", engine=engine, crew=crew)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "count"), [("full", 400), ("digest", 400), ("engine", 200)])
def test_only_our_own_errors_escape(
    kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "TICK", 0.005)
    monkeypatch.setattr(logging.getLogger("aspire"), "disabled", True)
    one = case(kind, tmp_path)
    found = Counter(one.goes_on(tmp_path / "copy", seed) for seed in range(count))
    # most are noticed before anything is done, and some changes are none, or no worse than numbers
    assert found["no state of this run"] > 0.6 * count
    assert found["ended"] > 0.05 * count
    assert found["broke down"] < 0.1 * count
