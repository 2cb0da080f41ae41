"""Run folders for pages: one with everything in it, and names that want to be markup."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from aspire import Absence
from aspire.api import Interrupted, train
from tests.helpers import linear, validated

EVIL = "<img src=x onerror=alert(1)>%{y}&amp;</script><script>alert(2)</script>"
ABSENCES = [Absence(2, 10.0, 30.0), Absence(4, 60.0)]
QUICK: dict[str, Any] = {"iterations": 400, "batch_size": 8, "evaluate_every": 20, "seed": 3}


def sites(count: int = 10) -> dict[str, Any]:
    """Sites with all parts; the second has an evil name."""
    made = validated(count)
    names = [EVIL if j == 1 else f"hospital {j}" for j in range(count)]
    return dict(zip(names, made.values(), strict=True))


def finished(out: Path, **changes: Any) -> Path:
    train(linear(), sites(), out=out, absences=ABSENCES, **(QUICK | changes))
    return out


def stopped(out: Path, at: int = 200) -> Path:
    """The same run, stopped at this iteration."""
    steps = [0]
    asked = {"progress": steps.append, "stop": lambda: steps[-1] >= at}
    with suppress(Interrupted):
        train(linear(), sites(), out=out, absences=ABSENCES, **QUICK, **asked)
    return out


@contextmanager
def watching(run: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address, and the process, which is killed at the end."""
    command = [sys.executable, "-m", "aspire", "watch", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", line)
        assert found, process.communicate()[1]
        yield found[0], process
    finally:
        process.kill()
        process.communicate()
