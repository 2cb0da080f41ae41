"""A run that was written to a folder, read again."""

from __future__ import annotations

import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from aspire.api import certificate, inputs
from aspire.api.options import check_uncertainty
from aspire.api.run import Run
from aspire.api.user_file import call, read
from aspire.api.user_file import load as run_file
from aspire.arguments import kind, shown
from aspire.problem.copies import called
from aspire.problem.lazy import first_lazy
from aspire.problem.standardization import Standardization, Standardized
from aspire.runs import figures
from aspire.runs import files as rundir
from aspire.runs.folder import has_ended, read_settings
from aspire.sets import UncertaintySet
from aspire.types import Array

SITE_ARRAYS = (
    *("weights", "losses", "accuracies", "test_losses", "val_losses", "val_accuracies"),
    *("train_samples", "test_samples", "val_samples"),
)


def load(
    directory: str | Path,
    model: nn.Module | None = None,
    *,
    uncertainty: UncertaintySet | None = None,
) -> Run:
    """The run in a folder that `train(out=...)`, `aspire train --out` or `Run.save` has written.

    Args:
        directory: the folder; its run must have ended.
        model: a module like the one that was trained; it is left as it is. None: what model() of
            the FILE.py makes that `aspire train` was given.
        uncertainty: the set of the run, for a certificate with another alpha; None: its text.

    Returns:
        A `Run`. What run.json cannot hold, such as a loss of your own, is its text in `settings`.
    """
    path = Path(directory)
    check_uncertainty(uncertainty)
    settings = read_settings(path)
    if uncertainty is not None:
        settings["uncertainty"] = uncertainty.for_sites(len(settings["sites"]))
    if not has_ended(path):
        raise ValueError(f"{path}: the run has not ended: expected one with a {rundir.RESULT}")
    result = rundir.read_record(path / rundir.RESULT, sealed=True)
    module = module_of(path, settings) if model is None else given(model)
    if settings.get("standardize") and not isinstance(module, Standardized):
        module = standardized(module, path / rundir.MODEL)
    fill(module, path / rundir.MODEL, result.get("inputs"))
    own: dict[str, Any] | None
    own = {} if settings.get("buffers") == "site" and has_statistics(module) else None
    history = rundir.read_lines(path / rundir.HISTORY)
    about: dict[str, Any] = {"settings": settings, "history": history, "site_buffers": own}
    try:
        return Run(model=module, **about, **restored(result))
    except (KeyError, TypeError, ValueError) as error:
        place = path / rundir.RESULT
        raise ValueError(f"{place}: expected the result of a run ({error})") from None


def restored(result: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Run` that result.json has."""
    known = {field.name for field in fields(Run)}
    found = {name: value for name, value in result.items() if name in known}
    found |= {name: array_of(result[name]) for name in SITE_ARRAYS}
    found["metrics"] = figures.read(result.get("metrics", {}))
    found["certified"], found["tested"] = certificate.read(result.get("certificate"))
    return found | {"sites": tuple(result["sites"])}


def array_of(values: list[float | None] | None) -> Array | None:
    return None if values is None else np.array(values, dtype=float)


# ---------------------------------------------------------------- the model


def given(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={shown(model)}: expected a torch.nn.Module, or None")
    return copy.deepcopy(model)


def module_of(path: Path, settings: dict[str, Any]) -> nn.Module:
    """What model() of the run's FILE.py makes."""
    source = settings.get("source")
    if source is None:
        raise ValueError(
            f"{path}: the run was started from Python, so no file says what its model is: expected "
            "model=, a module like the one that was trained"
        )
    file = read(Path(source["file"]))
    if file.sha256 != source["sha256"]:
        raise ValueError(
            f"{file.path} has changed since the run in {path}: expected the same file, or model="
        )
    with torch.random.fork_rng(devices=()):
        module = call(run_file(file), "model")
    if not isinstance(module, nn.Module):
        raise ValueError(f"{file.path}: model() gave {kind(module)}: expected a torch module")
    return module


def standardized(module: nn.Module, path: Path) -> nn.Module:
    """The module behind the mean and std that the file has."""
    try:
        with safe_open(path, "pt") as saved:
            by = Standardization(saved.get_tensor("mean"), saved.get_tensor("std"))
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return by.of(module)


def has_statistics(module: nn.Module) -> bool:
    """Whether it has batch-norm layers that remember what they saw."""
    norms = [m for m in module.modules() if isinstance(m, _NormBase)]
    return any(norm.track_running_stats for norm in norms)


def fill(module: nn.Module, path: Path, description: Any) -> None:
    """Give the module the numbers in the file; `description` is of its inputs."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a file of a run, and there is none")
    if first_lazy(module) is not None and inputs.known(description):
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            called(module, inputs.zeros(description, 2))
    try:
        load_model(module, path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"model={shown(module)} does not fit {path}: {why}") from None
