"""Engines by the name that the command line and run.json give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aspire.runtimes.driver import Engine


def engine_named(name: str, arguments: Mapping[str, Any]) -> Engine | None:
    """The engine with these arguments; None for the simulator."""
    if name == "simulator":
        for option, value in arguments.items():
            if value:
                raise ValueError(f"{option}={value!r} belongs to an engine: expected --engine ray")
        return None
    if name == "ray":
        from aspire.clusters.ray import Ray

        return Ray(**arguments)
    if name == "federation" and arguments.get("kit"):
        from aspire.federation.engine import Federation

        return Federation(**arguments)
    raise ValueError(f"engine={name!r}: expected simulator or ray")
