"""Both drivers send the same bytes for the same replies (invariant 15 of SAFETY).

Each operation of the core runs twice against the same servers in the same state, once over blocking sockets and once on
a loop, through relays that write down what each connection carried. Of three nodes the last one answers late, always:
otherwise it would be chance who is heard before the outcome is certain, and what is undone follows from that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from handfast import lua
from handfast.core import fair, guard, mutex, waiting
from handfast.core.commands import Request
from handfast.core.group import Group
from handfast.core.handshake import Steps, handshake
from handfast.core.hold import Hold
from handfast.core.line import Lines
from handfast.core.quorum import Ballot
from handfast.core.resp import encode
from handfast.core.terms import Settings, Terms
from handfast.discovery.urls import parse
from handfast.errors import Contended, NoQuorum
from handfast.net import clock, connection
from handfast.net.aio import AsyncIO
from handfast.net.threads import ThreadIO, run
from handfast.net.wakeup import ThreadWakeup
from handfast.options import policy
from handfast.testing import Server, Servers, available
from tests.support.eventually import eventually
from tests.support.tcp_relay import Relay

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

Scenario = Callable[[Any, Group], Awaitable[Any]]
WALL = 1_800_000_000_000_000


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a seal asks for promotions depends on how long a connection has rested; here only the first one does."""
    monkeypatch.setattr(connection, "REST", 1e9)
    monkeypatch.setattr(connection, "_random", bytes)


class Kept:
    """A keeper that hands out the hold itself."""

    def _granted(self, hold: Hold) -> Hold:
        return hold

    def _ending(self, hold: Hold) -> None: ...
    def _unfinished(self, hold: Hold) -> None: ...
    def _letting_go(self, hold: Hold, now: float) -> None: ...
    def _let_go(self, hold: Hold, others: bool) -> None: ...

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float) -> Awaitable[Any]:
        raise AssertionError("who waits here stands at the head of a line already")


KEPT = Kept()


async def take(io: Any, group: Group, *names: str, owner: bytes | None = None, **options: Any) -> Hold:
    settings = Settings(group, policy(options, group.policy), b"host:1::")
    hold: Hold = await mutex.acquire(io, Request(settings, names, owner), settings.terms, 0, KEPT)
    return hold


# -- what is done ------------------------------------------------------------------------------------------------------


async def fenced(io: Any, group: Group) -> Any:
    hold = await take(io, group, "a")
    await mutex.extend(io, hold, 7.0)
    return await mutex.release(io, hold, KEPT)


async def unfenced(io: Any, group: Group) -> Any:
    hold = await take(io, group, "a", fence=False)
    await mutex.extend(io, hold, 7.0)
    return await mutex.release(io, hold, KEPT)


async def published(io: Any, group: Group) -> Any:
    hold = await take(io, group, "a", fence=False, prefix="")
    return await mutex.release(io, hold, KEPT)


async def several(io: Any, group: Group) -> Any:
    hold = await take(io, group, "a", "b", "c")
    await mutex.extend(io, hold, 7.0)
    return await mutex.release(io, hold, KEPT)


async def contended(io: Any, group: Group) -> Any:
    hold = await take(io, group, "a")
    for options in ({}, {"fence": False}):
        with contextlib.suppress(Contended):
            await take(io, group, "a", **options)
    return await mutex.release(io, hold, KEPT)


async def contended_in_part(io: Any, group: Group) -> Any:
    hold = await take(io, group, "b")
    with contextlib.suppress(Contended):
        await take(io, group, "a", "b")
    return await mutex.release(io, hold, KEPT)


async def reentered(io: Any, group: Group) -> Any:
    await take(io, group, "a", owner=b"job-42")
    hold = await take(io, group, "a", owner=b"job-42")
    return await mutex.release(io, hold, KEPT)


async def refused_by_a_wrong_key(io: Any, group: Group) -> Any:
    """An error from every node, and the undoing."""
    with contextlib.suppress(NoQuorum):
        await take(io, group, "list")
    return None


async def copied(io: Any, group: Group) -> Any:
    """Nobody has replicas here: granted, not confirmed, taken back."""
    with contextlib.suppress(NoQuorum):
        await take(io, group, "a", replicas=1, node_timeout=0.2)
    return None


async def cohort(io: Any, group: Group) -> Any:
    """More tokens at once, and at the end the question whether others wait."""
    hold = await take(io, group, "a", cohort=7)
    return await mutex.release(io, hold, KEPT)


async def waited_for(io: Any, group: Group) -> Any:
    """One look, with the wish to be told; and in vain."""
    hold = await take(io, group, "a")
    for options in ({}, {"cohort": 3}):
        settings = Settings(group, policy(options, group.policy), b"host:2::")
        lines = Lines(contextlib.nullcontext(), lambda text: None, lambda place, seconds, outcome: None)
        bell = ThreadWakeup() if isinstance(io, ThreadIO) else io.bell()
        place = lines.join(Request(settings, "a", None), settings.terms, bell, io.now(), 0.2, "me")
        with pytest.raises(Contended) as raised:
            await waiting.at_the_head(io, lines, place, KEPT)
        assert raised.value.holder == hold.owner.decode()
        lines.leave(place)
    return await mutex.release(io, hold, KEPT)


async def fairly(io: Any, group: Group) -> Any:
    settings = Settings(group, policy({"fair": True}, group.policy), b"host:1::")
    request = Request(settings, "a", None)
    hold = await fair.try_acquire(io, request, settings.terms, KEPT)
    with pytest.raises(Contended):
        await fair.try_acquire(io, request, settings.terms, KEPT)
    await mutex.extend(io, hold, 7.0)
    return await mutex.release(io, hold, KEPT)


async def surveyed(io: Any, group: Group) -> Any:
    await guard.repair(io, group)
    return group.voters()


async def many(io: Any, group: Group) -> Any:
    holds = [await take(io, group, f"n{i}") for i in range(20)]
    return [await mutex.release(io, hold, KEPT) for hold in holds]


SCENARIOS: tuple[Scenario, ...] = (
    fenced,
    unfenced,
    published,
    several,
    contended,
    contended_in_part,
    reentered,
    refused_by_a_wrong_key,
    copied,
    cohort,
    waited_for,
    many,
)


# -- how it is compared ------------------------------------------------------------------------------------------------


class Stage:
    """Servers behind relays, and the state in which each performance begins."""

    def __init__(self, servers: list[Server], guarded: bool, stack: ExitStack) -> None:
        self.servers = servers
        self.guarded = guarded
        self.relays = [stack.enter_context(Relay(server.url)) for server in servers]
        self.addresses = [parse(relay.url) for relay in self.relays]
        self.markers: list[Any] = []
        for server in servers:
            server.command("FLUSHALL")
        if guarded:
            self._open()
            self.markers = [server.command("GET", "handfast:guard") for server in servers]

    def group(self) -> Group:
        return Group([a.label for a in self.addresses], policy({"node_timeout": 5.0}), guard=self.guarded)

    def shake(self, group: Group) -> Callable[[int], Steps]:
        return lambda i: handshake(group, group.nodes[i], self.addresses[i].login(), clock.now, lambda text: None)

    def _open(self) -> None:
        group = self.group()
        driver = ThreadIO(group, self.addresses, self.shake(group))
        assert set(run(guard.bootstrap(driver, group)).values()) == {"opened"}
        driver.close()

    def reset(self) -> None:
        """The state that both find."""
        for i, server in enumerate(self.servers):
            server.command("FLUSHALL")
            server.command("RPUSH", "handfast:{list}", "x")
            if self.guarded:
                server.command("SET", "handfast:guard", self.markers[i])
        for relay in self.relays:
            relay.punctual()
            eventually(lambda relay=relay: not relay.connections)
            relay.sent.clear()

    def recorded(self) -> list[list[bytes]]:
        return [[bytes(stream) for stream in relay.sent] for relay in self.relays]

    async def perform(self, io: Any, group: Group, scenario: Scenario) -> tuple[Any, list[list[bytes]]]:
        serial = iter(range(10_000))
        io.nonce = lambda: b"%032x" % next(serial)
        io.wall = lambda: WALL
        await io.settle(group.n, 5.0)
        if group.n > 1:
            self.relays[-1].answers_late = True
        result = await scenario(io, group)
        # Everything before this has arrived when this is answered.
        self.relays[-1].punctual()
        poll = Ballot(group.n, group.n)
        await io.exchange([encode(b"PING")] * group.n, poll, 5.0)
        assert poll.yeses == group.n, poll.answers
        return result, self.recorded()

    def by_threads(self, scenario: Scenario) -> tuple[Any, list[list[bytes]]]:
        self.reset()
        group = self.group()
        io = ThreadIO(group, self.addresses, self.shake(group))
        try:
            return run(self.perform(io, group, scenario))
        finally:
            io.close()

    def by_asyncio(self, scenario: Scenario) -> tuple[Any, list[list[bytes]]]:
        self.reset()

        async def main() -> tuple[Any, list[list[bytes]]]:
            group = self.group()
            io = AsyncIO(group, self.addresses, self.shake(group), asyncio.get_running_loop())
            try:
                return await self.perform(io, group, scenario)
            finally:
                await io.close()

        return asyncio.run(main())


@pytest.fixture(scope="module")
def trio() -> Iterator[Servers]:
    with Servers(3) as servers:
        yield servers


STAGES = [
    pytest.param((1, False), id="one node"),
    pytest.param((1, True), id="one node, guarded"),
    pytest.param((3, False), id="three nodes"),
    pytest.param((3, True), id="three nodes, guarded"),
]


@pytest.fixture(scope="module", params=STAGES)
def stage(request: pytest.FixtureRequest, trio: Servers) -> Iterator[Stage]:
    count, guarded = request.param
    with ExitStack() as stack:
        yield Stage(trio.nodes[:count], guarded, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.replace("_", " "))
def test_both_drivers_send_the_same_bytes_for_the_same_replies(stage: Stage, scenario: Scenario) -> None:
    result, sent = stage.by_threads(scenario)
    assert stage.by_asyncio(scenario) == (result, sent)
    assert all(len(streams) == 1 for streams in sent), "one connection to each node"
    assert all(stream.endswith(encode(b"PING")) for (stream,) in sent)


@pytest.mark.parametrize("guarded", [False, True], ids=["one node", "one node, guarded"])
def test_a_fair_lock_asks_the_same_of_both(trio: Servers, guarded: bool) -> None:
    with ExitStack() as stack:
        stage = Stage(trio.nodes[:1], guarded, stack)
        assert stage.by_threads(fairly) == stage.by_asyncio(fairly)


def test_the_guard_asks_the_same_of_both(trio: Servers) -> None:
    with ExitStack() as stack:
        stage = Stage(trio.nodes[:1], True, stack)
        assert stage.by_threads(surveyed) == stage.by_asyncio(surveyed)


@pytest.mark.parametrize("kind", [kind for kind in available() if kind != "valkey-9.1"])
def test_the_same_holds_where_all_is_scripts(kind: str) -> None:
    with Server(available()[kind]) as server, ExitStack() as stack:
        stage = Stage([server], False, stack)
        for scenario in (fenced, unfenced, contended, several, cohort, waited_for, fairly):
            assert stage.by_threads(scenario) == stage.by_asyncio(scenario)


def test_scripts_forgotten_in_the_middle_are_loaded_in_the_same_place(trio: Servers) -> None:
    with ExitStack() as stack:
        stage = Stage(trio.nodes[:1], False, stack)

        async def forgetful(io: Any, group: Group) -> Any:
            stage.servers[0].command("SCRIPT", "FLUSH")
            hold = await take(io, group, "a", "b")
            stage.servers[0].command("SCRIPT", "FLUSH")
            return await mutex.release(io, hold, KEPT)

        result, sent = stage.by_threads(forgetful)
        assert (result, sent) == stage.by_asyncio(forgetful)
        assert sent[0][0].count(b"LOAD\r\n") == 3 * len(lua.NAMES)
