"""A round-robin balancer for where there is no nginx: a connection to it is a connection to the next worker.

    python -m lab.balancer PORT PATIENCE WORKER_PORT...

A worker that refuses a connection is passed over; one that does not begin its answer within PATIENCE seconds costs its
buyer a 504. Either is left out for a while, as with nginx's max_fails=1. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

LEFT_OUT: Final = 2.0
"""Seconds for which a worker that failed is not asked."""
CHUNK: Final = 65536


class Balancer:
    def __init__(self, workers: Sequence[int], patience: float) -> None:
        self._workers = list(workers)
        self._patience = patience
        self._turn = 0
        self._down: dict[int, float] = {}

    async def serve(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve_one, "127.0.0.1", port)

    def _next(self) -> list[int]:
        """The workers, the one whose turn it is first; those left out only if there are no others."""
        self._turn += 1
        turn = self._turn % len(self._workers)
        order = self._workers[turn:] + self._workers[:turn]
        now = time.monotonic()
        return [port for port in order if self._down.get(port, 0.0) < now] or order

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for port in self._next():
                try:
                    inner = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    self._down[port] = time.monotonic() + LEFT_OUT
                    continue
                await self._relay(reader, writer, inner, port)
                return
            writer.write(_error("502 Bad Gateway"))
        except ConnectionError:
            pass  # one of the two is gone: the other is let go below
        finally:
            writer.close()

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        port: int,
    ) -> None:
        upload = asyncio.create_task(_copy(reader, inner[1]))
        try:
            async with asyncio.timeout(self._patience):
                writer.write(await inner[0].read(CHUNK) or _error("502 Bad Gateway"))
            await _copy(inner[0], writer)
        except TimeoutError:
            self._down[port] = time.monotonic() + LEFT_OUT
            writer.write(_error("504 Gateway Timeout"))
        finally:
            upload.cancel()
            inner[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


def _error(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


async def main() -> None:
    port, patience, *workers = sys.argv[1:]
    balancer = Balancer([int(worker) for worker in workers], float(patience))
    async with await balancer.serve(int(port)):
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
