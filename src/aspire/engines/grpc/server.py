"""The server's end: a carrier whose workers are sites that dial in over mutual TLS.

All connections are asyncio's; the driver is not, see `loops`. A site is who its certificate says.
What breaks the protocol is refused with a reason, and ends that connection only; how often a site
may do that, the driver says.
Of two connections of one site the newer stays: the older may be one that broke unnoticed. More than
two at a time are refused unread, so that a certificate is good for two messages in the making, and
so are more than CALLS a minute, since each is sent its task again. What goes over a connection is
in `traffic`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc
from grpc import aio

from aspire.engines.carrier import Arrival, Crew, Gone
from aspire.engines.grpc import kits
from aspire.engines.grpc.connections import Connection, Line, Terms, certified_name, hello_of
from aspire.engines.grpc.loops import Beside, InTurns, Loop
from aspire.engines.grpc.messages import CHUNK, LONG, MAJOR, MINOR, OVERHEAD, Refusal
from aspire.engines.grpc.meter import Meter
from aspire.engines.grpc.standards import with_standardization
from aspire.engines.grpc.traffic import LOOK, Traffic, is_long
from aspire.engines.grpc.wire_pb2 import Hello, ToSite, Welcome
from aspire.problem.standardization import Standardization
from aspire.types import Report, Task

logger = logging.getLogger("aspire")
CORES = 4  # from which on the connections have a thread of their own, where vectors are long
CONNECTIONS = 2  # of one certificate at a time
CALLS = 60  # of one certificate in a minute
SOCKETS = 256  # connections that may do without a call, besides what the sites need
PARTING = 6.0  # seconds to tell all that the run is over: longer than a site's longest pause
FAREWELL = 3.0  # seconds that a site has to hang up when it is told to
FOR_GOOD = (
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
)
# gRPC ends a connection with a larger message as it ends one that broke, and says no more
LOST = f"%s: the connection ended: closed, broken, or a message over {CHUNK + OVERHEAD} bytes"
OPTIONS = (
    ("grpc.max_receive_message_length", CHUNK + OVERHEAD),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.max_concurrent_streams", 4),
    # what is not read yet stays with the sender: gRPC would buffer more on a fast connection
    ("grpc.http2.bdp_probe", 0),
    # else a connection keeps a buffer as large as what it was ever sent at once, about 1 MiB
    ("grpc.experimental.tcp_max_read_buffer_size", 8 * 2**10),
    ("grpc.max_metadata_size", 8 * 2**10),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.so_reuseport", 0),
)


class Server:
    """A Carrier. `port` is the one that it listens on."""

    def __init__(self, kit: kits.Kit, names: Sequence[str], listen: str, terms: Terms) -> None:
        self.kit = kit
        self.terms = terms
        self.identity = os.urandom(16)
        self.lines = {name: Line(number) for number, name in enumerate(names)}
        self.numbered = list(self.lines.values())
        self.attending: Counter[str] = Counter()  # connections by certificate
        self.meters: dict[str, Meter] = {}  # likewise
        self.allowed = set(kits.allowed(kit.folder))
        beside = terms.shape.parameters > LONG and (os.cpu_count() or 1) >= CORES
        self.loop: Loop[Arrival] = Beside() if beside else InTurns()
        self.traffic = Traffic(self.loop, terms.shape)
        self.taken = 0  # long reports that the driver has in its hands
        self._over = self._closed = False
        self.port = self.loop.run(partial(self._serve, listen))

    # ------------------------------------------------------------ the driver's side

    def send(self, tasks: Sequence[Task]) -> None:
        self.loop.call(self._hand, list(tasks))

    def receive(self, timeout: float) -> list[Arrival]:
        """Who asks for more has absorbed what it was given before."""
        if self.taken:
            self.loop.call(self.traffic.absorbed, self.taken)
        found = self.loop.take(timeout)
        self.taken = sum(isinstance(one, Report) and is_long(one) for one in found)
        return found

    def dismiss(self, worker: int, reason: str, *, for_good: bool) -> None:
        self.loop.call(self._dismiss, worker, reason, for_good)

    def standardize(self, by: Standardization, crew: Crew | None) -> None:
        """The sites are sent away, and learn it when they call again."""
        self.loop.call(self._renew, with_standardization(self.terms, by))

    def close(self) -> None:
        """Say that the run is over; with an exception on its way it is not, and sites wait."""
        if not self._closed:
            self._closed = True
            self._over = sys.exc_info()[0] is None
            self.loop.call(self._stop.set)
            self.loop.finish(15.0)

    # ------------------------------------------------------------ the loop's side

    async def _serve(self, listen: str, started: asyncio.Future[int]) -> None:
        self._stop = asyncio.Event()
        most = SOCKETS + 2 * CONNECTIONS * len(self.lines)
        server = aio.server(options=(*OPTIONS, ("grpc.max_allowed_incoming_connections", most)))
        handler = grpc.stream_stream_rpc_method_handler(self._attend)
        service = grpc.method_handlers_generic_handler(
            "aspire.engines.grpc.Federation", {"Serve": handler}
        )
        server.add_generic_rpc_handlers((service,))
        try:
            port = server.add_secure_port(listen, self._credentials())
        except RuntimeError:
            raise ValueError(
                f"listen={listen!r}: expected a free HOST:PORT of this machine"
            ) from None
        await server.start()
        started.set_result(port)
        watch = asyncio.create_task(self._watch())
        await self._stop.wait()
        watch.cancel()
        for line in self.numbered:
            if line.connection is not None and self._over:
                line.connection.say_over()
            elif line.connection is not None:
                line.connection.end(grpc.StatusCode.UNAVAILABLE, "the server stops")
        now = asyncio.get_running_loop().time
        end = now() + PARTING
        while self._over and any(x.seen and not (x.told or x.out) for x in self.numbered):
            if now() > end:
                break
            await asyncio.sleep(0.02)
        await server.stop(grace=1.0)

    def _credentials(self) -> grpc.ServerCredentials:
        """Asked at every handshake, so that the next one has a renewed certificate."""
        given = self.kit

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal given
            if given is self.kit:
                return None
            given = self.kit
            return _configuration(given)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given), changed, require_client_authentication=True
        )

    def _hand(self, tasks: list[Task]) -> None:
        for task in tasks:
            connection = self.numbered[task.worker].connection
            if connection is not None:
                connection.hand(task)

    def _renew(self, terms: Terms) -> None:
        self.terms = terms
        for line in self.numbered:
            if line.connection is not None:
                line.connection.end(grpc.StatusCode.UNAVAILABLE, "settings have changed")

    def _dismiss(self, worker: int, reason: str, for_good: bool) -> None:
        line = self.numbered[worker]
        line.out = line.out or for_good
        if line.connection is not None:
            line.connection.end(grpc.StatusCode.INVALID_ARGUMENT, reason)

    async def _watch(self) -> None:
        """A site that was taken off the allow-list is cut off; a renewed certificate is taken."""
        while True:
            await asyncio.sleep(LOOK)
            self.traffic.look()
            self.kit = kits.renewed(self.kit)
            try:
                self.allowed = set(kits.allowed(self.kit.folder))
            except (ValueError, OSError) as error:
                logger.warning("the allow-list stays as it was: %s", error)
            for name, line in self.lines.items():
                if name not in self.allowed and line.connection is not None:
                    reason = f"{name} is no longer on the list of sites"
                    line.connection.end(grpc.StatusCode.PERMISSION_DENIED, reason)
                    self.loop.put(Gone(line.number, "taken off the list of sites"))

    # ------------------------------------------------------------ one connection

    async def _attend(self, _: Any, context: Any) -> None:
        """Nothing is read of a call that is one too many."""
        name = certified_name(context)
        if self.attending[name] >= CONNECTIONS:
            reason = f"{name}: has {CONNECTIONS} connections already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        if not self.meters.setdefault(name, Meter(CALLS)).take():
            reason = f"{name}: has connected {CALLS} times in a minute"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self.attending[name] += 1
        try:
            await self._converse(name, context)
        finally:
            self.attending[name] -= 1

    async def _converse(self, name: str, context: Any) -> None:
        try:
            line = await self._admit(name, context)
        except Refusal as refusal:
            logger.warning("refused: %s from %s: %s", name, context.peer(), refusal)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name}: {refusal}")
        connection = Connection(context, asyncio.get_running_loop().create_future())
        if line.connection is not None:
            line.connection.end(grpc.StatusCode.ABORTED, f"{name} has connected again elsewhere")
        line.connection = connection
        line.seen = True
        if self._over:
            connection.say_over()
        logger.info("%s is connected from %s", name, context.peer())
        reading = asyncio.create_task(self.traffic.read(line, connection))
        writing = asyncio.create_task(self.traffic.write(line, connection))
        try:
            events: set[asyncio.Future[Any]] = {reading, writing, connection.ended}
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if connection.ended.done() and connection.ended.result()[0] in FOR_GOOD:
                # said on the stream: a status is lost on a site that writes at this very moment
                connection.say_over(connection.ended.result()[1])
                await asyncio.wait({reading}, timeout=FAREWELL)
            code, reason = self._ending(name, line, connection, reading)
        except asyncio.CancelledError:
            self._lost(name)
            raise
        finally:
            reading.cancel()
            writing.cancel()
            if line.connection is connection:
                line.connection = None
        if code is not grpc.StatusCode.OK:
            await context.abort(code, reason)

    async def _admit(self, name: str, context: Any) -> Line:
        """The site's line, once it said a proper Hello and was made welcome."""
        hello = hello_of(context)
        self._check(name, hello)
        line = self.lines[name]
        if hello.file != self.terms.file and not line.seen:
            logger.warning("%s runs another FILE.py (%s)", name, hello.file.hex()[:16])
        welcome = Welcome(
            major=MAJOR,
            minor=MINOR,
            server=self.identity,
            settings=self.terms.settings,
            file=self.terms.file,
        )
        await context.write(ToSite(welcome=welcome).SerializeToString())
        return line

    def _check(self, name: str, hello: Hello) -> None:
        if hello.major != MAJOR:
            raise Refusal(
                f"speaks version {hello.major}.{hello.minor} of the protocol: "
                f"expected {MAJOR}.{MINOR}"
            )
        if hello.site != name:
            raise Refusal(f"calls itself {hello.site[:64]!r}: expected its certificate's name")
        if name not in self.allowed:
            raise Refusal("is not on the list of sites")
        if name not in self.lines:
            raise Refusal("is not a site of this run")
        shape = self.terms.shape
        if (hello.parameters, hello.dtype) != (shape.parameters, shape.dtype):
            raise Refusal(
                f"has a model of {hello.parameters} parameters of type {hello.dtype[:16]!r}: "
                f"expected {shape.parameters} of type {shape.dtype}"
            )
        if self.lines[name].out:
            raise Refusal("was refused too often and stays out of this run")

    def _ending(
        self, name: str, line: Line, connection: Connection, reading: asyncio.Task[None]
    ) -> tuple[grpc.StatusCode, str]:
        """Why the connection ends: it was told to, the site hung up, or broke the protocol."""
        if connection.ended.done():
            return connection.ended.result()
        error = reading.exception() if reading.done() else None
        if not isinstance(error, Refusal):
            self._lost(name)
            return grpc.StatusCode.OK, ""
        self.loop.put(Gone(line.number, f"it {error}", breach=True))
        return grpc.StatusCode.INVALID_ARGUMENT, f"{name}: {error}"

    def _lost(self, name: str) -> None:
        if not self._over:
            logger.warning(LOST, name)


def _configuration(kit: kits.Kit) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(kit.key, kit.certificate)], kit.ca)
