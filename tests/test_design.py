"""docs/design.md is true: its map, the way of a task, its tables of equations and of `Method`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import typing
from collections import defaultdict
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from aspire.types import Fast, Method

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "src" / "aspire").rglob("*.py"))
CLAIM = re.compile(r"\((\d+)\)(?:-\((\d+)\))?  ")


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    found: list[list[str]] = []
    for line in PAGE.split(f"# {heading}\n", 1)[1].splitlines():
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    return found[2:]


def test_the_map_has_every_folder() -> None:
    named = {row[0].strip("`/") for row in rows_of("Where things are")}
    package = {str(p.parent.relative_to(ROOT)) for p in (ROOT / "src/aspire").glob("*/__init__.py")}
    assert package <= named
    assert all((ROOT / name).is_dir() for name in named)
    loose = {p.stem for p in (ROOT / "src/aspire").glob("*.py")} - {"__init__", "__main__"}
    assert loose == {"types", "protocol", "arguments"}  # as the first row says


# ---------------------------------------------------------------- the way of one task

TRACED = """
import sys
from aspire.cli import main
seen = set()
sys.setprofile(lambda frame, event, arg: seen.add(frame.f_code.co_filename))
given = ["train", "file.py", "--form", "direct", "--iterations", "5", "--out", "run"]
main(given, standalone_mode=False)
sys.setprofile(None)
print("\\n".join(seen))
"""
FILE = """
import torch
def model():
    return torch.nn.Linear(3, 2)
def sites():
    return [(torch.randn(20, 3), torch.arange(20) % 2) for _ in range(2)]
"""


def test_the_way_of_a_task_goes_through_these_files(tmp_path: Path) -> None:
    way = re.findall(r"^\d+\. `(\S+)`", PAGE, re.MULTILINE)
    assert 0 < len(way) <= 12
    (tmp_path / "file.py").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-c", TRACED], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    seen = {Path(line).resolve() for line in done.stdout.splitlines()}
    assert [name for name in way if ROOT / name not in seen] == []


# ---------------------------------------------------------------- equations


def claims() -> dict[int, set[tuple[str, str]]]:
    """By equation: the files and names whose docstring begins with its number."""
    found: dict[int, set[tuple[str, str]]] = defaultdict(set)
    kinds = (ast.FunctionDef, ast.ClassDef)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said = CLAIM.match(ast.get_docstring(node) or "") if isinstance(node, kinds) else None
            if said and isinstance(node, kinds):
                first = int(said[1])
                for number in range(first, int(said[2] or first) + 1):
                    name = str(path.relative_to(ROOT / "src/aspire"))
                    found[number].add((name, node.name))
    return found


EQUATIONS = rows_of("Where each equation lives")


def split(cell: str) -> tuple[str, str]:
    """A cell `FILE` NAME, perhaps with a remark."""
    found = re.match(r"`(\S+)` (\w+)", cell)
    assert found, cell
    return found[1], found[2]


def test_every_equation_has_one_reference_text() -> None:
    table: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for equation, reference, *_ in EQUATIONS:
        numbers = [int(n) for n in re.findall(r"\((\d+)\)", equation)]
        if numbers:
            for number in range(numbers[0], numbers[-1] + 1):
                table[number].add(split(reference))
    assert claims() == table
    assert all(len({file for file, _ in texts}) == 1 for texts in table.values())


@pytest.mark.parametrize("row", EQUATIONS, ids=lambda row: f"{row[0]} {row[2]}")
def test_what_the_table_names_is_there(row: list[str]) -> None:
    _, reference, accelerated, compared = row
    assert bool(accelerated) == bool(compared)
    for cell in filter(None, (reference, accelerated)):
        file, name = split(cell)
        text = (ROOT / "src/aspire" / file).read_text(encoding="utf-8")
        kind = r"(def|class) " if file.endswith(".py") else r"^(static )?void "
        assert re.search(rf"{kind}{name}\b", text, re.MULTILINE), cell
    if compared:
        file, name = split(compared)
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_one_accelerated_text_for_a_device() -> None:
    texts = [(equation, split(cell)[0]) for equation, _, cell, _ in EQUATIONS if cell]
    on_cpu = [equation for equation, file in texts if file.startswith("compiled/")]
    anywhere = [equation for equation, file in texts if not file.startswith("compiled/")]
    assert len(on_cpu) == len(set(on_cpu))
    assert len(anywhere) == len(set(anywhere))


# ---------------------------------------------------------------- Method


def test_a_method_has_four_functions_and_at_most_three_more() -> None:
    hints = typing.get_type_hints(Method)
    functions = {
        field.name: field.default is MISSING
        for field in fields(Method)
        if "Callable" in str(hints[field.name]) or Fast in typing.get_args(hints[field.name])
    }
    assert {row[0].strip("`"): row[1] == "needed" for row in rows_of("A method")} == functions
    needed = [name for name, must in functions.items() if must]
    assert needed == ["init", "work", "absorb", "model"]
    assert len(functions) <= 7
