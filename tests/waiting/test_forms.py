"""No form of lock can be starved by another form on the same name: a test for each pair of forms.

Two clients of one form acquire and release without a pause, each with two tasks or threads. A third client wants the
same name in another form, or in the same one. It gets the lock soon, again and again, and never together with another.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import handfast
from handfast.testing import Server, Servers, available
from tests.support.eventually import eventually, eventually_async
from tests.support.queues import (
    LONG,
    SOON,
    acquire_in_background,
    hand_over,
    holder_on,
    no_lock_state_left,
    wait_for_queue_length,
)
from tests.support.sync_and_async import bootstrap, both, connected, plain
from tests.support.waiters import commands_executed

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"ttl": LONG, "node_timeout": 1.0}
Form = Callable[[Any, int], Any]
FORMS: dict[str, Form] = {
    "plain": lambda client, number: client.lock("a"),
    "unfenced": lambda client, number: client.lock("a", fence=False),
    "several names": lambda client, number: client.lock(["a", "b"]),
    "explicit owner": lambda client, number: client.lock("a", owner=f"job {number}"),
    "replicas": lambda client, number: client.lock("a", replicas=1),
    "durable": lambda client, number: client.lock("a", durable=True),
    "cohort": lambda client, number: client.lock("a", cohort=3),
    "reentrant": lambda client, number: client.rlock("a"),
    "barging": lambda client, number: client.lock("a", fair=False),
}
"""A lock on `a` in each form, for the client with this number."""
PAIRS = list(itertools.product(FORMS, FORMS))
WITH_PLAIN = [pair for pair in PAIRS if "plain" in pair]
TURNS = 3
"""How often the lock must be had beside the rivals."""


@pytest.fixture(scope="module")
def _copied() -> Iterator[Server]:
    """A server with a replica, which writes to its disk at once: all forms of lock work there."""
    modern = [binary for kind, binary in available().items() if kind.startswith("valkey")]
    if not modern:
        pytest.skip("durable=True needs WAITAOF, and no server here has it")
    with (
        Server(modern[0], config={"appendonly": "yes", "appendfsync": "always"}) as master,
        Server(modern[0], replica_of=master) as replica,
    ):
        eventually(lambda: replica.info("master_link_status") == "up", within=10)
        yield master


@pytest.fixture
def copied(_copied: Server) -> Server:
    _copied.command("FLUSHALL")
    return _copied


class Record:
    """The present holder, and how often rivals held the lock. Fails if two hold it at once, or tokens do not grow."""

    def __init__(self) -> None:
        self.rivals = 0
        self._inside = ""
        self._token = 0

    def took(self, lease: Any, who: str) -> None:
        assert not self._inside, f"{who} has the lock together with {self._inside}"
        self._inside = who
        if lease.token is not None:
            assert lease.token > self._token
            self._token = lease.token

    def ends(self) -> None:
        self._inside = ""


async def take_turns(mode: str, servers: str | list[str], greedy: Form, patient: Form) -> None:
    record, ended = Record(), asyncio.Event()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, servers, **OPTIONS)) for _ in range(3)]

        async def rival(number: int) -> None:
            lock = greedy(clients[number % 2], number)
            while not ended.is_set():
                lease = await acquire_in_background(mode, lock, wait=LONG)
                record.took(lease, f"rival {number}")
                record.rivals += 1
                await asyncio.sleep(0)
                record.ends()
                assert await lease.release()

        rivals = [asyncio.create_task(rival(number)) for number in range(4)]
        try:
            await eventually_async(lambda: record.rivals > 4 or any(task.done() for task in rivals), within=5)
            lock = patient(clients[2], 9)
            for _ in range(TURNS):
                lease = await acquire_in_background(mode, lock, wait=SOON)
                record.took(lease, "the patient one")
                record.ends()
                assert await lease.release()
        finally:
            ended.set()
            await asyncio.wait_for(asyncio.gather(*rivals), LONG)
        assert record.rivals >= TURNS, "the rivals had their turns too"


@pytest.mark.parametrize(("greedy", "patient"), PAIRS)
@plain
async def test_no_form_starves_another_on_one_node(greedy: str, patient: str, copied: Server) -> None:
    await take_turns("asyncio", copied.url, FORMS[greedy], FORMS[patient])
    await eventually_async(lambda: no_lock_state_left(copied))


@pytest.mark.parametrize(("greedy", "patient"), WITH_PLAIN)
@plain
async def test_no_form_starves_another_with_threads(greedy: str, patient: str, copied: Server) -> None:
    await take_turns("threads", copied.url, FORMS[greedy], FORMS[patient])
    await eventually_async(lambda: no_lock_state_left(copied))


@pytest.fixture(scope="module")
def _durable_three() -> Iterator[Servers]:
    modern = [binary for kind, binary in available().items() if kind.startswith("valkey")]
    if not modern:
        pytest.skip("durable=True needs WAITAOF, and no server here has it")
    with Servers(3, modern[0], config={"appendonly": "yes", "appendfsync": "always"}) as servers:
        yield servers


@pytest.fixture
def durable_three(_durable_three: Servers) -> Servers:
    """Three empty nodes that are open for votes."""
    for node in _durable_three:
        node.command("FLUSHALL")
    with handfast.connect(_durable_three.urls, node_timeout=5.0) as client:
        handfast.bootstrap(client)
    return _durable_three


@pytest.mark.parametrize(("greedy", "patient"), [pair for pair in WITH_PLAIN if "replicas" not in pair])
@plain
async def test_no_form_starves_another_on_three_nodes(greedy: str, patient: str, durable_three: Servers) -> None:
    await take_turns("asyncio", durable_three.urls, FORMS[greedy], FORMS[patient])
    await eventually_async(lambda: no_lock_state_left(*durable_three))


# -- several names -------------------------------------------------------------------------------------------------------


@both
async def test_several_names_wait_for_each_name_in_turn(mode: str, server: Server) -> None:
    """A waiter for two names holds the first one while it queues for the second one."""
    async with AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(connected(mode, server.url, ttl=LONG)) for _ in range(3)]
        first, second = await one.lock("a").acquire(), await one.lock("b").acquire()
        waiting = acquire_in_background(mode, two.lock(["b", "a"]))
        await wait_for_queue_length(server, 1)
        assert await first.release()
        await wait_for_queue_length(server, 1, "handfast:{b}")
        assert await three.lock("a").try_acquire() is None
        assert await second.release()
        lease = await asyncio.wait_for(waiting, SOON)
        assert lease.token > max(first.token, second.token)
        next_one = acquire_in_background(mode, three.lock("b"))
        await wait_for_queue_length(server, 1, "handfast:{b}")
        assert await lease.release()
        heir = await asyncio.wait_for(next_one, SOON)
        assert heir.token > lease.token
        assert await heir.release()
        assert no_lock_state_left(server)
        assert no_lock_state_left(server, key="handfast:{b}")


@both
async def test_crossing_names_do_not_deadlock(mode: str, server: Server) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, server.url, ttl=LONG)) for _ in range(3)]

        async def turns(client: Any, names: list[str]) -> None:
            for _ in range(15):
                lease = await acquire_in_background(mode, client.lock(names), wait=5)
                assert await lease.release()

        pairs = (["a", "b"], ["c", "b"], ["c", "a"])
        await asyncio.gather(*[turns(client, names) for client, names in zip(clients, pairs, strict=True)])
        for name in "abc":
            await eventually_async(lambda name=name: no_lock_state_left(server, key=f"handfast:{{{name}}}"))


@both
async def test_waiter_for_several_names_that_times_out_gives_back_what_it_has(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as one, connected(mode, server.url, ttl=LONG) as two:
        held = await one.lock("b").acquire()
        waiting = acquire_in_background(mode, two.lock(["a", "b"]), wait=0.7)
        await wait_for_queue_length(server, 1, "handfast:{b}")
        assert holder_on(server), "it has the first name and waits for the second one"
        with pytest.raises(handfast.Contended):
            await waiting
        await eventually_async(lambda: no_lock_state_left(server))
        assert await held.release()
        assert no_lock_state_left(server, key="handfast:{b}")


@both
async def test_release_of_several_names_follows_a_restored_vote(mode: str, three: Servers) -> None:
    """The watchdog has restored it on its own connection, so the watchdog releases once more behind that."""
    async with connected(mode, three.urls, ttl=1.5) as one, connected(mode, three.urls, ttl=1.5) as two:
        await bootstrap(one)
        held = await one.lock("b").acquire()
        waiting = acquire_in_background(mode, two.lock(["a", "b"]))
        key, scripts = "handfast:{a}", lambda: commands_executed(three[0])["evalsha"]
        await eventually_async(lambda: three[0].command("EXISTS", key) == 1)
        three[0].command("DEL", key)
        await eventually_async(lambda: three[0].command("EXISTS", key) == 1, what="the vote is restored")
        assert await held.release()
        lease = await asyncio.wait_for(waiting, SOON)
        before = scripts()
        assert await lease.release()
        # One release for each name by the caller, and one by the watchdog.
        await eventually_async(lambda: scripts() >= before + 4, what="the release is repeated")


@both
async def test_cohort_hands_several_names_over(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as client:
        lock = client.lock(["a", "b"], cohort=3)
        lease, heir = await hand_over(mode, server, lock, lock)
        assert heir.owner == lease.owner
        assert heir.token > lease.token
        assert await heir.release()
        await eventually_async(lambda: no_lock_state_left(server))
        assert no_lock_state_left(server, key="handfast:{b}")


# -- explicit owners, copies ---------------------------------------------------------------------------------------------


@both
async def test_explicit_owner_reenters_though_others_wait(mode: str, server: Server) -> None:
    """Waiters of the same client and of another one do not keep an owner from what it holds."""
    async with connected(mode, server.url, ttl=LONG) as client, connected(mode, server.url, ttl=LONG) as other:
        lock = client.lock("a", owner="job 42")
        outer = await lock.acquire()
        waiting = [acquire_in_background(mode, client.lock("a"))]
        await wait_for_queue_length(server, 1)
        waiting.append(acquire_in_background(mode, other.lock("a")))
        await wait_for_queue_length(server, 2)
        inner = await acquire_in_background(mode, lock, wait=SOON)
        assert inner.owner == outer.owner == "job 42"
        assert await inner.release()
        assert not any(waiter.done() for waiter in waiting)
        assert await outer.release()
        for waiter in waiting:
            assert await (await asyncio.wait_for(waiter, SOON)).release()
        await eventually_async(lambda: no_lock_state_left(server))


@both
async def test_waiter_without_replica_confirmation_lets_others_go_first(mode: str, one: Server) -> None:
    """The server has no replica. A waiter that needs one must not keep the lock from waiters that do not."""
    async with AsyncExitStack() as stack:
        first, strict, other = [await stack.enter_async_context(connected(mode, one.url, ttl=LONG)) for _ in range(3)]
        lease = await first.lock("a").acquire()
        hopeless = acquire_in_background(mode, strict.lock("a", replicas=1, node_timeout=0.05), wait=1)
        await wait_for_queue_length(one, 1)
        waiting = acquire_in_background(mode, other.lock("a"))
        await wait_for_queue_length(one, 2)
        assert await lease.release()
        assert await (await asyncio.wait_for(waiting, SOON)).release()
        with pytest.raises(handfast.NoQuorum, match=r"replicas confirmed|copies are not confirmed"):
            await hopeless
        await eventually_async(lambda: no_lock_state_left(one))
