"""A state from its tree, checked on the way against the annotations of its classes.

The tree never says what is built: the annotations do, from the class of the checkpoint down, and a
tree that names another class, field, size or type than they expect is `Malformed`. Nothing is
imported and nothing called but our own classes' `check`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aspire.sets import SETS, UncertaintySet
from aspire.types import EXACT, As, Between, Method, Report, Sized, Task

Tensors = dict[str, Tensor]
NUMBERS = {np.float64: torch.float64, np.int64: torch.int64, np.bool_: torch.bool}
MESSAGES = (Task, Report)  # which nobody writes to, so that several may carry one tensor
OF_A_SET = None | float | NDArray[np.float64]  # the fields of an uncertainty set, once checked


class Malformed(ValueError):
    """The tree is not one of such a state."""


@dataclass(frozen=True)
class Expected:
    """What is known of a checkpoint before it is read.

    state    the class of what the runtime keeps
    sizes    N and p
    dtype    the model's number type
    device   where its tensors go
    """

    state: type
    method: Method
    sizes: Mapping[str, int]
    dtype: torch.dtype
    device: str = "cpu"

    @property
    def kinds(self) -> dict[str, Any]:
        """The types that stand behind names."""
        states = self.method.states
        if not states:
            raise ValueError(f"method {self.method.name} names no `states`: it cannot be resumed")
        return {"state": self.state, "master": states[0], "memory": self.method.memory}

    @property
    def classes(self) -> tuple[type, ...]:
        """Those that stand for an abstract class."""
        return (*SETS, *self.method.states[1:])


def name_of(kind: type) -> str:
    """How a tree names a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def decode(tree: Any, kind: Any, tensors: Tensors, expected: Expected) -> Any:
    """The state; every tensor of the file must be somewhere in it, once, or in messages only."""
    classes = {name_of(one): one for one in expected.classes}
    reader = Reader(dict(tensors), expected, expected.kinds, classes)
    state = reader.read(tree, kind, "", dict(expected.sizes))
    if reader.tensors:
        raise Malformed(f"tensor {min(reader.tensors)} has no place in the state")
    return state


@lru_cache(maxsize=128)
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


@dataclass
class Reader:
    """One pass through a tree. `at` is the way to a value, `sizes` those of the object it is in."""

    tensors: Tensors  # that are still to be used
    expected: Expected
    kinds: dict[str, Any]
    classes: dict[str, type]
    taken: list[tuple[str, Tensor]] = field(default_factory=list)
    sent: Tensors = field(default_factory=dict)  # those of them that messages carry
    in_message: bool = False

    def read(self, tree: Any, kind: Any, at: str, sizes: dict[str, int]) -> Any:
        origin = get_origin(kind)
        if origin is Annotated:
            return self._annotated(tree, kind, at, sizes)
        if origin in (typing.Union, types.UnionType):
            return self._one_of(tree, get_args(kind), at, sizes)
        if kind is Tensor:
            return self._tensor(tree, "tensor", at)
        if origin is np.ndarray:
            return self._array(tree, kind, at)
        if origin in (dict, Mapping):
            return self._dict(tree, get_args(kind), at, sizes)
        if origin in (list, tuple):
            return self._items(tree, origin, get_args(kind), at, sizes)
        if typing.is_typeddict(kind):
            return self._record(tree, kind, at, sizes)
        if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, UncertaintySet)):
            return self._object(tree, kind, at)
        return _plain(tree, kind, at)

    # ------------------------------------------------------------ containers

    def _object(self, tree: Any, kind: type, at: str) -> Any:
        """A dataclass, or one that stands for it, with exactly its fields."""
        body = _body(tree, ("class", "fields"), at)
        named = body["class"] if isinstance(body["class"], str) else ""
        made_of = kind if named == name_of(kind) else self.classes.get(named)
        if made_of is None or not (is_dataclass(made_of) and issubclass(made_of, kind)):
            raise Malformed(f"{at} is a {named[:60]!r}: expected a {kind.__name__}")
        given = body["fields"]
        sizes = dict(self.expected.sizes)
        in_set = issubclass(made_of, UncertaintySet)
        wanted = dict.fromkeys(_names(made_of), OF_A_SET) if in_set else _fields(made_of)
        if not isinstance(given, dict) or set(given) != set(wanted):
            raise Malformed(f"{at}: expected the fields {', '.join(wanted)}")
        made: Any = object.__new__(made_of)
        before = self.in_message
        self.in_message = issubclass(made_of, MESSAGES)
        for name, inner in wanted.items():
            object.__setattr__(made, name, self.read(given[name], inner, f"{at}.{name}", sizes))
        self.in_message = before
        self._check(made, at)
        return made

    def _check(self, made: Any, at: str) -> None:
        check = getattr(type(made), "check", None)
        if check is None:
            return
        try:
            check(made)
        except (ValueError, TypeError, LookupError) as error:
            raise Malformed(f"{at}: {error}") from None

    def _record(self, tree: Any, kind: Any, at: str, sizes: dict[str, int]) -> dict[str, Any]:
        hints = typing.get_type_hints(kind, include_extras=True)
        given = dict(self._pairs(tree, str, at, sizes))
        if set(given) != set(hints):
            raise Malformed(f"{at}: expected {', '.join(hints)}")
        return {k: self.read(v, hints[k], f"{at}[{k!r}]", sizes) for k, v in given.items()}

    def _dict(self, tree: Any, inner: tuple[Any, ...], at: str, sizes: Any) -> dict[Any, Any]:
        pairs = self._pairs(tree, inner[0], at, sizes)
        return {k: self.read(v, inner[1], f"{at}[{k!r}]", sizes) for k, v in pairs}

    def _pairs(self, tree: Any, key: Any, at: str, sizes: Any) -> list[tuple[Any, Any]]:
        """Keys, each once, and the trees of their values."""
        items = _list(_body(tree, ("dict",), at)["dict"], at)
        if not all(isinstance(item, list) and len(item) == 2 for item in items):
            raise Malformed(f"{at}: expected pairs of keys and values")
        pairs = [(self.read(k, key, f"a key of {at}", sizes), v) for k, v in items]
        if len({k for k, _ in pairs}) < len(pairs):
            raise Malformed(f"{at} has a key twice")
        return pairs

    def _items(self, tree: Any, kind: Any, inner: Any, at: str, sizes: Any) -> Any:
        trees = _list(_body(tree, (kind.__name__,), at)[kind.__name__], at)
        if kind is list or inner[-1] is Ellipsis:
            inner = [inner[0]] * len(trees)
        if len(trees) != len(inner):
            raise Malformed(f"{at} has {len(trees)} entries: expected {len(inner)}")
        every = enumerate(zip(trees, inner, strict=True))
        return kind(self.read(one, what, f"{at}[{i}]", sizes) for i, (one, what) in every)

    def _one_of(self, tree: Any, kinds: tuple[Any, ...], at: str, sizes: Any) -> Any:
        """The first that fits; what does not fit leaves no trace."""
        before = len(self.taken)
        reason = Malformed(f"{at} fits nothing")
        in_message = self.in_message
        for kind in kinds:
            try:
                return self.read(tree, kind, at, sizes)
            except Malformed as error:
                reason = error
            self.in_message = in_message
            while len(self.taken) > before:
                name, tensor = self.taken.pop()
                self.tensors[name] = tensor
                self.sent.pop(name, None)
        raise reason

    # ------------------------------------------------------------ leaves

    def _tensor(self, tree: Any, tag: str, at: str) -> Tensor:
        name = _body(tree, (tag,), at)[tag]
        if self.in_message and isinstance(name, str) and name in self.sent:
            return self.sent[name]
        found = self.tensors.pop(name, None) if isinstance(name, str) else None
        if found is None:
            raise Malformed(f"{at}: no tensor {_short(name)}, or it is used elsewhere")
        self.taken.append((name, found))
        if tag == "array":
            return found
        found = found.to(self.expected.device)
        if self.in_message:
            self.sent[name] = found
        return found

    def _array(self, tree: Any, kind: Any, at: str) -> Any:
        found = self._tensor(tree, "array", at)
        (number,) = get_args(get_args(kind)[1])
        if found.dtype != NUMBERS[number]:
            raise Malformed(f"{at} is of type {found.dtype}: expected {NUMBERS[number]}")
        return found.numpy()

    def _annotated(self, tree: Any, kind: Any, at: str, sizes: dict[str, int]) -> Any:
        base, *notes = get_args(kind)
        for note in notes:
            if isinstance(note, As):
                named = isinstance(note.kind, str)
                base = self.kinds[note.kind] if named else note.kind
        value = self.read(tree, base, at, sizes)
        for note in notes:
            if isinstance(note, Sized):
                self._fit(value, note, at, sizes)
            elif isinstance(note, Between):
                _within(value, note, at, sizes)
        return value

    def _fit(self, value: Any, note: Sized, at: str, sizes: dict[str, int]) -> None:
        shape = (len(value),) if isinstance(value, list) else tuple(value.shape)
        dims = note.dims.split()
        if len(shape) != len(dims) or not all(map(_fits, shape, dims, [sizes] * len(dims))):
            raise Malformed(f"{at} has the size {shape}: expected ({', '.join(dims)})")
        if isinstance(value, Tensor):
            wanted = self.expected.dtype if note.dtype == "model" else torch.float64
            if value.dtype != wanted:
                raise Malformed(f"{at} is of type {value.dtype}: expected {wanted}")


def _fits(size: int, dim: str, sizes: dict[str, int]) -> bool:
    name, _, other = dim.partition("|")
    if other and size == int(other):
        return True
    return size == (int(name) if name.isdigit() else sizes.setdefault(name, size))


def _within(value: Any, note: Between, at: str, sizes: Mapping[str, int]) -> None:
    most = sizes[note.most] - 1 if isinstance(note.most, str) else note.most
    if isinstance(value, np.ndarray):
        inside = bool(((value >= note.least) & (value <= most)).all())
    else:
        inside = note.least <= value <= most
    if not inside:
        raise Malformed(f"{at} is not between {note.least:g} and {most:g}")


def _plain(tree: Any, kind: Any, at: str) -> Any:
    """None, a bool, an int, a str, or a float, which may be whole."""
    right = tree is None if kind in (None, types.NoneType) else type(tree) is kind
    if kind is float:
        right = type(tree) is float or (type(tree) is int and abs(tree) <= EXACT)
    if not right:
        raise Malformed(f"{at or 'the state'} is {_short(tree)}: expected {_kind(kind)}")
    return tree


def _body(tree: Any, keys: tuple[str, ...], at: str) -> dict[str, Any]:
    if not isinstance(tree, dict) or set(tree) != set(keys):
        raise Malformed(f"{at or 'the state'} is {_short(tree)}: expected a {keys[0]}")
    return tree


def _list(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{at} is {_short(value)}: expected a list")
    return value


def _names(kind: type) -> list[str]:
    return [f.name for f in fields(kind)]


def _short(tree: Any) -> str:
    """A few words about any value, however large."""
    if isinstance(tree, dict):
        return f"a {str(next(iter(tree), 'dict'))[:20]!r}"
    return "a list" if isinstance(tree, list) else f"{str(tree)[:40]!r}"


def _kind(kind: Any) -> str:
    return "None" if kind in (None, types.NoneType) else kind.__name__
