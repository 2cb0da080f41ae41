"""Arrays of any kind as tensors, and the few types and shapes that a model may want instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aspire.arguments import kind, shown

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
ARRAY = "expected numbers, as a tensor, a numpy array or a DataFrame"


class Unfit(ValueError):
    """No numbers can be made of it."""


Rule = Callable[[Tensor, torch.dtype], Tensor]


# ---------------------------------------------------------------- tensors of anything


def is_array(x: Any) -> bool:
    return isinstance(x, Tensor | np.ndarray) or hasattr(x, "to_numpy")


def is_dense(x: Any) -> bool:
    """A tensor of numbers in rows, as torch computes with them."""
    if not isinstance(x, Tensor) or x.is_nested or x.layout is not torch.strided:
        return False
    return not (x.is_quantized or x.is_meta)


def tensor_of(x: Any, where: str) -> Tensor:
    """A dense tensor with the samples along its first axis; `where` begins the sentence if not."""
    found = dense(x if isinstance(x, Tensor) else _from_other(x, where), where)
    if found.ndim == 0:
        raise ValueError(f"{where} are one number: {ARRAY}, one row or entry a sample")
    return found


def dense(x: Tensor, where: str) -> Tensor:
    """Without a gradient, and of no type that torch stores but does not compute with."""
    if not is_dense(x):
        kind = "quantized" if x.is_quantized else "on no device" if x.is_meta else x.layout
        raise Unfit(f"{where} are not dense ({kind}): expected x.to_dense() or x.dequantize()")
    x = x.detach() if x.requires_grad else x
    return x.to(torch.int64) if x.dtype in UNSIGNED else x


def _from_other(x: Any, where: str) -> Tensor:
    try:
        if hasattr(x, "to_numpy") and not isinstance(x, type):
            return _from_numpy(np.asarray(x.to_numpy()), where, getattr(x, "columns", None))
        if isinstance(x, np.ndarray) or hasattr(x, "__array__"):
            return _from_numpy(np.ma.asanyarray(x), where, None)
        if isinstance(x, list | tuple) and x and isinstance(x[0], np.ndarray | np.generic):
            return _from_numpy(np.asarray(x), where, None)
        if isinstance(x, list | tuple | range):
            return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, Unfit):
            raise
        raise Unfit(f"{where} are {shown(x)}: {ARRAY} ({first_line(error)})") from None
    raise Unfit(f"{where} are {kind(x)}: {ARRAY}")


def _from_numpy(x: np.ndarray[Any, Any], where: str, columns: Any) -> Tensor:
    if isinstance(x, np.ma.MaskedArray):
        if np.ma.is_masked(x):
            raise Unfit(f"{where} are masked in {int(x.mask.sum())} places: expected none")
        x = x.data
    if x.dtype.kind not in "biufc":
        x = _numbers(x, where, columns)
    if x.dtype in (np.longdouble, np.clongdouble):
        x = x.astype(np.float64)
    x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("=")) if _is_odd(x) else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nobody writes to them
        return torch.as_tensor(x)


def _is_odd(x: np.ndarray[Any, Any]) -> bool:
    """Another byte order, or rows that lie backwards: torch does not read these."""
    return not x.dtype.isnative or any(step < 0 for step in x.strides)


def _numbers(x: np.ndarray[Any, Any], where: str, columns: Any) -> np.ndarray[Any, Any]:
    """An array of objects as one of numbers, or the column that has others."""
    if x.dtype.kind == "O":
        try:
            found = np.asarray(x.tolist())
            return found if found.dtype.kind in "biuf" else x.astype(np.float64)
        except (TypeError, ValueError):
            pass
    which = ""
    for number, name in enumerate([] if columns is None else columns):
        try:
            x[:, number].astype(np.float64)
        except (TypeError, ValueError):
            which = f" in column {shown(name)}"
            break
    raise Unfit(f"{where} hold other things than numbers{which} ({x.dtype}): {ARRAY}")


def first_line(error: BaseException) -> str:
    """Of its words, no more than a sentence can hold."""
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


# ---------------------------------------------------------------- what a model wants


def keep(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x


def real(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Real numbers in the model's precision."""
    return x.to(dtype) if x.is_floating_point() else x


def number(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers and truth values, too, as real numbers."""
    return x if x.is_complex() else x.to(dtype)


def label(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers and truth values as class numbers."""
    whole = not x.is_floating_point() and not x.is_complex()
    return x.to(torch.int64) if whole else real(x, dtype)


def column(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Class numbers in a column, (n, 1), as (n,)."""
    x = label(x, dtype)
    return x.squeeze(1) if x.dtype == torch.int64 and x.shape[1:] == (1,) else x


def upright(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A vector of targets as a column, (n,) as (n, 1), for a model with one output."""
    x = number(x, dtype)
    return x.unsqueeze(1) if x.ndim == 1 else x


def flat(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The other way round."""
    x = number(x, dtype)
    return x.squeeze(1) if x.shape[1:] == (1,) else x


RESHAPED = (upright, flat)  # only where the targets then have the shape of the outputs


@dataclass(frozen=True)
class Fit:
    """How samples become what the model and the loss take."""

    inputs: Rule = keep
    targets: Rule = keep
    dtype: torch.dtype = torch.float32

    def __call__(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        return (
            each(lambda x: self.inputs(x, self.dtype), inputs),
            each(lambda x: self.targets(x, self.dtype), targets),
        )


def fits(dtype: torch.dtype) -> Iterator[Fit]:
    """As they are; then with as little change as may be needed."""
    yield Fit(dtype=dtype)
    for inputs in (real, number):
        for targets in (real, label, column, number, *RESHAPED):
            yield Fit(inputs, targets, dtype)


def each(change: Callable[[Tensor], Tensor], x: Any) -> Any:
    """The same structure with every tensor in it changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Mapping):
        changed = {key: each(change, item) for key, item in x.items()}
        return x if all(changed[key] is x[key] for key in x) else changed
    if isinstance(x, tuple | list):
        made = [each(change, item) for item in x]
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    return x


def tensors(x: Any) -> list[Tensor]:
    """All tensors of a structure."""
    found: list[Tensor] = []
    each(lambda t: found.append(t) or t, x)  # type: ignore[func-returns-value]
    return found


def kinds(*parts: Any) -> tuple[Any, ...]:
    """Types and shapes without the samples' axis: what decides whether a model takes them."""
    return tuple(tuple((t.dtype, t.shape[1:]) for t in tensors(part)) for part in parts)


def changes(what: str, before: Any, after: Any) -> list[str]:
    """What was converted, in words."""
    said = []
    for old, new in zip(tensors(before), tensors(after), strict=True):
        if old.dtype != new.dtype:
            said.append(f"{what} from {_name(old.dtype)} to {_name(new.dtype)}")
        if old.ndim > new.ndim:
            said.append(f"{what} from a column to a vector")
        if old.ndim < new.ndim:
            said.append(f"{what} from a vector to a column")
    return said


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
