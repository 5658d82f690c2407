"""Both drivers send the same bytes for the same replies (invariant 15 in docs/evidence.md).

Each operation of the core runs twice against the same servers in the same state, once over blocking sockets and once on
an event loop. Relays record what each connection carried. Of three nodes the last one always answers late. Otherwise
the replies before the decision would differ from run to run, and with them the withdrawals.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from handfast.backoff import steady
from handfast.core import guard, inspect
from handfast.core.acquire import acquire
from handfast.core.config import LockConfig, LockRequest
from handfast.core.handshake import Steps, handshake
from handfast.core.hold import Hold
from handfast.core.local_queue import Acquisition
from handfast.core.nodes import NodeGroup
from handfast.core.release import release
from handfast.core.renew import extend
from handfast.core.votes import Ballot
from handfast.discovery.urls import parse
from handfast.errors import Contended, NoQuorum
from handfast.net import clock, connection
from handfast.net.aio import AsyncIO
from handfast.net.threads import ThreadAccess, ThreadIO, run
from handfast.options import policy
from handfast.protocol.resp import encode
from handfast.protocol.scripts import NAMES, load_scripts
from handfast.testing import Server, Servers, available
from tests.support.eventually import eventually
from tests.support.fake_io import fake_queues
from tests.support.tcp_relay import Relay

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

Scenario = Callable[[Any, NodeGroup], Awaitable[Any]]
WALL = 1_900_000_000_000_000
SERVER_TIME = re.compile(rb"\$16\r\n1[78]\d{14}\r\n")
"""A ticket or a stamp: the time of a server, which differs from run to run."""
WAIT = 0.4
"""Seconds for which a scenario waits without success."""


@pytest.fixture(autouse=True)
def _known_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of channels are random; here all are replaced by one."""
    monkeypatch.setattr(connection, "os", SimpleNamespace(urandom=bytes))


class Borrowed(ThreadAccess):
    """The Access to one ThreadIO."""

    def __init__(self, io: ThreadIO) -> None:
        self._io = io

    def borrow(self) -> ThreadIO:
        return self._io

    def give_back(self, io: Any) -> None: ...


async def take(
    io: Any, group: NodeGroup, *names: str, owner: bytes | None = None, wait: float = 0, **options: Any
) -> Hold:
    config = LockConfig(group, policy(options, group.policy), b"host:1::")
    acquisition = Acquisition(LockRequest(config, names, owner), config.timing, wait, io.now())
    access = Borrowed(io) if isinstance(io, ThreadIO) else io
    return await acquire(access, fake_queues(), acquisition)


async def take_without_success(io: Any, group: NodeGroup, *names: str, **options: Any) -> None:
    with pytest.raises(Contended):
        await take(io, group, *names, **options)


# -- what is done ------------------------------------------------------------------------------------------------------


async def fenced(io: Any, group: NodeGroup) -> Any:
    hold = await take(io, group, "a")
    await extend(io, hold, 7.0)
    return await release(io, hold)


async def unfenced(io: Any, group: NodeGroup) -> Any:
    hold = await take(io, group, "a", fence=False)
    await extend(io, hold, 7.0)
    return await release(io, hold)


async def published(io: Any, group: NodeGroup) -> Any:
    hold = await take(io, group, "a", fence=False, prefix="")
    return await release(io, hold)


async def several(io: Any, group: NodeGroup) -> Any:
    hold = await take(io, group, "a", "b", "c")
    await extend(io, hold, 7.0)
    return await release(io, hold)


async def contended(io: Any, group: NodeGroup) -> Any:
    hold = await take(io, group, "a")
    for options in ({}, {"fence": False}, {"fair": False}):
        await take_without_success(io, group, "a", **options)
    return await release(io, hold)


async def contended_in_part(io: Any, group: NodeGroup) -> Any:
    hold = await take(io, group, "b")
    await take_without_success(io, group, "a", "b")
    return await release(io, hold)


async def reentered(io: Any, group: NodeGroup) -> Any:
    first = await take(io, group, "a", owner=b"job-42")
    second = await take(io, group, "a", owner=b"job-42")
    return [await release(io, second), await release(io, first)]


async def refused_by_a_wrong_key(io: Any, group: NodeGroup) -> Any:
    """An error from every node, and the withdrawal."""
    with contextlib.suppress(NoQuorum):
        await take(io, group, "list")
    return None


async def copied(io: Any, group: NodeGroup) -> Any:
    """There are no replicas here: granted, not confirmed, taken back."""
    with contextlib.suppress(NoQuorum):
        await take(io, group, "a", replicas=1, node_timeout=0.2)
    return None


async def cohort(io: Any, group: NodeGroup) -> Any:
    """More tokens at once."""
    hold = await take(io, group, "a", cohort=7)
    return await release(io, hold)


async def queued(io: Any, group: NodeGroup) -> Any:
    """A wait in the queues of the nodes that times out."""
    hold = await take(io, group, "a")
    for options in ({}, {"cohort": 3}, {"fair": False}):
        await take_without_success(io, group, "a", wait=WAIT, **options)
    return await release(io, hold)


async def queued_for_several(io: Any, group: NodeGroup) -> Any:
    """The first name is free, the second is not."""
    hold = await take(io, group, "b")
    await take_without_success(io, group, "a", "b", wait=5 * WAIT)
    return await release(io, hold)


async def tracked(io: Any, group: NodeGroup) -> Any:
    """A wait for a key of another program that times out."""
    hold = await take(io, group, "a", fence=False, prefix="")
    await take_without_success(io, group, "a", fence=False, prefix="", wait=WAIT)
    return await release(io, hold)


async def repeated(io: Any, group: NodeGroup) -> Any:
    """Attempts with pauses between them."""
    hold = await take(io, group, "a")
    await take_without_success(io, group, "a", wait=5.0, tries=3, backoff=steady(0.01))
    return await release(io, hold)


async def inspected(io: Any, group: NodeGroup) -> Any:
    config = LockConfig(group, group.policy, b"host:1::")
    request = LockRequest(config, ("a",))
    hold = await take(io, group, "a")
    holder = await inspect.holder(io, request)
    assert holder is not None
    waiters = await inspect.waiters(io, request, str, ["me"])
    return [holder.owner, waiters, await release(io, hold)]


async def surveyed(io: Any, group: NodeGroup) -> Any:
    await guard.repair(io, group)
    return group.voters()


async def many(io: Any, group: NodeGroup) -> Any:
    holds = [await take(io, group, f"n{i}") for i in range(20)]
    return [await release(io, hold) for hold in holds]


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
    queued,
    queued_for_several,
    tracked,
    repeated,
    many,
)


# -- how it is compared ------------------------------------------------------------------------------------------------


class Deployment:
    """Servers behind relays, and the state in which each run begins."""

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

    def group(self) -> NodeGroup:
        group = NodeGroup([a.label for a in self.addresses], policy({"node_timeout": 5.0}), guard=self.guarded)
        if self.guarded:
            guard.install(group)
            assert isinstance(group.check, guard.VoteCheck)
            # Otherwise the time that a run takes decides which requests are preceded by a confirmation.
            group.check.confirmed_for = float("inf")
        return group

    def shake(self, group: NodeGroup) -> Callable[[int], Steps]:
        return lambda i: handshake(group, group.nodes[i], self.addresses[i].login(), clock.now, lambda text: None)

    def _open(self) -> None:
        group = self.group()
        driver = ThreadIO(group, self.addresses, self.shake(group))
        assert set(run(guard.bootstrap(driver, group)).values()) == {"opened"}
        driver.close()

    def reset(self) -> None:
        """The state in which both runs begin."""
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
        return [[SERVER_TIME.sub(b"$TIME", bytes(stream)) for stream in relay.sent] for relay in self.relays]

    async def execute(self, io: Any, group: NodeGroup, scenario: Scenario) -> tuple[Any, list[list[bytes]]]:
        serial = iter(range(10_000))
        io.nonce = lambda: b"%032x" % next(serial)
        io.wall = lambda: WALL
        io.random = lambda: 0.5
        await io.connect(group.n, 5.0)
        if group.n > 1:
            # Beforehand: whether a late answer to it comes before or after the next step would be chance.
            await io.subscribe(5.0)
            self.relays[-1].answers_late = True
        result = await scenario(io, group)
        # Everything before this has arrived when this is answered.
        self.relays[-1].punctual()
        ballot = Ballot(group.n, group.n)
        await io.broadcast([encode(b"PING")] * group.n, ballot, 5.0)
        assert ballot.yeses == group.n, ballot.answers
        return result, self.recorded()

    def by_threads(self, scenario: Scenario) -> tuple[Any, list[list[bytes]]]:
        self.reset()
        group = self.group()
        io = ThreadIO(group, self.addresses, self.shake(group))
        try:
            return run(self.execute(io, group, scenario))
        finally:
            io.close()

    def by_asyncio(self, scenario: Scenario) -> tuple[Any, list[list[bytes]]]:
        self.reset()

        async def main() -> tuple[Any, list[list[bytes]]]:
            group = self.group()
            io = AsyncIO(group, self.addresses, self.shake(group), asyncio.get_running_loop())
            try:
                return await self.execute(io, group, scenario)
            finally:
                await io.close()

        return asyncio.run(main())


@pytest.fixture(scope="module")
def trio() -> Iterator[Servers]:
    with Servers(3) as servers:
        yield servers


DEPLOYMENTS = [
    pytest.param((1, False), id="one node"),
    pytest.param((1, True), id="one node, guarded"),
    pytest.param((3, False), id="three nodes"),
    pytest.param((3, True), id="three nodes, guarded"),
]


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest, trio: Servers) -> Iterator[Deployment]:
    count, guarded = request.param
    with ExitStack() as stack:
        yield Deployment(trio.nodes[:count], guarded, stack)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.replace("_", " "))
def test_both_drivers_send_the_same_bytes_for_the_same_replies(deployment: Deployment, scenario: Scenario) -> None:
    result, sent = deployment.by_threads(scenario)
    assert deployment.by_asyncio(scenario) == (result, sent)
    assert all(len(streams) == 1 for streams in sent), "one connection to each node"
    assert all(stream.endswith(encode(b"PING")) for (stream,) in sent)


@pytest.mark.parametrize(("scenario", "guarded"), [(surveyed, True), (inspected, False)], ids=["guard", "inspection"])
def test_both_drivers_send_same_inspection_requests(trio: Servers, scenario: Scenario, guarded: bool) -> None:
    with ExitStack() as stack:
        deployment = Deployment(trio.nodes[:1], guarded, stack)
        assert deployment.by_threads(scenario) == deployment.by_asyncio(scenario)


@pytest.mark.parametrize("kind", [kind for kind in available() if kind != "valkey-9.1"])
def test_both_drivers_send_the_same_bytes_to_older_servers(kind: str) -> None:
    with Server(available()[kind]) as server, ExitStack() as stack:
        deployment = Deployment([server], False, stack)
        for scenario in (fenced, unfenced, published, contended, several, cohort, queued, tracked):
            assert deployment.by_threads(scenario) == deployment.by_asyncio(scenario)


def test_both_drivers_load_missing_scripts_at_same_position(trio: Servers) -> None:
    with ExitStack() as stack:
        deployment = Deployment(trio.nodes[:1], False, stack)

        async def forgetful(io: Any, group: NodeGroup) -> Any:
            deployment.servers[0].command("SCRIPT", "FLUSH")
            hold = await take(io, group, "a", "b")
            deployment.servers[0].command("SCRIPT", "FLUSH")
            return await release(io, hold)

        result, sent = deployment.by_threads(forgetful)
        assert (result, sent) == deployment.by_asyncio(forgetful)
        # All scripts in the handshake; later only the claim's and the release's.
        loads = sent[0][0].count
        assert [loads(load_scripts([name])) for name in ("acquire_all", "pass", "claim")] == [2, 2, 1]
        assert loads(b"LOAD\r\n") == len(NAMES) + 2
