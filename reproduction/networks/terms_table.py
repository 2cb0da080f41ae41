"""The tables on equal terms: every method as it comes, with searched settings, and its times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from reproduction import paired
from reproduction.choices import SYNCHRONOUS, parent
from reproduction.knobs import knobs_of
from reproduction.networks.cases import CASES, NINE
from reproduction.networks.figures import (
    NOTHING,
    Cells,
    Row,
    common,
    mean_of,
    share_text,
    text,
    written,
)
from reproduction.networks.plan import Record, best_baseline
from reproduction.networks.run import time_to
from reproduction.networks.terms import METHODS, TERMS
from reproduction.networks.terms_time import ORDERS
from reproduction.networks.trials import SEARCHED
from reproduction.paired import Difference

OURS = METHODS[0]
BELOW = 1.0  # point
TITLES = {
    TERMS: "every method as it comes",
    SEARCHED: "every method with the best of equally many settings, tried at half the budget on "
    "another seed",
}
Judged = Mapping[str, tuple[Difference, str]]


def on_equal_terms(cells: Cells) -> list[str]:
    """The tables of each setting by network, one line under them, and the times."""
    made = []
    for setting in TITLES:
        made += [table for name in NINE if (table := of_network(cells, name, setting))]
        made.append(below(cells, setting))
    return [*made, times(cells)]


def of_network(cells: Cells, name: str, setting: str) -> str:
    apart = differences(cells, name, setting)
    rows = [row for method in METHODS if (row := row_of(cells, name, method, setting, apart))]
    title = (
        f"{CASES[name].title}: {TITLES[setting]}, a tenth of each training part held out. "
        "Worst test accuracy of the model that is best on the val parts, and of the last one; "
        "the difference is that of the direct form, paired by seed, with its standard error. It "
        "is ahead or behind if that is more than two standard errors and the p-value, by Holm's "
        "method over the rows here, is below 0.05."
    )
    head = ["method", "selected, %", "last, %", "mean, selected, %", "worst training loss"]
    head += ["direct form, selected, less this", "broke down", "seeds"]
    if setting == SEARCHED:
        head.append("searched")
    return written(title, head, rows)


def row_of(cells: Cells, name: str, method: str, setting: str, apart: Judged) -> Row:
    """A run that broke down has accuracy 0."""
    found = cells.by_seed(name, method, setting)
    if not found:
        return []
    seeds = sorted(found)
    broke = sum("stopped" in record for record in found.values())
    trained = [seed for seed in seeds if found[seed].get("worst_loss") is not None]
    row = [
        method,
        text(mean(selected(found[s]) for s in seeds)),
        text(mean(accuracy(found[s], "last_worst_accuracy") for s in seeds)),
        text(mean(accuracy(found[s], "selected_mean_accuracy") for s in seeds)),
        text(mean_of(found, trained, "worst_loss")) if trained else NOTHING,
        said(*apart[method]) if method in apart else NOTHING,
        str(broke),
        str(len(seeds)),
    ]
    return [*row, ", ".join(knobs_of(parent(method)))] if setting == SEARCHED else row


def differences(cells: Cells, name: str, setting: str) -> Judged:
    """The direct form less every other method that has two seeds in common with it, in points."""
    ours = cells.by_seed(name, OURS, setting)
    family = {}
    for method in METHODS[1:]:
        other = cells.by_seed(name, method, setting)
        pairs = [(selected(ours[s]), selected(other[s])) for s in common(ours, other)]
        if len(pairs) > 1:
            family[method] = pairs
    return paired.judged(family)


def below(cells: Cells, setting: str) -> str:
    """Where the direct form is clearly below the synchronous baseline that is best there."""
    found = {name: beside_best(cells, name, setting) for name in NINE}
    known = {name: one for name, one in found.items() if one is not None}
    if not known:
        return ""
    less = {name: one for name, one in known.items() if one[1].mean < -BELOW}
    sure = [name for name, one in less.items() if one[2] == "behind"]
    named = [f"{CASES[n].title} ({said(*one[1:])}, {one[0]})" for n, one in less.items()]
    told = f": {'; '.join(named)}" if named else ""
    return (
        f"{TITLES[setting].capitalize()}: the direct form is more than {BELOW:g} point below the "
        "synchronous baseline whose selected model has the best mean here on "
        f"{len(less)} of {len(known)} networks{told}. Significantly so on {len(sure)}.\n"
    )


def beside_best(cells: Cells, name: str, setting: str) -> tuple[str, Difference, str] | None:
    """The best synchronous baseline of a network, the difference to it, and the word."""
    apart = differences(cells, name, setting)
    known = [method for method in SYNCHRONOUS if method in apart]
    if not known:
        return None
    best = min(known, key=lambda method: apart[method][0].mean)
    return best, *apart[best]


# ---------------------------------------------------------------- times


def times(cells: Cells) -> str:
    """Virtual time to the worst training loss with which the best synchronous baseline ends."""
    rows = []
    for name in NINE:
        found = [time_shares(cells, name, setting) for setting in ORDERS]
        if any(found):
            shares = [x for one in found for x in (share_text([s for _, s in one]), str(len(one)))]
            rows.append([CASES[name].title, baselines(found[0] or found[1]), *shares])
    title = (
        "Virtual time in which the direct form, as it comes, first has the worst training loss "
        "with which the best synchronous baseline ends, as a share of the baseline's time: median "
        "over seeds, and the range. The best is chosen by that loss, for each seed. Delays are "
        "spread 1 to 5 over the sites, times LN(0, 0.4); a task of K steps takes K of them."
    )
    head = ["network", "best baseline (seeds)"]
    return written(title, [*head, "slow sites last", "seeds", "slow sites first", "seeds"], rows)


def time_shares(cells: Cells, name: str, setting: str) -> list[tuple[str, float]]:
    """The best baseline of each seed, and the share; infinite where it was not reached."""
    ended = {method: cells.by_seed(name, method, TERMS) for method in SYNCHRONOUS}
    direct = cells.by_seed(name, OURS, setting)
    shares = []
    for seed, mine in sorted(direct.items()):
        best = best_baseline({method: found.get(seed) for method, found in ended.items()})
        clock = None if best is None else cells.by_seed(name, best, setting).get(seed)
        if best is None or clock is None or mine["target"] != ended[best][seed]["worst_loss"]:
            continue
        reached = time_to(mine["history"], mine["target"])
        shares.append((best, reached / float(clock["virtual_seconds"])))
    return shares


def baselines(shares: Iterable[tuple[str, float]]) -> str:
    counts = Counter(best for best, _ in shares)
    return ", ".join(f"{best} ({count})" for best, count in counts.most_common())


# ---------------------------------------------------------------- numbers


def said(one: Difference, word: str) -> str:
    return f"{one.mean:+.1f} ± {one.error:.1f}, {word}"


def selected(record: Record) -> float:
    return accuracy(record, "selected_worst_accuracy")


def accuracy(record: Record, name: str) -> float:
    """In points."""
    return 100.0 * float(record.get(name) or 0.0)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan
