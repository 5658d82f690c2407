"""The page's server: the state as JSON and as a stream of events; in the interactive lab also the actions of the buttons.

It listens on loopback only. It refuses other Host headers, against DNS names that point at 127.0.0.1. An action needs the
token of the printed address, in a header that no foreign page can send.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from lab import LabError
from lab.environment import in_thread
from lab.run import Run
from lab.rungs import scenarios_of
from lab.runner import FREE_SECONDS, FREE_STOCK, Runner

__all__ = ["Page", "listen"]

FOLDER: Final = Path(__file__).parent / "page"
PLACEHOLDER: Final = (
    "<!doctype html><title>handfast lab</title><p>The lab runs. <a href='/api/state'>Its state as JSON</a>."
)
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:",
    "Cache-Control": "no-store",
}
EVERY: Final = 0.2
"""Seconds between two events of the stream."""
PING: Final = 5


def listen(port: int) -> socket.socket:
    """The page's socket. Raises OSError if the port is in use."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(16)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # Ctrl-C ends the lab, which ends its page


class OnlyLoopback:
    """Refuses requests whose Host header is not one of our names."""

    def __init__(self, app: ASGIApp, names: set[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and Request(scope).headers.get("host") not in self._names:
            await Response("this server has another name\n", 421)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Page:
    """`async with Page(runner, listener) as page:` serves the page at `page.url`."""

    def __init__(self, runner: Runner, listener: socket.socket) -> None:
        self._runner = runner
        self._listener = listener
        self._token = secrets.token_urlsafe(16)
        self._port: int = listener.getsockname()[1]
        self._running: asyncio.Task[object] | None = None
        actions = {"run": self._run, "stop": self._stop, "holder": self._holder, "node": self._node}
        app = Starlette(
            routes=[
                Route("/", self._index),
                Mount("/static", StaticFiles(directory=FOLDER, check_dir=False)),
                Route("/api/state", self._state),
                Route("/api/events", self._events),
                *[Route(f"/api/{name}", self._action(what), methods=["POST"]) for name, what in actions.items()],
            ]
        )
        port = f":{self._port}" if self._port != 80 else ""  # browsers leave port 80 out
        names = {f"127.0.0.1{port}", f"localhost{port}"}
        config = uvicorn.Config(
            OnlyLoopback(app, names), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        token = f"?token={self._token}" if self._runner.interactive else ""
        return f"http://127.0.0.1:{self._port}/{token}"

    async def __aenter__(self) -> Page:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._runner.finished = True  # this ends the streams
        await self._cancel()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving

    # -- to watch

    async def _index(self, request: Request) -> Response:
        index = FOLDER / "index.html"
        return FileResponse(index, headers=HEADERS) if index.exists() else HTMLResponse(PLACEHOLDER, headers=HEADERS)

    async def _state(self, request: Request) -> Response:
        return JSONResponse(self._runner.state(), headers={"Cache-Control": "no-store"})

    async def _events(self, request: Request) -> Response:
        return EventSourceResponse(self._stream(), ping=PING)

    async def _stream(self) -> AsyncIterator[dict[str, str]]:
        runner, version, scored = self._runner, -1, len(self._runner.history)
        seen = Seen()
        while True:
            for score in runner.history[scored:]:
                yield _event("score", asdict(score))
            scored = len(runner.history)
            last = runner.finished
            if runner.version != version or last:
                version = runner.version
                yield _event("state", runner.state())
                seen.all(runner.run)
            elif runner.run is not None:
                yield _event("live", seen.news(runner.run))
            if last:
                return
            await asyncio.sleep(EVERY)

    # -- to act

    def _action(self, what: Callable[[dict[str, Any]], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def scenario(request: Request) -> Response:
            try:
                await what(await self._allowed(request))
            except Refused as error:
                return JSONResponse({"error": str(error)}, error.status)
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                return JSONResponse({"error": str(error)}, 400)
            except LabError as error:
                return JSONResponse({"error": str(error)}, 409)
            return JSONResponse({"ok": True}, 202)

        return scenario

    async def _allowed(self, request: Request) -> dict[str, Any]:
        if not self._runner.interactive:
            raise Refused(403, "this lab is read-only: start it with `python -m lab --serve`")
        if not secrets.compare_digest(request.headers.get("x-lab-token", "").encode(), self._token.encode()):
            raise Refused(403, "the token is missing or wrong: use the address that the lab printed")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Refused(400, "the body must be JSON, and say so")
        body = json.loads(await request.body() or b"{}")
        if not isinstance(body, dict):
            raise Refused(400, "the body must be a JSON object")
        return body

    async def _run(self, wanted: dict[str, Any]) -> None:
        name = wanted.get("scenario") or wanted.get("rung")
        try:
            scenarios = scenarios_of(str(name))
        except KeyError:
            raise Refused(404, f"there is no rung or scenario called {name!r}") from None
        if self.running:
            raise Refused(409, "a sale is running: stop it first")
        if wanted.get("free"):
            stock, seconds = int(wanted.get("stock", FREE_STOCK)), float(wanted.get("seconds", FREE_SECONDS))
            if not (0 < stock <= 100_000 and 0 < seconds <= 600):
                raise Refused(400, "stock must be 1 to 100000, seconds at most 600")
            self.start(self._runner.run_free(*scenarios[0], stock, seconds))
        else:
            self.start(self._runner.run_all(scenarios))

    @property
    def running(self) -> bool:
        return self._running is not None and not self._running.done()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Start work that the buttons can stop."""
        self._running = asyncio.create_task(work)
        # The runner's state tells viewers about a failure.
        self._running.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _stop(self, _: dict[str, Any]) -> None:
        if self._running is None or not self.running:
            raise Refused(409, "no sale is running")
        if self._runner.stop():
            await asyncio.wait([self._running])
        else:
            await self._cancel()

    async def _cancel(self) -> None:
        """End the work at once; a running sale gets no score."""
        if self._running is not None:
            self._runner.queue = []
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _holder(self, wanted: dict[str, Any]) -> None:
        if self._runner.run is None:
            raise Refused(409, "no sale is running: start one first")
        await self._runner.run.inject(str(wanted.get("do")))

    async def _node(self, wanted: dict[str, Any]) -> None:
        nodes = self._runner.environment.nodes
        if nodes is None or not nodes.up:
            raise Refused(409, "no nodes are up: run a rung that uses a quorum")
        name, what = str(wanted.get("node")), str(wanted.get("do"))
        if name not in nodes.states():
            raise Refused(404, f"there is no node called {name!r}")
        run = self._runner.run
        if run is None:
            await in_thread(nodes.do, name, what)
        else:
            run.injected = True
            await run.node(name, what)
        self._runner.changed()


class Seen:
    """How much of the running scenario one viewer has received."""

    def __init__(self) -> None:
        self._holders = self._points = self._marks = 0

    def all(self, run: Run | None) -> None:
        """The viewer has received everything up to now."""
        if run is not None:
            ledger = run.ledger
            self._holders, self._points, self._marks = len(ledger.finished), len(ledger.stock_line), len(ledger.marks)

    def news(self, run: Run) -> dict[str, Any]:
        """What is new since the last call."""
        live, ledger = run.live(), run.ledger
        news = {
            **live,
            "holders": [holder.shown() for holder in ledger.finished[self._holders :]],
            "open": [holder.shown() for holder in ledger.open.values()],
            "stock_line": live["stock_line"][self._points :],
            "marks": live["marks"][self._marks :],
        }
        self.all(run)
        return news


def _event(kind: str, data: object) -> dict[str, str]:
    return {"event": kind, "data": json.dumps(data)}
