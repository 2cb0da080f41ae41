"""The numbers of a run by the names that every tracker shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KINDS = (  # of numbers that every site has
    *("train_losses", "val_losses", "test_losses", "weights", "accuracies", "val_accuracies"),
)
FINAL = "final"  # what the names of the figures at the end begin with


def scalars(line: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The numbers of one line of history; what is not known is left out.

    A site's number goes under its own name, so that each kind becomes one group of curves.
    """
    known = [a for a in line["accuracies"] or () if a is not None and math.isfinite(a)]
    tests = [x for x in line["test_losses"] or () if x is not None]
    line = {"val_losses": None, "val_accuracies": None, **line}
    found = {
        "planes": line["planes"],
        "worst/train_loss": line["worst_loss"],
        "worst/test_loss": max(tests) if tests else None,
        "worst/case_train_loss": line["worst_case_loss"],
        "worst/val_loss": line.get("worst_val_loss"),
        "worst/val_accuracy": line.get("worst_val_accuracy"),
        "worst/accuracy": line["worst_accuracy"],
        "mean/accuracy": sum(known) / len(known) if known else None,
    }
    for kind in KINDS:
        values = line[kind] or [None] * len(names)
        found |= {f"{kind}/{name}": value for name, value in zip(names, values, strict=True)}
    for name, value in found.items():
        if value is not None and math.isfinite(value):
            yield name, float(value)


def final(result: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The numbers of result.json, `final/` before their names; those of a site end with its name.

    `result` is `Run.result()`. What is no number, or not finite, is left out.
    """
    yield from _numbers(FINAL, result, names)


def _numbers(path: str, value: Any, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{path}/{key}", inner, names)
    elif hasattr(value, "tolist"):
        yield from _numbers(path, value.tolist(), names)
    elif isinstance(value, list | tuple) and len(value) == len(names):
        for name, inner in zip(names, value, strict=True):
            yield from _numbers(f"{path}/{name}", inner, names)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield path, float(value)
