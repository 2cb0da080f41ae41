"""A run directory: run.json, events.jsonl, history.jsonl, model.safetensors, result.json."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from torch import nn

RUN, HISTORY, MODEL, RESULT = "run.json", "history.jsonl", "model.safetensors", "result.json"


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
    }


def create(path: Path) -> Path:
    """A new or empty directory; one that holds a run is left as it is."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"out={str(path)!r}: expected a new or an empty folder")
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_json(path: Path, value: Any, *, sync: bool = True) -> None:
    """Whole or not at all: written beside, synced, then renamed."""
    beside = path.with_name(path.name + ".part")
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(plain(value), file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())
    os.replace(beside, path)


def write_lines(path: Path, values: list[Any]) -> None:
    """A whole .jsonl file anew, beside and then renamed."""
    beside = path.with_name(path.name + ".part")
    beside.write_text("".join(_line(value) for value in values), encoding="utf-8")
    os.replace(beside, path)


def append_json(path: Path, value: Any) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(_line(value))


def _line(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path}: expected a file of a run, and there is none")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, but {error}") from None


def write_model(path: Path, model: nn.Module) -> None:
    beside = path.with_name(path.name + ".part")
    save_model(model, str(beside))
    os.replace(beside, path)
