"""The parties of the federation's tests: a server in a process of its own, sites, and an enemy.

`python -m tests.federation.parties KIT NAMES` is the server: it trains until a line on its standard
input says that enough has been seen, takes 30 more steps, and prints what became of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc import aio

from aspire.engines.driver import Driver, begin
from aspire.engines.grpc import kits
from aspire.engines.grpc.connections import Terms
from aspire.engines.grpc.messages import HELLO, MAJOR, METHOD, MINOR, Shape, shape_of
from aspire.engines.grpc.method import sent
from aspire.engines.grpc.server import Server
from aspire.engines.grpc.site import Dialler
from aspire.engines.grpc.wire_pb2 import Hello, Settings, ToSite
from aspire.methods.aspire_ease.consensus import consensus as aspire
from aspire.problem.problem import build
from aspire.runs.log import EventLog
from aspire.types import Facts
from tests.helpers import blobs, linear

ROOT = Path(__file__).parents[2]
SHAPE = shape_of(torch.zeros(8))  # of `linear()`
BOUND = 10.0


def local(names: Sequence[str], name: str) -> Any:
    problem = build(linear(), dict(zip(names, blobs(len(names)).values(), strict=True)))
    return aspire(pull_bound=BOUND), problem.sites[list(names).index(name)]


def _made(make: Any, name: str, settings: Settings) -> Any:
    return make(name)


class Sites:
    """Sites, each in a thread with its own event loop; `make(name)` gives its method and data."""

    def __init__(
        self, folder: Path, names: Sequence[str], make: Any, shape: Shape, port: int
    ) -> None:
        self.ended: dict[str, Any] = {}
        self.threads = []
        for name in names:
            kit = kits.read(folder / "sites" / name)
            dialler = Dialler(
                kit, f"127.0.0.1:{port}", shape, b"f", partial(_made, make, name), give_up=60.0
            )
            thread = threading.Thread(target=self.run, args=(name, dialler), daemon=True)
            self.threads.append(thread)
            thread.start()

    def run(self, name: str, dialler: Dialler) -> None:
        try:
            asyncio.run(dialler.run())
            self.ended[name] = "over"
        except Exception as error:
            self.ended[name] = error

    def join(self) -> dict[str, Any]:
        for thread in self.threads:
            thread.join(20)
        return self.ended


class Host:
    """The server's process."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.federation.parties", str(folder), ",".join(names)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=ROOT, env={k: v for k, v in os.environ.items() if k != "GRPC_VERBOSITY"},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = next(line for line in text.splitlines() if line.startswith(what))
        return int(found.split()[1]) * 1024

    def end(self) -> tuple[dict[str, Any], str]:
        """What became of the run, and all that was logged."""
        out, logged = self.process.communicate("enough\n", timeout=40)
        return json.loads(out), logged

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


# ---------------------------------------------------------------- an enemy


def credentials(kit: kits.Kit) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(kit.ca, kit.key, kit.certificate)


def hello(site: str, **changed: Any) -> bytes:
    said = {"major": MAJOR, "minor": MINOR, "site": site, "parameters": 8, "dtype": "float32"}
    return Hello(**(said | changed), file=b"f").SerializeToString()


async def talk(
    port: int, trust: grpc.ChannelCredentials, greeting: bytes | None, said: Any
) -> tuple[str, str]:
    """Say everything that `said` gives; it is handed each task that comes. How the line ended."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with aio.secure_channel(f"127.0.0.1:{port}", trust, options=options) as channel:
        metadata = () if greeting is None else ((HELLO, greeting),)
        call = channel.stream_stream(METHOD)(metadata=metadata)
        try:
            async for message in said(call):
                raw = message if isinstance(message, bytes) else message.SerializeToString()
                await call.write(raw)
            while await call.read() is not aio.EOF:
                pass
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return (await call.code()).name, await call.details()


async def task(call: Any) -> ToSite:
    """The next task."""
    while True:
        received = ToSite.FromString(await call.read())
        if received.HasField("task"):
            return received


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    work = Settings(batch_size=64, **sent(aspire(pull_bound=BOUND), own=False))
    server = Server(kits.read(folder / "server"), names, "127.0.0.1:0", Terms(SHAPE, work, b"f"))
    print(server.port, flush=True)  # noqa: T201
    method = aspire(pull_bound=BOUND)
    state = begin(method, Facts(len(names), linear_start()), 0)
    driver = Driver(method, server, names, state, EventLog("off"), patience=2.0, min_sites=2)
    enough = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), enough.set()), daemon=True).start()
    driver.run(lambda s: enough.is_set())
    goal = driver.state.master.t + 30
    driver.run(lambda s: s.master.t >= goal)
    server.close()
    found = {"t": state.master.t, "reports": state.reports, "refused": state.breaches}
    found |= {"finite": bool(torch.isfinite(state.master.z).all()), "away": state.away}
    print(json.dumps(found), flush=True)  # noqa: T201


def linear_start() -> torch.Tensor:
    from aspire.problem.problem import Flat

    return Flat(linear()).start


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main(Path(sys.argv[1]), sys.argv[2].split(","))
