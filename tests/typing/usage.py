"""Right use of the public API, with the types that a checker must find. It is checked, never run."""

from typing import assert_type

import handfast
import handfast.aio


def threads(client: handfast.Client) -> None:
    lock = client.lock("orders", ttl=10, wait=None, renew=True)
    assert_type(lock, handfast.Lock)
    assert_type(lock.acquire(wait=5.0), handfast.Lease)
    assert_type(lock.try_acquire(), handfast.Lease | None)
    assert_type(lock.holder(), handfast.Holder | None)
    with lock as lease:
        assert_type(lease, handfast.Lease)
        assert_type(lease.token, int | None)


async def tasks(client: handfast.aio.Client) -> None:
    lock = client.lock("orders", on_lost="event")
    assert_type(lock, handfast.aio.Lock)
    assert_type(await lock.acquire(wait=5.0), handfast.aio.Lease)
    assert_type(await lock.try_acquire(), handfast.aio.Lease | None)
    assert_type(await lock.holder(), handfast.Holder | None)
    async with lock as lease:
        assert_type(lease, handfast.aio.Lease)


def told(event: handfast.Event) -> None:
    assert_type(event.seconds, float)


def told_of_threads(client: handfast.Client) -> None:
    end = client.listen(told)
    end()


def decorated(client: handfast.Client, aio_client: handfast.aio.Client) -> None:
    @client.locked("report:{customer}")
    def report(customer: int) -> str:
        return str(customer)

    @aio_client.locked("report:{customer}")
    async def report_later(customer: int) -> str:
        return str(customer)

    async def call_it() -> None:
        assert_type(await report_later(7), str)

    print(call_it)
    assert_type(report(7), str)


def skipped(client: handfast.Client, aio_client: handfast.aio.Client) -> None:
    @client.locked("report", skip=True)
    def report(customer: int) -> str:
        return str(customer)

    @client.locked("report", skip=True, skip_value=0, wait=5)
    def count(customer: int) -> str:
        return str(customer)

    @aio_client.locked("report", skip=True)
    async def report_later(customer: int) -> str:
        return str(customer)

    async def call_it() -> None:
        assert_type(await report_later(7), str | None)

    print(call_it)
    assert_type(report(7), str | None)
    assert_type(count(7), str | int)


def script() -> None:
    assert_type(handfast.lock("orders", ttl=5), handfast.Lock)
    assert_type(handfast.aio.lock(["a", "b"]), handfast.aio.Lock)
