"""An HTTP endpoint that takes a lock for each order: Starlette here, and the same in FastAPI.

Serve it with `uvicorn starlette_endpoint:app`. Started as a program it sends itself two requests and prints the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import handfast
import handfast.aio


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    # One client for all requests. It belongs to the event loop it is used in.
    async with handfast.aio.connect(ttl=10.0, wait=2.0) as client:
        app.state.locks = client
        yield


async def charge(order: str) -> None:
    """Stands for the call of a payment service."""
    await asyncio.sleep(0.05)


async def pay(request: Request) -> JSONResponse:
    locks: handfast.aio.Client = request.app.state.locks
    order = request.path_params["order"]
    try:
        # If the lease is lost in here, the body is cancelled and LeaseLost is raised.
        async with locks.lock(f"order:{order}") as lease:
            await charge(order)
            return JSONResponse({"order": order, "paid": True, "token": lease.token})
    except handfast.Contended:
        return JSONResponse({"error": "this order is being paid"}, status_code=409)
    except (handfast.NoQuorum, handfast.LeaseLost):
        return JSONResponse({"error": "try again later"}, status_code=503, headers={"Retry-After": "5"})


app = Starlette(routes=[Route("/orders/{order}/pay", pay, methods=["POST"])], lifespan=lifespan)


async def main() -> None:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with lifespan(app), http, handfast.aio.connect() as other:
        answer = await http.post("/orders/42/pay")
        print(answer.status_code, "paid:", answer.json()["paid"])
        async with other.lock("order:42"):  # another process pays this order
            answer = await http.post("/orders/42/pay")
        print(answer.status_code, answer.json()["error"])


if __name__ == "__main__":
    asyncio.run(main())
