"""Methods by name: made from a name and a map of plain values, as a text or a message has them.

Plain values are numbers, strings, True, False, None and lists of numbers. The signature of a
factory says what an argument may be, so a new argument of a method needs nothing here.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from aspire.arguments import is_number, near, shown
from aspire.methods.aspire_ease.central import central
from aspire.methods.aspire_ease.consensus import consensus
from aspire.methods.aspire_ease.direct import direct
from aspire.methods.aspire_ease.forms import aspire
from aspire.methods.baselines.afl import afl
from aspire.methods.baselines.cover import cover
from aspire.methods.baselines.drfa_prox import drfa_prox
from aspire.methods.baselines.fedavg import fedavg
from aspire.methods.baselines.fedbuff import fedbuff
from aspire.methods.baselines.gcivr import gcivr
from aspire.methods.baselines.gda import gda
from aspire.methods.baselines.gdmax import gdmax
from aspire.methods.baselines.ind import ind
from aspire.methods.baselines.q_ffl import q_ffl
from aspire.types import Method, Plain

Factory = Callable[..., Method]

METHODS: dict[str, Factory] = {
    "afl": afl,
    "aspire": aspire,
    "central": central,
    "consensus": consensus,
    "cover": cover,
    "direct": direct,
    "drfa_prox": drfa_prox,
    "fedavg": fedavg,
    "fedbuff": fedbuff,
    "gcivr": gcivr,
    "gda": gda,
    "gdmax": gdmax,
    "ind": ind,
    "q_ffl": q_ffl,
}
ALSO = {"aspire_central": "central"}  # a `Method.name` that is not its factory's
LARGEST = 1e30  # size of a number
LONGEST = 100_000  # numbers in a list
WORDS = {  # of annotations that allow a plain value
    "bool": "True or False",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "Literal": "a string",
    "Sequence": "a list of numbers",
    "None": "None",
}

# ---------------------------------------------------------------- from a name and a map


def make(name: str, arguments: Mapping[str, Any] | None = None, **objects: Any) -> Method:
    """Return the method of that name.

    name       a key of METHODS
    arguments  plain values by the names of the factory's arguments
    objects    arguments that are no plain values: uncertainty, optimizer, schedule
    """
    factory = factory_of(name)
    given = dict(arguments or {})
    known = inspect.signature(factory).parameters
    for key in (*given, *objects):
        if key not in known:
            raise ValueError(
                f"method {name!r} has no argument {shown(key)}: "
                f"expected {', '.join(known)}{near(key, known)}"
            )
    given = {key: checked(known[key], value) for key, value in given.items()}
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in given:
            raise ValueError(f"method {name!r} needs {key}: expected {name}({key}=...)")
    try:
        return factory(**given, **objects)
    except TypeError as error:
        raise ValueError(f"method {name!r}: {error}") from None


def factory_of(name: object) -> Factory:
    """By its name; that of `Method.name` is as good."""
    key = str(name).replace("-", "_")
    found = METHODS.get(ALSO.get(key, key))
    if found is None or not isinstance(name, str):
        known = ", ".join(METHODS)
        raise ValueError(f"method={shown(name)}: expected one of {known}{near(key, METHODS)}")
    return found


def takes(name: str, argument: str) -> bool:
    """Whether a method has an argument of that name."""
    return argument in inspect.signature(factory_of(name)).parameters


def at_site(name: str, arguments: Mapping[str, Any]) -> Method:
    """The method that a server names, for its `work` alone: with what that depends on, no more."""
    method = make(name, arguments)
    needed = method.site_arguments or {}
    for key in arguments:
        if key not in needed:
            raise ValueError(
                f"method {name!r} at a site with {key}: expected {', '.join(needed) or 'nothing'}"
            )
    return method


# ---------------------------------------------------------------- plain values


def checked(parameter: inspect.Parameter, value: Any) -> Plain:
    """The value, if it is plain and the annotation allows it."""
    note = parameter.annotation
    text = note if isinstance(note, str) else inspect.formatannotation(note)
    outside = re.sub(r"\[[^\[\]]*\]", "", text)  # of brackets, as in Sequence[float]
    words = [word for word in WORDS if word in re.findall(r"\w+", outside)]
    if not is_plain(value) or not set(kinds_of(value)) & set(words):
        expected = " or ".join(WORDS[word] for word in words) or "nothing here"
        raise ValueError(f"{parameter.name}={shown(value)}: expected {expected}")
    whole = isinstance(value, float) and "float" not in words
    return int(value) if whole else value


def is_plain(value: Any) -> bool:
    """Whether a value is one that can travel as data."""
    if isinstance(value, list):
        return len(value) <= LONGEST and all(is_finite(x) for x in value)
    return value is None or isinstance(value, bool | str) or is_finite(value)


def is_finite(value: Any) -> bool:
    return is_number(value) and isinstance(value, int | float) and abs(value) <= LARGEST


def kinds_of(value: Plain) -> tuple[str, ...]:
    """The words of an annotation that allow a plain value."""
    if value is None:
        return ("None",)
    if isinstance(value, bool):
        return ("bool",)
    if isinstance(value, str):
        return ("str", "Literal")
    if isinstance(value, list):
        return ("Sequence",)
    return ("int", "float") if value == int(value) else ("float",)


# ---------------------------------------------------------------- from a text


def parse(text: object) -> tuple[str, dict[str, Plain]]:
    """`NAME` or `NAME(key=value, ...)` as a name and a map; values are literals, nothing is run."""
    found = re.fullmatch(r"\s*([\w-]+)\s*(\(.*\))?\s*", str(text), re.DOTALL)
    if found is None or not isinstance(text, str):
        raise ValueError(f"method={shown(text)}: expected NAME or NAME(key=value, ...)")
    factory_of(found[1])
    return found[1], _arguments(text, found[2] or "()")


def _arguments(text: str, brackets: str) -> dict[str, Plain]:
    try:
        call = ast.parse(f"f{brackets}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        pairs = [(one.arg, ast.literal_eval(one.value)) for one in call.keywords]
        if any(name is None for name, _ in pairs):
            raise ValueError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError(
            f"method={shown(text)}: expected NAME(key=value, ...) with numbers, strings, True, "
            "False, None or lists of numbers"
        ) from None
    names = [str(name) for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"method={shown(text)}: expected {name} once")
    return {str(name): value for name, value in pairs}
