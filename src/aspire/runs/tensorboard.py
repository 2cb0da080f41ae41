"""The history as TensorBoard scalars, beside history.jsonl: DIR/tensorboard."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aspire.runs.folder import RunFolder

NAME = "tensorboard"
KINDS = (  # of numbers that every site has
    *("train_losses", "val_losses", "test_losses", "weights", "accuracies", "val_accuracies"),
)


def scalars(line: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The numbers of one line of history under TensorBoard's names; what is not known is left out.

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


class Scalars:
    """Writes lines of history as they come."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError(
                "tensorboard=True needs TensorBoard: pip install 'aspire-ease[tensorboard]'"
            ) from None
        self.names = list(names)
        self._writer = SummaryWriter(str(folder / NAME))

    def add(self, line: Mapping[str, Any]) -> None:
        for name, value in scalars(line, self.names):
            self._writer.add_scalar(name, value, line["t"])
        self._writer.flush()


def scalars_of(folder: RunFolder | None, names: Sequence[str], *, wanted: bool) -> Scalars | None:
    """A writer where one is wanted, or where the run that is resumed had one."""
    if folder is None and wanted:
        raise ValueError("tensorboard=True: expected `out` with it, the folder that it goes to")
    if folder is None or not (wanted or (folder.path / NAME).is_dir()):
        return None
    return Scalars(folder.path, names)
