"""The queue on one node: first come, first served, across clients and processes, with a direct hand-over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, Contended, NoQuorum, NotAcquired
from handfast.protocol.scripts import SHA
from handfast.testing import Server
from handfast.testing.proxy import Proxy
from tests.support.eventually import eventually, eventually_async
from tests.support.queues import (
    KEY,
    LONG,
    QUEUE,
    SOON,
    Monitor,
    acquire_in_background,
    call_count,
    hand_over,
    holder_on,
    no_lock_state_left,
    queue_length,
    subscribed_connections,
    wait_for_queue_length,
)
from tests.support.stress_processes import Agent
from tests.support.sync_and_async import MODES, bootstrap, both, connected, plain
from tests.support.tcp_relay import Relay

pytestmark = pytest.mark.slow


def claim_of(server: Server, owner: str) -> object:
    """A waiter's claim on the server."""
    return server.command("HGET", KEY + ":c", owner)


def waiters(server: Server) -> list[str]:
    """The waiters in order, as any client sees them."""
    with handfast.connect(server.url) as client:
        return client.lock("a").waiters()


def left_ms(server: Server, key: str = KEY) -> int:
    left = server.command("PTTL", key)
    assert isinstance(left, int)
    return left


def server_us(server: Server) -> int:
    now: Any = server.command("TIME")
    return int(now[0]) * 1_000_000 + int(now[1])


def test_garbage_in_the_queue_is_neither_shown_nor_served(server: Server) -> None:
    with handfast.connect(server.url, ttl=LONG) as one, handfast.connect(server.url, ttl=LONG) as two:
        lease = one.lock("a").acquire()
        server.command("ZADD", QUEUE, 1, "rubbish", 2, b"\xff" * 60, 3, "a lone id")
        server.command("HSET", KEY + ":c", "rubbish", "rubbish", b"\xff" * 60, b"\xff" * 60)
        assert waiters(server) == []
        with ThreadPoolExecutor(1) as pool:
            heir = pool.submit(two.lock("a").acquire)
            eventually(lambda: queue_length(server) == 4)
            assert lease.release()
            assert heir.result(SOON).release()
    assert no_lock_state_left(server)


# -- the order -----------------------------------------------------------------------------------------------------


@both
async def test_processes_take_turns_though_one_has_more_waiters(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as many, connected(mode, server.url, ttl=LONG) as few:
        lease = await many.lock("a").acquire()
        crowd = [acquire_in_background(mode, many.lock("a"))]
        await wait_for_queue_length(server, 1)
        crowd += [acquire_in_background(mode, many.lock("a")) for _ in range(3)]  # behind it, in their own process
        late = acquire_in_background(mode, few.lock("a"))
        await wait_for_queue_length(server, 2)
        assert await lease.release()
        done, _ = await asyncio.wait(crowd, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        first = done.pop()
        # The next waiter of this client queues behind the other process.
        await wait_for_queue_length(server, 2)
        assert await first.result().release()
        lease = await asyncio.wait_for(late, SOON)
        assert await lease.release()
        crowd.remove(first)
        while crowd:
            (next_one,), _ = await asyncio.wait(crowd, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
            assert await next_one.result().release()
            crowd.remove(next_one)
    assert no_lock_state_left(server)


@both
async def test_release_hands_over_in_one_step_and_wakes_one_waiter(mode: str, server: Server) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, server.url, ttl=LONG)) for _ in range(4)]
        lease = await clients[0].lock("a").acquire()
        waiting: list[asyncio.Future[Any]] = []
        asked = call_count(server, "evalsha")
        for client in clients[1:]:
            waiting.append(acquire_in_background(mode, client.lock("a")))
            await wait_for_queue_length(server, len(waiting))
        assert call_count(server, "evalsha") == asked + len(waiting), "each waiter asks once"
        before = (call_count(server, "evalsha"), call_count(server, "publish"))
        heir = waiters(server)[0]
        assert await lease.release()
        assert holder_on(server) == heir
        lease = await asyncio.wait_for(waiting[0], SOON)
        # The release and its push to one connection: no waiter had to ask.
        assert (call_count(server, "evalsha"), call_count(server, "publish")) == (before[0] + 1, before[1] + 1)
        assert queue_length(server) == 2
        for waiter in waiting[1:]:
            assert await lease.release()
            lease = await asyncio.wait_for(waiter, SOON)
        assert await lease.release()


@both
async def test_identity_is_not_used_again_after_it_was_withdrawn(mode: str, one: Server) -> None:
    """A withdrawal may arrive after a claim on another connection. It must not take that claim back."""
    async with connected(mode, one.url, ttl=LONG) as client, connected(mode, one.url, ttl=LONG) as rival:
        with Monitor(one) as monitor:
            for _ in range(5):
                lease = await rival.lock("a").acquire(wait=SOON)
                # All make an attempt at once; afterwards one is in the server's queue for all of them.
                crowd = [acquire_in_background(mode, client.lock("a"), wait=SOON) for _ in range(6)]
                await wait_for_queue_length(one, 1)
                assert await lease.release()
                for waiter in crowd:
                    waiter.add_done_callback(lambda done: asyncio.ensure_future(done.result().release()))
                await asyncio.wait_for(asyncio.wait(crowd), SOON)
            sent = monitor.take()
    withdrawn: set[str] = set()
    for command in sent:
        words = command.split('" "')
        if words[0] == "EVALSHA":
            script, identity = words[1], words[8]
            if script == SHA["claim"].decode():
                assert identity not in withdrawn
            elif script == SHA["pass"].decode():
                withdrawn.add(identity)
    assert withdrawn


# -- waiters that die, hang or leave ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_killed_waiters_are_skipped_at_once(mode: str, server: Server) -> None:
    with Agent.several(4, mode, server.url, "a", ttl=LONG) as (first, dead, also_dead, heir):
        first.acquire()
        first.held()
        for place, agent in enumerate((dead, also_dead, heir), 1):
            agent.acquire()
            eventually(lambda place=place: queue_length(server) == place)
        dead.kill()
        also_dead.kill()
        eventually(lambda: len(subscribed_connections(server)) == 2, what="the server has noticed")
        assert first.release()
        assert f":{heir.pid}:" in holder_on(server)
        heir.held(within=SOON)
        assert heir.release()
    assert no_lock_state_left(server)


def test_hung_waiter_loses_its_claim_when_it_expires(server: Server) -> None:
    with (
        Agent("threads", server.url, "a", ttl=1.5) as first,
        Agent("asyncio", server.url, "a", ttl=0.2) as hanging,
        Agent("threads", server.url, "a", ttl=LONG) as heir,
    ):
        first.acquire()
        first.held()
        for place, agent in enumerate((hanging, heir), 1):
            agent.acquire()
            eventually(lambda place=place: queue_length(server) == place)
        hanging.stop()
        # The rest of the holder's ttl, its own ttl, rounding to whole seconds, and one more second for a waiter that
        # is stopped during its first claim.
        expires = server_us(server) + round((1.5 + 0.2 + 4.0) * 1e6)
        eventually(lambda: server_us(server) > expires, within=12)
        assert queue_length(server) == 2
        assert first.release()
        assert f":{heir.pid}:" in holder_on(server)
        assert heir.held(within=SOON).token
        # Resumed, it is at the end of the queue.
        hanging.resume()
        eventually(lambda: queue_length(server) == 1)
        assert hanging.silent
        assert heir.release()
        hanging.held(within=SOON)
        assert hanging.release()


@pytest.mark.parametrize("ttl", [0.8, LONG], ids=["alike", "longer"])
def test_lock_handed_to_hung_waiter_moves_on_after_its_ttl(ttl: float, server: Server) -> None:
    """Also if the next waiter is dead, and the waiter behind it has only seen a holder with a far longer ttl."""
    with (
        Agent("threads", server.url, "a", ttl=ttl) as first,
        Agent("asyncio", server.url, "a", ttl=0.8) as hung,
        Agent("threads", server.url, "a", ttl=ttl) as dead,
        Agent("asyncio", server.url, "a", ttl=ttl) as heir,
    ):
        first.acquire()
        first.held()
        for place, agent in enumerate((hung, dead, heir), 1):
            agent.acquire()
            eventually(lambda place=place: queue_length(server) == place)
        dead.kill()
        hung.stop()
        assert first.release()
        handed_over = time.monotonic()
        # The server has handed it over, to a process that is stopped.
        assert f":{hung.pid}:" in holder_on(server)
        assert 0 < left_ms(server) <= 800
        held = heir.held()
        assert time.monotonic() - handed_over < 0.8 + SOON
        # When the hung process resumes, it finds a push about a vote that is over.
        hung.resume()
        eventually(lambda: queue_length(server) == 1)
        assert hung.silent
        assert holder_on(server) == held.owner
        assert heir.release()
        assert hung.held(within=SOON).token > held.token
        assert hung.release()
    assert no_lock_state_left(server)


@plain
async def test_lock_handed_to_hung_waiter_moves_on_though_the_next_waiter_leaves(server: Server) -> None:
    """All waiters have seen a holder with a long ttl. The waiter that got the push to look again is cancelled."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(handfast.aio.connect(server.url, ttl=LONG)) for _ in range(3)]
        hung = stack.enter_context(Agent("asyncio", server.url, "a", ttl=0.8))
        lease = await clients[0].lock("a").acquire()
        hung.acquire()
        await wait_for_queue_length(server, 1)
        fickle = asyncio.create_task(clients[1].lock("a").acquire())
        await wait_for_queue_length(server, 2)
        patient = asyncio.create_task(clients[2].lock("a").acquire())
        await wait_for_queue_length(server, 3)
        hung.stop()
        assert await lease.release()
        assert f":{hung.pid}:" in holder_on(server)
        fickle.cancel()
        await wait_for_queue_length(server, 1)
        heir = await asyncio.wait_for(patient, 0.8 + SOON)
        assert await heir.release()


@both
async def test_deleted_key_goes_to_next_waiter_within_the_ttl(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as one, connected(mode, server.url, ttl=LONG) as two:
        lease = await one.lock("a", ttl=0.6).acquire()
        waiting = acquire_in_background(mode, two.lock("a"))
        await wait_for_queue_length(server, 1)
        server.command("DEL", KEY)
        heir = await asyncio.wait_for(waiting, 0.6 + 1.0)
        assert heir.token > lease.token
        await eventually_async(lambda: not lease.valid, what="the first one knows that it has lost it")
        assert not await lease.release()
        assert holder_on(server) == heir.owner
        assert await heir.release()


@both
async def test_waiter_that_timed_out_leaves_the_queue(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as one, connected(mode, server.url, ttl=LONG) as two:
        lease = await one.lock("a").acquire()
        said = ""
        for wait in (0.05, 0.2, 0.8, 3.2):  # a busy machine needs more than one
            if lease.owner not in said:
                with pytest.raises(NotAcquired) as caught:
                    await two.lock("a").acquire(wait=wait)
                said = str(caught.value)
        assert lease.owner in said
        for _ in range(40):
            with pytest.raises(NotAcquired):
                await two.lock("a").acquire(wait=random.uniform(0, 0.002))
        # Also the claims without a reply.
        await wait_for_queue_length(server, 0)
        assert await lease.release()
        assert no_lock_state_left(server)


@both
async def test_waiter_that_times_out_during_hand_over_has_the_lock_or_passes_it_on(mode: str, server: Server) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, server.url, ttl=LONG)) for _ in range(3)]
        locks = [client.lock("a") for client in clients]
        outcomes: set[bool] = set()
        # At least thirty times, and until both have happened: a busy machine is late by more than a moment.
        for i in itertools.count():
            if i >= 30 and (outcomes == {True, False} or i == 300):
                break
            lease = await locks[0].acquire()
            began = time.monotonic()
            short = acquire_in_background(mode, locks[1], wait=0.03)
            heir = acquire_in_background(mode, locks[2])
            await eventually_async(lambda: queue_length(server) >= 1)
            await asyncio.sleep(max(0.0, began + 0.03 + (i % 5 - 2) * 0.002 * (1 + i // 30) - time.monotonic()))
            assert await lease.release()
            try:
                assert await (await short).release()
                outcomes.add(True)
            except NotAcquired:
                outcomes.add(False)
            assert await (await asyncio.wait_for(heir, SOON)).release()
        assert outcomes == {True, False}
        assert no_lock_state_left(server)


@both
async def test_closed_client_leaves_the_queue(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as one:
        lease = await one.lock("a").acquire()
        async with connected(mode, server.url, ttl=LONG) as two:
            waiting = acquire_in_background(mode, two.lock("a"))
            await wait_for_queue_length(server, 1)
            await two.close()
            with pytest.raises(ConfigError, match="closed"):
                await waiting
        await wait_for_queue_length(server, 0)
        assert await lease.release()
        assert no_lock_state_left(server)


@both
async def test_queue_of_dead_waiters_ends_by_itself(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as client:
        lease = await client.lock("a").acquire()
        assert server.command("EXISTS", QUEUE) == 0
        with Agent(mode, server.url, "a", ttl=LONG) as dead:
            dead.acquire()
            await wait_for_queue_length(server, 1)
            dead.kill()
        # Longer than any claim in it, but not for ever.
        assert 2 * LONG * 1000 < left_ms(server, QUEUE) <= 600_000
        assert await lease.release()
        assert no_lock_state_left(server)


# -- connections that are cut --------------------------------------------------------------------------------------


@both
async def test_waiter_keeps_its_place_when_its_connection_is_cut(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as one, connected(mode, server.url, ttl=LONG) as two:
        lease = await one.lock("a").acquire()
        waiting = acquire_in_background(mode, two.lock("a"))
        await wait_for_queue_length(server, 1)
        (owner,) = waiters(server)
        before = claim_of(server, owner)
        for connection in subscribed_connections(server):
            server.command("CLIENT", "KILL", "ID", connection)
        await eventually_async(lambda: claim_of(server, owner) != before, what="a claim with another channel")
        assert waiters(server) == [owner]
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.owner == holder_on(server) == owner
        assert queue_length(server) == 0
        assert await heir.release()
        assert no_lock_state_left(server)


@both
async def test_waiter_whose_connection_is_cut_after_hand_over_has_the_lock(mode: str, server: Server) -> None:
    with Relay(server.url) as relay:
        async with connected(mode, server.url, ttl=LONG) as one, connected(mode, relay.url, ttl=LONG) as two:
            lease = await one.lock("a").acquire()
            waiting = acquire_in_background(mode, two.lock("a"))
            await wait_for_queue_length(server, 1)
            (owner,) = waiters(server)
            relay.replies.clear()
            assert await lease.release()
            assert holder_on(server) == owner
            assert not waiting.done()
            # The push is lost with the connection.
            relay.hang_up()
            relay.replies.set()
            heir = await asyncio.wait_for(waiting, SOON)
            before = left_ms(server)
            assert heir.owner == holder_on(server) == owner
            assert heir.remaining() * 1000 <= before
            assert heir.token > lease.token
            assert queue_length(server) == 0
            assert await heir.release()
            assert no_lock_state_left(server)


@pytest.mark.parametrize("mode", MODES)
def test_push_before_the_end_of_a_connection_counts_once(mode: str, server: Server) -> None:
    with (
        handfast.connect(server.url, ttl=LONG) as client,
        Agent(mode, server.url, "a", ttl=LONG) as agent,
    ):
        lease = client.lock("a").acquire()
        agent.acquire()
        eventually(lambda: queue_length(server) == 1)
        (owner,) = waiters(server)
        agent.stop()
        assert lease.release()
        for connection in subscribed_connections(server):
            server.command("CLIENT", "KILL", "ID", connection)
        agent.resume()
        assert agent.held(within=SOON).owner == owner == holder_on(server)
        assert queue_length(server) == 0
        assert agent.release()
        # Its release may have failed on the dead connection, and is repeated on another.
        eventually(lambda: no_lock_state_left(server))


@both
async def test_unanswered_claim_is_queued_once(mode: str, server: Server) -> None:
    """The claim is repeated on the same connection: if it were queued twice, it would get the lock twice."""
    with Relay(server.url) as relay:
        async with connected(mode, server.url, ttl=LONG) as one, connected(mode, relay.url, ttl=LONG) as two:
            patient, restless = two.lock("a"), two.lock("a", node_timeout=0.1)
            assert await (await patient.acquire()).release()
            lease = await one.lock("a").acquire()
            relay.replies.clear()
            before = call_count(server, "evalsha")
            waiting = acquire_in_background(mode, restless)
            await eventually_async(lambda: call_count(server, "evalsha") >= before + 2, what="it has asked twice")
            relay.replies.set()
            assert len(waiters(server)) == 1
            assert await lease.release()
            heir = await asyncio.wait_for(waiting, SOON)
            assert queue_length(server) == 0
            assert await heir.release()
            assert no_lock_state_left(server)


@both
async def test_slow_answers_are_contention_and_not_an_outage(mode: str, one: Server) -> None:
    """The first claim was answered, and there is no time for another reply."""
    with Proxy(one) as proxy:
        proxy.delay(0.3)
        async with connected(mode, one.url, ttl=LONG) as near, connected(mode, proxy.url, ttl=LONG) as far:
            await (await far.lock("b").acquire()).release()
            lease = await near.lock("a").acquire()
            with pytest.raises(Contended):
                await far.lock("a").acquire(wait=1.05)
            await lease.release()
        async with connected(mode, one.url, ttl=LONG) as near, connected(mode, proxy.url, ttl=LONG) as far:
            await (await far.lock("b").acquire()).release()
            lease = await near.lock("a").acquire()
            waiting = acquire_in_background(mode, far.lock("a"), wait=1.17)
            await wait_for_queue_length(one, 1)
            await lease.release()
            await (await asyncio.wait_for(waiting, SOON)).release()


@plain
async def test_queue_is_never_shortened(server: Server) -> None:
    options: Any = {"ttl": 2000, "max_ttl": 4000}
    async with connected("asyncio", server.url, **options) as one, connected("asyncio", server.url, **options) as two:
        lease = await one.lock("a").acquire()
        first = acquire_in_background("asyncio", two.lock("a", ttl=1500))
        await eventually_async(lambda: server.command("PTTL", KEY + ":q") > 3_500_000)  # type: ignore[operator]
        second = acquire_in_background("asyncio", one.lock("a", ttl=10))
        await wait_for_queue_length(server, 2)
        assert server.command("PTTL", KEY + ":q") > 3_500_000  # type: ignore[operator]
        await lease.release()
        await (await first).release()
        await (await second).release()


@both
async def test_push_that_arrives_after_the_lock_moved_on_does_not_count(mode: str, server: Server) -> None:
    """The waiter had the lock while its connection was silent; a later reply says that another owner has it."""
    with Relay(server.url) as relay:
        async with (
            connected(mode, server.url, ttl=LONG) as one,
            connected(mode, relay.url, node_timeout=0.2) as two,
            connected(mode, server.url, ttl=LONG) as three,
        ):
            lease = await one.lock("a", renew=False, ttl=1.2).acquire()
            waiting = acquire_in_background(mode, two.lock("a", ttl=0.3))
            await wait_for_queue_length(server, 1)
            # From now on nothing reaches it: neither the hand-over, nor the reply to its next claim.
            relay.replies.clear()
            assert await lease.release()
            late = holder_on(server)
            other = await three.lock("a").acquire(wait=SOON)
            assert other.owner == holder_on(server) != late
            await eventually_async(lambda: queue_length(server) == 1, what="it has claimed again, and is queued")
            relay.replies.set()
            for _ in range(40):
                assert not waiting.done(), f"{waiting.result()} though {other} is held"
                await asyncio.sleep(0.005)  # no synchronisation: time for a wrong step
            assert other.valid
            assert holder_on(server) == other.owner
            assert await other.release()
            heir = await asyncio.wait_for(waiting, SOON)
            assert heir.token > other.token
            assert await heir.release()


# -- the validity of a lease that was handed over --------------------------------------------------------------------


def sound(server: Server, lease: Any) -> None:
    """The client believes in it no longer than the server keeps it."""
    before = left_ms(server)
    mine = lease.remaining() * 1000
    assert holder_on(server) == lease.owner
    assert 0 < mine <= before


@both
async def test_handed_over_lease_ends_before_its_key(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as one, connected(mode, server.url) as two:
        for ttl in (0.4, 5.0, LONG):
            _lease, heir = await hand_over(mode, server, one.lock("a", ttl=LONG), two.lock("a", ttl=ttl, renew=False))
            sound(server, heir)
            # And it is still valid.
            assert heir.remaining() > ttl * 0.5 or ttl < 1
            assert await heir.release()


@both
async def test_late_push_does_not_prolong_the_lease(mode: str, server: Server) -> None:
    with Relay(server.url) as relay:
        async with connected(mode, server.url) as one, connected(mode, relay.url) as two:
            lease = await one.lock("a", ttl=LONG).acquire()
            waiting = acquire_in_background(mode, two.lock("a", ttl=5.0, renew=False))
            await wait_for_queue_length(server, 1)
            relay.replies.clear()
            assert await lease.release()
            await eventually_async(lambda: left_ms(server) < 4400)
            assert not waiting.done()
            relay.replies.set()
            heir = await asyncio.wait_for(waiting, SOON)
            sound(server, heir)
            assert await heir.release()


@both
async def test_lease_after_a_long_wait_ends_before_its_key(mode: str, server: Server) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, server.url)) for _ in range(4)]
        lease = await clients[0].lock("a", ttl=0.3).acquire()
        waiting: list[asyncio.Future[Any]] = []
        for client in clients[1:3]:
            waiting.append(acquire_in_background(mode, client.lock("a", ttl=0.3)))
            await wait_for_queue_length(server, len(waiting))
        last = acquire_in_background(mode, clients[3].lock("a", ttl=0.5, renew=False))
        await wait_for_queue_length(server, 3)
        owner = waiters(server)[-1]
        for waiter in [*waiting, last]:
            # The lease is renewed a few times, and the waiters repeat their claims.
            before = call_count(server, "evalsha")
            await eventually_async(lambda before=before: call_count(server, "evalsha") > before + 6)
            assert lease.valid
            assert waiters(server)[-1] == owner
            assert await lease.release()
            lease = await asyncio.wait_for(waiter, SOON)
        assert lease.owner == owner
        sound(server, lease)
        assert lease.remaining() > 0.3
        assert await lease.release()


@both
async def test_handed_over_lease_is_renewed(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as one, connected(mode, server.url) as two:
        _lease, heir = await hand_over(mode, server, one.lock("a", ttl=LONG), two.lock("a", ttl=0.9))
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            assert heir.valid
            assert holder_on(server) == heir.owner
            await asyncio.sleep(0.02)  # no synchronisation: it is watched for three times its ttl
        await heir.extend(ttl=LONG)
        assert LONG - 2 < heir.remaining() <= left_ms(server) / 1000
        assert await heir.release()
        assert no_lock_state_left(server)


@both
async def test_tokens_grow_over_hand_overs_expiries_and_barging(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as one, connected(mode, server.url) as two:
        lock, other = one.lock("a", ttl=LONG), two.lock("a", ttl=LONG)
        tokens: list[int] = []

        async def took(lease: Any) -> Any:
            tokens.append(lease.token)
            assert lease.owner == holder_on(server)
            return lease

        for _ in range(3):
            # A hand-over, and back.
            lease = await took(await lock.acquire())
            waiting = acquire_in_background(mode, other)
            await wait_for_queue_length(server, 1)
            assert await lease.release()
            lease = await took(await asyncio.wait_for(waiting, SOON))
            waiting = acquire_in_background(mode, one.lock("a", ttl=0.1, renew=False))
            await wait_for_queue_length(server, 1)
            assert await lease.release()
            # That one is left to expire.
            await took(await asyncio.wait_for(waiting, SOON))
            lease = await took(await other.acquire(wait=SOON))
            assert await lease.release()
            # an unfair caller, and one that does not wait
            lease = await took(await two.lock("a", ttl=LONG, fair=False).acquire())
            assert await lock.try_acquire() is None
            assert await lease.release()
            lease = await took(await lock.try_acquire())
            # one that leaves the queue and returns
            with pytest.raises(NotAcquired):
                await other.acquire(wait=0.02)
            waiting = acquire_in_background(mode, other)
            await wait_for_queue_length(server, 1)
            assert await lease.release()
            lease = await took(await asyncio.wait_for(waiting, SOON))
            assert await lease.release()
        assert tokens == sorted(set(tokens))


@both
async def test_fair_waiter_comes_after_a_barging_holder(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as one, connected(mode, server.url) as two:
        lease, heir = await hand_over(mode, server, one.lock("a", ttl=LONG, fair=False), two.lock("a", ttl=LONG))
        assert heir.token > lease.token
        assert await one.lock("a", ttl=LONG, fair=False).try_acquire() is None
        assert await heir.release()


@both
async def test_hand_over_without_tokens_leaves_no_key(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG, fence=False) as one:
        lease = await one.lock("a").acquire()
        async with connected(mode, server.url, ttl=LONG, fence=False) as two:
            waiting = acquire_in_background(mode, two.lock("a"))
            await wait_for_queue_length(server, 1)
            assert await lease.release()
            heir = await asyncio.wait_for(waiting, SOON)
            assert (heir.token, heir.owner) == (None, holder_on(server))
            assert await heir.release()
        assert server.command("DBSIZE") == 0


@both
async def test_hand_over_on_a_guarded_node(mode: str, server: Server) -> None:
    async with (
        connected(mode, server.url, ttl=LONG, guard=True) as one,
        connected(mode, server.url, ttl=LONG, guard=True) as two,
    ):
        await bootstrap(one)
        lease = await one.lock("a").acquire()
        assert await two.lock("a").try_acquire() is None
        waiting = acquire_in_background(mode, two.lock("a"))
        await wait_for_queue_length(server, 1)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.token > lease.token
        sound(server, heir)
        assert await heir.release()
        assert no_lock_state_left(server)


@pytest.mark.parametrize("wait", [0, 0.2])
@both
async def test_quarantined_node_is_named_in_the_error(mode: str, wait: float, one: Server) -> None:
    async with connected(mode, one.url, guard=True) as client:
        with pytest.raises(NoQuorum, match=r"restarted or new, no vote for another \d+"):
            await client.lock("a").acquire(wait=wait)
    assert no_lock_state_left(one)


@pytest.mark.parametrize(
    "words",
    [{"prefix": "p" * 1000}, {"cohort": 10**8}, {"ttl": 2.5e6, "max_ttl": 2.5e6}, {"label": "l" * 64}],
    ids=["prefix", "cohort", "ttl", "label"],
)
@both
async def test_longest_options_fit_into_a_claim(mode: str, words: dict[str, Any], server: Server) -> None:
    options: dict[str, Any] = {"ttl": LONG, **words}
    key = words.get("prefix", "handfast:") + "{a}"
    async with connected(mode, server.url, **options) as one, connected(mode, server.url, **options) as two:
        lease = await one.lock("a").acquire()
        waiting = acquire_in_background(mode, two.lock("a"))
        await eventually_async(lambda: server.command("ZCARD", key + ":q") == 1)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert server.command("GET", key) == heir.owner.encode()
        assert heir.token > lease.token
        assert heir.remaining() * 1000 <= left_ms(server, key) <= options["ttl"] * 1000
        assert await heir.release()


# -- servers that cannot push ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet_user(server: Server) -> Iterator[str]:
    """The URL of a user without the right to any channel."""
    server.command("ACL", "SETUSER", "quiet", "on", ">secret", "~*", "+@all", "resetchannels")
    try:
        yield server.url.replace("redis://", "redis://quiet:secret@")
    finally:
        server.command("ACL", "DELUSER", "quiet")


@both
async def test_user_without_channel_rights_polls_and_is_warned(
    mode: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with quiet_user(server) as url:
        async with connected(mode, url, ttl=LONG) as quiet, connected(mode, server.url, ttl=LONG) as client:
            lease = await client.lock("a").acquire()
            waiting = acquire_in_background(mode, quiet.lock("a"))
            await eventually_async(lambda: "waiters poll there" in caplog.text)
            assert queue_length(server) == 0
            assert await lease.release()
            heir = await asyncio.wait_for(waiting, SOON)
            assert heir.token > lease.token
            assert await heir.release()
    assert no_lock_state_left(server)


@both
async def test_user_without_ping_right_waits_in_queue(mode: str, server: Server) -> None:
    """A refused command behind the subscription once shifted all later replies by one."""
    server.command("ACL", "SETUSER", "terse", "on", ">secret", "~*", "&*", "+@all", "-ping")
    try:
        url = server.url.replace("redis://", "redis://terse:secret@")
        async with connected(mode, url, ttl=LONG) as terse, connected(mode, server.url, ttl=LONG) as client:
            lease = await client.lock("a").acquire()
            waiting = acquire_in_background(mode, terse.lock("a"))
            await wait_for_queue_length(server, 1)
            assert await lease.release()
            heir = await asyncio.wait_for(waiting, SOON)
            assert await heir.release()
    finally:
        server.command("ACL", "DELUSER", "terse")
    assert no_lock_state_left(server)


@both
async def test_user_without_channel_rights_does_not_block_waiters(mode: str, server: Server) -> None:
    """Its release cannot push to the next waiter, which must still notice it."""
    with quiet_user(server) as url:
        async with connected(mode, url, ttl=1.0) as quiet, connected(mode, server.url, ttl=LONG) as client:
            lease = await quiet.lock("a").try_acquire()
            waiting = acquire_in_background(mode, client.lock("a"))
            await wait_for_queue_length(server, 1)
            assert await lease.release()
            heir = await asyncio.wait_for(waiting, 1.0 + SOON)
            assert await heir.release()
    assert no_lock_state_left(server)


@both
async def test_server_without_resp3_is_polled(mode: str, any_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with Server(any_server.binary, config={"rename-command": "HELLO NOHELLO"}) as server:
        async with connected(mode, server.url, ttl=LONG) as one, connected(mode, server.url, ttl=LONG) as two:
            lease = await one.lock("a").acquire()
            waiting = acquire_in_background(mode, two.lock("a"))
            await eventually_async(lambda: "waiters poll there" in caplog.text)
            assert queue_length(server) == 0
            assert await lease.release()
            heir = await asyncio.wait_for(waiting, SOON)
            assert heir.token > lease.token
            assert await heir.release()
            assert no_lock_state_left(server)


@both
async def test_reentrant_lock_is_handed_over_by_its_last_release(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client, connected(mode, one.url, ttl=LONG) as other:
        lock = client.rlock("a")
        outer = await lock.acquire()
        inner = await lock.acquire()
        assert (inner.token, inner.owner) == (outer.token, outer.owner)
        waiting = acquire_in_background(mode, other.lock("a"))
        await wait_for_queue_length(one, 1)
        assert await inner.release()
        assert holder_on(one) == outer.owner
        assert await outer.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.token > outer.token
        assert await heir.release()
