"""The report: one self-contained interactive page of what is in a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aspire import pages
from aspire.pages import Block, Heading, Page, Table, Text
from reproduction import paper, pictures
from reproduction.results import Record
from reproduction.tables import (
    COLUMNS,
    NOTES,
    PLAIN,
    TITLES,
    Line,
    beside,
    by_dataset,
    experiments_in,
    remarks,
)

ABOUT = (
    "Jiao, Yang, Song: Distributed Distributionally Robust Optimization with Non-Convex Objectives "
    "(NeurIPS 2022). Ours beside the paper's own figures; the protocol, the commands and every "
    "place where we differ are in docs/reproduction.md."
)


def write(directory: Path, out: Path) -> Path:
    """The page of all experiments in `directory`, whole or not at all."""
    blocks: list[Block] = [Text(ABOUT)]
    for name, records in experiments_in(directory).items():
        blocks += section(name, records)
    return pages.write(out, Page("The paper, reproduced", blocks))


def section(name: str, records: Sequence[Record]) -> list[Block]:
    """One experiment: what it is, and for each data set its table and its charts."""
    found: list[Block] = [Heading(TITLES[name]), Text(NOTES[name])]
    for dataset, lines in by_dataset(name, records).items():
        found.append(table(name, paper.DATASETS.get(dataset, dataset), lines))
        found += [Table(head, body) for head, *body in beside(name, dataset, records)]
        found += [Text(line) for line in remarks(name, dataset, records)]
        found += pictures.draw(name, dataset, records)
    return found


def table(name: str, dataset: str, lines: Sequence[Line]) -> Table:
    """One row per method, tuned ones after the default ones."""
    columns = COLUMNS.get(name, PLAIN)
    rows = [
        [paper.title(line["method"], line["variant"]), *(text(line) for _, text in columns)]
        for line in lines
    ]
    return Table([dataset, *(title for title, _ in columns)], rows)
