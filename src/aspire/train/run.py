"""What training gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import nn

from aspire.runtimes import rundir
from aspire.train.job import Job
from aspire.types import Array


@dataclass(frozen=True)
class Run:
    """What training gave. Arrays are in the order of `sites`; accuracies are fractions."""

    model: nn.Module
    sites: tuple[str, ...]
    weights: Array
    losses: Array
    accuracies: Array | None
    worst_case_loss: float
    planes: int
    stationarity: float | None
    history: list[dict[str, Any]]
    evaluated_on: str
    method: str
    iterations: int
    virtual_seconds: float
    wall_seconds: float
    worker_gradients: int
    sample_passes: int
    settings: dict[str, Any] = field(repr=False)

    @property
    def worst_loss(self) -> float:
        return float(np.nanmax(self.losses))

    @property
    def worst_accuracy(self) -> float | None:
        return None if self.accuracies is None else float(np.nanmin(self.accuracies))

    @property
    def mean_accuracy(self) -> float | None:
        return None if self.accuracies is None else float(np.nanmean(self.accuracies))

    @property
    def std_accuracy(self) -> float | None:
        """Population standard deviation over the sites."""
        return None if self.accuracies is None else float(np.nanstd(self.accuracies))

    def result(self) -> dict[str, Any]:
        """What result.json holds."""
        return {
            "method": self.method,
            "iterations": self.iterations,
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": self.wall_seconds,
            "worst_accuracy": self.worst_accuracy,
            "worst_loss": self.worst_loss,
            "std_accuracy": self.std_accuracy,
            "mean_accuracy": self.mean_accuracy,
            "accuracies": self.accuracies,
            "losses": self.losses,
            "weights": self.weights,
            "worst_case_loss": self.worst_case_loss,
            "planes": self.planes,
            "stationarity": self.stationarity,
            "worker_gradients": self.worker_gradients,
            "sample_passes": self.sample_passes,
            "evaluated_on": self.evaluated_on,
            "sites": self.sites,
        }

    def save(self, directory: str | Path) -> None:
        """Write run.json, history.jsonl, model.safetensors and result.json to a new folder."""
        folder = rundir.create(Path(directory))
        rundir.write_json(folder / rundir.RUN, self.settings)
        for record in self.history:
            rundir.append_json(folder / rundir.HISTORY, record)
        self.save_outcome(folder)

    def save_outcome(self, folder: Path) -> None:
        """Only what is known at the end."""
        rundir.write_model(folder / rundir.MODEL, self.model)
        rundir.write_json(folder / rundir.RESULT, self.result())


class Ended(Protocol):
    """What the simulator and the driver both know of a run."""

    master: Any
    time: float
    gradients: float
    samples: float


def outcome(
    job: Job,
    ended: Ended,
    history: list[dict[str, Any]],
    seconds: float,
    *,
    evaluated_on: str,
    gap: float | None = None,
) -> Run:
    """The last line of the history, and what it took to get there."""
    last = history[-1]
    return Run(
        model=job.problem.flat.module(job.method.model(ended.master)),
        sites=job.problem.names,
        weights=np.array(last["weights"]),
        losses=np.array(last["losses"]),
        accuracies=None if last["accuracies"] is None else np.array(last["accuracies"]),
        worst_case_loss=last["worst_case_loss"],
        planes=last["planes"],
        stationarity=gap,
        history=history,
        evaluated_on=evaluated_on,
        method=job.method.name,
        iterations=ended.master.t,
        virtual_seconds=ended.time,
        wall_seconds=seconds,
        worker_gradients=int(ended.gradients),
        sample_passes=int(ended.samples),
        settings=job.settings,
    )
