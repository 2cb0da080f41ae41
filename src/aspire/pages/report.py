"""The page of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aspire.pages.blocks import Block, Heading, Page, Text
from aspire.pages.figures import LINES
from aspire.pages.record import Record, read
from aspire.pages.sites import site_blocks
from aspire.pages.training import compared, trained
from aspire.pages.verdict import verdict

ABOUT = (  # of run.json, in this order
    *("method", "form", "uncertainty", "quorum", "staleness", "local_steps", "batch_size"),
    *("weight_decay", "loss", "precision", "delays", "device", "seed"),
)
WIDE = 200  # letters of a setting


def report(directories: Sequence[Path]) -> Page:
    """The page of the runs in these folders; ValueError where one is damaged."""
    if not 1 <= len(directories) <= LINES:
        raise ValueError(f"{len(directories)} runs: expected 1 to {LINES} in one report")
    return page_of(named([read(directory) for directory in directories]))


def page_of(records: Sequence[Record]) -> Page:
    """The verdict, the sites, and what happened while it trained."""
    several = len(records) > 1
    title = "Runs side by side" if several else f"Run {records[0].name}"
    blocks: list[Block] = [Text(verdict(records), verdict=True), *site_blocks(records)]
    if several:
        blocks += [Heading("While they trained"), *compared(records)]
    for record in records:
        blocks.append(Heading(f"Run {record.name}" if several else "While it trained"))
        blocks += [*trained(record), Text(about(record))]
    return Page(title, blocks)


def named(records: Sequence[Record]) -> list[Record]:
    """With the whole path as the name where folders are called alike."""
    names = [record.name for record in records]
    if len(set(names)) == len(names):
        return list(records)
    return [
        replace(record, name=f"{place}: {record.path}") for place, record in enumerate(records, 1)
    ]


def about(record: Record) -> str:
    """Its settings, in a line."""
    engine = (record.settings.get("engine") or {}).get("name", "simulator")
    said = [f"engine {engine}", f"{len(record.sites)} sites"]
    for name in ABOUT:
        value = record.settings.get(name)
        if value is not None:
            text = str(value)
            said.append(f"{name.replace('_', ' ')} {text[:WIDE]}{'...' if text[WIDE:] else ''}")
    if record.result is not None:
        said.append(f"{record.result['wall_seconds']:.1f} seconds on the wall clock")
        said.append(f"{record.result['worker_gradients']:,} gradients")
    return f"Settings: {', '.join(said)}."
