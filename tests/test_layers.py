"""The order of the layers, read off the imports.

    types <- protocol, problem, batches, sets, core <- methods <- runtimes <- train <- experiments
        <- cli
    activations <- native <- stacks_native <- stacks <- objective <- sites <- problem
    changing <- objective
    objective <- execution <- problem
    arguments, failures <- conversion <- samples <- values <- trial <- problem
    types <- data <- experiments

A module imports from layers to its left, and from its own. Clocks, files, sockets, logging and
outside randomness start at runtimes and data; printing belongs to the command line alone.
`native` is no layer of the algorithm: it compiles C for this machine, for whoever has some.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

# What each layer may import, besides itself. A new module directly under aspire/ needs a row.
MAY_IMPORT: dict[str, set[str]] = {}
MAY_IMPORT["types"] = set()
MAY_IMPORT["arguments"] = set()  # how bad input is said
MAY_IMPORT["failures"] = set()
MAY_IMPORT["protocol"] = {"types"}
MAY_IMPORT["batches"] = {"types"}
MAY_IMPORT["activations"] = set()
MAY_IMPORT["native"] = {"activations"}
MAY_IMPORT["stacks_native"] = {"types", "native"}
MAY_IMPORT["stacks"] = {"types", "batches", "activations", "stacks_native"}
MAY_IMPORT["conversion"] = {"arguments"}
MAY_IMPORT["samples"] = {"arguments", "failures", "conversion"}
MAY_IMPORT["changing"] = {"types"}
MAY_IMPORT["objective"] = {"types", "stacks", "arguments", "failures", "changing"}
MAY_IMPORT["replayed"] = {"objective"}
MAY_IMPORT["sites"] = {"types", "batches", "objective", "stacks", "samples", "failures"}
MAY_IMPORT["sites"] |= {"replayed"}
MAY_IMPORT["values"] = MAY_IMPORT["samples"] | {"objective", "samples"}
MAY_IMPORT["trial"] = MAY_IMPORT["values"] | {"values"}
MAY_IMPORT["execution"] = {"arguments", "objective", "replayed", "samples"}
MAY_IMPORT["problem"] = MAY_IMPORT["trial"] | {"types", "batches", "sites", "trial", "execution"}
MAY_IMPORT["sets"] = {"types"}
MAY_IMPORT["core"] = {"types", "sets", "arguments"}
MAY_IMPORT["methods"] = MAY_IMPORT["core"] | {"core", "batches", "sites", "problem"}
MAY_IMPORT["methods"] |= {"failures", "samples", "conversion"}
MAY_IMPORT["methods"] |= {"native", "protocol"}
MAY_IMPORT["runtimes"] = MAY_IMPORT["methods"] | {"methods"}
MAY_IMPORT["data"] = {"types"}  # beside runtimes
MAY_IMPORT["clusters"] = MAY_IMPORT["runtimes"] | {"runtimes"}  # beside train
MAY_IMPORT["federation"] = MAY_IMPORT["clusters"]
MAY_IMPORT["train"] = MAY_IMPORT["runtimes"] | {"runtimes"}
MAY_IMPORT["flower"] = MAY_IMPORT["train"] | {"train"}
MAY_IMPORT["experiments"] = MAY_IMPORT["train"] | {"data", "train", "__init__"}
MAY_IMPORT["cli"] = MAY_IMPORT["experiments"] | {"experiments", "clusters", "federation"}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = set(MAY_IMPORT)  # the front door shows what it likes

PURE = {
    "types",
    "replayed",
    "changing",
    "protocol",
    "batches",
    "stacks",
    "stacks_native",
    "objective",
    "sites",
}
PURE |= {"arguments", "failures", "conversion", "samples", "values", "trial"}
PURE |= {"problem", "sets", "core", "methods"}
MAY_PRINT = {"cli", "__main__"}
OUTSIDE_WORLD = {
    *("time", "datetime", "logging", "random", "secrets", "uuid"),
    *("os", "pathlib", "io", "shutil", "tempfile", "subprocess"),
    *("socket", "select", "http", "urllib", "threading", "multiprocessing", "asyncio"),
}
# Draws from torch's global generator unless they are handed one.
TORCH_DRAWS = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal"}


def module_name(path: Path, source: Path = SOURCE) -> str:
    """`src/aspire/sets/box.py` is `aspire.sets.box`; a package is its `__init__`."""
    return ".".join(path.relative_to(source).with_suffix("").parts)


def layer_of(module: str) -> str:
    """The part after `aspire`: the layer that a module belongs to."""
    layer = module.split(".")[1]
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
    if len(parts) == 1 or (len(parts) == 2 and parts[1] not in MAY_IMPORT):
        return "__init__"
    return layer_of(name)


def layer_faults(module: str, code: str) -> list[str]:
    """Imports that point to the right."""
    layer = layer_of(module)
    faults = []
    for line, name in imports(module, ast.parse(code)):
        if name.split(".")[0] != "aspire":
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
        return f"calls {called}(); I/O starts at runtimes"
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
            (line, f"imports {name}; clocks, I/O and outside randomness start at runtimes")
            for line, name in imports(module, tree)
            if name.split(".")[0] in OUTSIDE_WORLD
        ]
    return [f"{module}, line {line}: {what}" for line, what in sorted(faults)]


MODULES = sorted((SOURCE / "aspire").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_left(path: Path) -> None:
    assert layer_faults(module_name(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_the_algorithm_sees_no_outside_world(path: Path) -> None:
    assert purity_faults(module_name(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("aspire.types", "from aspire.sets import CDNorm"),
        ("aspire.problem", "from .core import master"),
        ("aspire.problem", "import aspire.sets.box"),
        ("aspire.sets.box", "from ..problem import Site"),
        ("aspire.sets.__init__", "from ..methods import aspire"),
        ("aspire.core.master", "from aspire import problem"),
        ("aspire.core.master", "def f():\n    from aspire.methods.aspire import absorb"),
        ("aspire.methods.aspire", "from aspire.runtimes import simulator"),
        ("aspire.methods.aspire", "from aspire import __version__"),
        ("aspire.runtimes.simulator", "from aspire import train"),
        ("aspire.data.files", "from aspire import batches"),
        ("aspire.train", "from aspire.data import load"),
        ("aspire.train", "import aspire"),
        ("aspire.experiments.demo", "from ..cli import main"),
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
        ("aspire.runtimes.simulator", "from aspire import __version__"),
        ("aspire.experiments.demo", "from aspire.data import load"),
        ("aspire.cli", "from aspire import __version__, train\nfrom .experiments import demo"),
        ("aspire.__init__", "from .train import train\nfrom aspire.sets import CDNorm"),
    ],
)
def test_an_import_to_the_left_is_allowed(module: str, code: str) -> None:
    assert layer_faults(module, code) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("aspire.train", "print('done')"),
        ("aspire.experiments.demo", "def f():\n    print('done')"),
        ("aspire.core.master", "import time"),
        ("aspire.core.master", "from os import path"),
        ("aspire.core.master", "def f():\n    import logging.handlers"),
        ("aspire.types", "from pathlib import Path"),
        ("aspire.methods.aspire", "open('x')"),
        ("aspire.problem", "import torch\ntorch.randn(3)"),
        ("aspire.problem", "import torch\ntorch.manual_seed(3)"),
        ("aspire.problem", "import numpy as np\nnp.random.default_rng()"),
    ],
)
def test_an_impure_line_is_seen(module: str, code: str) -> None:
    assert len(purity_faults(module, code)) == 1


def test_outer_layers_may_use_clocks_and_files() -> None:
    code = "import time, logging\nfrom pathlib import Path\nopen('x')"
    assert purity_faults("aspire.runtimes.simulator", code) == []
    assert purity_faults("aspire.data.files", code) == []
    assert purity_faults("aspire.cli", "print('done')") == []


def test_a_generator_of_ones_own_is_allowed() -> None:
    assert purity_faults("aspire.core.master", "torch.randn(3, generator=g)") == []
    code = "with torch.random.fork_rng(devices=[]):\n    torch.manual_seed(seed)"
    assert purity_faults("aspire.problem", code) == []


def test_a_module_without_a_layer_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"aspire\.helpers belongs to no layer"):
        layer_faults("aspire.helpers", "")
    with pytest.raises(AssertionError, match=r"aspire\.helpers\.text\.wrap belongs to no layer"):
        layer_faults("aspire.core.master", "from aspire.helpers.text import wrap")
