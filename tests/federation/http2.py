"""HTTP/2 by hand, as much as it takes to begin a gRPC call and leave it half said."""

from __future__ import annotations

import base64
import select
import socket
import ssl
import struct
import time

from aspire.engines.grpc import kits
from aspire.engines.grpc.messages import HELLO, METHOD

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
FRAME = 2**14  # bytes of data in a frame


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream
    ) + payload  # fmt: skip


def header(name: str, value: str) -> bytes:
    """A literal without indexing (HPACK), of less than 127 letters each."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class HalfSaid:
    """A connection with a certificate of a site, and a call that is never finished."""

    def __init__(self, port: int, kit: kits.Kit) -> None:
        context = ssl.create_default_context(cadata=kit.ca.decode())
        context.load_cert_chain(kit.folder / kits.CERT, kit.folder / kits.KEY)
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket = context.wrap_socket(plain, server_hostname="127.0.0.1")
        self.socket.settimeout(5)
        self.windows = {0: 65535, 1: 65535}
        self.unread, self.closed, self.sent = b"", False, 0
        self._write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))

    def call(self, hello: bytes | None) -> None:
        said = [(":method", "POST"), (":scheme", "https"), (":path", METHOD)]
        said += [(":authority", "localhost"), ("content-type", "application/grpc")]
        said += [("te", "trailers")]
        if hello is not None:
            said.append((HELLO, base64.b64encode(hello).decode().rstrip("=")))
        self._write(frame(HEADERS, 4, 1, b"".join(header(*pair) for pair in said)))

    def push(self, declared: int, most: int, seconds: float = 1.0) -> None:
        """Declare a message of so many bytes and send some of it, as the windows open."""
        data, end = b"\0" + struct.pack(">I", declared) + bytes(most), time.monotonic() + seconds
        while self.sent < most and not self.closed and time.monotonic() < end:
            room = min(FRAME, self.windows[0], self.windows[1], most - self.sent)
            self._read(0.0 if room > 0 else 0.01)
            if room > 0:
                self._write(frame(DATA, 0, 1, data[self.sent : self.sent + room]))
                self.sent += room
                self.windows = {k: v - room for k, v in self.windows.items()}

    def _write(self, raw: bytes) -> None:
        try:
            self.socket.sendall(raw)
        except (OSError, ssl.SSLError):
            self.closed = True

    def _read(self, seconds: float) -> None:
        if not self.socket.pending() and not select.select([self.socket], [], [], seconds)[0]:
            return
        try:
            got = self.socket.recv(2**16)
        except (OSError, ssl.SSLError):
            got = b""
        self.closed = self.closed or not got
        self.unread += got
        while len(self.unread) >= 9:
            size = int.from_bytes(self.unread[:3], "big")
            if len(self.unread) < 9 + size:
                return
            kind, flags = self.unread[3], self.unread[4]
            stream, payload = int.from_bytes(self.unread[5:9], "big"), self.unread[9 : 9 + size]
            self.unread = self.unread[9 + size :]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == 4:
                    self.windows[1] += value - 65535
            self._write(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self._write(frame(PING, 1, 0, payload))
        elif kind in (RESET, GOAWAY):
            self.closed = True
        elif kind == WINDOW and stream in self.windows:
            self.windows[stream] += int.from_bytes(payload, "big")

    def close(self) -> None:
        self.socket.close()
