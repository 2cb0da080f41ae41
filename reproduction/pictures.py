"""The pictures of the experiments: curves with bands, bars per site, weights over time."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot

from reproduction import paper, summary
from reproduction.summary import Record

Group = dict[str, list[Record]]  # title -> records of one data set
OURS = "#0b6e4f"
COLOURS = {
    "aspire-ease": OURS,
    "aspire-ease-sync": "#2f9fb4",
    "aspire-cp": "#c8553d",
    "aspire-ease-per": "#58b09c",
    "aspire-ease-central": "#386641",
    "aspire-ease-even": "#74c69d",
    "aspire-ease-unbounded": "#b7e4c7",
    "aspire-ease-clean": "#1d2730",
    "mix-even": "#8d99a6",
    "fedavg": "#7a5195",
    "afl": "#e0a030",
    "drfa-prox": "#3d5a80",
    "drfa-prox-even": "#90b4d8",
    "q-ffl": "#a04668",
    "gda": "#e0a030",
    "gdmax": "#7a5195",
    "cover": "#3d5a80",
    "gcivr": "#a04668",
}
FEW = ("aspire-ease", "mix-even", "fedavg", "afl", "drfa-prox", "q-ffl")


def draw(experiment: str, dataset: str, records: Sequence[Record]) -> bytes:
    """The picture of an experiment on a data set, as PNG."""
    group: Group = {}
    for (name, method, variant), several in summary.groups(records).items():
        if name == dataset:
            group[_key(method, variant)] = list(several)
    figure = DRAWERS[experiment](group)
    figure.suptitle(paper.DATASETS.get(dataset, dataset), fontsize=11)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    pyplot.close(figure)
    return file.getvalue()


def _key(method: str, variant: str) -> str:
    return method if variant == "default" else f"{method}|{variant}"


def _title(key: str) -> str:
    method, _, variant = key.partition("|")
    return paper.title(method, variant or "default")


def _colour(key: str) -> str:
    return COLOURS.get(key.partition("|")[0], "#5c6770")


def _line(key: str) -> dict[str, Any]:
    """Ours is thick, tuned is dashed."""
    wide = 2.4 if key.startswith("aspire-ease") else 1.4
    return {"color": _colour(key), "linewidth": wide, "linestyle": "--" if "|" in key else "-"}


def panels(count: int) -> tuple[Any, Any]:
    figure, axes = pyplot.subplots(1, count, figsize=(5.2 * count, 3.8), layout="constrained")
    for axis in axes if count > 1 else [axes]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e5e8eb", linewidth=0.6)
    return figure, axes


def curves(axis: Any, group: Group, x: str, y: str, scale: float = 1.0) -> None:
    """Mean over seeds with a band of one std, a line for each method."""
    for key, several in group.items():
        if not any(y in record["history"] for record in several):
            continue
        at, middle, low, high = summary.band(several, x, y)
        axis.plot(at, scale * np.array(middle), label=_title(key), **_line(key))
        edges = scale * np.array([low, high])
        axis.fill_between(at, *edges, color=_colour(key), alpha=0.15, linewidth=0)


def among(group: Group, names: Sequence[str]) -> Group:
    chosen = {key: group[key] for key in group if key.partition("|")[0] in names}
    return chosen or group


def table1(group: Group) -> Any:
    figure, (left, middle, right) = panels(3)
    shown = among(group, FEW)
    curves(left, shown, "gradients", "worst_accuracy", 100.0)
    left.set(xlabel="worker gradients", ylabel="worst site's test accuracy, %")
    left.legend(frameon=False, fontsize=7, loc="lower right")
    site_bars(middle, shown)
    several = shown.get("aspire-ease") or next(iter(shown.values()))
    if "weights" in several[0]["history"]:
        weights(right, several[0])
    return figure


def site_bars(axis: Any, group: Group) -> None:
    wide = 0.8 / len(group)
    for number, (key, several) in enumerate(group.items()):
        values = 100.0 * np.mean([record["accuracies"] for record in several], axis=0)
        place = np.arange(len(values)) + wide * (number + 0.5) - 0.4
        axis.bar(place, values, wide, color=_colour(key), label=_title(key))
    several = next(iter(group.values()))
    names = [str(name) for name in several[0]["sites"]]
    axis.set_xticks(np.arange(len(names)), names, rotation=45, ha="right", fontsize=7)
    least = min(min(record["accuracies"]) for rows in group.values() for record in rows)
    axis.set_axisbelow(True)
    axis.set(ylabel="test accuracy, %", title="each site", ylim=(max(0.0, 100 * least - 10), None))


def weights(axis: Any, record: Record) -> None:
    """The weight of each site over training."""
    rows = np.array(record["history"]["weights"])
    for j, name in enumerate(record["sites"]):
        axis.plot(record["history"]["gradients"], rows[:, j], linewidth=1.2, label=str(name))
    which = f"{paper.title(record['method'])}, seed {record['seed']}"
    axis.set(xlabel="worker gradients", ylabel="weight of the site", title=which)
    if len(record["sites"]) <= 8:
        axis.legend(frameon=False, fontsize=7)


def table2(group: Group) -> Any:
    figure, (left, right) = panels(2)
    doors = {key: rows for key, rows in group.items() if not key.startswith("lie-")}
    curves(left, doors, "gradients", "attack_success", 100.0)
    left.set(xlabel="worker gradients", ylabel="success of the attack, %", ylim=(0, 100))
    curves(right, doors, "gradients", "worst_accuracy", 100.0)
    right.set(xlabel="worker gradients", ylabel="worst honest site's test accuracy, %")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right", frameon=False)
    return figure


def gamma(group: Group) -> Any:
    figure, (left, right) = panels(2)
    found = []
    for key, several in group.items():
        if key.startswith("gamma-"):
            line = summary.summarise(several)[0]
            found.append((float(line["settings"]["budget"]), line))
    found.sort(key=lambda item: item[0])
    at = [gamma for gamma, _ in found]
    names = {"worst_accuracy": "worst site", "mean_accuracy": "mean over sites"}
    for name, label in names.items():
        means = [100 * line[name]["mean"] for _, line in found]
        stds = [100 * line[name]["std"] for _, line in found]
        left.errorbar(at, means, stds, marker="o", capsize=3, label=label)
    left.set(xlabel="Gamma", ylabel="test accuracy, %")
    left.legend(frameon=False)
    losses = [line["worst_loss"]["mean"] for _, line in found]
    stds = [line["worst_loss"]["std"] for _, line in found]
    right.errorbar(at, losses, stds, marker="o", capsize=3, color=OURS)
    right.set(xlabel="Gamma", ylabel="worst site's training loss")
    return figure


def time(group: Group) -> Any:
    figure, axis = panels(1)
    curves(axis, group, "time", "worst_accuracy", 100.0)
    axis.set(xlabel="virtual time", ylabel="worst site's test accuracy, %")
    axis.legend(frameon=False, fontsize=7)
    return figure


def planes(group: Group) -> Any:
    figure, (left, right) = panels(2)
    curves(left, group, "time", "planes")
    left.set(xlabel="virtual time", ylabel="cutting planes")
    left.legend(frameon=False)
    curves(right, group, "time", "worst_loss")
    right.set(xlabel="virtual time", ylabel="worst site's training loss")
    return figure


def delays(group: Group) -> Any:
    figure, axis = panels(1)
    curves(axis, group, "workers", "ratio")
    axis.set(xlabel="workers N", ylabel="largest delay / mean delay", xscale="log")
    return figure


def rates(group: Group) -> Any:
    """The squared gap over worker gradients; dashed: the guaranteed slope, from the first point."""
    figure, axis = panels(1)
    curves(axis, group, "t", "gap")
    for key, several in group.items():
        at, middle, *_ = summary.band(several, "t", "gap")
        slope = paper.SLOPES.get(key.partition("|")[0])
        if slope is not None and at[0] > 0:
            line = middle[0] * (np.array(at) / at[0]) ** slope
            axis.plot(at, line, color=_colour(key), linestyle=":", linewidth=1)
    axis.set(xlabel="iterations", ylabel="squared stationarity gap", xscale="log", yscale="log")
    axis.legend(frameon=False, fontsize=7)
    return figure


def tune(group: Group) -> Any:
    """All trials of every method; the first is the default."""
    figure, axis = panels(1)
    for number, (key, several) in enumerate(group.items()):
        values = [100 * record["worst_accuracy"] for record in several]
        axis.plot([number] * len(values), values, "o", color="#9aa5b1", markersize=3)
        axis.plot(number, values[0], "_", color=_colour(key), markersize=14)
    axis.set_xticks(range(len(group)), [_title(k) for k in group], rotation=60, ha="right")
    axis.tick_params(axis="x", labelsize=6)
    axis.set(ylabel="worst validation accuracy, %", title="trials; dash: the default")
    return figure


DRAWERS: dict[str, Callable[[Group], Any]] = {
    "table1": table1,
    "table2": table2,
    "gamma": gamma,
    "time": time,
    "planes": planes,
    "delays": delays,
    "rates": rates,
    "tune": tune,
}
