"""One look at all values before the training: finite numbers, and classes that the model has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from aspire.arguments import shown
from aspire.problem.conversion import each, is_dense, tensors
from aspire.problem.failures import Failed
from aspire.problem.objective import Objective
from aspire.problem.samples import Samples
from aspire.problem.seeds import seeded

LOOKED_AT = 8192  # items of a Dataset; of tensors, all
AT_ONCE = 256  # items


def check_values(objective: Objective, part: Samples) -> None:
    """Name what is not finite and what is no class, or a part none of whose targets counts."""
    counted = 0.0
    for inputs, targets, samples in _pieces(part):
        for what, values in (("inputs", inputs), ("targets", targets)):
            for x in tensors(values):
                check_finite(part, what, x)
        check_classes(objective, part, inputs, targets, part.classes)
        check_shares(objective, part, targets)
        counted += objective.count(targets, samples)
    if not counted:
        raise ValueError(
            f"{part.where}: no target counts, since the loss ignores all of them or gives them no "
            "weight: expected at least one that does"
        )


def _pieces(part: Samples) -> Iterator[tuple[Any, Any, int]]:
    """A pair at once; of a Dataset, items evenly over all of it."""
    if part.pair is not None:
        yield *part.pair, part.size
        return
    count = min(part.size, LOOKED_AT)
    with seeded((0, 0)):
        for index in (torch.arange(count) * part.size // count).split(AT_ONCE):
            yield *part.take(index), len(index)


def finite(x: Tensor) -> bool:
    """Whether all of it is; the sum settles it but where it overflows."""
    if not (x.is_floating_point() or x.is_complex()):
        return True
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def check_finite(part: Samples, what: str, x: Tensor) -> None:
    if finite(x):
        return
    bad = ~torch.isfinite(x)
    samples = int(bad.flatten(1).any(1).sum()) if x.ndim > 1 else int(bad.sum())
    first = int(bad.nonzero()[0, 0])
    place = f"the first is number {first}"
    if x.ndim == 2 and what == "inputs":
        columns = bad.any(0).nonzero().flatten().tolist()
        names = [shown(part.columns[c]) if part.columns else str(c) for c in columns]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        place = f"column{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}; {place}"
    raise ValueError(
        f"{part.where}: {what} are NaN or infinite in {samples} of {len(x)} samples ({place}): "
        "expected finite numbers"
    )


# ---------------------------------------------------------------- classes


def classes_of(output: Any, targets: Any) -> int | None:
    """How many classes the outputs score, where the targets are numbers of classes."""
    if not (is_dense(output) and is_dense(targets)) or output.ndim < 2:
        return None
    whole = not (targets.is_floating_point() or targets.is_complex())
    alike = targets.shape == output.shape[:1] + output.shape[2:]
    return output.shape[1] if whole and targets.dtype != torch.bool and alike else None


def check_classes(
    objective: Objective, part: Samples, inputs: Any, targets: Any, classes: int | None
) -> None:
    """Targets from 0 to classes - 1, and what the loss ignores; another loss may take more."""
    if classes is None or not isinstance(targets, Tensor):
        return
    bad = (targets < 0) | (targets >= classes)
    if not bool(bad.any()):
        return
    if objective.labels is not None:
        bad &= objective.labels.kept(targets)
        if not bool(bad.any()):
            return
    elif part.device != "cpu" or _takes(objective, inputs, targets, bad):
        return
    odd = targets[bad]
    hint = "; one output for yes and no takes loss='bce'" if classes == 1 else ""
    run = f"targets run from {int(targets.min())} to {int(targets.max())}"
    raise ValueError(
        f"{part.where}: {run}: expected 0 to {classes - 1}, since the model gives {classes} "
        f"class{'es' if classes > 1 else ''} ({len(odd)} of {targets.numel()} are "
        f"{shown(odd.unique()[:3].tolist())[1:-1]}){hint}"
    )


def check_shares(objective: Objective, part: Samples, targets: Any) -> None:
    """Targets of a binary loss are no, yes, or something between them."""
    if objective.cut is None or not isinstance(targets, Tensor):
        return
    low, high = float(targets.min()), float(targets.max())
    if low < 0 or high > 1:
        raise ValueError(
            f"{part.where}: targets run from {low:g} to {high:g}: expected 0 to 1 for a binary loss"
        )


def _takes(objective: Objective, inputs: Any, targets: Tensor, bad: Tensor) -> bool:
    """Whether the loss takes the first of these targets; a card would not survive the question."""
    rows = bad.flatten(1).any(1) if bad.ndim > 1 else bad
    index = rows.nonzero().flatten()[:4]
    few = each(lambda x: x[index], inputs)
    try:
        with torch.no_grad():
            objective.value(objective.flat.start, few, targets[index], training=False)
    except Failed:
        return False
    return True
