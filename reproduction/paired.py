"""What the figures of two methods over the same seeds support, and what they do not.

A difference is called ahead or behind only if it is more than two standard errors away from zero
and its p-value, adjusted by Holm's method over all differences of its table, is below 0.05.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction import paper
from reproduction.choices import FORMS, TABLE1
from reproduction.summary import groups

LEVEL = 0.05
ERRORS = 2.0
FIGURES = ("last", "selected")
Record = Mapping[str, Any]
Rows = list[list[str]]


@dataclass(frozen=True)
class Difference:
    """Of two methods in points: its mean over seeds, standard error, and two-sided p-value."""

    mean: float
    error: float
    p: float

    def verdict(self, adjusted: float) -> str:
        if adjusted >= LEVEL or abs(self.mean) <= ERRORS * self.error:
            return "no difference shown"
        return "ahead" if self.mean > 0 else "behind"


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """one - other, pair by pair, by Student's t with a degree of freedom less than pairs."""
    pairs = [a - b for a, b in zip(one, other, strict=True)]
    if len(pairs) < 2:
        raise ValueError(f"{len(pairs)} pairs: expected at least 2")
    mean = statistics.fmean(pairs)
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    if error == 0.0:
        return Difference(mean, 0.0, float(mean == 0.0))
    return Difference(mean, error, two_sided(mean / error, len(pairs) - 1))


def two_sided(t: float, freedom: int) -> float:
    """P(|T| >= |t|) for Student's t with a whole number of degrees of freedom.

    Abramowitz and Stegun, 26.7.3 and 26.7.4: a finite sum in the angle atan(|t| / sqrt(freedom)).
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    inside = math.sin(angle) * total
    if odd:
        inside = 2.0 / math.pi * (angle + inside)
    return max(0.0, 1.0 - inside)


def holm(values: Sequence[float]) -> list[float]:
    """The adjusted p-values of a family, in its order."""
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[at]))
        adjusted[at] = largest
    return adjusted


# ---------------------------------------------------------------- of table 1


def tables(records: Sequence[Record]) -> Iterator[Rows]:
    """Our forms against every other method of one data set, a table for each variant."""
    found = groups(records)
    for variant in dict.fromkeys(key[2] for key in found):
        known = {key[1]: by_seed(several) for key, several in found.items() if key[2] == variant}
        columns = [(form, figure) for form in FORMS if form in known for figure in FIGURES]
        others = [method for method in TABLE1 if method in known and method not in FORMS]
        family = {}
        for other, form, figure in ((o, *column) for o in others for column in columns):
            pairs = matched(known[form], known[other], figure)
            if len(pairs) > 1:
                family[other, form, figure] = pairs
        texts = verdicts(family)
        head = [f"{paper.title(form, variant)}, {figure}" for form, figure in columns]
        rows = [[paper.title(o), *(texts.get((o, *c), "-") for c in columns)] for o in others]
        if texts:
            yield [["Acc_w, points more than", *head], *rows]


def by_seed(records: Sequence[Record]) -> dict[int, dict[str, float]]:
    """seed -> the worst site's accuracy in points, of the last and of the selected model."""
    return {
        record["seed"]: {
            "last": 100.0 * record["worst_accuracy"],
            "selected": 100.0 * record["selected"]["worst_accuracy"],
        }
        for record in records
    }


def matched(
    one: Mapping[int, dict[str, float]], other: Mapping[int, dict[str, float]], figure: str
) -> list[tuple[float, float]]:
    """The figures of the seeds that both have."""
    return [(one[s][figure], other[s][figure]) for s in sorted(one.keys() & other.keys())]


def verdicts(family: Mapping[Any, list[tuple[float, float]]]) -> dict[Any, str]:
    """Each difference of a family as a text."""
    found = judged(family).items()
    return {name: f"{one.mean:+.2f} ± {one.error:.2f}, {word}" for name, (one, word) in found}


def judged(family: Mapping[Any, list[tuple[float, float]]]) -> dict[Any, tuple[Difference, str]]:
    """Each difference of a family, and the word that it supports."""
    found = {name: difference(*zip(*pairs, strict=True)) for name, pairs in family.items()}
    adjusted = holm([one.p for one in found.values()])
    return {
        name: (one, one.verdict(p)) for (name, one), p in zip(found.items(), adjusted, strict=True)
    }


def sampling(records: Sequence[Record]) -> str:
    """How far off the worst site's accuracy may be since its test samples are so few."""
    errors = []
    sizes = []
    for record in records:
        worst = min(range(len(record["accuracies"])), key=record["accuracies"].__getitem__)
        p = record["accuracies"][worst]
        sizes.append(record["test_samples"][worst])
        errors.append(100.0 * math.sqrt(p * (1.0 - p) / sizes[-1]))
    few = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    return (
        f"The worst site has {few} test samples: by them alone its accuracy has a standard error "
        f"of {statistics.fmean(errors):.1f} points (binomial, mean over rows), which is in no ± "
        "here where all seeds have the same test samples."
    )
