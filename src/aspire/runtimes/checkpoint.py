"""Checkpoints: a whole state in one safetensors file, its tree as JSON in the header.

A state is dataclasses of this package, dicts, lists, tuples, tensors, arrays and plain values. No
code is stored and none is run on reading: a dataclass comes back by the name of its class, which
must be one of ours. A file is written beside, synced and renamed, so it is whole or not there; its
sha256 is in the header; the last three are kept, and a damaged one is passed over with a warning.

A later version of the package reads files of the same format version and refuses
others with a sentence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

logger = logging.getLogger("aspire")
FOLDER, FORMAT, KEPT = "checkpoints", "4", 3
Tensors = dict[str, Tensor]


def pack(value: Any, tensors: Tensors) -> Any:
    """The tree of a state as JSON; tensors and arrays go into `tensors` under numbered names."""
    if isinstance(value, (Tensor, np.ndarray)):
        name = str(len(tensors))
        if isinstance(value, Tensor):
            tensors[name] = value.detach().cpu().clone().contiguous()
            return {"tensor": name}
        tensors[name] = torch.from_numpy(np.array(value)).contiguous()
        return {"array": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        fields = [f.name for f in dataclasses.fields(value)]
        return {
            "class": f"{kind.__module__}:{kind.__qualname__}",
            "fields": {name: pack(getattr(value, name), tensors) for name in fields},
        }
    if isinstance(value, dict):
        return {"dict": [[pack(k, tensors), pack(v, tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [pack(item, tensors) for item in value]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a state holds a {type(value).__name__}: expected data only")


def unpack(tree: Any, tensors: Tensors, device: str = "cpu") -> Any:
    """The state again, equal to the bit; its tensors on `device`, arrays where arrays are."""
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]].to(device)
    if "array" in tree:
        return tensors[tree["array"]].numpy()
    if "dict" in tree:
        return {unpack(k, tensors): unpack(v, tensors, device) for k, v in tree["dict"]}
    if "class" in tree:
        made: Any = object.__new__(_class(tree["class"]))
        for name, item in tree["fields"].items():
            object.__setattr__(made, name, unpack(item, tensors, device))
        return made
    kind = list if "list" in tree else tuple
    return kind(unpack(item, tensors, device) for item in tree[kind.__name__])


def _class(name: str) -> type:
    module, _, qualname = name.partition(":")
    if not module.startswith("aspire."):
        raise ValueError(f"a checkpoint names the class {name!r}: expected one of aspire's")
    found = getattr(importlib.import_module(module), qualname, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(f"a checkpoint names the class {name!r}: expected one of aspire's")
    return found


def _checksum(tree: str, tensors: Tensors) -> str:
    sha = hashlib.sha256(tree.encode())
    for name in sorted(tensors):
        sha.update(name.encode())
        sha.update(tensors[name].numpy().tobytes())
    return sha.hexdigest()


def save(folder: Path, t: int, state: Any) -> Path:
    """Write the state of iteration t, then drop all but the last three."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    tensors: Tensors = {}
    tree = json.dumps(pack(state, tensors))
    header = {"format": FORMAT, "t": str(t), "tree": tree, "sha256": _checksum(tree, tensors)}
    path = place / f"{t:012d}.safetensors"
    beside = path.with_suffix(".part")
    try:
        save_file(tensors, str(beside), metadata=header)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except SafetensorError as error:  # what it raises when the disk is full
        raise OSError(f"{beside}: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(place)
    for old in sorted(place.glob("*.safetensors"))[:-KEPT]:
        old.unlink()
    return path


def read(path: Path, device: str = "cpu") -> Any:
    """One checkpoint, or a ValueError that says what is wrong with it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises its own kind for a damaged file
        raise ValueError(f"{path}: expected a whole checkpoint, but {error}") from None
    if header.get("format") != FORMAT:
        raise ValueError(f"{path}: format {header.get('format')}: expected {FORMAT}")
    if _checksum(header["tree"], tensors) != header["sha256"]:
        raise ValueError(f"{path}: the checksum does not fit: the file is damaged")
    return unpack(json.loads(header["tree"]), tensors, device)


def latest(folder: Path, device: str = "cpu") -> Any:
    """The newest state that is whole; damaged files are passed over with a warning."""
    for path in sorted((folder / FOLDER).glob("*.safetensors"), reverse=True):
        try:
            return read(path, device)
        except ValueError as error:
            logger.warning("%s; trying the one before", error)
    raise ValueError(f"{folder}: expected a whole checkpoint, and there is none")


def clear(folder: Path) -> None:
    """A run that has ended needs none."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _sync_folder(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
