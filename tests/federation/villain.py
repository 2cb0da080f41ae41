"""A scripted server with the federation's own certificate: it says what it likes to a real site."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import torch
from grpc import aio

from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import MAJOR, Message, frames, next_message, shape_of
from aspire.engines.grpc.method import sent
from aspire.engines.grpc.wire_pb2 import Settings, ToSite, Welcome
from aspire.methods import aspire

OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0))


class Call:
    """One connection of the site."""

    def __init__(self, villain: Villain, context: Any) -> None:
        self.villain, self.context = villain, context

    async def say(self, raw: bytes | ToSite) -> None:
        sent = raw if isinstance(raw, bytes) else raw.SerializeToString()
        await self.context.write(sent)

    async def welcome(self, **changed: Any) -> None:
        await self.say(welcome(self.villain.file, **changed))

    async def task(self, id: int, kind: str, vectors: Any, scalars: dict[str, float]) -> None:
        for frame in frames(id, vectors, scalars, kind):
            await self.say(frame)

    async def report(self) -> Message:
        """The next whole report."""
        message = None
        while message is None or not message.whole:
            raw = await self.context.read()
            if raw is aio.EOF:
                raise EOFError
            message = next_message(message, raw, shape_of(self.villain.start))
        self.villain.reports.append(message)
        return message


def welcome(ours: bytes, **changed: Any) -> ToSite:
    """A proper one, where nothing is changed; `ours`: the sha256 of FILE.py."""
    settings = {"batch_size": 8, **sent(aspire(pull_bound=10.0), own=False)}
    settings |= {k: v for k, v in changed.items() if k in Settings.DESCRIPTOR.fields_by_name}
    about = {"major": MAJOR, "server": bytes(16), "file": ours}
    about |= {k: v for k, v in changed.items() if k in Welcome.DESCRIPTOR.fields_by_name}
    return ToSite(welcome=Welcome(settings=Settings(**settings), **about))


class Villain:
    """Listens in a thread of its own; every connection is `script`, then silence."""

    def __init__(
        self,
        folder: Path,
        file: bytes,
        start: torch.Tensor,
        script: Callable[[Call], Awaitable[None]],
    ) -> None:
        self.kit, self.file, self.start, self.script = kits.read(folder), file, start, script
        self.reports: list[Message] = []
        self.connections = 0
        self.said = threading.Event()  # a script has ended
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.live()), daemon=True)
        self.thread.start()
        assert self.ready.wait(30)

    async def live(self) -> None:
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        server = aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self.attend)
        name, method = "aspire.engines.grpc.Federation", {"Serve": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, method),))
        trust = grpc.ssl_server_credentials(
            [(self.kit.key, self.kit.certificate)], self.kit.ca, require_client_auth=True
        )
        self.port = server.add_secure_port("127.0.0.1:0", trust)
        await server.start()
        self.ready.set()
        await self.stop.wait()
        await server.stop(grace=None)

    async def attend(self, _: Any, context: Any) -> None:
        self.connections += 1
        call = Call(self, context)
        try:
            await self.script(call)
            self.said.set()
            while await context.read() is not aio.EOF:
                pass
        except (EOFError, aio.AbortError, aio.BaseError, asyncio.InvalidStateError):
            return
        finally:
            self.said.set()

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(10)
