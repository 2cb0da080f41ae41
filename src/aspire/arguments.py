"""Arguments as a user gives them: checked by name, and shown in a sentence without their bulk."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from torch import Tensor, nn

WIDE = 60  # characters of a value that a sentence shows


class _Short(reprlib.Repr):
    def repr1(self, x: Any, level: int) -> str:
        """Arrays by their shape, modules and functions by their names, the rest cut short."""
        if isinstance(x, Tensor) and x.is_nested:
            return "<nested Tensor>"
        if isinstance(x, Tensor | np.ndarray) or (hasattr(x, "shape") and hasattr(x, "dtype")):
            return f"<{type(x).__name__} of shape {_plain(x.shape)}>"
        if isinstance(x, type):
            return f"<class {x.__name__}>"
        if isinstance(x, nn.Module):
            return f"<{type(x).__name__}>"
        if callable(x) and hasattr(x, "__name__"):
            return f"<function {x.__name__}>"
        return super().repr1(x, level)


def _plain(shape: Any) -> str:
    return str(tuple(shape)) if isinstance(shape, Iterable) else str(shape)


_short = _Short()
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 3
_short.maxstring = _short.maxother = WIDE


def shown(value: Any) -> str:
    """A value on one short line, never a whole tensor."""
    text = " ".join(_short.repr(value).split())
    return text if len(text) <= 2 * WIDE else f"{text[: 2 * WIDE]}..."


def kind(value: Any) -> str:
    """What a value is, with its article: 'a list', 'an int', 'None'."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def near(word: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that it is close to, if any."""
    found = get_close_matches(str(word), list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def whole_number(name: str, value: Any, *, least: int = 1, most: float = math.inf) -> int:
    """A whole number from `least` to `most`; 10.0 is one, too."""
    finite = is_number(value) and math.isfinite(value)
    if finite and value == int(value) and least <= value <= most:
        return int(value)
    expected = f"of at least {least}" if math.isinf(most) else f"from {least} to {most}"
    raise ValueError(f"{name}={shown(value)}: expected a whole number {expected}")


def real_number(
    name: str,
    value: Any,
    expected: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    finite: bool = True,
) -> float:
    """A number of at least `least` and above `above`; `expected` says so in words."""
    if is_number(value) and value >= least and value > above and (value < math.inf or not finite):
        return float(value)
    raise ValueError(f"{name}={shown(value)}: expected {expected}")


def one_of(name: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{name}={shown(value)}: expected one of {', '.join(known)}{near(value, known)}"
        )


def function(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name}={shown(value)}: expected a function")


def flag(name: str, value: Any) -> None:
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={shown(value)}: expected True or False")
