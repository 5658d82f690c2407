"""One worker process of the shop: uvicorn on its port. The runner tells it what to sell and how.

    POST /buy/SALE?order=ID&hold=POINT   200 sold, 410 sold out, 503 busy, 409 refused, 500 failed
    GET  /stock                          the stock in the shop window

It reads commands as lines of JSON from standard input and writes events to standard output. It exits at the end of its
input, because the runner is gone then.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading

import anyio.to_thread
import redis
import sqlalchemy
import sqlalchemy.exc
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import handfast
from lab.database import Database, engine_for
from lab.rungs import rung_named
from lab.shop import Order, Settings, Shop, emit

STATUS = {"sold": 200, "sold out": 410, "busy": 503, "refused": 409, "failed": 500}


class Worker:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._shop: Shop | None = None
        self._guard = threading.Condition()
        self._serving: dict[int, Order] = {}
        """Orders in progress, by thread id."""
        self._engine: sqlalchemy.Engine | None = None
        self.app = Starlette(routes=[Route("/buy/{sale:int}", self.buy, methods=["POST"]), Route("/stock", self.stock)])

    # -- for buyers: several threads at once

    def buy(self, request: Request) -> PlainTextResponse:
        shop = self._shop
        if shop is None or shop.sale != request.path_params["sale"]:
            return PlainTextResponse("that sale is over", 410)
        asked = request.query_params
        order = Order(asked.get("order") or os.urandom(8).hex(), shop.sale, asked.get("hold", ""))
        with self._guard:
            self._serving[threading.get_ident()] = order
        try:
            answer, why = self._sell(shop, order)
        finally:
            with self._guard:
                del self._serving[threading.get_ident()]
                self._guard.notify_all()
        return PlainTextResponse(f"{answer}{why}", STATUS[answer])

    def _sell(self, shop: Shop, order: Order) -> tuple[str, str]:
        try:
            return shop.rung.sell(shop, order), ""
        except handfast.NotAcquired:
            return "busy", ""
        except handfast.StaleToken as error:
            emit("refused", sale=shop.sale, order=order.id, why=str(error))
            return "refused", f": {error}"
        except handfast.LeaseLost as error:
            # check() raises this before the write; the end of the block raises it after the write, when it is too late.
            when = "after" if order.written else "before"
            emit("late", sale=shop.sale, order=order.id, why=f"{when} its write: {error}")
            return "sold" if order.written else "refused", f": {error}"
        except (redis.RedisError, sqlalchemy.exc.SQLAlchemyError, handfast.HandfastError) as error:
            emit("failed", sale=shop.sale, order=order.id, why=f"{type(error).__name__}: {error}")
            return "failed", f": {error}"

    def stock(self, request: Request) -> PlainTextResponse:
        shown = self._shop.shown() if self._shop else None
        return PlainTextResponse("closed" if shown is None else str(shown))

    # -- for the runner

    def read_commands(self) -> None:
        """Runs in its own thread, until the runner is gone."""
        for line in sys.stdin:
            command = json.loads(line)
            match command["do"]:
                case "open":
                    self._open(Settings(**command["settings"]))
                case "go":
                    self._go(command["order"])
                case "moved" if self._shop:
                    self._shop.moved(command["redis"])
                case "rest":
                    threading.Thread(target=self._rest, args=[command["sale"]], daemon=True).start()
        os._exit(0)

    def _open(self, settings: Settings) -> None:
        if self._shop is not None:
            self._shop.rung.close()
        if self._engine is None:
            self._engine = engine_for(settings.database)
        shop = Shop(settings, Database(self._engine, settings.prefix, settings.sale), rung_named(settings.rung)())
        shop.rung.open(shop)
        self._shop = shop
        emit("open", sale=settings.sale)

    def _go(self, wanted: str) -> None:
        with self._guard:
            for order in self._serving.values():
                if order.id == wanted:
                    order.go.set()

    def _rest(self, sale: int) -> None:
        """Report when no order is in progress."""
        with self._guard:
            self._guard.wait_for(lambda: not self._serving)
        emit("rested", sale=sale)

    async def serve(self, port: int) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = self._threads
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        server = uvicorn.Server(uvicorn.Config(self.app, log_level="warning", access_log=False, lifespan="off"))
        listener.listen(128)
        threading.Thread(target=self.read_commands, daemon=True).start()
        emit("ready")
        await server.serve(sockets=[listener])


def main() -> None:
    port, threads = (int(word) for word in sys.argv[1:])
    asyncio.run(Worker(threads).serve(port))


if __name__ == "__main__":
    main()
