"""The charts of the experiments: curves with bands, a figure per site, weights over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aspire.pages import Chart, Interval, Series, curves, dots
from reproduction import attack, paper, summary
from reproduction.summary import Record
from reproduction.table2 import VARIANTS

Group = dict[str, list[Record]]  # the records of one data set by method, "METHOD|VARIANT"
FEW = ("aspire-ease", "aspire-consensus", "aspire-direct", "fedavg", "afl", "drfa-prox", "q-ffl")
SHARE = (0, 100)  # percent
GRADIENTS = "worker gradients (count)"
TIME = "virtual time (s)"
WORST = "worst site's test accuracy (%)"
LOSS = "worst site's training loss (per sample)"
ONE_STD = "Means over seeds; bands: one standard deviation to each side."


def draw(experiment: str, dataset: str, records: Sequence[Record]) -> list[Chart]:
    """The charts of an experiment on a data set."""
    group: Group = {}
    for (name, method, variant), several in summary.groups(records).items():
        if name == dataset:
            group[_key(method, variant)] = list(several)
    return DRAWERS[experiment](group)


def _key(method: str, variant: str) -> str:
    return method if variant == "default" else f"{method}|{variant}"


def _title(key: str) -> str:
    method, _, variant = key.partition("|")
    return paper.title(method, variant or "default")


def _parts(keys: Sequence[str], most: int) -> list[Sequence[str]]:
    return [keys[start : start + most] for start in range(0, len(keys), most)]


def lines(
    group: Group, title: str, x: str, y: str, axes: tuple[str, str], **more: Any
) -> list[Chart]:
    """Mean over seeds with a band of one std; a chart for each variant, of eight lines at most."""
    scale = 100.0 if "%" in axes[1] else 1.0
    found = []
    for variant in dict.fromkeys(key.partition("|")[2] for key in group):
        own = [key for key in group if key.partition("|")[2] == variant]
        drawn = [k for k in own if any(y in record["history"] for record in group[k])]
        for some in _parts(drawn, 8):
            series = [series_of(_title(key), group[key], x, y, scale) for key in some]
            name = f"{title}, {variant}" if variant else title
            limits = SHARE if scale == 100 else (0, None)
            found.append(
                curves(
                    name, x=axes[0], y=axes[1], series=series, limits=limits, note=ONE_STD, **more
                )
            )
    return found


def series_of(name: str, several: list[Record], x: str, y: str, scale: float = 1.0) -> Series:
    at, *values = summary.band(several, x, y)
    middle, low, high = (scale * np.array(line) for line in values)
    return Series(name, at, middle.tolist(), low.tolist(), high.tolist())


def among(group: Group, names: Sequence[str]) -> Group:
    chosen = {key: group[key] for key in group if key.partition("|")[0] in names}
    return chosen or group


def table1(group: Group) -> list[Chart]:
    shown = among(group, FEW)
    validated = (GRADIENTS, "worst site's validation accuracy (%)")
    found = lines(shown, "Worst site", "gradients", "worst_val_accuracy", validated)
    found.append(each_site(shown))
    several = shown.get("aspire-consensus") or next(iter(shown.values()))
    if "weights" in several[0]["history"]:
        found.append(weights(several[0]))
    return found


def each_site(group: Group) -> Chart:
    """Mean over seeds of each site's accuracy, with one std to each side."""
    groups: dict[str, list[Interval | None]] = {}
    for key in [key for key in group if "|" not in key] or list(group):
        values = 100.0 * np.array([record["accuracies"] for record in group[key]])
        middle = values.mean(axis=0)
        std = values.std(axis=0)
        ends = zip(middle, middle - std, middle + std, strict=True)
        groups[_title(key)] = [
            (float(a), max(0.0, float(b)), min(100.0, float(c))) for a, b, c in ends
        ]
    names = [str(name) for name in next(iter(group.values()))[0]["sites"]]
    note = "Means over seeds; lines: one standard deviation to each side."
    return dots(
        "Each site", x="test accuracy (%)", names=names, groups=groups, limits=SHARE, note=note
    )


def weights(record: Record) -> Chart:
    """The weight of each site over training."""
    rows = np.array(record["history"]["weights"])
    at = record["history"]["gradients"]
    series = [Series(str(name), at, rows[:, j].tolist()) for j, name in enumerate(record["sites"])]
    title = f"Weights, {paper.title(record['method'])}, seed {record['seed']}"
    return curves(title, x=GRADIENTS, y="weight (share of the sum)", series=series, worst="high")


def table2(group: Group) -> list[Chart]:
    """The few methods, undefended and as well defended as they can be."""
    success = (GRADIENTS, "success of the attack (%)")
    worst = (GRADIENTS, "worst honest site's test accuracy (%)")
    found = []
    for name, kind, defended in (
        ("no defence", attack.BACKDOOR, False),
        ("low prior and bounds", attack.BACKDOOR, True),
        ("low prior and bounds, adaptive attacker", attack.ADAPTIVE, True),
    ):
        own = {k: v for k, v in group.items() if defended_as(k.partition("|")[0], kind, defended)}
        found += lines(own, f"Success, {name}", "gradients", "attack_success", success)
        found += lines(own, f"Worst honest site, {name}", "gradients", "worst_accuracy", worst)
    return found


def defended_as(key: str, kind: str, defended: bool) -> bool:
    cell = VARIANTS[key]
    known = cell.name in FEW and cell.attack == kind
    return known and cell.low == defended and cell.clipped == defended


def gamma(group: Group) -> list[Chart]:
    found = []
    for key, several in group.items():
        if key.startswith("gamma-"):
            line = summary.summarise(several)[0]
            found.append((float(line["settings"]["budget"]), line))
    found.sort(key=lambda item: item[0])

    def series(name: str, label: str, scale: float) -> Series:
        middle = [scale * line[name]["mean"] for _, line in found]
        std = [scale * line[name]["std"] for _, line in found]
        low, high = ([m + s * d for m, d in zip(middle, std, strict=True)] for s in (-1, 1))
        return Series(label, [at for at, _ in found], middle, low, high)

    x = "Gamma (number of sites)"
    more: dict[str, Any] = {"x": x, "markers": True, "note": ONE_STD}
    both = {"worst_accuracy": "worst site", "mean_accuracy": "mean over sites"}
    accuracies = [series(name, label, 100.0) for name, label in both.items()]
    loss = [series("worst_loss", "worst site", 1.0)]
    return [
        curves("Accuracy", y="test accuracy (%)", series=accuracies, limits=SHARE, **more),
        curves("Loss", y=LOSS, series=loss, limits=(0, None), **more),
    ]


def time(group: Group) -> list[Chart]:
    return lines(group, "Worst site", "time", "worst_accuracy", (TIME, WORST))


def planes(group: Group) -> list[Chart]:
    return [
        *lines(group, "Cutting planes", "time", "planes", (TIME, "cutting planes (count)")),
        *lines(group, "Loss", "time", "worst_loss", (TIME, LOSS)),
    ]


def delays(group: Group) -> list[Chart]:
    axes = ("workers N (count)", "largest delay / mean delay (ratio)")
    return lines(group, "Largest delay", "workers", "ratio", axes, log="x")


def rates(group: Group) -> list[Chart]:
    """The squared gap over iterations; dotted: the guaranteed slope, from the first point."""
    found = []
    for number, keys in enumerate(_parts(list(group), 4), start=1):
        series = []
        for colour, key in enumerate(keys):
            at, middle, *_ = summary.band(group[key], "t", "gap")
            series.append(Series(_title(key), at, middle, colour=colour))
            slope = paper.SLOPES.get(key.partition("|")[0])
            if slope is not None and at[0] > 0:
                line = [middle[0] * math.pow(t / at[0], slope) for t in at]
                series.append(Series(f"bound of {key}", at, line, dash=2, colour=colour))
        axes: dict[str, Any] = {
            "x": "iterations (master steps)",
            "y": "stationarity gap (squared)",
        }
        found.append(curves(f"Stationarity gap, {number}", series=series, log="xy", **axes))
    return found


def tune(group: Group) -> list[Chart]:
    """All trials of every method; the first is the default."""
    found: list[Interval | None] = []
    for several in group.values():
        values = [100 * record["worst_accuracy"] for record in several]
        found.append((values[0], min(values), max(values)))
    note = "Dot: the untouched setting; line: from the worst to the best one."
    axis: dict[str, Any] = {"x": "worst validation accuracy (%)", "y": "method"}
    names = [_title(key) for key in group]
    return [
        dots("Settings", names=names, groups={"settings": found}, limits=SHARE, note=note, **axis)
    ]


DRAWERS: dict[str, Callable[[Group], list[Chart]]] = {
    "table1": table1,
    "table2": table2,
    "gamma": gamma,
    "time": time,
    "reversed": time,
    "sequences": table1,
    "planes": planes,
    "delays": delays,
    "rates": rates,
    "theorem": rates,
    "tune": tune,
}
