"""Which sources a cell was made with, as one hash, so that evidence of older ones is known as such.

The hash is of all modules of `aspire` and `reproduction` that the cell's own module imports, also
through others, and of the C beside them. Of the methods only the cell's own counts, with what it
imports. Comments and docstrings are left out, so prose changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import aspire
from aspire.methods.by_name import factory_of

FIELD = "sources"  # of a record; without it, the cell is older than this
MADE_BY = "made_by"  # of a record: `Method.name`
METHODS = "aspire.methods"
CONSENSUS = {"aspire": "aspire.methods.aspire_ease.consensus"}  # its factory makes both forms
HOMES = {"aspire": Path(aspire.__file__).parent, "reproduction": Path(__file__).parent}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
REMARKS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


@lru_cache
def hash_of(module: str, made_by: str | None = None) -> str:
    """The hash of a module's sources and of what they import, without other methods' files."""
    texts = imported(module)
    if made_by is not None:
        own = imported(module_of(made_by), within=f"{METHODS}.").keys()
        texts = {name: x for name, x in texts.items() if name in own or not of_methods(name)}
    found = {name: code(text) for name, text in texts.items()}
    for path in sorted((HOMES["aspire"] / "compiled").glob("*.c")):
        found[path.name] = REMARKS.sub(" ", path.read_text(encoding="utf-8")).split()
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:16]


def module_of(method: str) -> str:
    """The module in which the factory of a method is, by `Method.name`."""
    return CONSENSUS.get(method) or factory_of(method).__module__


def of_methods(name: str) -> bool:
    return name == METHODS or name.startswith(f"{METHODS}.")


def imported(module: str, within: str = "") -> dict[str, str]:
    """The sources of a module and of all of ours that it imports, by their names.

    within  what all names begin with; others are not looked into
    """
    found: dict[str, str] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        path = path_of(name)
        if path is not None and name not in found and name.startswith(within):
            found[name] = path.read_text(encoding="utf-8")
            todo += [name.rpartition(".")[0], *imports(found[name])]
    return found


def path_of(name: str) -> Path | None:
    """The file of a module of ours; None: there is none of that name."""
    top, *rest = name.split(".")
    if top not in HOMES:
        return None
    place = HOMES[top].joinpath(*rest)
    return next((x for x in (place.with_suffix(".py"), place / "__init__.py") if x.is_file()), None)


def imports(text: str) -> Iterator[str]:
    """What is imported anywhere in a file; of `from a import b` both a and a.b, if it is one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code(text: str) -> list[str]:
    """A file's lines without docstrings, comments and blank ones: the same for every Python."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            first = node.body[0]
            for row in range(first.lineno - 1, first.end_lineno or first.lineno):
                lines[row] = ""
    return [line.rstrip() for line in lines if line.strip()]


# ---------------------------------------------------------------- finished cells


def stale(record: Mapping[str, Any], module: str) -> bool:
    """Whether a cell is known to be of other sources than these."""
    if FIELD not in record:
        return False
    found: bool = record[FIELD] != hash_of(module, record.get(MADE_BY))
    return found


def remark(
    records: Iterable[Mapping[str, Any]], module: Callable[[Mapping[str, Any]], str]
) -> str | None:
    """One sentence about cells that are not of these sources; None where all are.

    module  of a record: the module that makes such cells
    """
    known = [(FIELD in record, stale(record, module(record))) for record in records]
    old = sum(other for _, other in known)
    unknown = sum(not has for has, _ in known)
    if not old and not unknown:
        return None
    return (
        f"Of {len(known)} cells {old} are stale, since they were made with other sources than "
        f"these, and {unknown} do not say with which they were made."
    )
