"""Docstrings as they are in the source, shown by Sphinx: plain text, tables of names, equations.

A paragraph is one of three: a table of aligned names, which becomes a list of definitions; other
text with columns or indentation, which is shown as it is; and prose, whose characters mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

ENTRY = re.compile(r"([A-Za-z_][\w ,.'*]*?)(?: {2,}|: )(\S.*)")
SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes):$")
MARKUP = re.compile(r"([*`|\\]|_(?=\W|$))")


def shown(lines: list[str]) -> Iterator[str]:
    """The same docstring as reStructuredText."""
    for filled, group in groupby(lines, key=lambda line: bool(line.strip())):
        if filled:
            yield from paragraph(list(group))
            yield ""


def paragraph(lines: list[str]) -> Iterator[str]:
    if SECTION.match(lines[0]):
        yield f"**{lines[0][:-1]}**"
        yield ""
        lines = [line[4:] for line in lines[1:]]
    if is_table(lines):
        yield from definitions(lines)
    elif any(line.startswith(" ") or "  " in line for line in lines):
        yield from ("::", "", *(f"    {line}" for line in lines))
    else:
        yield from map(escaped, lines)


def is_table(lines: list[str]) -> bool:
    """Every line begins an entry or goes on with one."""
    known = [line.startswith("  ") or ENTRY.fullmatch(line) is not None for line in lines]
    return bool(lines) and not lines[0].startswith(" ") and all(known) and any("  " in x for x in lines)


def definitions(lines: list[str]) -> Iterator[str]:
    for line in lines:
        entry = ENTRY.fullmatch(line)
        if entry is None:
            yield f"    {escaped(line.strip())}"
        else:
            yield f"``{entry[1].strip()}``"
            yield f"    {escaped(entry[2])}"


def escaped(text: str) -> str:
    return MARKUP.sub(r"\\\1", text)


def process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = list(shown(lines))


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
