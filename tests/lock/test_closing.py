"""A client that is closed while a body still runs: the body notices it, like any other loss."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest

import handfast
import handfast.aio
from handfast import LeaseLost
from handfast.testing import Server
from tests.support.eventually import eventually
from tests.support.sync_and_async import plain

REASON = "the client was closed"
README = (Path(__file__).parents[2] / "README.md").read_text()

RENEWED = pytest.mark.parametrize("renew", [True, False], ids=["renewed", "not renewed"])


def close_elsewhere(client: handfast.Client) -> None:
    """Close the client from another thread, as a shutdown handler does."""
    thread = threading.Thread(target=client.close)
    thread.start()
    thread.join()


# -- threads ----------------------------------------------------------------------------------------------------------


@RENEWED
def test_close_sets_lost(one: Server, renew: bool) -> None:
    client = handfast.connect(one.url)
    lease = client.lock("orders", renew=renew).acquire()
    assert not lease.lost.is_set()
    close_elsewhere(client)
    assert lease.lost.is_set()
    assert not lease.valid


@RENEWED
def test_check_reports_closed_client(one: Server, renew: bool) -> None:
    client = handfast.connect(one.url)
    lease = client.lock("orders", renew=renew).acquire()
    close_elsewhere(client)
    reasons: list[str] = []
    try:
        lease.check()
    except LeaseLost as error:
        reasons.append(error.reason)
    assert reasons == [REASON]


@RENEWED
@pytest.mark.parametrize("kind", ["lock", "rlock"])
def test_block_of_a_closed_client_raises_lease_lost(one: Server, kind: str, renew: bool) -> None:
    client = handfast.connect(one.url)
    with pytest.raises(LeaseLost) as caught, getattr(client, kind)("orders", renew=renew):
        close_elsewhere(client)
    assert caught.value.reason == REASON


def test_close_in_the_body_itself_raises_lease_lost(one: Server) -> None:
    with pytest.raises(LeaseLost) as caught, handfast.connect(one.url) as client, client.lock("orders"):
        client.close()
    assert caught.value.reason == REASON


def test_close_releases_keys_of_running_bodies(one: Server) -> None:
    """A lease that is not renewed is left to its ttl."""
    client = handfast.connect(one.url)
    leases = [client.lock("orders").acquire(), client.lock("invoices", renew=False).acquire()]
    close_elsewhere(client)
    assert all(lease.lost.is_set() for lease in leases)
    assert one.command("EXISTS", "handfast:{orders}") == 0
    assert one.command("EXISTS", "handfast:{invoices}") == 1


def test_lease_released_before_close_is_not_lost(one: Server) -> None:
    client = handfast.connect(one.url)
    lease = client.lock("orders").acquire()
    lost = lease.lost
    assert lease.release()
    close_elsewhere(client)
    assert not lost.is_set()
    with pytest.raises(LeaseLost, match="it was released"):
        lease.check()


def test_loss_does_not_mask_error_of_body(one: Server) -> None:
    client = handfast.connect(one.url)

    def body() -> None:
        with client.lock("orders"):
            close_elsewhere(client)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


# -- asyncio ----------------------------------------------------------------------------------------------------------


class Body:
    """A task that holds a lock until something ends it."""

    def __init__(self, lock: handfast.aio.Lock) -> None:
        self.entered, self.goes_on = asyncio.Event(), asyncio.Event()
        self.lease: handfast.aio.Lease | None = None
        self.cancelled = False
        self._lock = lock

    async def run(self) -> None:
        async with self._lock as self.lease:
            self.entered.set()
            try:
                await self.goes_on.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise


async def held_at_close(one: Server, renew: bool, on_lost: str = "cancel") -> tuple[Body, BaseException | None]:
    """A body that ran when its client was closed, and what the block raised; it runs on unless it is cancelled."""
    client = handfast.aio.connect(one.url, on_lost=on_lost)  # type: ignore[arg-type]
    body = Body(client.lock("orders", renew=renew))
    task = asyncio.create_task(body.run())
    await body.entered.wait()
    assert body.lease is not None
    assert not body.lease.lost.is_set()
    await client.close()
    await asyncio.sleep(0)  # a cancellation that was asked for is delivered
    body.goes_on.set()
    (raised,) = await asyncio.gather(task, return_exceptions=True)
    return body, raised


@RENEWED
def test_close_cancels_the_body_of_an_async_with(one: Server, renew: bool) -> None:
    """`close()` returns after the cancellation was asked for, so the body gets no further step of its own."""
    body, raised = asyncio.run(held_at_close(one, renew))
    assert body.cancelled
    assert isinstance(raised, LeaseLost)
    assert raised.reason == REASON


@RENEWED
def test_close_sets_lost_for_asyncio(one: Server, renew: bool) -> None:
    body, _ = asyncio.run(held_at_close(one, renew))
    assert body.lease is not None
    assert body.lease.lost.is_set()


@RENEWED
def test_close_with_on_lost_event_leaves_the_body_alone_and_raises_at_its_end(one: Server, renew: bool) -> None:
    body, raised = asyncio.run(held_at_close(one, renew, on_lost="event"))
    assert not body.cancelled
    assert isinstance(raised, LeaseLost)
    assert raised.reason == REASON


def test_close_in_the_asyncio_body_itself_raises_lease_lost(one: Server) -> None:
    """The client is closed, although the task that closes it is cancelled."""

    async def main() -> None:
        client = handfast.aio.connect(one.url)
        with pytest.raises(LeaseLost) as caught:
            async with client.lock("orders"):
                await client.close()
        assert caught.value.reason == REASON
        # The cancelled close goes on in the background. A loop that ended before it would leave an open socket, and a
        # later test would get the warning.
        await client.close()

    asyncio.run(main())
    eventually(lambda: one.command("EXISTS", "handfast:{orders}") == 0)


@plain
async def test_lost_first_read_after_close_is_set_for_asyncio(one: Server) -> None:
    client = handfast.aio.connect(one.url)
    lease = await client.lock("orders").acquire()
    await client.close()
    assert lease.lost.is_set()


# -- documentation ----------------------------------------------------------------------------------------------------


def test_readme_says_what_a_body_sees_when_its_lease_is_lost() -> None:
    """The promise is that a body never *starts* unlocked. A section says what a thread's body sees later on, and what it
    can do: `lease.lost`, `lease.check()` and `on_lost=`."""
    assert "the body never runs unlocked" not in README
    section = re.search(r"^## When a lease is lost\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert section
    for word in ("thread", "asyncio", "`lease.lost`", "lease.check(", "on_lost", "close()"):
        assert word in section[1]
