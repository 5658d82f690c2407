"""FencingMiddleware: in front of a starlette application, with its stores, and behind a real uvicorn."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import redis.asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import handfast
from handfast import ConfigError, StaleToken
from handfast.fenced import FencingMiddleware, MemoryFence, RedisFence, SqlFence
from handfast.testing import Server
from tests.support.sync_and_async import plain


async def echo(request: Request) -> JSONResponse:
    body = (await request.body()).decode()
    return JSONResponse({"token": request.scope.get("handfast.token"), "body": body})


async def stale(request: Request) -> JSONResponse:
    raise StaleToken("the database", token=request.scope["handfast.token"], seen=99)


async def broken(request: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"half of"
        raise StaleToken("too late", token=1, seen=2)

    return StreamingResponse(parts())


METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def app_of(store: Any, **options: Any) -> Starlette:
    routes = [
        Route("/stale", stale, methods=["PUT"]),
        Route("/broken", broken, methods=["PUT"]),
        Route("/{path:path}", echo, methods=METHODS),
    ]
    return Starlette(routes=routes, middleware=[Middleware(FencingMiddleware, store=store, **options)])


@asynccontextmanager
async def user_of(store: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app_of(store, **options))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as user:
        yield user


def token(number: object) -> dict[str, str]:
    return {"Fencing-Token": str(number)}


@pytest.mark.parametrize("method", METHODS[1:])
@plain
async def test_stale_token_is_refused_with_412(method: str) -> None:
    async with user_of(MemoryFence()) as user:
        answer = await user.request(method, "/stock/7", content=b"five", headers=token(5))
        assert (answer.status_code, answer.json()) == (200, {"token": 5, "body": "five"})
        answer = await user.request(method, "/stock/7", content=b"three", headers=token(3))
        assert answer.status_code == 412
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json() == {
            "title": "Precondition Failed",
            "status": 412,
            "detail": "/stock/7: token 3 is stale, 5 was seen; nothing was changed",
            "resource": "/stock/7",
            "token": 3,
            "newest": 5,
        }
        assert (await user.request(method, "/stock/7", headers=token(5))).status_code == 200
        assert (await user.request(method, "/stock/8", headers=token(3))).status_code == 200


@plain
async def test_unguarded_request_passes() -> None:
    by_name = {"resource": lambda scope: scope["path"] if scope["path"].startswith("/stock") else None}
    async with user_of(MemoryFence(), methods=["put"], **by_name) as user:
        assert (await user.get("/stock/7")).json()["token"] is None
        assert (await user.post("/stock/7", headers=token("nonsense"))).json()["token"] is None
        assert (await user.put("/prices/7")).json()["token"] is None
        assert (await user.put("/stock/7")).status_code == 428


@pytest.mark.parametrize("bad", ["", "-1", "0", "1.0", "0x10", "1 2", "1,2", "²", "9007199254740992", "9" * 5000])
@plain
async def test_invalid_token_is_refused_with_400(bad: str) -> None:
    async with user_of(MemoryFence()) as user:
        answer = await user.put("/stock/7", headers=[(b"Fencing-Token", bad.encode())])
        assert (answer.status_code, answer.json()["status"]) == (400, 400)
        assert "Fencing-Token must be one whole number" in answer.json()["detail"]


@plain
async def test_two_tokens_are_refused_with_400() -> None:
    async with user_of(MemoryFence()) as user:
        assert (await user.put("/stock/7", headers=[("Fencing-Token", "1"), ("fencing-token", "2")])).status_code == 400


@plain
async def test_missing_token_is_refused_with_428_unless_optional() -> None:
    async with user_of(MemoryFence(), header="X-Token") as user:
        answer = await user.put("/stock/7", headers=token(5))
        assert (answer.status_code, answer.json()["detail"]) == (428, "/stock/7: a X-Token header is required here")
        assert (await user.put("/stock/7", headers={"x-token": "5"})).status_code == 200
    async with user_of(MemoryFence(), required=False) as user:
        assert (await user.put("/stock/7")).json()["token"] is None
        assert (await user.put("/stock/7", headers=token(5))).json()["token"] == 5
        assert (await user.put("/stock/7", headers=token(4))).status_code == 412


@plain
async def test_stale_token_in_handler_is_answered_with_412() -> None:
    async with user_of(MemoryFence()) as user:
        answer = await user.put("/stale", headers=token(5))
        assert (answer.status_code, answer.json()["newest"]) == (412, 99)
        with pytest.raises(StaleToken, match="too late"):
            await user.put("/broken", headers=token(5))


@plain
async def test_redis_store_shares_tokens_between_processes(server: Server) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        fence = RedisFence(client)
        async with user_of(fence) as user, user_of(fence.check) as other:
            assert (await user.put("/stock/7", headers=token(5))).json()["token"] == 5
            assert (await other.put("/stock/7", headers=token(3))).json()["newest"] == 5
    with redis.Redis.from_url(server.url) as blocking:
        async with user_of(RedisFence(blocking)) as user:
            with pytest.raises(ConfigError, match="must be async"):
                await user.put("/stock/7", headers=token(6))


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """A real uvicorn on a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:  # early connections wait in its backlog
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@plain
async def test_database_refuses_stale_token_behind_uvicorn(one: Server, tmp_path: Path) -> None:
    """Two servers share only a database: the middleware lets the older holder in, and the database's fence refuses it."""
    fence, path = SqlFence(), tmp_path / "shop.db"
    conn = sqlite3.connect(path)
    with conn:
        fence.create(conn)
        conn.execute("CREATE TABLE stock (buyer INTEGER)")
        conn.execute("INSERT INTO stock VALUES (0)")

    async def buy(request: Request) -> JSONResponse:
        number = request.scope["handfast.token"]
        with conn:
            fence.check(conn, request.url.path, number)
            conn.execute("UPDATE stock SET buyer = ?", [number])
        return JSONResponse({"buyer": number})

    def shop() -> Starlette:
        routes = [Route("/stock/7", buy, methods=["PUT"])]
        return Starlette(routes=routes, middleware=[Middleware(FencingMiddleware, store=MemoryFence())])

    async with serving(shop()) as here, serving(shop()) as there, httpx.AsyncClient() as user:
        with handfast.connect(one.url) as client:
            with client.lock("/stock/7") as older:
                pass
            with client.lock("/stock/7") as newer:
                assert (await user.put(f"{here}/stock/7", headers=token(newer.token))).json() == {"buyer": newer.token}
        for base in (here, there):
            answer = await user.put(f"{base}/stock/7", headers=token(older.token), content=b"x" * 1_000_000)
            assert (answer.status_code, answer.json()["newest"]) == (412, newer.token)
        assert (await user.put(f"{here}/stock/7")).status_code == 428
    assert conn.execute("SELECT buyer FROM stock").fetchall() == [(newer.token,)]
    conn.close()
