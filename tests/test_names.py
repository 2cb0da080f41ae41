"""One concept, one word; and every public function says what it takes and what it gives back."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
WORDS = {"Engine", "Run", "Problem", "Plan", "Order", "Federation", "Limits", "Between"}
PUBLIC = ("aspire", "aspire.sets", "aspire.methods", "aspire.api")


def test_a_word_names_one_class() -> None:
    classes = Counter(
        node.name
        for folder in ("src", "reproduction")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {word: classes[word] for word in WORDS if classes[word] > 1} == {}


def functions() -> dict[str, Callable[..., Any]]:
    """The public functions, by their names."""
    modules = [importlib.import_module(name) for name in PUBLIC]
    named = {name: getattr(module, name) for module in modules for name in module.__all__}
    return {name: value for name, value in named.items() if inspect.isfunction(value)}


FUNCTIONS = functions()


def documented(function: Callable[..., Any]) -> str:
    """Its docstring, with those of the functions that it refers to."""
    text = inspect.getdoc(function) or ""
    others = re.findall(r"as (?:in|of) `(\w+)`", text)
    return "\n".join([text, *(inspect.getdoc(FUNCTIONS[name]) or "" for name in others)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_says_what_it_takes_and_gives(name: str) -> None:
    function = FUNCTIONS[name]
    text = documented(function)
    arguments = [
        p for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD
    ]
    assert [p.name for p in arguments if not re.search(rf"\b{p.name}\b", text)] == []
    assert re.search(r"\breturns?\b", inspect.getdoc(function) or "", re.IGNORECASE)
