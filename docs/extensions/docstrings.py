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
CODE = re.compile(r"`([^`]+)`")
PAGE = re.compile(r"docs/(\w+)\.md")
MARKUP = re.compile(r"([*`|\\]|_(?=\W|$))")


def shown(lines: list[str]) -> Iterator[str]:
    """The same docstring as reStructuredText."""
    for filled, group in groupby(lines, key=lambda line: bool(line.strip())):
        if filled:
            yield from paragraph(list(group))
            yield ""


def paragraph(lines: list[str]) -> Iterator[str]:
    section = SECTION.match(lines[0])
    if section:
        yield f"**{section[1]}**"
        yield ""
        lines = [line[4:] for line in lines[1:]]
    columns = any("  " in line for line in lines)
    if (section or columns) and are_entries(lines):
        yield from definitions(lines)
    elif columns:
        yield from (".. code-block:: text", "", *(f"    {line}" for line in lines))
    else:
        yield from map(escaped, lines)


def are_entries(lines: list[str]) -> bool:
    """Every line begins an entry, or goes on with one."""
    known = all(line.startswith("  ") or ENTRY.fullmatch(line) for line in lines)
    return known and not lines[0].startswith(" ")


def definitions(lines: list[str]) -> Iterator[str]:
    for line in lines:
        entry = ENTRY.fullmatch(line)
        if entry is None:
            yield f"    {escaped(line.strip())}"
        else:
            yield f"``{entry[1].strip()}``"
            yield f"    {escaped(entry[2])}"


def escaped(text: str) -> str:
    """Words in single backquotes are code, pages are links, and nothing else is markup."""
    parts = CODE.split(text)
    parts[::2] = [PAGE.sub(r":doc:`\1`", MARKUP.sub(r"\\\1", part)) for part in parts[::2]]
    parts[1::2] = [f"``{part}``" for part in parts[1::2]]
    return "".join(parts)


def process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = list(shown(lines))


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
