"""A TCP proxy that mistreats what passes through it: between a site and its server.

It sees encrypted bytes only, so a truncated or repeated piece is a broken TLS record: the line is
lost, and both ends must notice and go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

PIECE = 65536


class Line:
    """One connection through the proxy, in both directions."""

    def __init__(self, writers: list[asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.until = 0.0
        self.next = ""

    def cut(self) -> None:
        """Both ends see a reset."""
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Listens on a port of its own and passes on to 127.0.0.1:`to`; runs in a thread."""

    def __init__(self, to: int) -> None:
        self.to, self.lines = to, set[Line]()
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._pass, "127.0.0.1", 0))
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        self.loop.run_forever()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self.to)
        except OSError:
            writer.transport.abort()
            return
        line = Line([writer, there[1]])
        self.lines.add(line)
        try:
            await asyncio.gather(
                self._copy(line, reader, there[1]), self._copy(line, there[0], writer)
            )
        except OSError:
            pass
        finally:
            line.cut()
            self.lines.discard(line)

    async def _copy(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while piece := await reader.read(PIECE):
            wait = line.until - self.loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            what = line.next
            line.next = ""
            if what == "truncate":
                writer.write(piece[: len(piece) // 2])
                await writer.drain()
                raise ConnectionResetError
            writer.write(piece + piece if what == "repeat" else piece)
            await writer.drain()
        raise ConnectionResetError

    # ------------------------------------------------------------ from outside

    def hurt(self, what: str, rng: random.Random) -> bool:
        """Cut, delay, truncate or repeat on one line; False where there is none."""
        done = asyncio.run_coroutine_threadsafe(self._hurt(what, rng), self.loop)
        return done.result(10.0)

    async def _hurt(self, what: str, rng: random.Random) -> bool:
        lines = sorted(self.lines, key=id)
        if not lines:
            return False
        line = rng.choice(lines)
        if what == "cut":
            line.cut()
        elif what == "delay":
            line.until = self.loop.time() + rng.uniform(0.2, 3.0)
        else:
            line.next = what
        return True

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
