"""Run folders, and what can happen to their files: the generator behind test_damage.

Folders of the simulator at three log levels and of a federation, each of a finished run and of one
that was stopped, small enough that a command takes milliseconds. Every file and folder in them is
damaged in every way that applies; a case is one of these and a command.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from aspire.api import Interrupted, train
from aspire.api.engines import train_on
from aspire.api.user_file import crew_of, job_of, parts_of, read
from aspire.cli import main
from aspire.runs import checkpoint
from aspire.runs.folder import LOCK

FILE = """
import torch


def model():
    return torch.nn.Linear(3, 2)


def sites():
    return ["a", "b", "c"]


def site(name):
    rng = torch.Generator().manual_seed(ord(name))
    x = torch.randn(24, 3, generator=rng)
    return {"train": (x[:16], (x[:16, 0] > 0).long()), "test": (x[16:], (x[16:, 0] > 0).long())}
"""
OPTIONS = {"iterations": 40, "batch_size": 4, "evaluate_every": 8, "seed": 0}
STOPPED = 24  # iterations
LEVELS = ("full", "digest", "vectors")
COMMANDS = ("status", "report", "replay", "resume")

# ---------------------------------------------------------------- folders


def simulated(place: Path, level: str, *, finished: bool) -> Path:
    """A run as `aspire train` leaves it; one that was stopped has three checkpoints."""
    source = read(file_in(place))
    model, sites, arguments = parts_of(source, OPTIONS)
    about = {"file": source.path, "sha256": source.sha256, "options": OPTIONS}
    out = place / f"{level}-{'finished' if finished else 'stopped'}"
    with suppress(Interrupted):
        train(model, sites, out=out, log=level, source=about, **until(finished), **arguments)
    return out


def federated(place: Path, engine: Any, *, finished: bool) -> Path:
    """The same as `aspire server` leaves it."""
    source, names = read(file_in(place)), ["a", "b", "c"]
    job = job_of(source, OPTIONS, only=[], names=names)
    about = {"file": source.path, "sha256": source.sha256, "options": OPTIONS}
    out = place / f"federation-{'finished' if finished else 'stopped'}"
    crew = crew_of(source, OPTIONS, names)
    with suppress(Interrupted):
        train_on(engine, job, crew, out=out, log="vectors", source=about, **until(finished))
    return out


def until(finished: bool) -> dict[str, Any]:
    """A checkpoint at every look, and a stop on the way unless the run shall finish."""
    steps = [0]
    stop = lambda: steps[-1] >= STOPPED and not finished  # noqa: E731
    return {"checkpoint_seconds": 0.0, "progress": steps.append, "stop": stop}


def file_in(place: Path) -> Path:
    path = place / "file.py"
    path.write_text(FILE)
    return path


def parts(folder: Path) -> list[str]:
    """Its files and folders; of the vectors of reports the first and the last."""
    top = sorted(path.name for path in folder.iterdir())
    points = [str(path.relative_to(folder)) for path in checkpoint.files(folder)]
    vectors = sorted(str(p.relative_to(folder)) for p in folder.glob("reports/*"))
    return top + points + vectors[:1] + vectors[-1:]


# ---------------------------------------------------------------- damages


def _changed(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def _flipped(data: bytes, at: int) -> bytes:
    if not data:
        return b"\x01"
    changed = bytearray(data)
    changed[at] ^= 0x04
    return bytes(changed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _instead(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        _remove(path)
        make(path)

    return damage


ANYTHING: dict[str, Callable[[Path], None]] = {
    "missing": _remove,
    "a fifo": _instead(os.mkfifo),
    "a link to itself": _instead(lambda path: path.symlink_to(path)),
    "a link to nowhere": _instead(lambda path: path.symlink_to("nowhere")),
}
FILES = ANYTHING | {
    "empty": _changed(lambda data: b""),
    "first half": _changed(lambda data: data[: len(data) // 2]),
    "without its last byte": _changed(lambda data: data[:-1]),
    "a bit of the first byte": _changed(lambda data: _flipped(data, 0)),
    "a bit in the middle": _changed(lambda data: _flipped(data, len(data) // 2)),
    "a bit near the end": _changed(lambda data: _flipped(data, max(0, len(data) - 5))),
    "zeros": _changed(lambda data: data[: len(data) // 2] + b"\0" * (len(data) - len(data) // 2)),
    "no text": _changed(lambda data: b"\xff\xfe" * 100),
    "another object": _changed(
        lambda data: b'{"sites": {}, "log": 3, "source": [], "mark": "end"}'
    ),
    "a list": _changed(lambda data: b"[1, 2, 3]\n"),
    "deep": _changed(lambda data: b"[" * 100_000),
    "twice": _changed(lambda data: data + data),
    "a folder": _instead(Path.mkdir),
}
FOLDERS = ANYTHING | {
    "a file": _instead(Path.touch),
    "an empty folder": _instead(Path.mkdir),
}
if os.geteuid():  # who is root may read everything
    FILES["unreadable"] = lambda path: path.chmod(0)
    FOLDERS["unreadable"] = lambda path: path.chmod(0)


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Harm:
    """What happens to one part of a folder."""

    folder: Path
    part: str
    damage: str

    def done_to(self, copy: Path) -> Path:
        """A copy of the folder, damaged."""
        shutil.copytree(self.folder, copy)
        kinds = FOLDERS if (copy / self.part).is_dir() else FILES
        kinds[self.damage](copy / self.part)
        return copy

    def __str__(self) -> str:
        return f"{self.folder.name}: {self.part}: {self.damage}"


def harms(folder: Path) -> list[Harm]:
    """Every damage to every part; the lock is empty, so what is done to its bytes is all alike."""
    found = []
    for part in parts(folder):
        kinds = FOLDERS if (folder / part).is_dir() else FILES
        if part == LOCK:
            kinds = {**ANYTHING, "no text": FILES["no text"], "a folder": FILES["a folder"]}
        found += [Harm(folder, part, damage) for damage in kinds]
    return found


# ---------------------------------------------------------------- what is asked


@dataclass(frozen=True)
class Answer:
    """What a command said, without what depends on the clock or on the name of the folder."""

    code: int
    text: str
    escaped: str = ""  # an exception that is no sentence

    @property
    def sentence(self) -> bool:
        """Whether it ended in one sentence and exit code 2."""
        return self.code == 2 and re.search(r"Error: \S.{10}", self.text) is not None


def ask(command: str, folder: Path) -> Answer:
    """In this process."""
    done = CliRunner().invoke(main, [command, str(folder)])
    odd = done.exception
    escaped = "" if odd is None or isinstance(odd, SystemExit) else repr(odd)
    return Answer(done.exit_code, steady(done.output, folder), escaped)


def steady(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "DIR")
    text = re.sub(r", nothing new for \d+ s", "", text)
    return re.sub(r"in \d+\.\d s", "in X s", text)


def contents(folder: Path) -> dict[str, Any]:
    """Everything in a folder, to see whether it has changed."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = path.lstat().st_mode
    return found


def drawn(folders: Collection[Path], count: int) -> list[tuple[Harm, str]]:
    """Some of all cases, the same every time. A server that was resumed would wait for sites."""
    cases = [
        (harm, command)
        for folder in folders
        for harm in harms(folder)
        for command in COMMANDS
        if (folder.name, command) != ("federation-stopped", "resume")
    ]
    return random.Random(0).sample(cases, count)


def outcome(folder: Path) -> dict[str, bytes]:
    """What a run of the simulator ends with, to the bit; the seconds that it took are no part."""
    names = ("events.jsonl", "history.jsonl", "model.safetensors")
    return {name: (folder / name).read_bytes() for name in names}
