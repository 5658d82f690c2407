"""The crowd and the balancer, on real sockets."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from handfast.testing.servers import reserve_port
from lab import LabError
from lab.balancer import Balancer
from lab.load import Tally, ab, crowd, in_words

Answer = Callable[[], Awaitable[int]]


@asynccontextmanager
async def _shop(answer: Answer) -> AsyncIterator[int]:
    """A server that answers every request with the status from `answer`. Yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = await answer()
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def _sells(pieces: int) -> Answer:
    left = pieces

    async def answer() -> int:
        nonlocal left
        left -= 1
        return 200 if left >= 0 else 410

    return answer


async def _get(port: int) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


def test_crowd_buys_until_sold_out() -> None:
    async def main() -> Tally:
        tally = Tally()
        async with _shop(_sells(20)) as port:
            await crowd(f"http://127.0.0.1:{port}/buy/1", 4, 60.0, tally)
        return tally

    tally = asyncio.run(main())
    assert (tally.answers["sold"], tally.answers["sold_out"], tally.answers["failed"]) == (20, 4, 0)
    assert len(tally.confirmed) == 20
    assert 0 < tally.percentile(50) <= tally.percentile(99) <= tally.percentile(100)


def test_crowd_ends_after_its_time_and_counts_failures() -> None:
    async def broken() -> int:
        return 500

    async def main() -> Tally:
        tally = Tally()
        async with _shop(broken) as port:
            await crowd(f"http://127.0.0.1:{port}/buy/1", 2, 0.2, tally)
        return tally

    tally = asyncio.run(main())
    assert tally.answers["failed"] >= 2
    assert tally.times == []


def test_percentiles_of_request_times() -> None:
    tally = Tally(times=[number / 100 for number in range(100, 0, -1)])
    assert [tally.percentile(percent) for percent in (1, 50, 99, 100)] == [0.01, 0.5, 0.99, 1.0]


@pytest.mark.skipif(shutil.which("ab") is None, reason="no ab on this machine")
def test_ab_report_is_parsed() -> None:
    async def main() -> Tally:
        tally = Tally()
        async with _shop(_sells(20)) as port:
            await ab(f"http://127.0.0.1:{port}/buy/1", 50, 4, 60.0, tally)
        return tally

    tally = asyncio.run(main())
    assert "Complete requests:      50" in tally.text
    assert tally.answers == {"sold": 20, "not_2xx": 30, "failed": 0}
    assert len(tally.times) == 100


@pytest.mark.skipif(shutil.which("ab") is None, reason="no ab on this machine")
def test_ab_error_is_reported() -> None:
    with pytest.raises(LabError, match=r"ab failed with status \d+: ab: invalid URL"):
        asyncio.run(ab("nonsense", 50, 4, 60.0, Tally()))


@pytest.mark.skipif(shutil.which("ab") is None, reason="no ab on this machine")
def test_failed_ab_requests_are_not_sold() -> None:
    tally = Tally()
    with reserve_port() as nobody:
        asyncio.run(ab(f"http://127.0.0.1:{nobody.getsockname()[1]}/buy/1", 50, 4, 60.0, tally))
    assert tally.answers == {"sold": 0, "not_2xx": 0, "failed": 50}


def test_crowd_report_has_ab_format() -> None:
    tally = Tally(ended=2.0)
    for order in range(10):
        tally.count(str(order), 200 if order else None, 0.01 * order)
    lines = [" ".join(line.split()) for line in in_words(tally.report()).splitlines()]
    assert {"Complete requests: 9", "Failed requests: 1", "Requests per second: 5.0"} <= set(lines)
    assert "Answers: 9 sold, 0 sold out, 0 busy, 0 refused" in lines
    assert [line.split()[0] for line in lines[-9:]] == [f"{share}%" for share in (50, 66, 75, 80, 90, 95, 98, 99, 100)]
    assert lines[-1] == "100% 90"


def test_balancer_is_round_robin() -> None:
    async def main() -> Counter[int]:
        served: Counter[int] = Counter()

        def counting(number: int) -> Answer:
            async def answer() -> int:
                served[number] += 1
                return 200

            return answer

        async with AsyncExitStack() as stack:
            ports = [await stack.enter_async_context(_shop(counting(number))) for number in range(3)]
            server = await stack.enter_async_context(await Balancer(ports, timeout=10.0).serve(0))
            for _ in range(9):
                assert await _get(server.sockets[0].getsockname()[1]) == 200
        return served

    assert asyncio.run(main()) == {0: 3, 1: 3, 2: 3}


def test_balancer_skips_dead_and_hung_workers() -> None:
    async def main() -> list[int]:
        asleep = asyncio.Event()

        async def hangs() -> int:
            await asleep.wait()
            return 200

        with reserve_port() as dead:
            async with _shop(hangs) as hung, _shop(_sells(100)) as well:
                ports = [dead.getsockname()[1], hung, well]
                async with await Balancer(ports, timeout=0.2).serve(0) as server:
                    answers = [await _get(server.sockets[0].getsockname()[1]) for _ in range(6)]
                    asleep.set()
        return answers

    answers = asyncio.run(main())
    assert answers.count(504) == 1
    assert answers.count(200) == 5


def test_balancer_answers_502_without_workers() -> None:
    async def main() -> int:
        with reserve_port() as dead:
            async with await Balancer([dead.getsockname()[1]], timeout=1.0).serve(0) as server:
                return await _get(server.sockets[0].getsockname()[1])

    assert asyncio.run(main()) == 502
