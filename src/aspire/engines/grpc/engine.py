"""The federation as an engine: what `aspire server` writes to run.json and `resume` reads there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from aspire.engines.grpc import kits
from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.messages import Shape, shape_of
from aspire.engines.grpc.method import sent
from aspire.engines.grpc.server import Server
from aspire.engines.grpc.wire_pb2 import Settings
from aspire.types import Method


@dataclass(frozen=True)
class FederationEngine:
    """Plain values only."""

    kit: str
    listen: str
    max_message: int  # bytes of vectors in one message
    parameters: int
    dtype: str
    work: Mapping[str, Any]  # the fields of Settings
    file: str  # sha256 of FILE.py
    name: ClassVar[str] = "federation"

    def open(self, crew: Any, names: Sequence[str], run: str) -> Server:
        """Listen; the sites come by themselves."""
        shape = Shape(self.parameters, self.dtype, self.max_message)
        terms = Terms(shape, Settings(**self.work), bytes.fromhex(self.file))
        return Server(kits.read(Path(self.kit)), names, self.listen, terms)


def federation(
    start: Tensor,
    settings: Mapping[str, Any],
    method: Method,
    *,
    kit: Path,
    listen: str,
    file: str,
    megabytes: float | None = None,
    own: bool = False,
) -> FederationEngine:
    """The engine for a job with this start vector, these settings and this method.

    own  FILE.py itself makes the method, by method()
    """
    shape = shape_of(start, megabytes)
    work = {
        "batch_size": settings["batch_size"] or 0,
        "weight_decay": settings["weight_decay"],
        **sent(method, own=own),
    }
    return FederationEngine(
        str(kit.resolve()), listen, shape.most, shape.parameters, shape.dtype, work, file
    )
