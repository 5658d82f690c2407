"""A lock with an explicit owner excludes all other owners, also while an earlier acquisition of that owner ends.

The client repeats a release that it cannot confirm. The repetition must end the acquisition that it belongs to, and not
the next one of the same owner.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

import handfast
from handfast import ConfigError, Lease
from handfast.testing import Server, Servers, available
from tests.support.programs import attempt, hanging
from tests.support.sync_and_async import both, connected
from tests.support.waiters import attempt_in_background, wait_for_waiters

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")


SOON = 4.0
"""Seconds within which a push arrives. Without one, a waiter looks again after five."""
KEYS = pytest.mark.parametrize(
    "options", [{}, {"prefix": "", "fence": False}], ids=["keys of our own", "keys that other programs share"]
)


@both
@KEYS
async def test_dropped_lease_does_not_release_next_acquisition(mode: str, one: Server, options: dict[str, Any]) -> None:
    async with connected(mode, one.url, **options) as client, connected(mode, one.url, **options) as other:
        for turn in range(5):
            lock = client.lock(f"a-{turn}", owner="job", ttl=5.0)
            lease = await lock.acquire(wait=0)
            del lease
            held = await lock.acquire(wait=0)
            rival = (await attempt_in_background(other.lock(f"a-{turn}"), wait=0.2)).lease
            assert rival is None, f"two clients hold the lock, at try {turn + 1}"
            assert await held.release()


@KEYS
@pytest.mark.parametrize(("pause", "turns"), [(0.3, 2), (1.3, 1)])
def test_delayed_release_does_not_end_next_acquisition(
    one: Server, pause: float, turns: int, options: dict[str, Any]
) -> None:
    with (
        handfast.connect(one.url, node_timeout=0.05, **options) as client,
        handfast.connect(one.url, **options) as other,
    ):
        for turn in range(turns):
            lock = client.lock(f"a-{turn}", owner="job", ttl=5.0)
            lease = lock.acquire(wait=1)
            with hanging(one, pause):
                lease.release()
            held = lock.acquire(wait=2)
            rival = attempt(other.lock(f"a-{turn}"), wait=1.2)
            assert not isinstance(rival, Lease), f"two clients hold the lock, at try {turn + 1}"
            assert held.release()


def loses_vote(node: Server, key: str) -> None:
    """A node loses its vote, and gets it back by the next renewal."""
    node.command("DEL", key)
    node.wait_for(lambda: node.command("EXISTS", key) == 1)


@KEYS
def test_release_after_healing_does_not_end_next_acquisition(three: Servers, options: dict[str, Any]) -> None:
    """One node loses its vote in the middle of a `with` block, and gets it back."""
    options = {"node_timeout": 0.2, "max_ttl": 5.0, **options}
    with handfast.connect(three.urls, **options) as client, handfast.connect(three.urls, **options) as other:
        handfast.bootstrap(client)
        for turn in range(6):
            name = f"a-{turn}"
            lock = client.lock(name, owner="job", ttl=1.5)
            with lock:
                loses_vote(three[0], f"handfast:{{{name}}}" if options.get("fence", True) else name)
            held = lock.acquire(wait=1)
            rival = attempt(other.lock(name), wait=0.2)
            # A busy machine may take longer than this ttl: a lease that has ended is no second one.
            assert not (isinstance(rival, Lease) and held.valid), f"two clients hold the lock, at try {turn + 1}"
            held.release()


def test_owner_of_another_lease_is_refused(one: Server) -> None:
    """Such a lease is not one of several: its release would end the lock under the second lease."""
    with handfast.connect(one.url) as client, client.lock("a") as lease:
        with pytest.raises(ConfigError, match="give both locks the same owner="):
            client.lock("a", owner=lease.owner)
        with client.lock("b", owner="job") as explicit, client.lock("b", owner=explicit.owner, wait=0) as shared:
            assert shared.token == explicit.token


@both
@pytest.mark.parametrize("owners", [("job", "job"), ("job", None, "job")], ids=["alone", "with another between them"])
@pytest.mark.parametrize("nodes", [1, 3])
async def test_all_waiters_of_owner_get_the_lock_together(
    mode: str, nodes: int, owners: tuple[str | None, ...], three: Servers
) -> None:
    urls = three.urls[:nodes]
    async with AsyncExitStack() as stack:
        holding, *others = [
            await stack.enter_async_context(connected(mode, urls, guard=False, node_timeout=1.0))
            for _ in range(1 + len(owners))
        ]
        lease = await holding.lock("a", ttl=20.0).acquire()
        waiters = []
        for number, (client, owner) in enumerate(zip(others, owners, strict=True), 1):
            waiters.append((owner, attempt_in_background(client.lock("a", owner=owner, ttl=20.0), wait=3 * SOON)))
            await wait_for_waiters(holding.lock("a"), number)
        began = time.monotonic()
        assert await lease.release()
        leases = [(await waiter).lease for owner, waiter in waiters if owner == "job"]
        assert all(leases)
        assert time.monotonic() - began < SOON, "a waiter of the owner was not told that the owner has the lock"
        assert leases[0].token == leases[1].token
        for each in leases:
            assert await each.release()
        for owner, waiter in waiters:
            if owner is None:
                assert await (await waiter).lease.release()
