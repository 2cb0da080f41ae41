"""The settings `trial` and `searched`: the methods of `terms` with settings that a search drew.

A trial sees no test part. What stands in its place is the val part once more, so that accuracies,
those of pixels among them, are on val.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from aspire.types import Method
from reproduction import choices
from reproduction.networks import run as networks_run
from reproduction.networks import validation
from reproduction.networks.data import Sites
from reproduction.networks.run import Cell, Watch, device_name, job_of, short
from reproduction.networks.terms import chosen
from reproduction.threads import one_thread

TRIAL, SEARCHED = "trial", "searched"
FIGURES = (
    *("made_by", "iterations", "worker_gradients", "sample_passes", "sites", "start_loss"),
    *("worst_loss", "stopped"),
)
DIGITS = 6


@dataclass(frozen=True)
class Trial(Cell):
    """A cell with settings of its own.

    number    of a trial: 0 is the untouched row
    settings  what `choices.make` is given, as JSON with sorted keys
    """

    number: int | None = None
    settings: str | None = None

    @property
    def name(self) -> str:
        number = "" if self.number is None else f"@{self.number}"
        return f"{self.network}/{self.method}{number}/{self.setting}/{self.seed}"


def written(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def run(cell: Trial, device: str) -> dict[str, Any]:
    """The record of a trial, or of a searched row."""
    with one_thread():
        sites = networks_run.sites_of(cell.network, cell.seed, cell.small)
        parts = validation.held_out(sites, cell.seed)
        method = choices.make(cell.method, len(parts), json.loads(cell.settings or "{}"))
        if cell.setting == SEARCHED:
            return networks_run.carried_out(cell, device, parts, method, chosen)
        return tried(cell, device, without_test(parts), method)


def without_test(sites: Sites) -> Sites:
    return {name: {**site, "test": site["val"]} for name, site in sites.items()}


def tried(cell: Trial, device: str, sites: Sites, method: Method) -> dict[str, Any]:
    """Without curves: what the search is judged by, and what later settings are drawn from."""
    began = time.perf_counter()
    used = time.process_time()
    watch = Watch(cell, job_of(cell, device, sites, method))
    watch.carry_out()
    figures = watch.figures()
    found = {name: figures[name] for name in FIGURES if name in figures}
    constants = getattr(watch.simulation.master, "constants", {})
    found["constants"] = {name: float(value) for name, value in constants.items()}
    found |= best_look(watch)
    found["wall_seconds"] = round(time.perf_counter() - began, 2)
    found["cpu_seconds"] = round(time.process_time() - used, 2)
    return cell.plain() | found | {"device": device_name(device), "torch": torch.__version__}


def best_look(watch: Watch) -> dict[str, Any]:
    """On the val parts, at the evaluation that `select` takes; a run that broke down has no loss
    and serves no site."""
    if watch.stopped:
        return {"val_loss": None, "accuracies": [0.0] * len(watch.job.problem.names)}
    line = validation.best_and_last(watch.history)["selected"]
    return {
        "val_loss": short(line["worst_val_loss"], DIGITS),
        "accuracies": [short(x, DIGITS) for x in line["accuracies"]],
        "selected_gradients": line["gradients"],
    }
