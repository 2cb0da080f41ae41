"""What `train` and `prepare` are given, checked: each fault is one sentence with its argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from aspire.arguments import flag, function, is_number, near, real_number, shown
from aspire.problem.failures import calling
from aspire.problem.problem import Problem
from aspire.protocol import LARGEST
from aspire.runs.callbacks import check_callbacks
from aspire.sets import UncertaintySet
from aspire.simulator.delays import Absence, Delays, LogNormal, many
from aspire.types import Method

SEEDS = 2**63 - 1


def check_names(given: Iterable[str], known: Iterable[str], function: str = "train") -> None:
    """As Python does it for a function that spells its arguments out."""
    known = list(known)
    for name in given:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected argument {name!r}{near(name, known)}")


def check_options(
    *,
    out: Any,
    log: Any,
    engine: Any,
    callbacks: Any,
    progress: Any,
    stop: Any,
    checkpoint_seconds: Any,
    source: Any,
    flags: Mapping[str, Any],
) -> None:
    """The arguments of `train` that no job knows."""
    for name, value in flags.items():
        flag(name, value)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise ValueError(f"out={shown(out)}: expected the path of a new folder, or None")
    if not isinstance(log, str):
        raise ValueError(f"log={shown(log)}: expected 'full', 'digest', 'off' or 'vectors'")
    if engine is not None and (isinstance(engine, type) or not hasattr(engine, "open")):
        raise ValueError(
            f"engine={shown(engine)}: expected an engine, such as Ray() of aspire.engines.ray, "
            "or None for the simulator"
        )
    check_callbacks(callbacks)
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise ValueError(f"progress={shown(progress)}: expected True, a function, or None")
    function("stop", stop)
    real_number("checkpoint_seconds", checkpoint_seconds, "a number of seconds", least=0.0)
    if source is not None and not isinstance(source, Mapping):
        raise ValueError(f"source={shown(source)}: expected a mapping, or None")


def only_given(**values: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_loss_bound(loss_bound: Any) -> None:
    if loss_bound is not None and not (is_number(loss_bound) and 0 < loss_bound <= LARGEST):
        raise ValueError(
            f"loss_bound={shown(loss_bound)}: expected a positive number up to {LARGEST:g}"
        )


def check_uncertainty(uncertainty: Any) -> None:
    if uncertainty is not None and not isinstance(uncertainty, UncertaintySet):
        raise ValueError(
            f"uncertainty={shown(uncertainty)}: expected a set of aspire.sets, such as "
            "CDNorm(radius=0.1, budget=2.0), or None"
        )


def check_method(method: Any) -> None:
    if not isinstance(method, Method):
        such = f"{method}()" if isinstance(method, str) and method.isidentifier() else "afl()"
        raise ValueError(
            f"method={shown(method)}: expected a method of aspire.methods, such as {such}, or None"
        )


def check_judged(method: Method, problem: Problem) -> None:
    """Every site whose data is here must have the part on which its loss is reported."""
    for name, site in zip(problem.names, problem.sites, strict=True):
        if method.judged_on == "val" and site is not None and site.val is None:
            raise ValueError(
                f"reference='own-best' compares losses on val parts: expected one at every site, "
                f"and site {shown(name)} has none"
            )


def delays_of(delays: Delays | None, sites: int, seed: int) -> Delays:
    """The delays, if they give every site a positive number of seconds."""
    if delays is None:
        return LogNormal()
    if isinstance(delays, type) or not callable(delays):
        raise ValueError(f"delays={shown(delays)}: expected such as LogNormal(1.0, 0.4), or None")
    for name in ("scale", "delay"):
        several: Any = getattr(delays, name, 1.0)
        if np.ndim(several) and len(several) != sites:
            raise ValueError(
                f"delays: {name} has {len(several)} entries: expected one for each of the {sites} "
                "sites"
            )
    with calling("delays"):
        first = many(delays, seed, np.arange(sites), np.zeros(sites, dtype=np.int64))
    if first.dtype.kind not in "iuf" or not (np.isfinite(first) & (first >= 0)).all():
        raise ValueError(f"delays give {shown(list(first))}: expected numbers of at least 0")
    return delays


def absences_of(absences: Any, sites: int) -> tuple[Absence, ...]:
    if isinstance(absences, str) or not isinstance(absences, Iterable):
        raise ValueError(f"absences={shown(absences)}: expected a list of Absence(...)")
    try:
        found = tuple(absences)
    except TypeError:  # an array without an axis
        raise ValueError(f"absences={shown(absences)}: expected a list of Absence(...)") from None
    for absence in found:
        if not isinstance(absence, Absence):
            raise ValueError(f"absences has {shown(absence)}: expected Absence(...) only")
        if absence.worker not in range(sites):
            worker = shown(absence.worker)
            raise ValueError(f"absence of worker {worker}: expected 0 to {sites - 1}")
    return found


def device_of(device: Any) -> str:
    """The device as a string, if it is here and holds numbers."""
    name = str(device) if isinstance(device, torch.device) else device
    if not isinstance(name, str) or name == "meta":
        raise ValueError(f"device={shown(device)}: expected a string such as 'cpu' or 'cuda:0'")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"device={name!r}: expected a device that is here ({first})") from None
    return name
