"""The page of a run while it goes on, over HTTP on this machine. It reads the run's files only.

Who has the address has the page: a random token is part of it. Requests that name another host are
refused as well, so that no page of another site can read it through a name that it controls.
"""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aspire.pages.blocks import Page, html_of
from aspire.pages.document import document, figure_of, plotly
from aspire.pages.record import read
from aspire.pages.report import page_of
from aspire.pages.trail import Trail
from aspire.runs import files as rundir
from aspire.runs import log as events
from aspire.runs import standing
from aspire.runs.folder import STATUS, read_settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

HOST = "127.0.0.1"
FILES = (rundir.RUN, rundir.HISTORY, rundir.RESULT, STATUS)
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass
class Watched:
    """A run folder that is looked at again and again; the page is made anew when a file is new."""

    path: Path
    trail: Trail
    seen: tuple[Any, ...] = ()
    blocks: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0  # of the page

    def news(self, have: int) -> dict[str, Any]:
        """What a browser that has page `have` asks for; while a file is damaged, why."""
        try:
            now = standing.read(self.path)
            self._look()
        except ValueError as error:
            return {"state": f"The run cannot be read now: {error}", "ended": False}
        answer = {"state": standing.head(now), "ended": now["ended"], "number": self.number}
        return answer if have == self.number else answer | {"page": {"blocks": self.blocks}}

    def _look(self) -> None:
        found = tuple(_stamp(self.path / name) for name in FILES)
        if found == self.seen:
            return
        page = page_of([read(self.path, self.trail)])
        self.blocks = [{"html": html_of(block), **figure_of(block)} for block in page.blocks]
        self.number += 1
        self.seen = found


def watched(path: Path) -> Watched:
    """ValueError where there is no run in `path`."""
    sites = len(read_settings(path)["sites"])
    return Watched(path, Trail(path / events.NAME, sites))


def serve(path: Path, port: int = 0, tell: Any = print) -> None:
    """Serve the run's page until Ctrl-C; `tell` gets the address. Port 0: any that is free."""
    try:
        import uvicorn
    except ImportError:
        raise ImportError("aspire watch needs: pip install 'aspire-ease[report]'") from None
    plotly()
    run = watched(path)
    listening = socket.create_server((HOST, port))
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    tell(f"http://{HOST}:{port}/{token}/")
    quiet: dict[str, Any] = {"log_level": "error", "server_header": False}
    quiet |= {"timeout_graceful_shutdown": 1}  # seconds that Ctrl-C waits for a browser
    config = uvicorn.Config(app(run, token, port), lifespan="off", ws="none", **quiet)
    with listening:
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:  # uvicorn has ended in good order
            return


def app(run: Watched, token: str, port: int) -> Any:
    """The page at /TOKEN/ and its news at /TOKEN/news; GET only."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import HTMLResponse, PlainTextResponse
    from starlette.responses import Response as Answer
    from starlette.routing import Route

    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}

    async def guard(request: Request, call_next: Any) -> Response:
        given = request.url.path.split("/")[1]
        known = secrets.compare_digest(given.encode(), token.encode())
        if not known or request.headers.get("host") not in hosts:
            return PlainTextResponse("Forbidden\n", 403, HEADERS)
        response: Response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    async def page(request: Request) -> Response:
        return HTMLResponse(document(Page(f"Run {run.path.resolve().name}"), live="news"))

    async def news(request: Request) -> Response:
        have = request.query_params.get("have", "")
        found = run.news(int(have) if have.isdecimal() else -1)
        return Answer(json.dumps(found, allow_nan=False), media_type="application/json")

    routes = [Route(f"/{token}/", page), Route(f"/{token}/news", news)]
    return Starlette(routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
