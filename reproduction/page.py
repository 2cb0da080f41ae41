"""The report: one self-contained HTML page of what is in a results folder, without scripts."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from pathlib import Path

from reproduction import paper
from reproduction.results import Record
from reproduction.tables import (
    COLUMNS,
    NOTES,
    PLAIN,
    TITLES,
    Column,
    Line,
    by_dataset,
    experiments_in,
)


def write(directory: Path, out: Path) -> Path:
    """The page of all experiments in `directory`, whole or not at all."""
    found = experiments_in(directory)
    links = " ".join(f'<a href="#{name}">{name}</a>' for name in found)
    body = "".join(section(name, records) for name, records in found.items())
    beside = out.with_name(out.name + ".part")
    beside.write_text(PAGE.format(links=links, body=body), encoding="utf-8")
    os.replace(beside, out)
    return out


def section(name: str, records: Sequence[Record]) -> str:
    """One experiment: what it is, and for each data set its table and its picture."""
    parts = [f'<section id="{name}"><h2>{TITLES[name]}</h2><p>{NOTES[name]}</p>']
    for dataset, lines in by_dataset(name, records).items():
        parts.append(f"<h3>{html.escape(paper.DATASETS.get(dataset, dataset))}</h3>")
        parts.append(table(lines, COLUMNS.get(name, PLAIN)))
        parts.append(picture(name, dataset, records))
    return "".join(parts) + "</section>"


def picture(name: str, dataset: str, records: Sequence[Record]) -> str:
    try:
        from reproduction import pictures
    except ImportError:
        return "<p>(no picture: it needs matplotlib, pip install 'aspire-ease[plot]')</p>"
    code = base64.b64encode(pictures.draw(name, dataset, records)).decode()
    text = html.escape(f"{name} on {dataset}")
    return f'<img src="data:image/png;base64,{code}" alt="{text}">'


def table(lines: Sequence[Line], columns: Sequence[Column]) -> str:
    """One row per method, tuned ones after the default ones."""
    head = "".join(f"<th{_paper(name)}>{name}</th>" for name, _ in columns)
    rows = []
    for line in lines:
        name = html.escape(paper.title(line["method"], line["variant"]))
        cells = "".join(f"<td{_paper(title)}>{text(line)}</td>" for title, text in columns)
        mark = ' class="ours"' if line["method"].startswith("aspire-ease") else ""
        rows.append(f"<tr{mark}><th>{name}</th>{cells}</tr>")
    head = f"<thead><tr><th>method</th>{head}</tr></thead>"
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _paper(title: str) -> str:
    return ' class="paper"' if title == "paper" else ""


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
