"""A CONNECT proxy on 127.0.0.1 that counts its tunnels and can cut them all."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """`asked` has the HOST:PORT of every tunnel, in their order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                threading.Thread(target=self.tunnel, args=(here,), daemon=True).start()

    def tunnel(self, here: socket.socket) -> None:
        words = head(here).split()
        assert words[0] == "CONNECT"
        host, _, port = words[1].rpartition(":")
        self.asked.append(words[1])
        try:
            there = socket.create_connection((host, int(port)))
        except OSError:
            here.close()
            return
        here.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        self.open += [here, there]
        threading.Thread(target=pump, args=(there, here), daemon=True).start()
        pump(here, there)

    def cut(self) -> None:
        """End every tunnel, as a network that breaks."""
        for end in self.open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def close(self) -> None:
        self.listener.close()
        self.cut()


def head(here: socket.socket) -> str:
    """What a client says up to the empty line."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += here.recv(1)
    return said.decode()


def pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while read := one.recv(65536):
            other.sendall(read)
        other.shutdown(socket.SHUT_WR)
