"""A round-robin balancer, used if nginx is not installed. It forwards each connection to the next worker.

    python -m lab.balancer PORT TIMEOUT WORKER_PORT...

If a worker refuses the connection, the balancer tries the next one. If a worker does not begin its answer within TIMEOUT
seconds, the buyer gets a 504. In both cases the worker gets no requests for a while, as with nginx's max_fails=1. The
balancer exits at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

FAIL_TIMEOUT: Final = 2.0
"""Seconds for which a worker that failed gets no requests."""
CHUNK: Final = 65536


class Balancer:
    def __init__(self, workers: Sequence[int], timeout: float) -> None:
        self._workers = list(workers)
        self._timeout = timeout
        self._turn = 0
        self._down: dict[int, float] = {}

    async def serve(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve_one, "127.0.0.1", port)

    def _next(self) -> list[int]:
        """The workers in turn. Workers that failed lately are left out, unless all of them did."""
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
                    self._down[port] = time.monotonic() + FAIL_TIMEOUT
                    continue
                await self._relay(reader, writer, inner, port)
                return
            writer.write(_error("502 Bad Gateway"))
        except ConnectionError:
            pass  # one side closed its connection; the other one is closed below
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
            async with asyncio.timeout(self._timeout):
                writer.write(await inner[0].read(CHUNK) or _error("502 Bad Gateway"))
            await _copy(inner[0], writer)
        except TimeoutError:
            self._down[port] = time.monotonic() + FAIL_TIMEOUT
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
    port, timeout, *workers = sys.argv[1:]
    balancer = Balancer([int(worker) for worker in workers], float(timeout))
    async with await balancer.serve(int(port)):
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
