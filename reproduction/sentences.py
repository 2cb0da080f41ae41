"""Sentences under the tables that are made from their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from reproduction import attack, paper, summary
from reproduction.table2 import WITHOUT, Variant, most_lost, over, paired

Line = Mapping[str, Any]
Record = Mapping[str, Any]
Known = Mapping[str, Sequence[Record]]  # the cells of one data set by their key


def about(name: str, records: Sequence[Record]) -> str:
    """What the cells of one data set say, in words; '' where there is nothing to say."""
    if name == "rates":
        return rising(summary.lines_of(name, records))
    if name != "table2":
        return ""
    known: dict[str, list[Record]] = {}
    for record in records:
        if record["variant"] == "default":
            known.setdefault(record["method"], []).append(record)
    return attacked(known)


def rising(lines: Sequence[Line]) -> str:
    """Which gaps rise, if any do."""
    said = [
        f"{paper.title(line['method'], line['variant'])} "
        f"({line['slope']['mean']:+.2f} ± {line['slope']['std']:.2f})"
        for line in lines
        if "slope" in line and line["slope"]["mean"] > 0
    ]
    if not said:
        return ""
    return f"Over the second half of the curve the squared gap rises for {', '.join(said)}."


# ---------------------------------------------------------------- table 2


def attacked(known: Known) -> str:
    """What the adversary adds, what the bounds add, and what the stamps do by themselves."""
    adversary = [added_by_adversary(name, known) for name in WITHOUT]
    bounds = [added_by_bounds(name, known) for name in ("fedavg", *WITHOUT)]
    parts = []
    for what, said in (
        ("Gamma = N instead of 0, with the low prior and bounds, adds to", adversary),
        ("the bounds, with the low prior, add to", bounds),
    ):
        if any(said):
            parts.append(f"{what} {', '.join(one for one in said if one)}")
    parts += by_itself(known)
    if not parts:
        return ""
    text = "; ".join(parts)
    return f"In points of success and of cost, paired by seed, ± standard error: {text}."


def added_by_adversary(name: str, known: Known) -> str:
    ours = Variant(name, low=True, clipped=True)
    return change(known, ours, replace(ours, name=WITHOUT[name]))


def added_by_bounds(name: str, known: Known) -> str:
    plain = Variant(name, low=True)
    return change(known, replace(plain, clipped=True), plain)


def change(known: Known, some: Variant, others: Variant) -> str:
    """METHOD SUCCESS and COST: the differences; '' where cells are missing."""
    left = known.get(some.key, ())
    success = paired(
        left, known.get(others.key, ()), lambda a, b: a["attack_success"] - b["attack_success"]
    )
    left_costs = costs(known, some)
    right_costs = costs(known, others)
    both = sorted(left_costs.keys() & right_costs.keys())
    cost = over([left_costs[seed] - right_costs[seed] for seed in both])
    if success is None or cost is None:
        return ""
    return f"{paper.TITLES[some.name]}: {points(success)} and {points(cost)}"


def costs(known: Known, variant: Variant) -> dict[int, float]:
    """By seed, against the undefended run of the same method without an attacker."""
    clean = known.get(variant.undefended.key, ())
    plain = {record["seed"]: record for record in clean}
    own = known.get(variant.key, ())
    return {r["seed"]: most_lost(r, plain[r["seed"]]) for r in own if r["seed"] in plain}


def by_itself(known: Known) -> list[str]:
    """Stamped samples that a model without an attacker sends to the target."""
    clean = known.get(Variant("fedavg", attack=attack.CLEAN).key, ())
    fixed = over([record["attack_success"] for record in clean])
    spread = over([record["adaptive_success"] for record in clean])
    if fixed is None or spread is None:
        return []
    return [
        f"without an attacker FedAvg sends {100 * fixed['mean']:.1f} % of the samples with the "
        f"fixed stamp to the target, and {100 * spread['mean']:.1f} % of those with the spread one"
    ]


def points(found: Mapping[str, float]) -> str:
    error = f" ± {100 * found['error']:.1f}" if found["count"] > 1 else ""
    return f"{100 * found['mean']:+.1f}{error}"
