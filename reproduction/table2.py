"""Table 2 on equal terms: every method x {even, low prior} x {plain, clipped} against a backdoor.

A printed line is one method with one prior and with or without its bounds. It is made of up to
three cells of the same seed and a fourth that lines share:

    KEY            the fixed attacker
    KEY-adaptive   the one that knows the defence: for the best defended variant of each method
    KEY-clean      no attacker, the same bounds; without an extra site there is no low prior
    METHOD-clean   no attacker, no defence: what all lines of the method are compared with

The cost of a defence is the most that one honest site loses against METHOD-clean, by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reproduction import attack, lies

Line = dict[str, Any]
Record = Mapping[str, Any]
Records = Mapping[tuple[str, str, str], Sequence[Record]]
CLIP = {"clip": 1.0, "liars": lies.LIARS}  # reports no longer than the second longest
PULLS = {"pull_bound": 10.0, "coordinate_bound": 1.0}  # of the form with a model at every site
NONE: dict[str, Any] = {}


@dataclass(frozen=True)
class Family:
    """A method by its maker; and what bounds it (nothing: it is a defence itself).

    beside  only there to be compared with: low prior alone, and no adaptive attacker
    """

    maker: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    bounds: Mapping[str, Any] = field(default_factory=lambda: CLIP)
    beside: bool = False


def aggregated(name: str) -> Family:
    return Family("fedavg", {"aggregation": name}, NONE)


FAMILIES: dict[str, Family] = {
    "fedavg": Family("fedavg"),
    "fedavg-median": aggregated("median"),
    "fedavg-trimmed-mean": aggregated("trimmed_mean"),
    "fedavg-norm-clipping": aggregated("norm_clipping"),
    "fedavg-centred-clipping": aggregated("centred_clipping"),
    "fedbuff": Family("fedbuff"),
    "afl": Family("afl"),
    "q-ffl": Family("q-ffl"),
    "drfa-prox": Family("drfa-prox"),
    "gda": Family("gda"),
    "aspire-ease": Family("aspire-ease", bounds=PULLS),
    "mix-even": Family("mix-even", bounds=PULLS),
    "aspire-consensus": Family("aspire-consensus", bounds=PULLS),
    "aspire-consensus-gamma0": Family("aspire-consensus-gamma0", bounds=PULLS, beside=True),
    "aspire-direct": Family("aspire-direct"),
    "aspire-direct-gamma0": Family("aspire-direct-gamma0", beside=True),
}
WITHOUT = {  # the same with Gamma = 0
    "aspire-ease": "mix-even",
    "aspire-consensus": "aspire-consensus-gamma0",
    "aspire-direct": "aspire-direct-gamma0",
}
LOW = "-low"
CLIPPED = "-clipped"
LIE = "lie-"


@dataclass(frozen=True)
class Variant:
    """One cell of the table."""

    name: str
    low: bool = False
    clipped: bool = False
    attack: str = attack.BACKDOOR

    @property
    def family(self) -> Family:
        if self.name.startswith(LIE):
            return Family("aspire-consensus", bounds={"pull_bound": 10.0})
        return FAMILIES[self.name]

    @property
    def undefended(self) -> Variant:
        """What its cost is measured from: the method without bounds and without an attacker."""
        own = self.name in FAMILIES and self.family.bounds
        return Variant(self.name if own else self.family.maker, attack=attack.CLEAN)

    @property
    def key(self) -> str:
        more = "" if self.attack not in (attack.ADAPTIVE, attack.CLEAN) else f"-{self.attack}"
        return f"{self.name}{LOW * self.low}{CLIPPED * self.clipped}{more}"

    @property
    def settings(self) -> dict[str, Any]:
        return {**self.family.settings, **(self.family.bounds if self.clipped else {})}

    @property
    def title(self) -> str:
        """What comes after the method's name."""
        bound = "clipped" if "clip" in self.family.bounds else "bounded"
        return f"{', low prior' * self.low}{f', {bound}' * self.clipped}"


def variants() -> Iterator[Variant]:
    """Every cell of the table for one data set and seed."""
    for name, family in FAMILIES.items():
        yield from of_family(name, family)
    for lie in lies.LIES:
        for clipped in (False, True):
            yield Variant(f"{LIE}{lie}", clipped=clipped, attack=lie)


def of_family(name: str, family: Family) -> Iterator[Variant]:
    priors = [True] if family.beside else [False, True]
    for clipped in (False, True) if family.bounds else (False,):
        if not (family.beside and clipped):
            yield Variant(name, clipped=clipped, attack=attack.CLEAN)
        for low in priors:
            yield Variant(name, low, clipped)
    if not family.beside:
        best = Variant(name, True, bool(family.bounds))
        yield replace(best, attack=attack.ADAPTIVE)


VARIANTS = {variant.key: variant for variant in variants()}


# ---------------------------------------------------------------- from cells to lines


def join(lines: Sequence[Line], records: Records) -> list[Line]:
    """One line for each variant under attack, with what its other cells say."""
    found = []
    for line in lines:
        variant = VARIANTS.get(line["method"])
        if variant is None or variant.attack in (attack.ADAPTIVE, attack.CLEAN):
            continue

        def cells(method: str, line: Line = line) -> Sequence[Record]:
            key = (line["dataset"], method, line["variant"])
            return records.get(key, records.get((key[0], method, "default"), ()))

        found.append({**line, **figures(variant, cells)})
    return found


def figures(variant: Variant, cells: Callable[[str], Sequence[Record]]) -> dict[str, Any]:
    """What the cells of a variant say together, where they are there."""
    own = cells(variant.key)
    plain = cells(variant.undefended.key)
    defended = replace(variant, low=False, attack=attack.CLEAN)
    same = cells(defended.key) if defended != variant.undefended else ()
    adaptive = cells(replace(variant, attack=attack.ADAPTIVE).key)
    made = {
        "cost": paired(own, plain, most_lost),
        "clean_cost": paired(same, plain, most_lost),
        "adaptive_cost": paired(adaptive, plain, most_lost),
        "adaptive_success": over([record["attack_success"] for record in adaptive]),
    }
    return {name: value for name, value in made.items() if value is not None}


def most_lost(record: Record, plain: Record) -> float:
    """The largest loss of accuracy of one honest site."""
    return float(np.max(np.subtract(plain["accuracies"], record["accuracies"])))


def paired(
    some: Sequence[Record],
    others: Sequence[Record],
    figure: Callable[[Record, Record], float],
) -> dict[str, float] | None:
    """Mean and standard error over the seeds that both have; None: there are none."""
    known = {record["seed"]: record for record in others}
    both = [record for record in some if record["seed"] in known]
    return over([figure(record, known[record["seed"]]) for record in both])


def over(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, standard deviation (ddof 1), standard error and number; None of nothing."""
    if not values:
        return None
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    count = len(values)
    return {"mean": float(np.mean(values)), "std": std, "error": std / count**0.5, "count": count}
