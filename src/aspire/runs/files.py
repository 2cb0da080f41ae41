"""Files of a run: whole or not there, and a sentence about what cannot be read.

A run folder holds run.json, run.lock, events.jsonl, history.jsonl, status.json, checkpoints/,
reports/ (log level vectors), survey.json where sites were asked something before the training, and
at the end model.safetensors, README.md and result.json. `folder` says who may write there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_model
from torch import nn

from aspire.compiled import native

RUN = "run.json"
HISTORY = "history.jsonl"
MODEL = "model.safetensors"
RESULT = "result.json"
SURVEY = "survey.json"  # what all sites were asked before the training, where they were
README = "README.md"
SEAL = "checksum"  # of all other keys of a JSON file


def plain(value: Any) -> Any:
    """Anything as JSON: arrays as lists, what is not finite as null, the rest as its repr."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, bool, int, float)) else repr(value)


def versions() -> dict[str, Any]:
    """What the bytes of a run depend on besides its settings."""
    from aspire import __version__

    return {
        "aspire": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
        "compiled": native.library(torch.float32) is not None,
    }


def new_folder(path: Path) -> Path:
    """Make a new folder, or take an empty one; ValueError for one that holds anything."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"out={str(path)!r}: expected a new or an empty folder")
    path.mkdir(parents=True, exist_ok=True)
    return path


def how_to_resume(folder: Path) -> str:
    """The command, or the call where no file is known, that goes on with the run in `folder`."""
    settings = read_record(folder / RUN)
    where = repr(str(folder))
    if settings.get("source") is None and settings.get("engine") is None:
        made = "from aspire.api import prepare, resume"
        call = f"resume({where}, prepare(model, sites, ...))"
        return f"continue with the same arguments: {made}; {call}"
    if settings.get("source") is None:
        made = "from aspire.api.engines import crew_and_job; from aspire.api import resume"
        call = "crew, job = crew_and_job(model, sites, {...}); "
        call += f"resume({where}, job, engine=engine, crew=crew)"
        return f"continue with the same arguments: {made}; {call}"
    name = f"./{folder}" if str(folder).startswith("-") else str(folder)
    return f"continue with: aspire resume {shlex.quote(name)}"


# ---------------------------------------------------------------- writing


@contextmanager
def whole(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """A name beside `path`: what is written there takes its place in one move, or nothing does."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        beside.chmod(mode)  # safetensors makes a file of its own, which only its owner may read
        if sync:
            _sync(beside)
        os.replace(beside, path)
    except SafetensorError as error:  # what it raises when the disk is full
        raise OSError(f"{beside}: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    if sync:
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, sync: bool = True, sealed: bool = False) -> None:
    """`sealed`: with a checksum that `read_json` compares."""
    value = plain(value)
    if sealed:
        value = {**value, SEAL: _checksum(value)}
    with whole(path, sync=sync) as beside, open(beside, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, allow_nan=False)
        file.write("\n")


def write_text(path: Path, text: str) -> None:
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_lines(path: Path, values: list[Any]) -> None:
    """A whole .jsonl file anew."""
    write_text(path, "".join(_line(value) for value in values))


def append_json(path: Path, value: Any) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(_line(value))


def _line(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False) + "\n"


def write_model(path: Path, model: nn.Module) -> None:
    with whole(path) as beside:
        save_model(model, str(beside))


# ---------------------------------------------------------------- reading


def read_text(path: Path) -> str:
    """The text of a file, or a ValueError that names it."""
    try:
        if not path.is_file():
            raise ValueError(f"{path}: expected a file of a run, and there is none")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: expected text in UTF-8: the file is damaged") from None


def parse_json(text: str, where: str) -> Any:
    """The value, or a ValueError that says where it was expected."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: expected JSON, but {error}") from None


def read_json(path: Path, *, sealed: bool = False) -> Any:
    """The value, without its checksum; `sealed`: it must have one."""
    value = parse_json(read_text(path), str(path))
    seal = value.pop(SEAL, None) if isinstance(value, dict) else None
    if seal is None and not sealed:
        return value
    if seal is None or seal != _checksum(value):
        raise ValueError(f"{path}: the checksum does not fit: the file is damaged")
    return value


def read_record(path: Path, *, sealed: bool = False) -> dict[str, Any]:
    """A JSON object."""
    value = read_json(path, sealed=sealed)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, got a {type(value).__name__}")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a .jsonl file."""
    lines = read_text(path).splitlines()
    found = [parse_json(text, f"{path}, line {n}") for n, text in enumerate(lines, 1)]
    for number, line in enumerate(found, 1):
        if not isinstance(line, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object")
    return found


def need(record: dict[str, Any], where: str, **kinds: type | tuple[type, ...]) -> None:
    """ValueError where one of these keys has another kind of value."""
    for name, kind in kinds.items():
        if not isinstance(record.get(name), kind):
            raise ValueError(f"{where}: {name}={record.get(name)!r}: expected {_words(kind)}")


def _words(kind: type | tuple[type, ...]) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(names.get(one, one.__name__) for one in kinds)


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
