"""The same failure in every topology: the cells of docs/topologies.md that no other test shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from handfast import Contended, LeaseLost, NoQuorum
from handfast.testing import Cluster, Server, Servers, available
from handfast.testing.clock import Clock, missing
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import bootstrap, connected, plain
from tests.support.topologies import BACK_WITHIN, LONG_RUN, all_leases, both_clients, sentinel_group
from tests.support.waiters import attempt_in_background
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    pytest.mark.timeout(120),
]

TTL = 1.0
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "one": {},
    "one-guard": {"guard": True},
    "sentinel": {},
    "sentinel-guard": {"guard": True},
    "sentinel-replicas": {"replicas": 1},
    "cluster": {},
    "cluster-replicas": {"replicas": 1},
    "quorum": {},
}
EVERY_DAY = ("sentinel-guard", "cluster-replicas")
"""All of them with HANDFAST_LONG=1."""
GUEST = "ACL", "SETUSER", "guest", "on", ">word", "~*", "&*", "+@all"


@dataclass
class Deployment:
    """Servers, and the URLs of their clients."""

    urls: list[str]
    nodes: list[Server]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def guest_urls(self) -> list[str]:
        """The same for a user that the servers can lock out."""
        return [re.sub(r"//([^@/]*@)?", "//guest:word@", url, count=1) for url in self.urls]

    async def open(self, client: Any) -> None:
        if self.options.get("guard") or len(self.urls) > 1:
            assert set((await bootstrap(client)).values()) <= {"opened", "open already"}


@pytest.fixture(params=TOPOLOGIES if LONG_RUN else EVERY_DAY)
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Each topology in turn, and a user `guest`."""
    group = request.getfixturevalue(
        {"one": "one", "quorum": "three", "sentinel": "watched", "cluster": "sharded"}[request.param.partition("-")[0]]
    )
    nodes = [group] if isinstance(group, Server) else list(group)
    urls = group.urls if request.param == "quorum" else [group.url]
    for node in nodes:
        node.command(*GUEST)
    yield Deployment(urls, nodes, {"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.3, **TOPOLOGIES[request.param]})
    for node in nodes:
        node.command("ACL", "DELUSER", "guest")


HOLDER = """
import json, sys, handfast
urls, options = map(json.loads, sys.argv[1:])
lease = handfast.connect(urls, **options).lock("a").acquire(wait=20)
print(lease.token, flush=True)
sys.stdin.read()
"""


@plain
async def test_lock_of_killed_process_is_free_after_its_ttl(deployment: Deployment) -> None:
    async with connected("asyncio", deployment.urls, **deployment.options) as client:
        await deployment.open(client)
        words = [sys.executable, "-c", HOLDER, json.dumps(deployment.urls), json.dumps(deployment.options)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:  # noqa: ASYNC220
            assert holder.stdout is not None
            token = int(holder.stdout.readline())
            with pytest.raises(Contended):
                await client.lock("a").acquire(wait=0)
            holder.kill()
        (lease,) = await all_leases([attempt_in_background(client.lock("a"), wait=TTL + 5)])
        assert lease.token > token
        assert await lease.release()


@plain
async def test_isolated_client_loses_lease_before_another_acquires(deployment: Deployment) -> None:
    """All servers refuse it; other clients are served as before."""
    async with AsyncExitStack() as stack:
        others = await stack.enter_async_context(connected("asyncio", deployment.urls, **deployment.options))
        await deployment.open(others)
        guests = await stack.enter_async_context(both_clients(deployment.guest_urls, **deployment.options))
        held = {mode: await guest.lock(mode).acquire(wait=5) for mode, guest in guests.items()}
        for node in deployment.nodes:
            node.command("ACL", "SETUSER", "guest", "off")
            node.command("CLIENT", "KILL", "USER", "guest")
        for mode in guests:
            got = await attempt_in_background(others.lock(mode), wait=TTL + 5)
            assert got.lease, got.error
            with pytest.raises(LeaseLost):
                held[mode].check()
            await eventually_async(held[mode].lost.is_set)
            assert got.lease.token > held[mode].token
            assert await got.lease.release()


# -- servers that forget, and clocks that jump -------------------------------------------------------------------------

LONG_TTL = 20.0
SINGLE = ["one", "sentinel", "cluster"]
"""The topologies in which one server decides."""
KEPT_APART: dict[str, dict[str, Any]] = {
    "plain": {},
    "replicas": {"replicas": 1, "prefix": "copied:"},
    "guard": {"guard": True, "prefix": "guarded:"},
}
"""Clients of the same servers that do not meet: each has a namespace of its own."""


def started(stack: ExitStack, topology: str, env: dict[str, str]) -> tuple[str, Server, list[str]]:
    """New servers that are never replaced: the URL, the server that has the lock, the kinds of clients."""
    if topology == "one":
        server = stack.enter_context(Server(env=env))
        return server.url, server, ["plain", "guard"]
    if topology == "sentinel":
        group = stack.enter_context(sentinel_group(sentinels=1, replicas=1, down_after=60.0, env=env))
        return group.url, group.master, ["plain", "replicas", "guard"]
    # No other master can vote a single master out.
    cluster = stack.enter_context(Cluster(1, 1, node_timeout=60.0, env=env))
    return cluster.url, cluster.masters[0], ["plain", "replicas"]


async def check_twice(topology: str, stack: ExitStack, env: dict[str, str], strike: Any) -> None:
    """After the strike a lock that is held is given again, at once; but not by a guarded server."""
    url, server, kinds = started(stack, topology, env)
    async with AsyncExitStack() as clients:
        leases, rivals = {}, {}
        for kind in kinds:
            options = {"ttl": LONG_TTL, "max_ttl": LONG_TTL, "renew": False, "node_timeout": 0.5, **KEPT_APART[kind]}
            one = await clients.enter_async_context(connected("threads", url, **options))
            rivals[kind] = await clients.enter_async_context(connected("asyncio", url, **options))
            if kind == "guard":
                await bootstrap(one)
            assert await (await rivals[kind].lock("warm").acquire(wait=5)).release()
            leases[kind] = await one.lock("a").acquire(wait=5)
        strike(server)
        for kind, rival in rivals.items():
            if kind == "guard":
                with pytest.raises(NoQuorum, match="no vote"):
                    await rival.lock("a").acquire(wait=0)
            else:
                (second,) = await all_leases([attempt_in_background(rival.lock("a"), wait=LONG_TTL / 2)])
                assert second.valid
                assert second.token > leases[kind].token, "a resource that checks tokens can tell them apart"
            assert leases[kind].valid


@pytest.mark.parametrize("single", SINGLE if LONG_RUN else ["sentinel"])
@plain
async def test_empty_restart_without_guard_grants_lock_twice(single: str) -> None:
    """Its replicas forget with it, so copies do not help."""
    with ExitStack() as stack:
        await check_twice(single, stack, {}, lambda server: server.restart(empty=True))


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("single", SINGLE if LONG_RUN else ["one"])
@plain
async def test_clock_jump_without_guard_grants_lock_twice(single: str) -> None:
    with ExitStack() as stack:
        clock = stack.enter_context(Clock())

        def jump(server: Server) -> None:
            clock.step(LONG_TTL + 5)
            server.wait_for(lambda: server.command("EXISTS", "handfast:{a}") == 0)

        await check_twice(single, stack, clock.environment, jump)


@pytest.mark.skipif(bool(missing()), reason=missing())
@plain
async def test_clock_jump_of_one_quorum_node_changes_nothing() -> None:
    with Clock() as clock, Servers(2) as two, Server(env=clock.environment) as third:
        urls = [*two.urls, third.url]
        async with both_clients(urls, ttl=LONG_TTL, max_ttl=LONG_TTL, renew=False) as clients:
            await bootstrap(clients["threads"])
            lease = await clients["threads"].lock("a").acquire(wait=5)
            third.wait_for(lambda: third.command("EXISTS", "handfast:{a}") == 1)
            clock.step(LONG_TTL + 5)
            third.wait_for(lambda: third.command("EXISTS", "handfast:{a}") == 0)
            for client in clients.values():
                got = await attempt_in_background(client.lock("a"), wait=0.2)
                assert isinstance(got.error, Contended), got
            assert lease.valid
            assert await lease.release()
            (second,) = await all_leases([attempt_in_background(clients["asyncio"].lock("a"), wait=BACK_WITHIN)])
            assert second.token > lease.token
