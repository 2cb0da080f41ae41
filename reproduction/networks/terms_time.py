"""The settings `terms-listed` and `terms-reversed`: `terms` under delays spread 1 to 5.

A task of K local steps lasts K delays, one that measures a loss alone lasts one. On its own, so
that the cells of other settings do not depend on those of the other experiments.
"""

from __future__ import annotations

from typing import Any

from reproduction.cells import timed
from reproduction.networks import run as networks_run
from reproduction.networks import terms, validation
from reproduction.networks.run import LISTED, REVERSED, Cell
from reproduction.threads import one_thread

ORDERS = {"terms-listed": LISTED, "terms-reversed": REVERSED}


def run(cell: Cell, device: str) -> dict[str, Any]:
    """The record of a cell of these settings."""
    with one_thread():
        sites = networks_run.sites_of(cell.network, cell.seed, cell.small)
        parts = validation.held_out(sites, cell.seed)
        method = timed(terms.method_of(cell, len(parts)))
        return networks_run.carried_out(cell, device, parts, method, terms.chosen)
