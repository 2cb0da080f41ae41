"""A web server on 127.0.0.1 that knows Range and can hang up in the middle."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar


@dataclass
class Site:
    """files: path -> bytes. hang_up: after so many bytes of an answer, so many times. ranges: obey
    Range or send everything. sized: give the length, or send in chunks without it."""

    files: dict[str, bytes]
    hang_up: list[int] = field(default_factory=list)
    ranges: bool = True
    sized: bool = True
    url: str = ""
    log: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: ClassVar[Site]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.site.log.append((self.path, wanted))
        content = self.site.files.get(self.path)
        if content is None:
            return self.send_error(404)
        match = re.fullmatch(r"bytes=(\d+)-", wanted or "") if self.site.ranges else None
        start, size = int(match[1]) if match else 0, len(content)
        if match and start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        return self.send(content[start:])

    def send(self, content: bytes) -> None:
        cut = self.site.hang_up.pop(0) if self.site.hang_up else len(content)
        if self.site.sized:
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:cut])
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n" % (cut, content[:cut]))
            if cut == len(content):
                self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True


@contextmanager
def serve(site: Site) -> Iterator[Site]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"site": site}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
