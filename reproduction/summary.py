"""From cells to a summary: mean and std over seeds of every figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import rates, table2, tune
from reproduction.choices import SYNCHRONOUS

FIGURES = (
    "worst_accuracy",
    "selected_accuracy",
    "mean_accuracy",
    "std_accuracy",
    "worst_loss",
    "worst_case_loss",
    "planes",
    "virtual_seconds",
    "worker_gradients",
    "attack_success",
    "extra_weight",
    "gap",
    "largest_delay",
)
Record = Mapping[str, Any]


def groups(records: Iterable[Record]) -> dict[tuple[str, str, str], list[Record]]:
    """(dataset, method, variant) -> its records, one per seed or trial.

    Where a quick run left some behind, only those with the largest budget count.
    """
    made: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        key = record["dataset"], record["method"], record["variant"]
        made.setdefault(key, []).append(record)
    for key, several in made.items():
        most = max(record["budget"] for record in several)
        made[key] = [record for record in several if record["budget"] == most]
    return made


def lines_of(experiment: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """The lines of an experiment's tables; of `tune` only the trial that each method chose."""
    if experiment == "tune":
        return summarise(tune.best_of(records))
    lines = summarise(records)
    if experiment in ("time", "reversed"):
        return add_times(lines, records)
    if experiment == "table2":
        return table2.join(lines, groups(records))
    if experiment == "delays":
        return add_ratios(lines, groups(records))
    if experiment in ("rates", "theorem"):
        return rates.add_slopes(lines, groups(records))
    return lines


def summarise(records: Iterable[Record]) -> list[dict[str, Any]]:
    """One line per data set, method and variant; std is that of a sample (ddof 1), 0 for one."""
    lines = []
    for (dataset, method, variant), found in groups(records).items():
        several = [with_selected(record) for record in found]
        line: dict[str, Any] = {"dataset": dataset, "method": method, "variant": variant}
        line["seeds"] = [record["seed"] for record in several]
        line["gradients"] = several[0]["budget"]
        line["settings"] = several[0]["settings"]
        line["trial"] = several[0].get("trial")
        line["stopped"] = sum("stopped" in record for record in several)
        for name in FIGURES:
            values = [record[name] for record in several if record.get(name) is not None]
            if values:
                line[name] = {"mean": mean(values), "std": spread(values)}
        if "accuracies" in several[0]:
            sites = [record["accuracies"] for record in several]
            line["accuracies"] = np.mean(sites, axis=0).tolist()
        lines.append(line)
    return lines


def with_selected(record: Record) -> Record:
    """The record, with the test figure of the model that the validation parts selected."""
    worst = record.get("selected", {}).get("worst_accuracy")
    return record if worst is None else {**record, "selected_accuracy": worst}


def time_to(history: Mapping[str, Any], target: float) -> float | None:
    """Virtual time at which the worst accuracy first reaches the target; None: it does not.

    Between two lines of history it is taken as a straight line, before the first as a jump.
    """
    before_time = float(history["time"][0])
    before = 0.0
    for now, worst in zip(history["time"], history["worst_accuracy"], strict=True):
        if worst >= target:
            share = (target - before) / (worst - before) if worst > before else 1.0
            return float(before_time + share * (now - before_time))
        before_time = now
        before = worst
    return None


def add_times(lines: list[dict[str, Any]], records: Iterable[Record]) -> list[dict[str, Any]]:
    """To each line of `time`, when it reached what the best synchronous baseline ended with.

    The target is that one's worst accuracy, the mean over seeds, among rows of the same variant.
    """
    several = groups(records)
    targets: dict[tuple[str, str], tuple[float, str]] = {}
    for (dataset, method, variant), rows in several.items():
        if method in SYNCHRONOUS:
            end = mean([r["worst_accuracy"] for r in rows]), method
            targets[dataset, variant] = max(end, targets.get((dataset, variant), end))
    for line in lines:
        key = line["dataset"], line["method"], line["variant"]
        if (key[0], key[2]) not in targets:
            continue
        target, line["target_of"] = targets[key[0], key[2]]
        found = [time_to(record["history"], target) for record in several[key]]
        reached = [value for value in found if value is not None]
        line |= {"target": target, "reached": len(reached)}
        if len(reached) == len(found):
            line["time_to_target"] = {"mean": mean(reached), "std": spread(reached)}
    return lines


def add_ratios(
    lines: list[dict[str, Any]], several: Mapping[tuple[str, str, str], Sequence[Record]]
) -> list[dict[str, Any]]:
    """To each line of `delays`, the largest delay over the mean one."""
    for line in lines:
        records = several[line["dataset"], line["method"], line["variant"]]
        ratios = [record["largest_delay"] / record["mean_delay"] for record in records]
        line["largest_ratio"] = {"mean": mean(ratios), "std": spread(ratios)}
    return lines


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def spread(values: list[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def band(
    several: Iterable[Record], x: str, y: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """x, and mean, low and high of y over the seeds, on the x of the first seed.

    Where x differs between seeds (virtual time), the others are interpolated onto it.
    """
    histories = [record["history"] for record in several if y in record["history"]]
    grid = np.asarray(histories[0][x], dtype=float)
    rows = []
    for history in histories:
        values = np.array([np.nan if v is None else v for v in history[y]], dtype=float)
        rows.append(np.interp(grid, np.asarray(history[x], dtype=float), values))
    middle = np.mean(rows, axis=0)
    wide = np.std(rows, axis=0)
    return grid.tolist(), middle.tolist(), (middle - wide).tolist(), (middle + wide).tolist()
