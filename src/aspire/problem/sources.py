"""What a user gives as one part of a site: rows of tensors, or items that are collated to batches.

Held rows are tensors in memory: pairs of arrays, mappings of columns, a frame with its target
column, and lists and streams of items that stack. Everything else with a length and items is read
as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from aspire.arguments import kind, near, shown
from aspire.problem.conversion import dense, each, first_line, is_array, tensor_of
from aspire.problem.failures import calling

TARGETS = ("labels", "label", "targets", "target")  # of a mapping; the other entries are inputs
WORKERS = ("num_workers", "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context")
FEW = 256  # samples in one batch of an evaluation, where they are padded or read by processes
STREAM = 1_000_000  # items of a stream, which is read into memory
EXPECTED = (
    "expected (inputs, targets), a DataFrame with its target column (frame, 'column'), a mapping "
    "with 'labels' or 'target', a Dataset, a DataLoader, or a mapping with 'train' and optionally "
    "'val' and 'test'"
)
Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Held:
    """Rows of tensors: one, or several in a tuple or a mapping."""

    inputs: Any
    targets: Any
    size: int
    columns: list[str] | None = None  # names, where the inputs came with some
    notes: tuple[str, ...] = ()  # how they were converted
    batch_size: int | None = None  # that of their DataLoader

    def take(self, index: Tensor) -> tuple[Any, Any]:
        return each(lambda x: x[index], self.inputs), each(lambda x: x[index], self.targets)


@dataclass(frozen=True)
class Items:
    """Samples that are read one by one, and how they become a batch."""

    items: Any
    size: int
    where: str
    collate: Collate | None = None  # None: torch's
    batch_size: int | None = None  # that of its DataLoader
    workers: Mapping[str, Any] = field(default_factory=dict)  # that read, likewise; {}: none

    def take(self, index: Tensor) -> tuple[Any, Any]:
        return self.batch(self.read(index.tolist()))

    @property
    def most(self) -> int:
        """Samples in one batch of an evaluation."""
        return FEW if self.workers or self.collate is not None else self.size

    def read(self, index: list[int]) -> list[Any]:
        with calling(f"{self.where}: __getitem__ of the Dataset"):
            if hasattr(self.items, "__getitems__"):
                return list(self.items.__getitems__(index))
            return [self.items[i] for i in index]

    def batch(self, items: list[Any]) -> tuple[Any, Any]:
        """These samples as inputs and targets."""
        if self.collate is not None:
            with calling(f"{self.where}: collate_fn"):
                found = self.collate(items)
            return parted(found, f"{self.where}: collate_fn gives")
        for item in items:
            parted(item, f"{self.where}: the Dataset gives")
        try:
            return parted(default_collate([_rows(item) for item in items]), "")
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"{self.where}: the items of the Dataset do not go into one batch ("
                f"{first_line(error)}): expected pairs of numbers or tensors, all of one shape, or "
                "a collate_fn that pads them"
            ) from error


def source_of(part: Any, where: str, collate: Collate | None = None) -> Held | Items:
    """The samples of one part; a ValueError that begins with `where` if there are none in it."""
    if isinstance(part, DataLoader):
        return _of_loader(part, where, collate)
    if isinstance(part, Mapping):
        return _of_mapping(part, where)
    if isinstance(part, tuple) or (isinstance(part, list) and not _is_items(part)):
        return _of_pair(part, where)
    if _is_hugging_face(part):
        part = part.with_format("torch")
    if isinstance(part, list):
        return _read_in(part, where, collate)
    if is_array(part) or isinstance(part, str | bytes | nn.Module | type):
        raise ValueError(f"{where} is {kind(part)}: {EXPECTED}")
    sized = hasattr(part, "__len__") and hasattr(part, "__getitem__")
    if isinstance(part, Iterable) and not sized:
        return _read_in(_listed(part, where), where, collate)
    return Items(part, _length(part, where, sized=sized), where, collate)


def parted(item: Any, said: str) -> tuple[Any, Any]:
    """A sample or a batch as inputs and targets; `said` begins the sentence if it is neither."""
    if isinstance(item, Mapping):
        return _inputs_and_target(item, said)
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    several = isinstance(item, tuple | list) and len(item) > 2
    many = f" of {len(item)}" if isinstance(item, tuple | list) else ""
    hint = "; several inputs are a tuple, ((first, second), target)" if several else ""
    raise ValueError(
        f"{said} {kind(item)}{many}: expected a pair (input, target), or a mapping with 'labels' "
        f"or 'target'{hint}"
    )


def _inputs_and_target(item: Mapping[Any, Any], said: str) -> tuple[Any, Any]:
    """The target taken out of a mapping."""
    found = [name for name in TARGETS if name in item]
    if len(found) != 1 or len(item) < 2:
        raise ValueError(
            f"{said} {kind(item)} with {shown(list(item))}: expected one of "
            f"{', '.join(map(repr, TARGETS))} among them, and inputs beside it"
        )
    inputs = {name: x for name, x in item.items() if name != found[0]}
    for name, x in inputs.items():
        if isinstance(x, str) or (isinstance(x, list) and x and isinstance(x[0], str)):
            raise ValueError(
                f"{said} text as {name!r}: expected numbers, as a tokenizer gives them; leave "
                "columns of text out, for example with remove_columns"
            )
    return inputs, item[found[0]]


# ---------------------------------------------------------------- in memory


def _of_pair(part: Any, where: str) -> Held:
    if len(part) != 2:
        raise ValueError(f"{where} is a {type(part).__name__} of {len(part)}: {EXPECTED}")
    if any(isinstance(x, Dataset | DataLoader) for x in part):
        raise ValueError(
            f"{where} is a pair with a Dataset in it: expected one Dataset, or "
            "{'train': ..., 'test': ...}"
        )
    if isinstance(part[0], str):
        raise ValueError(
            f"{where} begins with {shown(part[0])}: {EXPECTED}; sites with names are a "
            "mapping, {name: site}"
        )
    if hasattr(part[0], "columns") and _names_columns(part[1]):
        part = _frame_and_target(part[0], part[1], where)
    notes = [
        f"{what} from a {type(x).__name__} to a tensor"
        for x, what in zip(part, ("inputs", "targets"), strict=True)
        if hasattr(x, "to_numpy")
    ]
    names = [str(name) for name in part[0].columns] if hasattr(part[0], "columns") else None
    inputs = _inputs(part[0], f"{where}: inputs")
    return _held(inputs, tensor_of(part[1], f"{where}: targets"), where, names, tuple(notes))


def _names_columns(x: Any) -> bool:
    return isinstance(x, str) or (
        isinstance(x, list) and bool(x) and all(isinstance(name, str) for name in x)
    )


def _frame_and_target(frame: Any, target: Any, where: str) -> tuple[Any, Any]:
    """The columns of a frame without the target, and the target alone."""
    names = [target] if isinstance(target, str) else target
    for name in names:
        if name not in frame.columns:
            raise ValueError(
                f"{where}: target column {shown(name)}: expected a column of the DataFrame"
                f"{near(name, map(str, frame.columns))}"
            )
    return frame[[name for name in frame.columns if name not in names]], frame[target]


def _inputs(x: Any, where: str) -> Any:
    """One tensor, or several in a tuple or a mapping."""
    if isinstance(x, Mapping):
        return {name: tensor_of(one, f"{where} {name!r}") for name, one in x.items()}
    if isinstance(x, tuple) and x and all(map(is_array, x)):
        return tuple(tensor_of(one, f"{where} number {n}") for n, one in enumerate(x))
    if isinstance(x, list) and x and all(isinstance(one, Tensor) for one in x):
        if len({one.shape for one in x}) > 1:
            raise ValueError(
                f"{where} are tensors of different shapes: expected a list of samples "
                "[(input, target), ...] with a collate_fn that pads them"
            )
        return torch.stack(x)
    return tensor_of(x, where)


def _rows(x: Any) -> Any:
    """Lists of numbers as tensors, which torch would take for several inputs."""
    if isinstance(x, list) and x and isinstance(x[0], int | float | list):
        return torch.as_tensor(x)
    if isinstance(x, Mapping):
        return {name: _rows(one) for name, one in x.items()}
    if type(x) in (tuple, list):
        return type(x)(_rows(one) for one in x)
    return x


def _of_mapping(part: Mapping[Any, Any], where: str) -> Held:
    """Columns by name, the target among them."""
    if not any(name in part for name in TARGETS):
        raise ValueError(f"{where} is {kind(part)} with {shown(list(part))}: {EXPECTED}")
    inputs, targets = _inputs_and_target(part, f"{where} is")
    return _held(_inputs(inputs, f"{where}:"), tensor_of(targets, f"{where}: targets"), where)


def _held(
    inputs: Any,
    targets: Any,
    where: str,
    columns: list[str] | None = None,
    notes: tuple[str, ...] = (),
) -> Held:
    """Rows that are as many in every tensor."""
    for x in _leaves(inputs):
        if len(x) != len(targets):
            raise ValueError(
                f"{where} has {len(x)} inputs and {len(targets)} targets: "
                "expected as many of one as of the other"
            )
    return Held(inputs, targets, len(targets), columns, notes)


def _leaves(x: Any) -> list[Any]:
    """What is in a structure, whatever it is."""
    if isinstance(x, Mapping):
        return [leaf for one in x.values() for leaf in _leaves(one)]
    if isinstance(x, tuple | list):
        return [leaf for one in x for leaf in _leaves(one)]
    return [x]


def _is_items(part: Sequence[Any]) -> bool:
    """Whether a list is one of samples, and not (inputs, targets) in square brackets."""
    return bool(part) and all(
        isinstance(one, Mapping) or (isinstance(one, tuple) and len(one) == 2) for one in part
    )


def _listed(part: Iterable[Any], where: str) -> list[Any]:
    """All items of a stream."""
    with calling(f"{where}: the stream"):
        found = list(islice(part, STREAM + 1))
    if len(found) > STREAM:
        raise ValueError(
            f"{where} gives more than {STREAM:,} items, and a stream is read into memory: "
            "expected fewer, or a Dataset with __len__ and __getitem__"
        )
    return found


def _read_in(items: list[Any], where: str, collate: Collate | None) -> Held | Items:
    """As rows of tensors, where nobody says how to collate them and they are of one shape."""
    source = Items(items, len(items), where, collate)
    if collate is not None or not items:
        return source
    inputs, targets = source.batch(items)
    if not isinstance(targets, Tensor) or not all(isinstance(x, Tensor) for x in _leaves(inputs)):
        return source
    inputs = each(lambda x: dense(x, f"{where}: items"), inputs)
    return _held(inputs, dense(targets, f"{where}: items"), where)


# ---------------------------------------------------------------- read as it is needed


def _length(part: Any, where: str, *, sized: bool) -> int:
    if isinstance(part, Dataset) and not sized:
        raise ValueError(
            f"{where} is {kind(part)} without a length: expected a map-style Dataset, with __len__ "
            "and __getitem__"
        )
    if not sized:
        raise ValueError(f"{where} is {kind(part)}: {EXPECTED}")
    with calling(f"{where}: len() of the Dataset"):
        return len(part)


def _is_hugging_face(part: Any) -> bool:
    """A dataset of Hugging Face's that gives plain Python values so far."""
    said = getattr(part, "format", None) or {"type": None}
    return hasattr(part, "with_format") and said["type"] is None


def _of_loader(loader: DataLoader[Any], where: str, collate: Collate | None) -> Held | Items:
    """Its dataset, collate_fn, batch size and workers; batches are drawn by the seed."""
    usual = type(loader.sampler) in (SequentialSampler, RandomSampler)
    usual = usual and type(loader.batch_sampler) in (BatchSampler, type(None))
    if not (usual or isinstance(loader.dataset, IterableDataset)):
        raise ValueError(
            f"{where} is a DataLoader with a sampler of its own, and batches are drawn by the "
            "seed: expected a DataLoader without one, and where it chooses samples one of "
            "torch.utils.data.Subset(dataset, indices)"
        )
    own = default_collate if loader.batch_size is None else loader.collate_fn
    if collate is None and own is not default_collate:
        collate = own
    found = source_of(loader.dataset, where, collate)
    found = replace(found, batch_size=loader.batch_size)
    if isinstance(found, Held) or not loader.num_workers:
        return found
    return replace(found, workers={name: getattr(loader, name) for name in WORKERS})
