"""The dashboard's web server. It has no address that changes anything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from handfast.dashboard.access import Access
from handfast.dashboard.feed import Busy, Feed
from handfast.option_types import Servers

if TYPE_CHECKING:
    from handfast import aio, sync

__all__ = ["Dashboard"]

PAGE: Final = Path(__file__).parent / "page"
PING: Final = 15
MOST_VIEWERS: Final = 500
LONGEST_NAME: Final = 4096


class Dashboard:
    """`with Dashboard(...) as page:` has the page's socket; `page.run()` serves it until `page.stop()` or a signal."""

    def __init__(
        self,
        servers: Servers = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        hosts: Sequence[str] = (),
        prefix: str = "handfast:",
        interval: float = 1.0,
    ) -> None:
        self._feed = Feed(servers, prefix, interval)
        try:
            self._listener = _listen(host, port)
        except BaseException:
            self._feed.stop()
            raise
        self._host, self._port = host, int(self._listener.getsockname()[1])
        routes = [
            Route("/", self._index),
            Mount("/static", StaticFiles(directory=PAGE)),
            Route("/api/events", self._events),
            Route("/api/lock", self._lock),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        self.app = Access(app, host, self._port, token, hosts)
        config = uvicorn.Config(self.app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)

    @property
    def url(self) -> str:
        """The address to open, with the token where one is needed."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        query = f"?token={quote(self.app.token)}" if self.app.token else ""
        return f"http://{host}:{self._port}/{query}"

    def observe(self, client: sync.Client | aio.Client) -> Callable[[], None]:
        """Also show what a client in this process tells. Call the returned function to end that."""
        return self._feed.observe(client)

    def run(self) -> None:
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """End `run()`, from another thread."""
        self._feed.end_streams()
        self._server.should_exit = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self._feed.stop()

    # -- what is served

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._feed.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._feed.end_streams()

    async def _index(self, request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    async def _events(self, request: Request) -> Response:
        if self._feed.viewers >= MOST_VIEWERS:
            return PlainTextResponse("too many viewers\n", 503)
        return EventSourceResponse(self._feed.stream(), ping=PING)

    async def _lock(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        if not 0 < len(name) <= LONGEST_NAME:
            return PlainTextResponse("which lock? /api/lock?name=...\n", 400)
        try:
            return JSONResponse(await self._feed.lock(name))
        except Busy:
            return PlainTextResponse("too many questions at once\n", 503)


def _listen(host: str, port: int) -> socket.socket:
    """An OSError if the port is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
