"""The tables of a results folder: columns, their texts, and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reproduction import knobs, paired, paper, results, sentences, summary, table2
from reproduction.results import Record

Line = dict[str, Any]
PAIRED = ("table1", "sequences")
TITLES = {
    "table1": "Table 1: robustness to heterogeneous sites",
    "table2": "Table 2: a malicious site",
    "gamma": "Gamma: from the mean to the worst site",
    "time": "Time: stragglers on a virtual clock, the last sites being slow",
    "reversed": "Time: the same with the first sites being slow",
    "sequences": "By sequence: test parts are later than training parts",
    "planes": "Planes: EASE against plain cutting planes",
    "delays": "Delays: how long the slowest worker takes",
    "rates": "Rates: the stationarity gap",
    "theorem": "Theorem 1 where its conditions hold",
    "tune": "Tuning: the same search for every method",
}
SPREAD_NOTE = (
    "Time of a gradient: per-site means spread evenly from 1 to 5, times LN(0, 0.4). A task of K "
    "steps takes K of them, one that measures a loss alone takes one."
)
NOTES = {
    "table1": "Acc_w: accuracy of the worst site on its test part, of the last model and of the "
    "one of 20 that is best for the worst site on validation parts. Loss_w (largest training loss "
    "of a site), Std (of the accuracies over sites, in points) and mean are of the last. Figures: "
    "mean and standard deviation over seeds; a run that broke down counts as 0. All methods had "
    "the same number of worker gradients, the same batches and the same evaluation. Rows without "
    "a mark have their own defaults, and the step decay and averaging where they can take them; "
    "the paper's own have its equations and nothing else. Tuned rows: see the search below. "
    "Differences are paired over seeds, with their standard error; ahead or behind needs two of "
    "these and p < 0.05 after Holm's correction over the table.",
    "table2": "An extra site holds poisoned data and reports three times its loss. Success: share "
    "of stamped test samples that the model takes for the attacker's class. Low prior: 0.1/N for "
    "the extra site, else even. Clipped: no report is longer than the second longest; bounded: "
    "pull_bound=10, coordinate_bound=1. Adaptive: the attacker keeps below the clip and spreads "
    "its stamp; against the best defended variant of each method. Cost: the most that one honest "
    "site loses against the same method without defence and without attacker, in points, mean ± "
    "standard error, paired by seed. Half of table 1's budget. Accuracy is that of the honest "
    "sites; a run that broke down counts as 0. The last rows: the site holds clean data and "
    "reports a false model.",
    "gamma": "The consensus form along its budget Gamma.",
    "time": f"{SPREAD_NOTE} The target is what the best synchronous baseline ends with.",
    "reversed": f"{SPREAD_NOTE} The means fall from 5 to 1 here.",
    "sequences": "The split of table 1 is random, which is easy for time series. Here the test "
    "part of a site is its last recordings. Columns, budget and defaults as in table 1.",
    "planes": "Cutting planes held by the master.",
    "delays": "The largest of N delays from LN(1, 0.4), divided by the mean delay.",
    "rates": "Full local gradients. Solid: measured; dotted: the slope that Theorem 1 or Table E1 "
    "guarantees, drawn from the first point. A guarantee is an upper bound: a steeper fall agrees. "
    "Slope: least squares in log t and log gap over the second half of the curve in log t. The "
    "theorems are about their own step sizes; these runs have the default settings.",
    "theorem": "Two sites with f_j = (w - a_j)^2/4 + C, step sizes of Theorem 1, S = 1, tau = 2; L "
    "is bounded over the boxes and the conditions on rho1, rho2, gamma and the floors are checked "
    "(k_1 = 1 is assumed).",
    "tune": "The best setting of each method by the worst site's validation accuracy, at half the "
    "budget, and what was searched.",
}


def experiments_in(directory: Path) -> dict[str, list[Record]]:
    """The finished cells of each experiment that has any there; none at all is one sentence."""
    if not directory.is_dir():
        raise ValueError(f"DIR={str(directory)!r}: expected a folder")
    read = {name: list(results.read(results.path_of(directory, name)).values()) for name in TITLES}
    found = {name: records for name, records in read.items() if records}
    if not found:
        raise ValueError(
            f"DIR={str(directory)!r}: expected a folder with run.json or an experiment's NAME.jsonl"
        )
    return found


def by_dataset(name: str, records: Sequence[Record]) -> dict[str, list[Line]]:
    """The lines of an experiment for each data set, in the order of the tables."""
    lines = summary.lines_of(name, records)
    names = dict.fromkeys(line["dataset"] for line in lines)
    key = place if name == "table2" else order
    return {d: sorted((x for x in lines if x["dataset"] == d), key=key) for d in names}


def markdown(directory: Path) -> str:
    """Every table, one after the other."""
    parts = []
    for name, records in experiments_in(directory).items():
        parts.append(f"### {TITLES[name]}\n\n`aspire reproduce {name}`. {NOTES[name]}\n")
        for dataset, lines in by_dataset(name, records).items():
            parts.append(markdown_table(paper.DATASETS.get(dataset, dataset), name, lines))
            parts += [as_markdown(rows) for rows in beside(name, dataset, records)]
            parts += [f"{line}\n" for line in remarks(name, dataset, records)]
    return "\n".join(parts)


def beside(name: str, dataset: str, records: Sequence[Record]) -> list[paired.Rows]:
    """The tables beside an experiment's own: of table 1 and by sequence the differences."""
    own = [record for record in records if record["dataset"] == dataset]
    return list(paired.tables(own)) if name in PAIRED else []


def remarks(name: str, dataset: str, records: Sequence[Record]) -> list[str]:
    """A note on one data set."""
    own = [record for record in records if record["dataset"] == dataset]
    said = paired.sampling(own) if name in PAIRED else sentences.about(name, own)
    return [said] if said else []


def markdown_table(title: str, name: str, lines: Sequence[Line]) -> str:
    columns = COLUMNS.get(name, PLAIN)
    rows = [[title, *(head for head, _ in columns)]]
    for line in lines:
        method = paper.title(line["method"], line["variant"])
        rows.append([method, *(text(line) for _, text in columns)])
    return as_markdown(rows)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# ---------------------------------------------------------------- columns

Column = tuple[str, Callable[[Line], str]]


def ours(name: str, factor: float = 1.0, digits: int = 2) -> Callable[[Line], str]:
    """mean +- std over seeds."""

    def text(line: Line) -> str:
        if name not in line:
            return "-"
        value = factor * line[name]["mean"]
        std = factor * line[name]["std"]
        spread = f" ± {std:.{digits}f}" if len(line["seeds"]) > 1 else ""
        return f"{value:.{digits}f}{spread}"

    return text


def cost(name: str) -> Callable[[Line], str]:
    """A difference in points over seeds, +- its standard error."""

    def text(line: Line) -> str:
        if name not in line:
            return "-"
        error = f" ± {100 * line[name]['error']:.1f}" if len(line["seeds"]) > 1 else ""
        return f"{100 * line[name]['mean']:.1f}{error}"

    return text


def printed(place: int) -> Callable[[Line], str]:
    """A figure of the paper's Table 1; place: that of paper.Line."""

    def text(line: Line) -> str:
        if line["method"] == "ind":
            short = {0: 0, 4: 1}.get(place)
            found = paper.ALONE.get(line["dataset"])
            return "-" if found is None or short is None else f"{found[short]:.2f}"
        row = paper.TABLE1.get(line["dataset"], {}).get(line["method"])
        return "-" if row is None else f"{row[place]:.2f}"

    return text


def printed_success(line: Line) -> str:
    """Beside the variant that the paper has: without clipping, with a prior where it has one."""
    cell = table2.VARIANTS[line["method"]]
    found = paper.TABLE2.get(line["dataset"], {}).get(cell.name)
    theirs = not cell.clipped and cell.low == (cell.name in paper.WITH_PRIOR)
    return f"{found:.2f}" if found is not None and theirs else "-"


def slope(line: Line) -> str:
    return f"{line['guaranteed']:+.2f}" if "guaranteed" in line else "-"


def fitted(line: Line) -> str:
    if "slope" not in line:
        return "-"
    std = f" ± {line['slope']['std']:.2f}" if len(line["seeds"]) > 1 else ""
    return f"{line['slope']['mean']:+.2f}{std}"


def seeds(line: Line) -> str:
    broke = f", {line['stopped']} broke down" if line["stopped"] else ""
    return f"{len(line['seeds'])}{broke}"


PLAIN: list[Column] = [
    ("Acc_w, %", ours("worst_accuracy", 100)),
    ("mean, %", ours("mean_accuracy", 100)),
    ("Std", ours("std_accuracy", 100)),
    ("Loss_w", ours("worst_loss", digits=3)),
    ("gradients", lambda line: f"{line['gradients']:,}"),
    ("seeds", seeds),
]
COLUMNS: dict[str, list[Column]] = {
    "table1": [
        ("Acc_w last, %", ours("worst_accuracy", 100)),
        ("Acc_w selected, %", ours("selected_accuracy", 100)),
        ("paper's Acc_w", printed(0)),
        ("Loss_w", ours("worst_loss", digits=3)),
        ("Std", ours("std_accuracy", 100)),
        ("mean, %", ours("mean_accuracy", 100)),
        ("seeds", seeds),
    ],
    "tune": [
        ("Acc_w, validation, %", ours("worst_accuracy", 100)),
        ("setting", lambda line: str(line["trial"])),
        ("searched", lambda line: ", ".join(knobs.knobs_of(line["method"]))),
    ],
    "table2": [
        ("success, %", ours("attack_success", 100)),
        ("paper", printed_success),
        ("Acc_w, honest, %", ours("worst_accuracy", 100)),
        ("mean, honest, %", ours("mean_accuracy", 100)),
        ("success, adaptive, %", ours("adaptive_success", 100)),
        ("cost", cost("cost")),
        ("cost, adaptive", cost("adaptive_cost")),
        ("cost without attacker", cost("clean_cost")),
        ("weight of the extra site", ours("extra_weight", digits=3)),
        ("seeds", seeds),
    ],
    "time": [
        ("Acc_w at the end, %", ours("worst_accuracy", 100)),
        ("time to the target", ours("time_to_target", digits=0)),
        ("target, %", lambda line: f"{100 * line['target']:.2f}" if "target" in line else "-"),
        ("reached by", lambda line: f"{line.get('reached', '-')} of {len(line['seeds'])}"),
        ("virtual time at the end", ours("virtual_seconds", digits=0)),
        ("gradients", ours("worker_gradients", digits=0)),
        ("seeds", seeds),
    ],
    "planes": [
        ("planes at the end", ours("planes", digits=1)),
        ("Loss_w", ours("worst_loss", digits=4)),
        ("worst case over the set", ours("worst_case_loss", digits=4)),
        ("Acc_w, %", ours("worst_accuracy", 100)),
        ("seeds", seeds),
    ],
    "delays": [
        ("largest delay over the mean one", ours("largest_ratio")),
        ("workers", lambda line: f"{line['gradients']:,}"),
        ("seeds", seeds),
    ],
    "rates": [
        ("squared gap at the end", lambda line: f"{line['gap']['mean']:.2e}"),
        ("slope", fitted),
        ("guaranteed", slope),
        ("gradients", lambda line: f"{line['gradients']:,}"),
        ("seeds", seeds),
    ],
    "theorem": [
        ("squared gap at the end", lambda line: f"{line['gap']['mean']:.2e}"),
        ("slope", fitted),
        ("guaranteed", slope),
        ("iterations", lambda line: f"{line['gradients']:,}"),
        ("seeds", seeds),
    ],
}

COLUMNS["reversed"] = COLUMNS["time"]
COLUMNS["sequences"] = [column for column in COLUMNS["table1"] if column[0] != "paper's Acc_w"]


def order(line: Line) -> tuple[int, float, str]:
    names = list(paper.TITLES)
    gamma = float(line["method"].removeprefix("gamma-")) if "gamma-" in line["method"] else 0.0
    place = names.index(line["method"]) if line["method"] in names else len(names)
    return place, gamma, line["variant"]


def place(line: Line) -> tuple[int, str]:
    """Of table 2: as its rows are made."""
    return list(table2.VARIANTS).index(line["method"]), line["variant"]
