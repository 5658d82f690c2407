"""`python -m bench.dashboard`: what a dashboard with many viewers costs the servers that it watches.

A separate process holds and renews the locks, as in production. Viewers are connections that read everything. The report
says how much of a core each server needs, with and without the dashboard; how long other clients wait for a server; and
what a viewer receives.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import handfast.aio
from handfast.dashboard.server import Dashboard
from handfast.testing import Server, Servers

AT_ONCE = 500


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard", description=__doc__.splitlines()[0])
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ttl", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    return parser.parse_args()


def hold(urls: list[str], locks: int, ttl: float, pipe: Connection) -> None:
    """Holds all locks until the parent process sends a message."""

    async def main() -> None:
        async with handfast.aio.connect(urls, ttl=ttl) as client:
            leases = []
            for start in range(0, locks, AT_ONCE):
                names = [f"orders:{i:05}" for i in range(start, min(locks, start + AT_ONCE))]
                leases += await asyncio.gather(*(client.lock(name).acquire() for name in names))
            pipe.send(len(leases))
            await asyncio.to_thread(pipe.recv)
            pipe.send(sum(lease.valid for lease in leases))

    asyncio.run(main())


def serve(urls: list[str], pipe: Connection) -> None:
    with Dashboard(urls) as page:
        pipe.send(page.url)
        page.run()


class Viewers:
    """Connections to the stream of events, in a process of their own."""

    def __init__(self, url: str, count: int) -> None:
        self.received = multiprocessing.Value("Q", 0)
        self.messages = multiprocessing.Value("Q", 0)
        self._process = multiprocessing.Process(target=self._read_all, args=(url, count), daemon=True)
        self._process.start()

    def _read_all(self, url: str, count: int) -> None:
        async def view() -> None:
            where = urlsplit(url)
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(b"GET /api/events HTTP/1.1\r\nHost: %s\r\n\r\n" % where.netloc.encode())
            while data := await reader.read(1 << 20):
                with self.received.get_lock():
                    self.received.value += len(data)
                    self.messages.value += data.count(b"event: news")

        async def main() -> None:
            await asyncio.gather(*(view() for _ in range(count)))

        asyncio.run(main())

    def end(self) -> None:
        self._process.terminate()
        self._process.join()


def cpu_of(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """CPU time and latencies of one phase."""

    def __init__(self, servers: list[Server], seconds: float, dashboard: int | None = None) -> None:
        pids = [server.pid for server in servers]
        before = [cpu_of(pid) for pid in pids]
        before_page = cpu_of(dashboard) if dashboard else 0.0
        self.waits: list[float] = []
        began = time.monotonic()
        with servers[0].connect() as link:
            while time.monotonic() < began + seconds:
                asked = time.perf_counter()
                link.command("GET", "some:key")
                self.waits.append((time.perf_counter() - asked) * 1e3)
                time.sleep(0.002)
        passed = time.monotonic() - began
        self.server = max(100 * (cpu_of(pid) - old) / passed for pid, old in zip(pids, before, strict=True))
        self.page = 100 * (cpu_of(dashboard) - before_page) / passed if dashboard else 0.0

    def __str__(self) -> str:
        cuts = statistics.quantiles(self.waits, n=1000)
        return (
            f"busiest server {self.server:5.1f} % of a core; a GET takes {cuts[499]:.2f} ms (p50), "
            f"{cuts[989]:.2f} ms (p99), {max(self.waits):.1f} ms at most"
        )


def main() -> int:
    chosen = options()
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        servers = list(stack.enter_context(Servers(chosen.nodes)))
        urls = [server.url for server in servers]
        if chosen.nodes > 1:
            with handfast.connect(urls) as client:
                handfast.bootstrap(client)
        holder, holder_end = context.Pipe()
        holding = context.Process(target=hold, args=(urls, chosen.locks, chosen.ttl, holder_end), daemon=True)
        holding.start()
        print(f"{holder.recv()} locks on {chosen.nodes} node(s), ttl {chosen.ttl:g} s")
        print("without the dashboard:", Load(servers, chosen.seconds))
        page_pipe, page_end = context.Pipe()
        page = context.Process(target=serve, args=(urls, page_end), daemon=True)
        page.start()
        url = page_pipe.recv()
        viewers = Viewers(url, chosen.viewers)
        while viewers.messages.value < 3 * chosen.viewers:
            time.sleep(0.1)
        received, messages = viewers.received.value, viewers.messages.value
        began = time.monotonic()
        load = Load(servers, chosen.seconds, page.pid)
        passed = time.monotonic() - began
        news = (viewers.messages.value - messages) / chosen.viewers / passed
        kilobytes = (viewers.received.value - received) / chosen.viewers / passed / 1e3
        print(f"with {chosen.viewers} viewers:     {load}")
        print(f"the dashboard itself: {load.page:.0f} % of a core")
        print(f"a viewer gets {news:.2f} messages and {kilobytes:.0f} kB each second")
        viewers.end()
        page.terminate()
        page.join()
        holder.send(None)
        valid = holder.recv()
        print(f"{valid} of {chosen.locks} leases are still valid")
        holding.join()
    return 0 if valid == chosen.locks else 1


if __name__ == "__main__":
    sys.exit(main())
