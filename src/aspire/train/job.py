"""A run that is ready to start: every argument checked, every piece in place, nothing done."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aspire.core.presets import Auto, Paper, Theorem1
from aspire.core.schedules import Preset
from aspire.methods.aspire_ease import aspire
from aspire.problem import Loss, Problem, build
from aspire.runtimes import rundir, simulator
from aspire.runtimes.delays import Absence, Delays, LogNormal
from aspire.runtimes.driver import Drive
from aspire.sets import CDNorm, UncertaintySet
from aspire.train import memory
from aspire.types import Method

SMALL = 1e8  # parameters times samples of one gradient
PRESETS: dict[str, Callable[..., Preset]] = {"auto": Auto, "paper": Paper, "theorem1": Theorem1}


class Interrupted(RuntimeError):
    """The run was asked to stop between two events; its folder holds all that `resume` needs."""


@dataclass(frozen=True)
class Job:
    """A run that is ready to start: everything checked, nothing done."""

    problem: Problem
    method: Method
    uncertainty: UncertaintySet
    iterations: float
    gradients: float
    delays: Delays
    absences: tuple[Absence, ...]
    seed: int
    evaluate_every: int
    settings: dict[str, Any]
    exact: bool = False

    def done(self, run: simulator.Simulation | Drive) -> bool:
        return bool(run.master.t >= self.iterations or run.gradients >= self.gradients)

    def begin(self) -> simulator.Simulation:
        return simulator.begin(
            self.method,
            self.problem,
            delays=self.delays,
            absences=self.absences,
            seed=self.seed,
            exact=self.exact,
        )


def prepare(
    model: nn.Module,
    sites: Mapping[str, Any] | Sequence[Any],
    *,
    loss: str | Loss = "cross_entropy",
    uncertainty: UncertaintySet | None = None,
    method: Method | None = None,
    iterations: int | None = None,
    gradients: int | None = None,
    quorum: int = 1,
    staleness: int | None = None,
    local_steps: int = 1,
    batch_size: int | None = 64,
    preset: str | Preset = "auto",
    pull_bound: float | None = None,
    weight_decay: float = 0.0,
    delays: Delays | None = None,
    absences: Iterable[Absence] = (),
    device: str = "cpu",
    seed: int = 0,
    evaluate_every: int | None = None,
    exact: bool = False,
    elsewhere: bool = False,
) -> Job:
    """Check every argument of `train` and put the pieces together.

    With `elsewhere` a site may be None: its data stays where its worker is.
    """
    if iterations is None and gradients is None:
        raise ValueError("iterations is missing: expected a number of master steps")
    for name, value in (("iterations", iterations), ("gradients", gradients)):
        if value is not None and (value != int(value) or value < 1):
            raise ValueError(f"{name}={value}: expected a whole number of at least 1")
    if seed != int(seed) or seed < 0:
        raise ValueError(f"seed={seed}: expected a whole number of at least 0")
    if evaluate_every is None:
        evaluate_every = max(1, -(-(iterations or gradients or 1) // 20))
    if evaluate_every != int(evaluate_every) or evaluate_every < 0:
        raise ValueError(f"evaluate_every={evaluate_every}: expected a whole number, 0: never")
    if method is None:
        method = aspire(
            uncertainty,
            quorum=quorum,
            staleness=staleness,
            local_steps=local_steps,
            preset=_preset(preset),
            pull_bound=pull_bound,
        )
    elif (quorum, staleness, local_steps, preset, pull_bound) != (1, None, 1, "auto", None):
        raise ValueError(
            "method is given, so quorum, staleness, local_steps, preset and pull_bound belong to "
            "it: expected them in aspire(...)"
        )
    else:
        uncertainty = uncertainty or method.settings.get("uncertainty")
    problem = build(
        model,
        sites,
        loss=loss,
        batch_size=batch_size,
        weight_decay=weight_decay,
        device=_device(device),
        seed=seed,
        elsewhere=elsewhere,
    )
    n = len(problem.names)
    uncertainty = (uncertainty or CDNorm(radius=1.0 / n, budget=float(n))).for_sites(n)
    delays, absences = delays or LogNormal(), tuple(absences)
    settings = {
        "sites": problem.names,
        "parameters": len(problem.flat.start),
        "method": method.name,
        **{name: value for name, value in method.settings.items() if name != "uncertainty"},
        "uncertainty": uncertainty,
        "loss": loss,
        "iterations": iterations,
        "gradients": gradients,
        "batch_size": batch_size,
        "weight_decay": weight_decay,
        "delays": delays,
        "absences": absences,
        "device": device,
        "seed": seed,
        "evaluate_every": evaluate_every,
        "versions": rundir.versions(),
    }
    if exact:
        settings["exact"] = True
    job = Job(
        problem=problem,
        method=method,
        uncertainty=uncertainty,
        iterations=math.inf if iterations is None else iterations,
        gradients=math.inf if gradients is None else gradients,
        delays=delays,
        absences=absences,
        seed=seed,
        evaluate_every=evaluate_every,
        settings=settings,
        exact=exact,
    )
    refuse_too_large(job)
    return job


def refuse_too_large(job: Job, *, kept: bool = False) -> None:
    """Say no to a run that will not fit in memory; `kept`: it will have a folder."""
    n, start, steps = len(job.problem.names), job.problem.flat.start, job.settings["iterations"]
    needed = memory.predict(
        n, len(start), bytes_each=start.element_size(),
        planes=job.method.settings.get("max_planes"),
        lines=1 + (steps or 20) // (job.evaluate_every or steps or 20), kept=kept,
    )  # fmt: skip
    memory.refuse_too_large(n, len(start), needed, memory.free(start.device))


@contextmanager
def few_threads(job: Job, *, one: bool = False) -> Iterator[None]:
    """One torch thread while the work of one task is small: more would only wait for each other.

    `one`: one thread in any case, as the workers of an engine have it.
    """
    threads = torch.get_num_threads()
    site = job.problem.sites[0]
    if one or len(job.problem.flat.start) * site.batch_samples < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _preset(preset: str | Preset) -> Preset:
    """By name, with numbers of its own in brackets where the defaults do not do."""
    if not isinstance(preset, str):
        return preset
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", preset.strip())
    if found is None or found[1] not in PRESETS:
        known = ", ".join(PRESETS)
        raise ValueError(f"preset={preset!r}: expected one of {known}, or NAME(key=number, ...)")
    try:
        pairs = [part.split("=") for part in (found[2] or "").split(",") if part.strip()]
        return PRESETS[found[1]](**{key.strip(): float(value) for key, value in pairs})
    except (TypeError, ValueError) as error:
        raise ValueError(f"preset={preset!r}: {error}") from None


def _device(device: str) -> str:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"device={device!r}: expected a device that is here ({first})") from None
    return device
