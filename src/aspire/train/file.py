"""FILE.py, which a user writes: model(), sites(), optionally site(name), uncertainty(), loss().

sites() gives the sites, or their names if there is a site(name) that loads one. On an engine each
worker runs the text of the file by itself and loads its own site and no other.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aspire.problem import Site
from aspire.runtimes.serve import Crew
from aspire.train.job import Job, prepare
from aspire.types import Method


@dataclass(frozen=True)
class Source:
    """The text of a FILE.py and where it came from, so that it can travel."""

    path: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def read(file: Path) -> Source:
    if not file.is_file():
        raise ValueError(f"FILE={str(file)!r}: expected a Python file, and there is none")
    return Source(str(file.resolve()), file.read_text(encoding="utf-8"))


def job_of(
    source: Source,
    options: Mapping[str, Any],
    only: Collection[str] | None = None,
    names: Sequence[str] | None = None,
) -> Job:
    """The job of a file with the options of `aspire train`.

    With `only`, the data of these sites alone is loaded; the others are elsewhere.
    With `names`, these are the sites, and the file needs no sites().
    """
    model, sites, arguments = parts_of(source, options, only, names)
    return prepare(model, sites, elsewhere=only is not None, **arguments)


def crew_of(source: Source, options: Mapping[str, Any], names: Collection[str]) -> Crew:
    """One worker a site: called where the site is, it runs the text and loads that site."""
    return [partial(member, source, dict(options), name) for name in names]


def member(source: Source, options: Mapping[str, Any], name: str) -> tuple[Method, Site]:
    job = job_of(source, options, only=[name])
    return job.method, job.problem.sites[job.problem.names.index(name)]


def parts_of(
    source: Source,
    options: Mapping[str, Any],
    only: Collection[str] | None = None,
    names: Sequence[str] | None = None,
) -> tuple[torch.nn.Module, Any, dict[str, Any]]:
    """The model, the sites and the other arguments of `train`."""
    module = load(source)
    torch.manual_seed(options["seed"])
    model = call(module, "model")
    sites = call(module, "sites") if names is None else list(names)
    if not isinstance(model, torch.nn.Module):
        kind = type(model).__name__
        raise ValueError(f"{source.path}: model() gave a {kind}: expected a torch module")
    if not isinstance(sites, dict) and all(isinstance(name, str) for name in sites):
        wanted = set(sites if only is None else only)
        sites = {n: call(module, "site", n) if n in wanted else None for n in sites}
    elif only is not None:
        named = sites if isinstance(sites, dict) else dict(enumerate(sites))
        sites = {str(n): data if str(n) in only else None for n, data in named.items()}
    missing = sorted(set(only or ()) - set(sites))
    if missing:
        raise ValueError(f"{source.path}: sites() has no {missing[0]!r}: expected one of its names")
    arguments = {**options, "batch_size": options["batch_size"] or None}
    if only is not None and not only:
        arguments["device"] = "cpu"  # the master's; the option is about the sites
    for name in ("uncertainty", "loss"):
        if hasattr(module, name):
            arguments[name] = call(module, name)
    return model, sites, arguments


def load(source: Source) -> ModuleType:
    """Run the text as a module of its own."""
    name = f"aspire_run_{Path(source.path).stem}"
    module = ModuleType(name)
    module.__file__ = source.path
    sys.modules[name] = module  # dataclasses and pickles look their module up by name
    try:
        exec(compile(source.text, source.path, "exec"), vars(module))
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"{source.path} does not load: {kind}: {error}") from error
    return module


def call(module: ModuleType, name: str, *arguments: Any) -> Any:
    function = vars(module).get(name)
    if not callable(function):
        raise ValueError(f"{module.__file__} has no function {name}(): expected one")
    try:
        return function(*arguments)
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(f"{module.__file__}: {name}() raised {kind}: {error}") from error
