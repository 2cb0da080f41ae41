"""One client that speaks for all sites of a federation, each by its own certificate.

    python benchmarks/crowd.py KITS PORT PARAMETERS [NAME ...]

It reads tasks without keeping them and answers each with the same made-up gradient, so that what a
server takes with very many sites can be measured on one machine. The wire is the real one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc import aio

from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import (
    CHUNK,
    HELLO,
    MAJOR,
    METHOD,
    MINOR,
    OVERHEAD,
    frames,
    unframed,
)
from aspire.engines.grpc.wire_pb2 import Header, Hello, ToSite

SAMPLES = 4.0
AT_ONCE = 16  # sites that are connecting
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", CHUNK + OVERHEAD),
)


class Crowd:
    """Sites that say what the direct form's workers would, with a loss by their number."""

    def __init__(self, folder: Path, port: int, parameters: int, names: Sequence[str]) -> None:
        self.folder = folder
        self.port = port
        made = torch.Generator().manual_seed(0)
        self.gradient = 1e-3 * torch.randn(parameters, generator=made)
        self.names = names or sorted(path.name for path in (folder / "sites").iterdir())
        self.reports = 0

    async def run(self) -> None:
        """Until the server says that the run is over, or is gone."""
        self.door = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self.site(j, name) for j, name in enumerate(self.names)))

    async def site(self, j: int, name: str) -> None:
        kit = kits.read(self.folder / "sites" / name)
        trust = grpc.ssl_channel_credentials(kit.ca, kit.key, kit.certificate)
        hello = Hello(
            major=MAJOR,
            minor=MINOR,
            site=name,
            parameters=len(self.gradient),
            dtype="float32",
            file=b"crowd",
        ).SerializeToString()
        address = f"127.0.0.1:{self.port}"
        async with aio.secure_channel(address, trust, options=OPTIONS) as channel:
            try:
                async with self.door:
                    call = channel.stream_stream(METHOD)(metadata=((HELLO, hello),))
                    await call.read()  # Welcome
                async for task in self.tasks(call):
                    for frame in self.answer(j, task):
                        await call.write(frame)
            except (aio.AioRpcError, asyncio.InvalidStateError):
                return

    async def tasks(self, call: Any) -> AsyncIterator[Header]:
        """The headers of tasks that have come in whole; their vectors are let go."""
        task = None
        left = 0
        while (raw := await call.read()) is not aio.EOF:
            part = unframed(raw)
            if part is None:  # Over
                assert ToSite.FromString(raw).HasField("over")
                return
            header, data = part
            if header is not None:
                task = header
                left = sum(vector.length for vector in header.vectors) * 4
            left -= len(data)
            raw = part = data = None
            if task is not None and not left:
                yield task
                task = None

    def answer(self, j: int, task: Header) -> Iterator[bytes]:
        loss = {"loss": 1.0 + j / len(self.names), "loss_samples": SAMPLES}
        if task.kind == "evaluate":
            return frames(task.id, {}, {"loss": loss["loss"], "samples": SAMPLES})
        if task.kind == "figures":
            return frames(task.id, {}, {})
        told = loss if task.kind in ("probe", "both", "loss") else {}
        asked = task.kind in ("gradient", "both")
        self.reports += asked
        cost = {"gradients": float(asked), "samples": 3.0 * SAMPLES * asked}
        cost["samples"] += told.get("loss_samples", 0.0)
        vectors = {"g": self.gradient} if asked else {}
        return frames(task.id, vectors, cost | told, announce=True)


if __name__ == "__main__":
    _, kits_folder, port, parameters, *names = sys.argv
    asyncio.run(Crowd(Path(kits_folder), int(port), int(parameters), names).run())
