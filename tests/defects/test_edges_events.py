"""What a client tells of its work: a few log lines for people, and an event for every change for programs.

The test chooses where the issue leaves it open: an event about a node has its URL in `node` and no lock's name; every
event has `seconds`, the time that the step took, or the time that ended with it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.eventually import eventually, eventually_async, renewal_of

import handfast
import handfast.aio
from handfast.testing import Server, Servers, lose

WITHIN = 1.5
"""Seconds for an event or a line to come: far longer than any step here takes."""


class Heard:
    """The events of a client."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def of(self, kind: str, **fields: str) -> list[Any]:
        """Those of a kind, with these fields."""
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


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells of an acquisition")
def test_acquired_is_reported_with_the_time_that_it_took(client: handfast.Client) -> None:
    heard = listening(client)
    began = time.monotonic()
    with client.lock("orders"):
        took = time.monotonic() - began
        event = heard.one("acquired", name="orders")
    assert 0 < event.seconds <= took
    assert event.who == threading.current_thread().name


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells of a release")
def test_released_is_reported_with_the_time_that_it_was_held(client: handfast.Client) -> None:
    heard = listening(client)
    with client.lock("orders"):
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 0.01)
    assert heard.one("released", name="orders").seconds >= 0.01


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells of a renewal")
def test_renewed_is_reported(client: handfast.Client) -> None:
    heard = listening(client)
    with client.lock("orders", ttl=0.3) as lease:
        eventually(renewal_of(lease))
        assert heard.one("renewed", name="orders").seconds > 0


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells of a renewal that failed")
def test_renewal_failed_is_reported(own: Server) -> None:
    with handfast.connect(own.url) as client:
        heard = listening(client)
        lease = client.lock("orders", ttl=0.5).acquire()
        eventually(renewal_of(lease))
        own.pause()
        assert lease.lost.wait(5)
        own.resume()
        heard.one("renewal_failed", name="orders")


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells of a loss")
def test_lost_is_reported_with_its_reason(client: handfast.Client) -> None:
    heard = listening(client)
    lease = client.lock("orders").acquire()
    lose(lease, "a test wanted it so")
    event = heard.one("lost", name="orders")
    assert event.seconds > 0
    assert event.outcome == "a test wanted it so"


def test_waiting_is_reported_with_its_duration(client: handfast.Client) -> None:
    heard = listening(client)
    lease = client.lock("orders").acquire()
    with pytest.raises(handfast.Contended):
        client.lock("orders", wait=0.05).acquire()
    lease.release()
    heard.one("waiting_began", name="orders")
    assert heard.one("waiting_ended", name="orders").seconds >= 0.05


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells that a node is gone or back")
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


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no event tells of a quarantine")
def test_quarantined_is_reported(trio: handfast.Client, three: Servers) -> None:
    heard = listening(trio)
    three[2].restart()
    with trio.lock("orders", wait=5, ttl=0.3) as lease:
        eventually(lambda: len(lease.votes) == 3, 5)
    event = heard.one("quarantined", node=three[2].url)
    assert 0 < event.seconds < 2  # how long it has no vote


@pytest.mark.parametrize("kind", ["acquired", "released", "renewed", "lost"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: asyncio reports no more than waiting")
def test_asyncio_reports_the_same(one: Server, kind: str) -> None:
    async def main() -> None:
        async with handfast.aio.connect(one.url) as client:
            heard = listening(client)
            lease = await client.lock("orders", ttl=0.3).acquire()
            if kind == "renewed":
                await eventually_async(renewal_of(lease))
            if kind == "lost":
                lose(lease)
            await lease.release()
            await eventually_async(lambda: heard.of(kind, name="orders"), WITHIN)
            assert heard.of(kind)[0].seconds > 0

    asyncio.run(main())


# -- log lines --------------------------------------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no log line tells that a node is gone")
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


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no log line tells that a node is back")
def test_node_that_returns_is_logged_once(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="handfast")
    with handfast.connect(own.url) as client:
        client.lock("orders").acquire().release()
        own.restart()
        for _ in range(3):
            client.lock("orders", wait=5).acquire().release()
        eventually(lambda: lines(caplog, own.url, "back", "up again"), WITHIN)
        assert len(lines(caplog, own.url, "back", "up again")) == 1


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no log line tells of a quarantine or its end")
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


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: no log line tells of a renewal that failed")
def test_renewal_that_fails_and_recovers_is_logged_once_each(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A lease that is lost in between has its own line, so the server comes back in time here."""
    caplog.set_level(logging.INFO, logger="handfast")

    def told(word: str) -> Callable[[], list[str]]:
        return lambda: [text for text in lines(caplog, own.url, word) if "renewal" in text and "orders" in text]

    with handfast.connect(own.url, node_timeout=0.05) as client:
        lease = client.lock("orders", ttl=4).acquire()
        own.pause()
        try:
            eventually(told("failed"), 2.5)
        finally:
            own.resume()
        eventually(told("recovered"), 2.5)
        assert (len(told("failed")()), len(told("recovered")())) == (1, 1)
        assert lease.valid
