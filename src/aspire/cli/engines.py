"""Engines by the name that the command line and run.json give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from aspire.engines.carrier import Engine
from aspire.engines.process import keep_memory

E = TypeVar("E")


def engine_named(name: str, arguments: Mapping[str, Any]) -> Engine | None:
    """The engine with these arguments; None for the simulator."""
    if name == "simulator":
        for option, value in arguments.items():
            if value:
                raise ValueError(f"{option}={value!r} belongs to an engine: expected --engine ray")
        return None
    keep_memory()
    if name == "ray":
        from aspire.engines.ray import Ray

        return made(Ray, arguments)
    if name == "federation" and arguments.get("kit"):
        from aspire.engines.grpc.engine import FederationEngine

        return made(FederationEngine, arguments)
    raise ValueError(f"engine={name!r}: expected simulator or ray")


def made(kind: type[E], arguments: Mapping[str, Any]) -> E:
    """An engine with the arguments that it has."""
    own = fields(kind)  # type: ignore[arg-type]
    needed = {field.name for field in own if field.default is MISSING}
    if not needed <= set(arguments) <= {field.name for field in own}:
        given = ", ".join(sorted(arguments)) or "nothing"
        names = ", ".join(field.name for field in own)
        raise ValueError(f"the engine of the run has {given}: expected {names}")
    return kind(**arguments)
