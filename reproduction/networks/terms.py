"""The setting `terms`: every method as it comes, and a val part at every site for all of them.

On its own, so that the cells of other settings do not depend on the baselines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aspire.types import Method
from reproduction import choices, knobs
from reproduction.networks import run as networks_run
from reproduction.networks import validation
from reproduction.networks.run import Cell, short
from reproduction.threads import one_thread

TERMS = "terms"
METHODS = (  # by their names in `choices`
    *("aspire-direct", "aspire-direct-gamma0", "aspire-consensus", "aspire-ease"),
    *("fedavg", "fedbuff", "afl", "drfa-prox", "q-ffl", "gda", "gdmax"),
)
MOVING = METHODS[:2]  # those that train a network whose buffers move


def run(cell: Cell, device: str) -> dict[str, Any]:
    """The record of a cell of this setting."""
    with one_thread():
        sites = networks_run.sites_of(cell.network, cell.seed, cell.small)
        parts = validation.held_out(sites, cell.seed)
        return networks_run.carried_out(cell, device, parts, method_of(cell, len(parts)), chosen)


def method_of(cell: Cell, sites: int) -> Method:
    return choices.make(cell.method, sites, knobs.untouched(cell.method, linear=False))


def chosen(history: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Test accuracies at the evaluation that is best on the val parts, and at the last one."""
    found: dict[str, Any] = {}
    for name, line in validation.best_and_last(history).items():
        found[f"{name}_worst_accuracy"] = short(line["worst_accuracy"], 6)
        found[f"{name}_mean_accuracy"] = short(line["mean_accuracy"], 6)
        found[f"{name}_gradients"] = line["gradients"]
    return found
