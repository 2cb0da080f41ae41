"""What a page is made of, and each block as HTML with every text escaped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

Figure = dict[str, Any]  # what plotly.js draws: data and layout


@dataclass(frozen=True)
class Heading:
    """Begins a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph. `verdict`: large, what the page says first."""

    text: str
    verdict: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of texts under a head; the first column names the row.

    worst   the rows that are marked, in colour and with the word `mark`
    note    below the table
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    worst: Collection[int] = ()
    mark: str = "worst"
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure of plotly under a title; `charts` has functions that make them.

    other_x   the same points over something else, such as seconds: its axis title, and x of every
              trace. A page with such charts lets the reader choose.
    note      below the chart
    """

    title: str
    figure: Figure
    other_x: tuple[str, Sequence[Sequence[float | None]]] | None = None
    note: str = ""


Block = Heading | Text | Table | Chart


@dataclass(frozen=True)
class Page:
    """A title and what is below it."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def html_of(block: Block) -> str:
    """The block as HTML; of a chart the place where the browser draws it."""
    if isinstance(block, Heading):
        return f"<h2>{escape(block.text)}</h2>"
    if isinstance(block, Text):
        kind = ' class="verdict"' if block.verdict else ""
        return f"<p{kind}>{escape(block.text)}</p>"
    if isinstance(block, Table):
        return _table(block)
    note = f"<p>{escape(block.note)}</p>" if block.note else ""
    return f'<h3>{escape(block.title)}</h3><div class="plot"></div>{note}'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.head)
    rows = "".join(_row(table, place, row) for place, row in enumerate(table.rows))
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<div class="table" tabindex="0"><table>{body}</table></div>{note}'


def _row(table: Table, place: int, row: Sequence[str]) -> str:
    name, *cells = (escape(text) for text in row)
    kind = ""
    if place in table.worst:
        kind = ' class="worst"'
        name += f" <small>{escape(table.mark)}</small>"
    return f'<tr{kind}><th scope="row">{name}</th>{"".join(f"<td>{x}</td>" for x in cells)}</tr>'
