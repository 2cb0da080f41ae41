"""Whether the Ray node of this process and the head of its cluster are still there.

Ray ends a process whose node is gone some ten seconds later, and one whose head is gone after
sixty, from within and without a word. The driver notices it first, and the run ends in a sentence.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from aspire.runs.errors import Lost

HEAD = 5.0  # seconds between two looks at the head
PATIENCE = 40.0  # seconds that the head may be away: it may be one that is started again


class Watch:
    """Of the addresses that `ray.init` gave; of none where that made a Ray client."""

    def __init__(
        self, about: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.node = about.get("raylet_socket_name")
        self.head = about.get("gcs_address")
        self.clock = clock
        self.line = self._call() if self.node else None
        self.next = self.seen = clock()  # when to look at the head, and when it last answered

    def look(self) -> None:
        """Raise Lost where one of them is gone."""
        if self.line is not None and _ended(self.line):
            self.line.close()
            self.line = self._call()
            if self.line is None:
                raise Lost("the Ray node that the run was started on is gone")
        now = self.clock()
        if self.head and now >= self.next:
            self.next = now + HEAD
            if answers(self.head):
                self.seen = now
            elif now - self.seen > PATIENCE:
                raise Lost(f"the head of the Ray cluster, {self.head}, is gone")

    def close(self) -> None:
        if self.line is not None:
            self.line.close()

    def _call(self) -> socket.socket | None:
        """A connection to the node on which nothing is ever said: it ends with the node."""
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(self.node))
        except OSError:
            line.close()
            return None
        return line


def _ended(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def answers(address: str) -> bool:
    """Whether somebody takes connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except (OSError, ValueError):
        return False
    return True
