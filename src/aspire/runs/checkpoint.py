"""Checkpoints: a whole state in one safetensors file, its tree as JSON beside the tensors.

A state is dataclasses, dicts, lists, tuples, tensors, arrays and plain values. No code is stored
and none is run on reading: `decode` builds what the job expects, and nothing else. A file is
written beside, synced and renamed, so it is whole or not there; its sha256 is in the header. The
last three are kept.

A later version of the package reads files of the same format version and refuses others with a
sentence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from aspire.runs import files as rundir
from aspire.runs.decode import MESSAGES, Expected, Malformed, Tensors, decode, name_of
from aspire.runs.evaluation import Line
from aspire.runs.log import Place
from aspire.runs.selection import Watched
from aspire.types import Amount, As

FOLDER = "checkpoints"
FORMAT = "8"
KEPT = 3
TREE = "tree"  # the name of the tensor that holds the bytes of the JSON text


@dataclass(frozen=True)
class Saved:
    """All that `resume` needs besides the job."""

    state: Annotated[Any, As("state")]  # a simulation's or a driver's
    history: list[Line]
    log: Place
    seconds: Amount = 0.0  # that the run has taken
    watched: Watched = dataclasses.field(default_factory=Watched)

    def check(self) -> None:
        if any(line >= len(self.history) for line in self.watched.lines()):
            raise ValueError("a best evaluation is not in the history")


def pack(value: Any, tensors: Tensors, *, copy: bool = True) -> Any:
    """The tree of a state as JSON; tensors and arrays go into `tensors` under numbered names.

    Without `copy` they are the state's own, where nothing else lies in their memory.
    """
    return Packer(tensors, copy).pack(value)


@dataclass
class Packer:
    """One pass through a state. A tensor that several messages carry is stored once."""

    tensors: Tensors
    copy: bool = True
    memory: set[int] = field(default_factory=set)  # where tensors lie that were not copied
    sent: dict[int, str] = field(default_factory=dict)  # tensors in messages, by id: their names
    in_message: bool = False

    def pack(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return {"tensor": self._tensor(value)}
        if isinstance(value, np.ndarray):
            return {"array": self._add(torch.from_numpy(np.array(value)))}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object(value)
        if isinstance(value, dict):
            return {"dict": [[self.pack(k), self.pack(v)] for k, v in value.items()]}
        if isinstance(value, (list, tuple)):
            items = [self.pack(item) for item in value]
            return {"list" if isinstance(value, list) else "tuple": items}
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"a state holds a {type(value).__name__}: expected data only")

    def _object(self, value: Any) -> dict[str, Any]:
        before = self.in_message
        self.in_message = isinstance(value, MESSAGES)
        found = {f.name: self.pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
        self.in_message = before
        return {"class": name_of(type(value)), "fields": found}

    def _tensor(self, value: Tensor) -> str:
        if not self.in_message:
            return self._add(self._own(value))
        if id(value) not in self.sent:
            self.sent[id(value)] = self._add(self._own(value))
        return self.sent[id(value)]

    def _own(self, value: Tensor) -> Tensor:
        """A tensor in memory that is all its own, which a file's tensors must have."""
        found = value.detach().cpu()
        storage = value.untyped_storage()
        if self.copy or storage.nbytes() != value.nbytes or storage.data_ptr() in self.memory:
            return found.clone()
        self.memory.add(storage.data_ptr())
        return found

    def _add(self, value: Tensor) -> str:
        name = str(len(self.tensors))
        self.tensors[name] = value.contiguous()
        return name


def _checksum(tensors: Tensors) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name]
        sha.update(repr((name, str(x.dtype), tuple(x.shape))).encode())
        sha.update(x.reshape(-1).view(torch.uint8).numpy().data if x.numel() else b"")
    return sha.hexdigest()


# ---------------------------------------------------------------- files


def files(folder: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    return sorted((folder / FOLDER).glob("*.safetensors"), reverse=True)


def save(folder: Path, t: int, saved: Any) -> Path:
    """Write the state of iteration t, then drop all but the last three."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{t:012d}.safetensors"
    with rundir.whole(path) as beside:
        write(beside, t, saved)
    for old in files(folder)[KEPT:]:
        old.unlink()
    return path


def write(path: Path, t: int, saved: Any) -> None:
    tensors: Tensors = {}
    text = json.dumps(pack(saved, tensors, copy=False)).encode()
    tensors[TREE] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    header = {"format": FORMAT, "t": str(t), "sha256": _checksum(tensors)}
    save_file(tensors, str(path), metadata=header)


def load(path: Path) -> tuple[Any, Tensors]:
    """The tree and the tensors of a checkpoint that is whole, or a ValueError."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a checkpoint, and there is none")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises its own kind for a damaged file
        raise ValueError(f"{path}: expected a whole checkpoint, but {error}") from None
    if header.get("format") != FORMAT:
        raise ValueError(f"{path}: format {header.get('format')}: expected {FORMAT}")
    if TREE not in tensors or _checksum(tensors) != header.get("sha256"):
        raise ValueError(f"{path}: the checksum does not fit: the file is damaged")
    text = tensors.pop(TREE)
    if text.dtype != torch.uint8 or text.ndim != 1:
        raise ValueError(f"{path}: the tree is no text: the file is damaged")
    return rundir.parse_json(bytes(text.numpy()).decode(errors="replace"), str(path)), tensors


def read(path: Path, expected: Expected) -> Saved:
    """One checkpoint, or a ValueError that says what is wrong with it."""
    tree, tensors = load(path)
    try:
        saved: Saved = decode(tree, Saved, tensors, expected)
    except Malformed as error:
        raise ValueError(f"{path} holds no state of this run: {error}") from None
    reason = saved.state.objection(expected.method)
    if reason is not None:
        raise ValueError(f"{path} holds no state of this run: {reason}")
    return saved


def clear(folder: Path) -> None:
    """A run that has ended needs the last alone, from which it can be extended."""
    for old in files(folder)[1:]:
        with suppress(OSError):
            old.unlink()
