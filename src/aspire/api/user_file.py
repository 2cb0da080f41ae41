"""FILE.py, which a user writes: model() and sites(), and optionally what follows.

    site(name)             loads one site; sites() then gives their names
    loss(), uncertainty()  arguments of `train`
    method()               how to train; --method counts more
    standardize()          True: inputs are brought to mean 0 and std 1 over all sites
    collate_fn(items)      how samples become a batch, where they are no tensors of one shape
    optimizer(groups), schedule(optimizer)   where the method takes them; at the master alone
    reference()            likewise: numbers by site, a model or 'own-best'; --reference counts more
    metrics()              figures at the end; --metrics counts more
    callbacks()            what is told of the run while it goes on; at the master alone

On an engine each worker runs the text of the file by itself and loads its own site and no other.
Modules that lie beside the file can be imported.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from aspire.api.job import Job
from aspire.api.preparing import prepare
from aspire.arguments import kind
from aspire.engines.serve import Crew
from aspire.methods import by_name
from aspire.problem.conversion import is_array
from aspire.problem.failures import Failed, calling, told, trace_of
from aspire.problem.problem import AUTO, Site
from aspire.problem.samples import named, once
from aspire.problem.standardization import WHEN_ASKED, Standardization
from aspire.runs.callbacks import check_callbacks
from aspire.sets import UncertaintySet
from aspire.types import Method

logger = logging.getLogger("aspire")
RUN = "aspire_run_"  # how the names of such modules begin
# Options of the command line that are arguments of a method.
OF_METHODS = (
    *("form", "quorum", "staleness", "local_steps", "preset", "pull_bound"),
    *("accumulate", "learning_rate", "clip", "reference"),
)
FUNCTIONS = ("optimizer", "schedule")  # of a file, which a method may take


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
    try:
        return Source(str(file.resolve()), file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"FILE={str(file)!r}: expected a Python file ({error})") from None


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


def member(
    source: Source,
    options: Mapping[str, Any],
    name: str,
    *,
    standardize: str | Standardization = WHEN_ASKED,
) -> tuple[Method, Site]:
    """One site, where its data is; `standardize`: how its inputs are, if they are."""
    model, sites, arguments = parts_of(source, options, only=[name])
    if arguments.get("standardize"):
        arguments["standardize"] = standardize
    job = prepare(model, sites, elsewhere=True, **arguments)
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
    sites = sites_of(module) if names is None else list(names)
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"{source.path}: model() gave {kind(model)}: expected a torch module")
    if not isinstance(sites, Mapping) and sites and all(isinstance(name, str) for name in sites):
        once(sites, f"{source.path}: sites()")
        wanted = set(sites if only is None else only)
        sites = {n: call(module, "site", n) if n in wanted else None for n in sites}
    elif only is not None:
        sites = {str(n): x if str(n) in only else None for n, x in named(sites).items()}
    missing = sorted(set(only or ()) - set(sites))
    if missing:
        raise ValueError(f"{source.path}: sites() has no {missing[0]!r}: expected one of its names")
    arguments = {n: x for n, x in options.items() if n not in (*OF_METHODS, "method")}
    size = options["batch_size"]
    arguments["batch_size"] = AUTO if size is None else size or None
    if only is not None and not only:
        arguments["device"] = "cpu"  # the master's; the option is about the sites
    for name in ("uncertainty", "loss", "buffers", "metrics", "standardize"):
        if hasattr(module, name) and arguments.get(name) is None:
            arguments[name] = call(module, name)
    arguments |= collate_of(module)
    return model, sites, arguments | method_arguments(module, options, arguments.get("uncertainty"))


def collate_of(module: ModuleType) -> dict[str, Any]:
    """How FILE.py makes batches of samples, if it says so."""
    return {"collate_fn": module.collate_fn} if hasattr(module, "collate_fn") else {}


def callbacks_of(source: Source) -> list[Any]:
    """What callbacks() of a file gives that has been loaded; []: it has no such function."""
    module = sys.modules[RUN + Path(source.path).stem]
    if not hasattr(module, "callbacks"):
        return []
    found = call(module, "callbacks")
    check_callbacks(found)
    return list(found)


# ---------------------------------------------------------------- how to train


def method_arguments(
    module: ModuleType, options: Mapping[str, Any], uncertainty: UncertaintySet | None
) -> dict[str, Any]:
    """The arguments of `prepare` that say how to train: by --method, method(), or `aspire`."""
    given = {name: options[name] for name in OF_METHODS if options.get(name) is not None}
    text = options.get("method")
    if text is not None:
        return {"method": named_method(module, text, given, uncertainty)}
    if not hasattr(module, "method"):
        known = inspect.signature(prepare).parameters
        objects = functions_of(module, "aspire", known)
        if "reference" not in given:
            objects |= reference_of(module, "aspire", known)
        return {**given, **objects}
    for name, value in given.items():
        raise ValueError(
            f"{name}={value!r}: expected no such option, since {module.__file__} has a method(), "
            "unless --method is given"
        )
    method = own_method(module)
    if uncertainty is not None and method.settings.get("uncertainty", uncertainty) is None:
        raise ValueError(
            f"{module.__file__}: method() makes {method.name!r} without the set of uncertainty(): "
            f"expected {method.name}(uncertainty(), ...)"
        )
    return {"method": method}


def named_method(
    module: ModuleType, text: str, given: Mapping[str, Any], uncertainty: UncertaintySet | None
) -> Method:
    """That of --method, with the other options that it takes and what the file has for it."""
    name, arguments = by_name.parse(text)
    for key, value in given.items():
        if key in arguments:
            raise ValueError(f"{key}={value!r} is also in method={text!r}: expected it once")
        if not by_name.takes(name, key):
            raise ValueError(f"{key}={value!r}: expected no such option, since {name} has no {key}")
    known = inspect.signature(by_name.factory_of(name)).parameters
    found = functions_of(module, name, known)
    objects = {key: function for key, function in found.items() if key not in arguments}
    if "reference" not in (*arguments, *given):
        objects |= reference_of(module, name, known)
    if uncertainty is not None and "uncertainty" in known:
        objects["uncertainty"] = uncertainty
    return by_name.make(name, {**arguments, **given}, **objects)


def functions_of(module: ModuleType, method: str, known: Collection[str]) -> dict[str, Any]:
    """optimizer and schedule of the file, as far as they are known to the method."""
    found = {name: vars(module)[name] for name in FUNCTIONS if callable(vars(module).get(name))}
    for name in found:
        if name not in known:
            logger.warning("%s() of %s is not used: %s takes none", name, module.__file__, method)
    return {name: function for name, function in found.items() if name in known}


def reference_of(module: ModuleType, method: str, known: Collection[str]) -> dict[str, Any]:
    """What reference() of the file gives, if the method takes one."""
    if not hasattr(module, "reference"):
        return {}
    if "reference" not in known:
        logger.warning("reference() of %s is not used: %s takes none", module.__file__, method)
        return {}
    return {"reference": call(module, "reference")}


def own_method(module: ModuleType) -> Method:
    """What method() makes."""
    method = call(module, "method")
    if not isinstance(method, Method):
        raise ValueError(
            f"{module.__file__}: method() gave {kind(method)}: expected a method, such as "
            "aspire.methods.afl()"
        )
    return method


def has_own_method(module: ModuleType, options: Mapping[str, Any]) -> bool:
    """Whether method() of the file makes the method."""
    return options.get("method") is None and hasattr(module, "method")


def with_usual(
    module: ModuleType, options: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """The options, with a command's own values where the method takes them and none are given."""
    if has_own_method(module, options):
        return dict(options)
    text = options.get("method")
    name, arguments = ("aspire", {}) if text is None else by_name.parse(text)
    missing = {
        key: value
        for key, value in usual.items()
        if options.get(key) is None and key not in arguments and by_name.takes(name, key)
    }
    return {**options, **missing}


# ---------------------------------------------------------------- what is in the file


def sites_of(module: ModuleType) -> Any:
    """What sites() gives: a mapping, or a list of sites or of their names."""
    sites = call(module, "sites")
    if isinstance(sites, Mapping):
        return sites
    if isinstance(sites, str) or not isinstance(sites, Iterable):
        raise ValueError(
            f"{module.__file__}: sites() gave {kind(sites)}: expected a list of sites, a mapping "
            "of them, or a list of their names"
        )
    if is_array(sites) or (type(sites) is tuple and all(map(is_array, sites))):
        return sites
    with calling(f"{module.__file__}: sites()"):
        return list(sites)


def load(source: Source) -> ModuleType:
    """Run the text as a module of its own."""
    name = RUN + Path(source.path).stem
    module = ModuleType(name)
    module.__file__ = source.path
    sys.modules[name] = module  # dataclasses and pickles look their module up by name
    _beside.enter(str(Path(source.path).parent))
    try:
        exec(compile(source.text, source.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        sentence = f"{source.path} does not load: {told(error)}"
        raise Failed(sentence, trace_of(error)) from error
    return module


class _Beside:
    """The folder of the last FILE.py, from which modules are imported as a script would do it.

    Those of the folder before are forgotten then, so that each file finds its own.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.before: set[str] = set()

    def enter(self, folder: str) -> None:
        if folder == self.folder:
            return
        self.leave()
        self.folder, self.before = folder, set(sys.modules)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()

    def leave(self) -> None:
        if self.folder is None:
            return
        if self.folder in sys.path:
            sys.path.remove(self.folder)
        new = set(sys.modules) - self.before
        ours = {name for name in new if "." not in name and self._lies_here(sys.modules[name])}
        for name in new:
            if name.partition(".")[0] in ours:
                del sys.modules[name]

    def _lies_here(self, module: ModuleType) -> bool:
        """Found by our entry of the path: a file in the folder, or a folder in it."""
        places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
        found = any(os.path.dirname(place) == self.folder for place in places)
        return found and not module.__name__.startswith(RUN)


_beside = _Beside()


def call(module: ModuleType, name: str, *arguments: Any) -> Any:
    function = vars(module).get(name)
    if not callable(function):
        raise ValueError(f"{module.__file__} has no function {name}(): expected one")
    with calling(f"{module.__file__}: {name}()"):
        return function(*arguments)
