"""Damaged run folders: every command recovers, or ends in one sentence and exit code 2."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtimes import damage
from tests.runtimes.damage import (
    COMMANDS,
    LEVELS,
    Answer,
    Harm,
    ask,
    contents,
    harms,
    outcome,
    steady,
)
from tests.runtimes.threads import Threads

pytest.importorskip("grpc", reason="needs aspire-ease[federation]")
from aspire.api.user_file import job_of, read
from aspire.engines.grpc import kits
from aspire.engines.grpc.engine import FederationEngine, federation
from aspire.pages import document

FOLDERS = [f"{kind}-{end}" for kind in (*LEVELS, "federation") for end in ("finished", "stopped")]
DRAWN = 20


@pytest.fixture(scope="module", autouse=True)
def threads() -> Any:
    """The federation's sites are threads here: what is tried is the folder, not the wire.

    Pages are without plotly.js, whose 5 MB would be written 600 times.
    """
    change = pytest.MonkeyPatch()
    change.setattr(document, "plotly", lambda: "")
    change.setattr(FederationEngine, "open", lambda self, crew, names, run: Threads(crew))
    yield
    change.undo()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, threads: None) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("runs")
    made = []
    for level in LEVELS:
        made += [damage.simulated(place, level, finished=end) for end in (True, False)]
    kits.init(place / "kits", ["a", "b", "c"], ["127.0.0.1"], 2)
    source = read(damage.file_in(place))
    job = job_of(source, damage.OPTIONS, only=[], names=["a", "b", "c"])
    engine = federation(
        job.problem.flat.start, job.settings, job.method, kit=place / "kits" / "server",
        listen="127.0.0.1:9", file=source.sha256,
    )  # fmt: skip
    made += [damage.federated(place, engine, finished=end) for end in (True, False)]
    return {folder.name: folder for folder in made}


class Reference:
    """What each command says about an undamaged folder, and what a resumed run ends with."""

    def __init__(self, folder: Path, copy: Path) -> None:
        shutil.copytree(folder, copy)
        self.answers = {command: ask(command, copy) for command in COMMANDS}
        self.outcome = outcome(copy)


def fault(harm: Harm, copy: Path, command: str, answer: Answer, reference: Reference) -> str:
    """What is wrong with an answer, '' if nothing is.

    Where a command found nothing amiss, it must have said or done what it says or does otherwise.
    """
    if answer.escaped or "Traceback" in answer.text:
        return answer.escaped or answer.text
    if answer.sentence:
        return ""
    if answer.code != 0:
        return f"exit code {answer.code}: {answer.text}"
    if command != "resume":
        same = answer.text == reference.answers[command].text
        return "" if same else f"says something else: {answer.text}"
    if harm.folder.name.startswith("federation"):  # who is faster differs: the log says who was
        again = ask("replay", copy)
        lost = harm.part.startswith("reports") and again.sentence
        return "" if "bit for bit" in again.text or lost else f"and then replay: {again.text}"
    return "" if outcome(copy) == reference.outcome else "the resumed run ends with something else"


@pytest.mark.parametrize("name", FOLDERS)
def test_every_damage_is_told_or_undone(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """All of them in two folders, every third in the others."""
    reference = Reference(folders[name], tmp_path / "whole")
    assert reference.answers["status"].code == 0
    assert reference.answers["report"].code == 0
    assert reference.answers["replay"].code == (0 if "finished" in name else 2)
    assert reference.answers["resume"].code == (2 if "finished" in name else 0)
    some = slice(None) if name.startswith("full") else slice(FOLDERS.index(name) % 3, None, 3)
    faults, tried = [], 0
    for number, harm in enumerate(harms(folders[name])[some]):
        copy = harm.done_to(tmp_path / str(number))
        for command in COMMANDS:
            tried += 1
            before = contents(copy)
            answer = ask(command, copy)
            found = fault(harm, copy, command, answer, reference)
            if answer.sentence and contents(copy) != before:
                found = f"changed the folder: {answer.text}"
            if found:
                faults.append(f"{harm}: {command}: {found[:300]}")
        shutil.rmtree(copy)
    assert tried >= 100
    assert not faults, f"{len(faults)} of {tried}:\n" + "\n".join(faults)


def test_drawn_cases_as_real_processes(folders: dict[str, Path], tmp_path: Path) -> None:
    references: dict[str, Reference] = {}
    faults = []
    for number, (harm, command) in enumerate(damage.drawn(folders.values(), DRAWN)):
        name = harm.folder.name
        if name not in references:
            references[name] = Reference(harm.folder, tmp_path / name)
        copy = harm.done_to(tmp_path / str(number))
        done = subprocess.run(
            [sys.executable, "-m", "aspire", command, str(copy)], timeout=300, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        answer = Answer(done.returncode, steady(done.stdout, copy))
        found = fault(harm, copy, command, answer, references[name])
        if found:
            faults.append(f"{harm}: {command}: {found[:300]}")
    assert not faults, "\n".join(faults)
