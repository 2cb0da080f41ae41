"""The order of the layers, read off the imports.

    types, arguments <- protocol, sets, compiled <- problem, core <- methods <- runs
    runs <- simulator, engines, trackers <- api <- pages <- cli <- reproduction
    reproduction.data <- reproduction

A module imports from layers to its left, and from its own. Clocks, files, sockets, logging and
outside randomness start at runs and reproduction.data; printing belongs to the command line alone.
`compiled` is no layer of the algorithm: it finds the compiled C for this processor, and says where
there is none.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from aspire.methods.by_name import METHODS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

# What each layer may import, besides itself. A new module directly under aspire/ needs a row.
MAY_IMPORT: dict[str, set[str]] = {}
MAY_IMPORT["types"] = set()
MAY_IMPORT["arguments"] = set()  # how bad input is said
MAY_IMPORT["compiled"] = set()
MAY_IMPORT["protocol"] = {"types"}
MAY_IMPORT["sets"] = {"types"}
MAY_IMPORT["core"] = {"types", "arguments", "sets"}
MAY_IMPORT["problem"] = {"types", "arguments", "compiled", "protocol"}
MAY_IMPORT["methods"] = MAY_IMPORT["problem"] | {"sets", "core", "problem"}
MAY_IMPORT["runs"] = MAY_IMPORT["methods"] | {"methods"}
MAY_IMPORT["simulator"] = MAY_IMPORT["runs"] | {"runs"}
MAY_IMPORT["engines"] = MAY_IMPORT["runs"] | {"runs"}
MAY_IMPORT["engines.ray"] = MAY_IMPORT["engines"] | {"engines"}
MAY_IMPORT["engines.grpc"] = MAY_IMPORT["engines.ray"]
MAY_IMPORT["trackers"] = MAY_IMPORT["runs"] | {"runs"}
MAY_IMPORT["api"] = MAY_IMPORT["engines"] | {"engines", "simulator", "trackers"}
MAY_IMPORT["engines.flower"] = MAY_IMPORT["api"] | {"api"}  # its apps call the api
MAY_IMPORT["pages"] = MAY_IMPORT["api"] | {"api"}
MAY_IMPORT["cli"] = MAY_IMPORT["pages"] | {"pages", "engines.ray", "engines.grpc", "__init__"}
MAY_IMPORT["templates"] = {"sets"}  # what a user writes
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = set(MAY_IMPORT)  # the front door shows what it likes
MAY_IMPORT["reproduction.data"] = set()
MAY_IMPORT["reproduction"] = MAY_IMPORT["cli"] | {"cli", "reproduction.data"}

PURE = {"types", "arguments", "protocol", "problem", "sets", "core", "methods"}
MAY_PRINT = {"cli", "__main__"}
OUTSIDE_WORLD = {
    *("time", "datetime", "logging", "random", "secrets", "uuid"),
    *("os", "pathlib", "io", "shutil", "tempfile", "subprocess"),
    *("socket", "select", "http", "urllib", "threading", "multiprocessing", "asyncio"),
}
# Draws from torch's global generator unless they are handed one.
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal"}


def module_name(path: Path, source: Path) -> str:
    """`src/aspire/sets/box.py` is `aspire.sets.box`; a package is its `__init__`."""
    return ".".join(path.relative_to(source).with_suffix("").parts)


def layer_of(module: str) -> str:
    """The part after `aspire`, of engines with the next; `reproduction` and its data."""
    parts = module.removeprefix("aspire.").split(".")[:2]
    layer = ".".join(parts) if ".".join(parts) in MAY_IMPORT else parts[0]
    if layer not in MAY_IMPORT:
        raise AssertionError(
            f"{module} belongs to no layer: say in MAY_IMPORT (tests/test_layers.py) and in "
            "docs/design.md where it stands and what it may import"
        )
    return layer


def imports(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every (line, absolute dotted name) that is imported, wherever in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: -node.level]
                base = ".".join([*package, base] if base else package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def imported_layer(name: str) -> str:
    """The layer that `name` is taken from; a plain attribute of aspire comes from its door."""
    parts = name.split(".")
    if parts[0] == "reproduction":
        return layer_of(name)
    if len(parts) == 1 or (len(parts) == 2 and parts[1] not in MAY_IMPORT):
        return "__init__"
    return layer_of(name)


def layer_faults(module: str, code: str) -> list[str]:
    """Imports that point to the right."""
    layer = layer_of(module)
    faults = []
    for line, name in imports(module, ast.parse(code)):
        if name.split(".")[0] not in {"aspire", "reproduction"}:
            continue
        target = imported_layer(name)
        if name == "aspire.__version__" and layer not in PURE:
            continue
        if target != layer and target not in MAY_IMPORT[layer]:
            allowed = ", ".join(sorted(MAY_IMPORT[layer])) or "nothing"
            faults.append(
                f"{module}, line {line}: imports {name}, but {layer} may import {allowed} only"
            )
    return faults


def impure_call(node: ast.Call, layer: str) -> str | None:
    """What is wrong with a call, if anything."""
    called = ast.unparse(node.func)
    owner, _, function = called.rpartition(".")
    if called == "print" and layer not in MAY_PRINT:
        return "calls print(); only the command line prints"
    if layer not in PURE:
        return None
    if called in {"open", "input", "__import__"}:
        return f"calls {called}(); I/O starts at runs"
    handed = any(keyword.arg == "generator" for keyword in node.keywords)
    if owner == "torch" and (function == "manual_seed" or (function in TORCH_DRAWS and not handed)):
        return f"calls {called}() on the global generator"
    if owner in {"np.random", "numpy.random"} and not (function == "default_rng" and node.args):
        return f"calls {called}() without a seed of its own"
    return None


def forked(tree: ast.AST) -> set[ast.AST]:
    """What stands under `with torch.random.fork_rng`: there the global generator is put back."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        and any("torch.random.fork_rng" in ast.unparse(item) for item in node.items)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and ast.unparse(inner.func).startswith("torch.")
    }


def purity_faults(module: str, code: str) -> list[str]:
    """Printing in the library; the outside world in the algorithm."""
    layer, tree = layer_of(module), ast.parse(code)
    spared = forked(tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n not in spared]
    faults = [(node.lineno, what) for node in calls if (what := impure_call(node, layer))]
    if layer in PURE:
        faults += [
            (line, f"imports {name}; clocks, I/O and outside randomness start at runs")
            for line, name in imports(module, tree)
            if name.split(".")[0] in OUTSIDE_WORLD
        ]
    return [f"{module}, line {line}: {what}" for line, what in sorted(faults)]


MODULES = {
    module_name(path, where): path
    for where, package in ((SOURCE, "aspire"), (ROOT, "reproduction"))
    for path in sorted((where / package).rglob("*.py"))
}


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_left(module: str) -> None:
    assert layer_faults(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", MODULES)
def test_the_algorithm_sees_no_outside_world(module: str) -> None:
    assert purity_faults(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("aspire.types", "from aspire.sets import CDNorm"),
        ("aspire.problem.problem", "from ..core import master"),
        ("aspire.problem.sites", "import aspire.sets.box"),
        ("aspire.sets.box", "from ..problem.sites import Site"),
        ("aspire.sets.__init__", "from ..methods import aspire"),
        ("aspire.core.master", "from aspire import problem"),
        ("aspire.core.master", "def f():\n    from aspire.methods.aspire import absorb"),
        ("aspire.methods.aspire", "from aspire.simulator import simulator"),
        ("aspire.methods.aspire", "from aspire import __version__"),
        ("aspire.simulator.simulator", "from aspire import train"),
        ("reproduction.data.files", "from aspire.problem import batches"),
        ("aspire.api", "from reproduction.data import load"),
        ("aspire.api", "import aspire"),
        ("aspire.cli.run", "from reproduction.demo import run"),
        ("reproduction.data.files", "from ..plans import Request"),
    ],
)
def test_an_import_to_the_right_is_seen(module: str, code: str) -> None:
    assert len(layer_faults(module, code)) == 1


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("aspire.sets.box", "from .simplex import Simplex\nfrom ..types import Report"),
        ("aspire.sets.__init__", "from .box import Box"),
        ("aspire.core.ease", "from aspire.sets import CDNorm\nimport torch"),
        ("aspire.methods.aspire", "from aspire import problem, core"),
        ("aspire.simulator.simulator", "from aspire import __version__"),
        ("reproduction.demo", "from reproduction.data import load"),
        ("aspire.cli", "from aspire import __version__, train"),
        ("aspire.__init__", "from .api import train\nfrom aspire.sets import CDNorm"),
    ],
)
def test_an_import_to_the_left_is_allowed(module: str, code: str) -> None:
    assert layer_faults(module, code) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("aspire.api", "print('done')"),
        ("reproduction.demo", "def f():\n    print('done')"),
        ("aspire.core.master", "import time"),
        ("aspire.core.master", "from os import path"),
        ("aspire.core.master", "def f():\n    import logging.handlers"),
        ("aspire.types", "from pathlib import Path"),
        ("aspire.methods.aspire", "open('x')"),
        ("aspire.problem.problem", "import torch\ntorch.randn(3)"),
        ("aspire.problem.problem", "import torch\ntorch.manual_seed(3)"),
        ("aspire.problem.problem", "import numpy as np\nnp.random.default_rng()"),
    ],
)
def test_an_impure_line_is_seen(module: str, code: str) -> None:
    assert len(purity_faults(module, code)) == 1


def test_outer_layers_may_use_clocks_and_files() -> None:
    code = "import time, logging\nfrom pathlib import Path\nopen('x')"
    assert purity_faults("aspire.simulator.simulator", code) == []
    assert purity_faults("reproduction.data.files", code) == []
    assert purity_faults("aspire.cli", "print('done')") == []


def test_a_generator_of_ones_own_is_allowed() -> None:
    assert purity_faults("aspire.core.master", "torch.randn(3, generator=g)") == []
    code = "with torch.random.fork_rng(devices=[]):\n    torch.manual_seed(seed)"
    assert purity_faults("aspire.problem.problem", code) == []


# What carries tasks and events knows no method. A method travels by its name, as data.
CARRIERS = {"runs", "simulator", "engines", "engines.ray", "engines.grpc", "engines.flower"}
NAMES = ("ASPIRE-EASE", "aspire_ease", "baselines", *sorted(METHODS.keys() - {"aspire"}))
NAMED = re.compile(rf"(?<![\w.])({'|'.join(NAMES)})(?![\w[])", re.IGNORECASE)
BY_NAME = "aspire.methods.by_name"


def method_faults(module: str, code: str) -> list[str]:
    """Methods that are imported, or named anywhere in the text, comments among it."""
    imported = [
        f"{module}, line {line}: imports {name}"
        for line, name in imports(module, ast.parse(code))
        if name.startswith("aspire.methods") and not f"{name}.".startswith(f"{BY_NAME}.")
    ]
    lines = enumerate(code.splitlines(), start=1)
    named = [
        f"{module}, line {n}: names {found[0]}" for n, x in lines if (found := NAMED.search(x))
    ]
    return imported + named


@pytest.mark.parametrize("module", [m for m in MODULES if layer_of(m) in CARRIERS])
def test_what_carries_tasks_knows_no_method(module: str) -> None:
    assert method_faults(module, MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("from aspire.methods import by_name", 0),
        ("from aspire.methods.by_name import at_site", 0),
        ("indexed = method.settings", 0),
        ("from aspire.methods import afl", 2),
        ("from aspire.methods.worker import probe", 1),
        ("from ...methods.aspire_ease import forms", 1),
        ("import aspire.methods", 1),
        ("if method.name == 'consensus': pass", 1),
        ("pass  # as AFL and ASPIRE-EASE do", 1),
    ],
)
def test_a_method_in_a_carrier_is_seen(code: str, faults: int) -> None:
    assert len(method_faults("aspire.engines.ray.worker", code)) == faults


def test_only_processes_of_our_own_change_the_allocator() -> None:
    """Its settings hold for the whole process, which may be the user's."""
    asking = {
        module
        for module, path in MODULES.items()
        for _, name in imports(module, ast.parse(path.read_text(encoding="utf-8")))
        if name == "aspire.engines.process.keep_memory"
    }
    assert asking == {"aspire.cli.engines", "aspire.cli.federation", "aspire.engines.ray.worker"}


def test_a_module_without_a_layer_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"aspire\.helpers belongs to no layer"):
        layer_faults("aspire.helpers", "")
    with pytest.raises(AssertionError, match=r"aspire\.helpers\.text\.wrap belongs to no layer"):
        layer_faults("aspire.core.master", "from aspire.helpers.text import wrap")
