"""The report: one self-contained HTML page of what is in a results folder, without scripts."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aspire.experiments import paper
from aspire.runtimes import rundir

Line = dict[str, Any]
TITLES = {
    "table1": "Table 1: robustness to heterogeneous sites",
    "table2": "Table 2: a malicious site",
    "gamma": "Gamma: from the mean to the worst site",
    "time": "Time: stragglers on a virtual clock",
    "planes": "Planes: EASE against plain cutting planes",
    "delays": "Delays: how long the slowest worker takes",
    "rates": "Rates: the stationarity gap",
    "tune": "Tuning: 20 trials for every method",
}
NOTES = {
    "table1": "Acc_w: accuracy of the worst site on its test part. Loss_w: largest training loss "
    "of a site. Std: spread of the accuracies over sites, in points. Ours: mean and standard "
    "deviation over seeds. All methods had the same number of worker gradients, the same batches "
    "and the same evaluation at the end; no best checkpoint.",
    "table2": "An extra site holds poisoned data and reports three times its loss. Success: share "
    "of stamped test samples that the model takes for the attacker's class. ASPIRE-EASE and "
    "DRFA-Prox have a prior of 0.1/N for the extra site unless the row says even. The lying sites "
    "hold clean data and report false models. Accuracy is that of the honest sites; a run that "
    "broke down counts as 0.",
    "gamma": "ASPIRE-EASE along its budget Gamma; Gamma = 0 is Mix_Even.",
    "time": "Task times: per-site means spread evenly from 1 to 5, times LN(0, 0.4). A task lasts "
    "one delay whatever it does, which favours methods with several local steps.",
    "planes": "Cutting planes held by the master.",
    "delays": "The largest of N delays from LN(1, 0.4), divided by the mean delay.",
    "rates": "Full local gradients. Solid: measured; dotted: the slope that Theorem 1 or Table E1 "
    "guarantees, drawn from the first point. A guarantee is an upper bound: a steeper fall agrees.",
    "tune": "The best trial of each method on the validation part, at half the budget.",
}


def write(directory: Path, out: Path) -> Path:
    """The page of all experiments in `directory`, whole or not at all."""
    if not directory.is_dir():
        raise ValueError(f"DIR={str(directory)!r}: expected a folder of aspire reproduce")
    found = [name for name in TITLES if (directory / name / "summary.json").is_file()]
    if not found:
        raise ValueError(f"DIR={str(directory)!r}: expected a folder with NAME/summary.json in it")
    links = " ".join(f'<a href="#{name}">{name}</a>' for name in found)
    body = "".join(section(name, directory / name) for name in found)
    beside = out.with_name(out.name + ".part")
    beside.write_text(PAGE.format(links=links, body=body), encoding="utf-8")
    os.replace(beside, out)
    return out


def section(name: str, folder: Path) -> str:
    """One experiment: what it is, and for each data set its table and its picture."""
    lines: list[Line] = rundir.read_json(folder / "summary.json")
    parts = [f'<section id="{name}"><h2>{TITLES[name]}</h2><p>{NOTES[name]}</p>']
    for dataset in dict.fromkeys(line["dataset"] for line in lines):
        own = [line for line in lines if line["dataset"] == dataset]
        parts.append(f"<h3>{html.escape(paper.DATASETS.get(dataset, dataset))}</h3>")
        parts.append(table(own, COLUMNS.get(name, PLAIN)))
        parts.append(picture(folder / f"{dataset}.png", f"{name} on {dataset}"))
    return "".join(parts) + "</section>"


def picture(path: Path, text: str) -> str:
    if not path.is_file():
        return "<p>(no picture: matplotlib was not installed)</p>"
    code = base64.b64encode(path.read_bytes()).decode()
    return f'<img src="data:image/png;base64,{code}" alt="{html.escape(text)}">'


# ---------------------------------------------------------------- tables

Column = tuple[str, Callable[[Line], str]]


def ours(name: str, factor: float = 1.0, digits: int = 2) -> Callable[[Line], str]:
    """mean +- std over seeds."""

    def text(line: Line) -> str:
        if name not in line:
            return "-"
        value, std = factor * line[name]["mean"], factor * line[name]["std"]
        spread = f" <small>&plusmn; {std:.{digits}f}</small>" if len(line["seeds"]) > 1 else ""
        return f"{value:.{digits}f}{spread}"

    return text


def points(name: str) -> Callable[[Line], str]:
    """A figure in points that is no mean over seeds."""
    return lambda line: f"{100 * line[name]['mean']:.1f}" if name in line else "-"


def printed(place: int, digits: int = 2) -> Callable[[Line], str]:
    """A figure of the paper's Table 1; place: that of paper.Line."""

    def text(line: Line) -> str:
        if line["method"] == "ind":
            short = {0: 0, 4: 1}.get(place)
            found = paper.ALONE.get(line["dataset"])
            return "-" if found is None or short is None else f"{found[short]:.{digits}f}"
        row = paper.TABLE1.get(line["dataset"], {}).get(line["method"])
        return "-" if row is None else f"{row[place]:.{digits}f}"

    return text


def printed_success(line: Line) -> str:
    found = paper.TABLE2.get(line["dataset"], {}).get(line["method"])
    return "-" if found is None else f"{found:.2f}"


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
        ("Acc_w, %", ours("worst_accuracy", 100)),
        ("paper", printed(0)),
        ("Loss_w", ours("worst_loss", digits=3)),
        ("paper", printed(2, 3)),
        ("Std", ours("std_accuracy", 100)),
        ("paper", printed(4)),
        ("mean, %", ours("mean_accuracy", 100)),
        ("seeds", seeds),
    ],
    "table2": [
        ("success, %", ours("attack_success", 100)),
        ("paper", printed_success),
        ("Acc_w, honest, %", ours("worst_accuracy", 100)),
        ("mean, honest, %", ours("mean_accuracy", 100)),
        ("largest drop of a site", points("largest_drop")),
        ("weight of the extra site", ours("extra_weight", digits=3)),
        ("seeds", seeds),
    ],
    "time": [
        ("Acc_w at the end, %", ours("worst_accuracy", 100)),
        ("time to AFL's end", ours("time_to_target", digits=0)),
        ("reached by", lambda line: f"{line.get('reached', '-')} of {len(line['seeds'])}"),
        ("virtual time at the end", ours("virtual_seconds", digits=0)),
        ("gradients", lambda line: f"{line['gradients']:,}"),
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
        ("largest delay at the largest N", ours("largest_delay")),
        ("workers", lambda line: f"{line['gradients']:,}"),
        ("seeds", seeds),
    ],
    "rates": [
        ("squared gap at the end", lambda line: f"{line['gap']['mean']:.2e}"),
        ("gradients", lambda line: f"{line['gradients']:,}"),
        ("seeds", seeds),
    ],
}


def table(lines: Sequence[Line], columns: Sequence[Column]) -> str:
    """One row per method, tuned ones after the default ones."""
    head = "".join(f"<th{_paper(name)}>{name}</th>" for name, _ in columns)
    rows = []
    for line in sorted(lines, key=order):
        name = html.escape(paper.title(line["method"], line["variant"]))
        cells = "".join(f"<td{_paper(title)}>{text(line)}</td>" for title, text in columns)
        mark = ' class="ours"' if line["method"].startswith("aspire-ease") else ""
        rows.append(f"<tr{mark}><th>{name}</th>{cells}</tr>")
    head = f"<thead><tr><th>method</th>{head}</tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _paper(title: str) -> str:
    return ' class="paper"' if title == "paper" else ""


def order(line: Line) -> tuple[int, float, str]:
    names = list(paper.TITLES)
    gamma = float(line["method"].removeprefix("gamma-")) if "gamma-" in line["method"] else 0.0
    place = names.index(line["method"]) if line["method"] in names else len(names)
    return place, gamma, line["variant"]


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>ASPIRE: the paper, reproduced</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root {{ --ink: #1d2730; --faint: #65727e; --line: #dfe4e8; --ours: #0b6e4f }}
body {{ font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: #fbfcfc;
  max-width: 72rem; margin: 0 auto; padding: 2rem 1.25rem 5rem }}
h1 {{ font-size: 2rem; margin: 0 0 .3rem }} h2 {{ margin-top: 3.5rem; font-size: 1.4rem;
  border-bottom: 2px solid var(--ours); padding-bottom: .25rem }}
h3 {{ margin: 2rem 0 .5rem; font-size: 1.05rem }} p {{ max-width: 48rem; color: var(--faint) }}
nav a {{ color: var(--ours); margin-right: 1rem }} img {{ max-width: 100%; margin: 1rem 0;
  border: 1px solid var(--line); border-radius: 6px; background: #fff }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem;
  display: block; overflow-x: auto }}
th, td {{ padding: .28rem .8rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap }}
thead th {{ color: var(--faint); font-weight: 600 }}
th:first-child {{ text-align: left; font-weight: 500 }}
.paper {{ color: var(--faint); font-style: italic }} small {{ color: var(--faint) }}
.ours th:first-child {{ color: var(--ours); font-weight: 700 }}
</style></head><body><h1>The paper, reproduced</h1>
<p>Jiao, Yang, Song: Distributed Distributionally Robust Optimization with Non-Convex Objectives
(NeurIPS 2022). Ours beside the paper's own figures (in italics); the protocol, the commands and
every place where we differ are in docs/reproduction.md.</p>
<nav>{links}</nav>{body}</body></html>
"""
