"""The reports of a client: a few log lines for people, and an event for every change for programs.

An event about a node has its URL in `node` and no lock's name. Every event has `seconds`, the time that the step took, or
the time that ended with it.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest

import handfast
import handfast.aio
import handfast.events
from handfast.net.threads_connections import IDLE_CHECK
from handfast.testing import Server, Servers, lose
from tests.support.eventually import eventually, eventually_async, renewal_of
from tests.support.sync_and_async import both, connected, plain

WITHIN = 1.5
"""Seconds for an event or a line to come: far longer than any step here takes."""


class Heard:
    """The events of a client."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def of(self, kind: str, **fields: str) -> list[Any]:
        """The events of a kind, with these fields."""
        wanted = {"kind": kind, **fields}
        return [
            event
            for event in list(self.events)
            if all(getattr(event, word, None) == value for word, value in wanted.items())
        ]

    def one(self, kind: str, **fields: str) -> Any:
        """The first of a kind, as soon as it is there."""
        eventually(lambda: self.of(kind, **fields), WITHIN, f"{kind} in {self.events}")
        return self.of(kind, **fields)[0]


def listening(client: Any) -> Heard:
    heard = Heard()
    client.listen(heard.events.append)
    return heard


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that the test may pause or kill."""
    with Server() as server:
        yield server


@pytest.fixture
def trio(three: Servers) -> Iterator[handfast.Client]:
    """A client of three nodes that is connected to all of them, with a quarantine of less than a second."""
    with handfast.connect(three.urls, max_ttl=0.5) as client:
        handfast.bootstrap(client)
        eventually(lambda: all_vote(client))
        yield client


def all_vote(client: handfast.Client) -> bool:
    with client.lock("warm") as lease:
        eventually(lambda: len(lease.votes) == 3)
    return True


def lines(caplog: pytest.LogCaptureFixture, url: str, *words: str) -> list[str]:
    """The lines about a node that have one of these words."""
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("handfast")]
    return [text for text in texts if url in text and any(word in text for word in words)]


# -- events -----------------------------------------------------------------------------------------------------------


def test_acquired_is_reported_with_the_time_that_it_took(client: handfast.Client) -> None:
    heard = listening(client)
    began = time.monotonic()
    with client.lock("orders"):
        took = time.monotonic() - began
        event = heard.one("acquired", name="orders")
    assert 0 < event.seconds <= took
    assert event.who == threading.current_thread().name


def test_released_is_reported_with_the_time_that_it_was_held(client: handfast.Client) -> None:
    heard = listening(client)
    with client.lock("orders"):
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 0.01)
    assert heard.one("released", name="orders").seconds >= 0.01


def test_renewed_is_reported(client: handfast.Client) -> None:
    heard = listening(client)
    with client.lock("orders", ttl=0.3) as lease:
        eventually(renewal_of(lease))
        assert heard.one("renewed", name="orders").seconds > 0


def test_renewal_failed_is_reported(own: Server) -> None:
    with handfast.connect(own.url) as client:
        heard = listening(client)
        lease = client.lock("orders", ttl=0.5).acquire()
        eventually(renewal_of(lease))
        own.pause()
        assert lease.lost.wait(5)
        own.resume()
        heard.one("renewal_failed", name="orders")


def test_lost_is_reported_with_its_reason(client: handfast.Client) -> None:
    heard = listening(client)
    lease = client.lock("orders").acquire()
    lose(lease, "a test wanted it so")
    event = heard.one("lost", name="orders")
    assert event.seconds > 0
    assert event.outcome == "a test wanted it so"


@pytest.mark.parametrize("wait", [0, 0.05])
def test_acquisition_that_fails_is_reported(client: handfast.Client, wait: float) -> None:
    heard = listening(client)
    with client.lock("orders"), pytest.raises(handfast.Contended):
        in_another_thread(client.lock("orders", wait=wait).acquire)
    event = heard.one("not_acquired", name="orders")
    assert event.outcome == "Contended"
    assert event.seconds >= wait
    assert len(heard.of("not_acquired")) == 1


def in_another_thread(call: Callable[[], object]) -> None:
    """In another thread, because a thread that waits for its own lock gets an error."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def test_lease_events_have_the_token(client: handfast.Client) -> None:
    heard = listening(client)
    with client.lock("orders") as lease:
        lease.extend()
    tokens = [event.token for event in heard.events if event.kind in ("acquired", "renewed", "released")]
    assert tokens == [lease.token] * 3


def test_dropped_lease_is_reported_as_released(client: handfast.Client) -> None:
    """By the watchdog, because the lease may be collected at any point, even inside a listener."""
    threads: list[str] = []
    client.listen(lambda event: threads.append(threading.current_thread().name) if event.kind == "released" else None)
    client.lock("orders").acquire()
    eventually(lambda: threads == ["handfast-watchdog"])


def test_waiting_is_reported_with_its_duration(client: handfast.Client) -> None:
    heard = listening(client)
    lease = client.lock("orders").acquire()
    with pytest.raises(handfast.Contended):
        client.lock("orders", wait=0.05).acquire()
    lease.release()
    heard.one("waiting_began", name="orders")
    assert heard.one("waiting_ended", name="orders").seconds >= 0.05


def test_node_down_and_node_up_are_reported(own: Server) -> None:
    with handfast.connect(own.url) as client:
        client.lock("orders").acquire().release()
        heard = listening(client)
        own.kill()
        with pytest.raises(handfast.NoQuorum):
            client.lock("orders", wait=0).acquire()
        heard.one("node_down", node=own.url)
        own.restart()
        client.lock("orders", wait=5).acquire().release()
        event = heard.one("node_up", node=own.url)
        assert event.seconds > 0  # how long it was away
        assert len(heard.of("node_down")) == 1


def test_quarantined_is_reported(trio: handfast.Client, three: Servers) -> None:
    heard = listening(trio)
    three[2].restart()
    with trio.lock("orders", wait=5, ttl=0.3) as lease:
        eventually(lambda: len(lease.votes) == 3, 5)
    event = heard.one("quarantined", node=three[2].url)
    assert 0 < event.seconds < 2  # how long it has no vote
    heard.one("readmitted", node=three[2].url)


def test_idle_connection_closed_by_server_is_not_node_down(client: handfast.Client, one: Server) -> None:
    """Servers do that to idle clients (`timeout` in redis.conf)."""
    client.lock("orders").acquire().release()
    heard = listening(client)
    one.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 2 * IDLE_CHECK)
    client.lock("orders").acquire().release()
    assert [event.kind for event in heard.events] == ["acquired", "released"]


def test_restart_between_two_uses_is_reported(own: Server) -> None:
    with handfast.connect(own.url) as client:
        client.lock("orders").acquire().release()
        heard = listening(client)
        own.restart()
        client.lock("orders", wait=5).acquire().release()
        heard.one("node_down", node=own.url)
        heard.one("node_up", node=own.url)


def test_lock_that_was_handed_over_in_its_process_is_reported_as_well(client: handfast.Client) -> None:
    heard = listening(client)
    lock = client.lock("orders", cohort=3, wait=5)
    lease = lock.acquire()
    with ThreadPoolExecutor(1) as pool:
        next_one = pool.submit(lock.acquire)
        heard.one("waiting_began")
        lease.release()
        next_one.result().release()
    kinds = [event.kind for event in heard.events if event.kind in ("acquired", "released")]
    assert sorted(kinds) == ["acquired", "acquired", "released", "released"]


def test_extension_is_reported_as_a_renewal(client: handfast.Client) -> None:
    heard = listening(client)
    with client.lock("orders") as lease:
        lease.extend()
        assert heard.one("renewed", name="orders").seconds > 0


def test_close_is_reported_as_a_loss(one: Server) -> None:
    client = handfast.connect(one.url)
    heard = listening(client)
    lease = client.lock("orders").acquire()
    client.close()
    assert heard.one("lost", name=lease.name).outcome == "the client was closed"


def test_listener_that_fails_is_logged_and_changes_nothing(
    client: handfast.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: handfast.Event) -> None:
        raise ZeroDivisionError

    end = client.listen(broken)
    heard = listening(client)
    with client.lock("orders"):
        assert len(heard.events) == 1
    end()
    assert len([record for record in caplog.records if "listener" in record.getMessage()]) == 2


@both
async def test_listener_that_exits_in_watchdogs_thread_is_logged_and_changes_nothing(
    one: Server, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SystemExit must not end that thread: the leases of all clients would run out."""
    async with connected(mode, one.url) as client:
        client.listen(lambda event: sys.exit(1) if event.kind == "lost" else None)
        kept = await client.lock("kept", ttl=0.6).acquire()
        lost = await client.lock("lost", ttl=0.1, max_hold=0.05).acquire()
        await eventually_async(lambda: "a listener failed" in caplog.text)
        await eventually_async(renewal_of(kept))
        assert not lost.valid
    assert "the watchdog failed" not in caplog.text


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_inside_listener_ends_the_caller(client: handfast.Client, interrupt: type[BaseException]) -> None:
    """It strikes the main thread only. The handler of another signal may raise SystemExit there."""

    def struck(event: handfast.Event) -> None:
        raise interrupt

    end = client.listen(struck)
    with pytest.raises(interrupt):
        client.lock("orders").acquire()
    end()
    client.lock("orders", wait=5).acquire().release()  # the first acquisition was taken back


def test_removed_listener_receives_nothing(client: handfast.Client) -> None:
    heard = Heard()
    end = client.listen(heard.events.append)
    end()
    client.lock("orders").acquire().release()
    assert heard.events == []


@pytest.mark.parametrize("kind", get_args(handfast.events.Kind))
def test_every_kind_is_explained(kind: str) -> None:
    assert re.search(rf"^\s*{kind}  +[A-Z]", handfast.Event.__doc__ or "", re.MULTILINE)


@pytest.mark.parametrize("record", [handfast.Event, handfast.Holder])
def test_help_explains_every_field(record: Any) -> None:
    for field in record._fields:
        assert re.search(rf"^\s*{field}  +[A-Z]", record.__doc__, re.MULTILINE), field


@pytest.mark.parametrize("kind", ["acquired", "released", "renewed", "lost", "not_acquired"])
@plain
async def test_asyncio_reports_the_same(one: Server, kind: str) -> None:
    async with handfast.aio.connect(one.url) as client:
        heard = listening(client)
        lease = await client.lock("orders", ttl=0.3).acquire()
        if kind == "renewed":
            # Before the release: a renewal of a lease that was released meanwhile is not reported.
            await eventually_async(lambda: heard.of(kind, name="orders"))
        if kind == "lost":
            lose(lease)
        if kind == "not_acquired":
            assert await client.lock("orders").try_acquire() is None
        await lease.release()
        await eventually_async(lambda: heard.of(kind, name="orders"), WITHIN)
        assert heard.of(kind)[0].seconds > 0


# -- log lines --------------------------------------------------------------------------------------------------------


def test_node_that_goes_is_logged_once(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="handfast")
    with handfast.connect(own.url) as client:
        client.lock("orders").acquire().release()
        own.kill()
        for _ in range(3):
            with pytest.raises(handfast.NoQuorum):
                client.lock("orders", wait=0).acquire()
        eventually(lambda: lines(caplog, own.url, "down"), WITHIN)
        assert len(lines(caplog, own.url, "down")) == 1


def test_node_that_returns_is_logged_once(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="handfast")
    with handfast.connect(own.url) as client:
        client.lock("orders").acquire().release()
        own.restart()
        for _ in range(3):
            client.lock("orders", wait=5).acquire().release()
        eventually(lambda: lines(caplog, own.url, "back", "up again"), WITHIN)
        assert len(lines(caplog, own.url, "back", "up again")) == 1


def test_quarantine_and_its_end_are_logged_once_each(
    trio: handfast.Client, three: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="handfast")
    three[2].restart()
    with trio.lock("orders", wait=5, ttl=0.3) as lease:
        eventually(lambda: len(lease.votes) == 3, 5)
    url = three[2].url
    for words in (["quarantine"], ["votes again", "may vote"]):
        eventually(lambda words=words: lines(caplog, url, *words), WITHIN)  # type: ignore[misc]
        assert len(lines(caplog, url, *words)) == 1


def test_renewal_that_fails_and_recovers_is_logged_once_each(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A lease that is lost in between has its own line, so the server comes back in time here. The watchdog is connected
    before: a first connection that hangs is given up after two seconds only."""
    caplog.set_level(logging.INFO, logger="handfast")

    def told(word: str) -> Callable[[], list[str]]:
        return lambda: [text for text in lines(caplog, own.url, word) if "renewal" in text and "orders" in text]

    with handfast.connect(own.url, node_timeout=0.05) as client:
        lease = client.lock("orders", ttl=4).acquire()
        eventually(renewal_of(lease))
        own.pause()
        try:
            eventually(told("failed"), 2.5)
        finally:
            own.resume()
        eventually(told("recovered"), 2.5)
        assert (len(told("failed")()), len(told("recovered")())) == (1, 1)
        assert lease.valid


def test_failing_renewal_is_logged_again_after_a_lease_was_lost_that_way(
    own: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal of the second lease is due after the first one has ended."""
    with handfast.connect(own.url, node_timeout=0.05) as client:
        long, short = client.lock("long", ttl=3).acquire(), client.lock("short", ttl=0.6).acquire()
        eventually(renewal_of(short))
        own.kill()
        assert short.lost.wait(5)
        eventually(lambda: lines(caplog, own.url, "renewal of long failed"), 2.5)
        assert long.valid
        assert len(lines(caplog, own.url, "renewal of short failed")) == 1
