"""How Sentinel groups and clusters are named: by URLs, by redis-py's clients, as members of a quorum."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

import handfast
import handfast.aio
from handfast import ConfigError, NoQuorum
from handfast.discovery.cluster import Cluster as SlotMap
from handfast.discovery.sentinel import SentinelMaster
from handfast.discovery.urls import parse
from handfast.net.address import Address
from handfast.testing import Cluster, SentinelGroup, Servers
from handfast.testing.servers import reserve_port
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import Awaited, bootstrap, both, connected, plain
from tests.support.tcp_relay import Impostor
from tests.support.topologies import PASSWORD, SENTINEL_PASSWORD, masters_with_key

SECRETS = ("s3cret", "s3ntinel")


# -- accepted URLs -----------------------------------------------------------------------------------------------------


def sentinels_of(address: Address) -> SentinelMaster:
    assert isinstance(address.resolver, SentinelMaster)
    return address.resolver


def members_of(address: Address) -> list[tuple[str, int]]:
    if address.cluster is None:
        return sentinels_of(address).sentinels
    assert isinstance(address.cluster, SlotMap)
    return list(address.cluster._members)


@pytest.mark.parametrize(
    ("rest", "members", "db"),
    [
        ("//h1:26379,h2:26380,h3:26381/mymaster/0", [("h1", 26379), ("h2", 26380), ("h3", 26381)], 0),
        ("//H1,h2/mymaster", [("h1", 26379), ("h2", 26379)], 0),
        ("//h1/mymaster/7", [("h1", 26379)], 7),
        ("//h1/mymaster?db=7", [("h1", 26379)], 7),
        ("//[::1]:5000,[fe80::1],10.0.0.1:5/mymaster/", [("::1", 5000), ("fe80::1", 26379), ("10.0.0.1", 5)], 0),
        ("//u:s3cret@h1,[::1]/mymaster", [("h1", 26379), ("::1", 26379)], 0),
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
def test_sentinel_url_names_members_master_and_database(
    scheme: str, rest: str, members: list[tuple[str, int]], db: int
) -> None:
    address = parse(f"{scheme}+sentinel:{rest}")
    assert (members_of(address), sentinels_of(address).name, address.db) == (members, "mymaster", db)
    assert (address.tls is not None) == (scheme in ("rediss", "valkeys"))


@pytest.mark.parametrize(
    ("rest", "members"),
    [
        ("//h1:7000,h2:7001", [("h1", 7000), ("h2", 7001)]),
        ("//h1,h2:7001/", [("h1", 6379), ("h2", 7001)]),
        ("//h1/0", [("h1", 6379)]),
        ("//:s3cret@[::1]:7000,[::2]", [("::1", 7000), ("::2", 6379)]),
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
def test_cluster_url_names_its_members(scheme: str, rest: str, members: list[tuple[str, int]]) -> None:
    address = parse(f"{scheme}+cluster:{rest}")
    assert members_of(address) == members
    assert (address.tls is not None) == (scheme in ("rediss", "valkeys"))


def test_credentials_are_percent_decoded_and_kept_apart() -> None:
    address = parse(
        "redis+sentinel://us%40er:p%2Fw%3A%23@h1/my%20master?sentinel_username=a%26b&sentinel_password=c%3Dd+e"
    )
    asked = sentinels_of(address)
    assert (address.username, address.password) == ("us@er", "p/w:#")
    assert (asked.name, asked._options) == ("my master", {"username": "a&b", "password": "c=d e"})
    clustered = parse("redis+cluster://us%40er:p%2Fw%3A%23@h1?client_name=me")
    assert (clustered.username, clustered.password, clustered.client_name) == ("us@er", "p/w:#", "me")
    assert clustered.cluster._options == {"username": "us@er", "password": "p/w:#"}


def test_tls_options_apply_to_sentinels_unless_disabled() -> None:
    words = "ssl_cert_reqs=none&ssl_check_hostname=false"
    with_tls = sentinels_of(parse(f"rediss+sentinel://h1/m?{words}"))._options
    assert (with_tls["ssl"], with_tls["ssl_cert_reqs"], with_tls["ssl_check_hostname"]) == (True, "none", False)
    assert "ssl" not in sentinels_of(parse(f"rediss+sentinel://h1/m?{words}&sentinel_ssl=false"))._options
    assert sentinels_of(parse("redis+sentinel://h1/m?sentinel_ssl=yes"))._options["ssl"] is True


# -- refused URLs ------------------------------------------------------------------------------------------------------

REFUSED = {
    "redis+sentinel://:s3cret@H/": "the master's name is missing",
    "redis+sentinel://:s3cret@H": "the master's name is missing",
    "redis+sentinel://:s3cret@H/m/0?sentinel_pasword=s3ntinel": "unknown option 'sentinel_pasword'; known are",
    "redis+sentinel://:s3cret@H/m?sentinel_password=s3ntinel&sentinel_password=s3ntinel": "is given twice",
    "redis+sentinel://:s3cret@H/m/1?db=1": "the database is given twice",
    "redis+sentinel://:s3cret@H/m/one": "the database must be a number such as 0, not 'one'",
    "redis+sentinel://:s3cret@H/m/0/0": "the database must be a number such as 0, not '0/0'",
    "redis+sentinel://:s3cret@H,H/m": "is listed twice",
    "redis+sentinel://:s3cret@H,/m": "a host is missing",
    "redis+sentinel://:s3cret@H,:1/m": "a host is missing",
    "redis+sentinel://:s3cret@H,h2:0/m": "a port is a number from 1 to 65535",
    "redis+sentinel://:s3cret@H,h2:65536/m": "a port is a number from 1 to 65535",
    "redis+sentinel://:s3cret@H,h2:x/m": "a port is a number from 1 to 65535",
    "redis+sentinel://:s3cret@H,[::1/m": "",
    "redis+sentinel://:s3cret@H,[::1]1/m": "an IPv6 address is written [::1]",
    "redis+sentinel://:s3cret@H/m?sentinel_ssl=maybe": "sentinel_ssl must be true or false, not 'maybe'",
    "redis+sentinel://:s3cret@H/m?ssl_cert_reqs=none": "unknown option 'ssl_cert_reqs'",
    "redis+sentinel://:s3cret#@H/m": "must be percent-encoded",
    "redis+sentinel://:s3cret/@H/m": "must be percent-encoded",
    "redis+sentinel://:s3cret@H/m?sentinel_password=s3ntinel@": "must be percent-encoded",
    "redis+cluster://:s3cret@H/1": "a cluster has only database 0",
    "redis+cluster://:s3cret@H?db=0": "unknown option 'db'",
    "redis+cluster://:s3cret@H,H": "is listed twice",
    "redis+cluster://:s3cret@H,h2:-1": "a port is a number from 1 to 65535",
    "redis+cluster://:s3cret@H?sentinel_password=s3ntinel": "unknown option 'sentinel_password'",
    "redis+cluster://": "a host is missing",
    "redis+ring://:s3cret@H": "unknown scheme 'redis+ring'",
    "unix+cluster://:s3cret@H": "unknown scheme 'unix+cluster'",
}


@pytest.mark.parametrize("url", REFUSED)
def test_bad_url_is_refused_without_sending_and_shows_no_secret(url: str) -> None:
    with Impostor(lambda sock: None) as server:
        given = url.replace("H", f"127.0.0.1:{server.port}")
        for connect in (handfast.connect, handfast.aio.connect):
            with pytest.raises(ConfigError) as raised:
                connect(given)
            said = f"{raised.value} {raised.value!r}"
            assert REFUSED[url] in said
            assert not [secret for secret in SECRETS if secret in said]
        assert server.accepted == 0


def test_duration_is_parsed_while_another_thread_imports_datetime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datetime", ModuleType("datetime"))
    handfast.connect("redis+cluster://h1", ttl=5.0).close()


@both
async def test_objects_with_secrets_do_not_show_them(mode: str) -> None:
    with reserve_port() as closed:
        place = f"127.0.0.1:{closed.getsockname()[1]}"
        for url in (
            f"redis+sentinel://user:s3cret@{place}/mymaster?sentinel_password=s3ntinel",
            f"redis+cluster://user:s3cret@{place}?client_name=me",
        ):
            async with connected(mode, url) as client:
                with pytest.raises(NoQuorum) as raised:
                    await client.lock("a").acquire(wait=0)
                shown = f"{client!r} {getattr(client, 'inner', client)!r} {raised.value!r} {client._addresses!r}"
                assert place in shown
                assert not [secret for secret in SECRETS if secret in shown]


def test_same_group_twice_in_a_quorum_is_refused() -> None:
    url = "redis+sentinel://h1,h2/m"
    with pytest.raises(ConfigError, match="listed twice"):
        handfast.connect([url, url, "redis://h3"])
    with pytest.raises(ConfigError, match="listed twice"):
        handfast.connect(["redis+cluster://h1,h2", "redis+cluster://h1,h2", "redis://h3"], guard=False)


# -- redis-py's clients ------------------------------------------------------------------------------------------------


def adopted(mode: str, theirs: object, **options: Any) -> Any:
    if mode == "asyncio":
        return handfast.aio.from_client(theirs, **options)
    return Awaited(handfast.from_client(theirs, **options))


def places(group: SentinelGroup) -> list[tuple[str, int]]:
    return [("127.0.0.1", sentinel.port) for sentinel in group.sentinels]


async def check_excludes(client: Any, ours: Any, servers: Any) -> None:
    """The two clients mean the same lock."""
    lease = await client.lock("a").acquire(wait=5)
    assert len(masters_with_key(servers, "handfast:{a}")) == 1
    assert await ours.lock("a").try_acquire() is None
    assert await lease.release()


@both
async def test_from_client_accepts_master_of_redis_py_sentinel(mode: str, watched: SentinelGroup) -> None:
    asking: dict[str, Any] = {"sentinel_kwargs": {"password": SENTINEL_PASSWORD}, "password": PASSWORD, "db": 0}
    async with connected(mode, watched.url) as ours:
        for kind in (Sentinel, AsyncSentinel):
            theirs: Any = kind(places(watched), **asking).master_for(watched.name, client_name="ours")
            client = adopted(mode, theirs)
            assert watched.name in repr(client._where.addresses)
            assert PASSWORD not in repr(client._where.addresses)
            await check_excludes(client, ours, watched)
            await client.close()
            if kind is AsyncSentinel:
                await theirs.aclose()


@both
async def test_client_that_reads_from_replicas_is_refused(mode: str) -> None:
    for kind in (Sentinel, AsyncSentinel):
        theirs: Any = kind([("localhost", 1)]).slave_for("mymaster")
        with pytest.raises(ConfigError, match="use master_for"):
            adopted(mode, theirs)


@both
async def test_from_client_accepts_redis_py_cluster_clients(mode: str, sharded: Cluster) -> None:
    first = sharded.masters[0]
    async with (
        connected(mode, sharded.url) as ours,
        redis.asyncio.RedisCluster("127.0.0.1", first.port, password=PASSWORD) as tasks,
    ):
        with redis.RedisCluster("127.0.0.1", first.port, password=PASSWORD) as threads:
            for theirs in (threads, tasks):
                client = adopted(mode, theirs)
                assert PASSWORD not in repr(client._where.addresses)
                await check_excludes(client, ours, sharded)
                await client.close()


# -- passwords ---------------------------------------------------------------------------------------------------------


@both
async def test_wrong_password_names_its_server_and_is_not_shown(mode: str, watched: SentinelGroup) -> None:
    members = watched.url.partition("@")[2].partition("/")[0]
    asking = f"?sentinel_password={quote(SENTINEL_PASSWORD, safe='')}"
    login = f":{quote(PASSWORD, safe='')}@"
    for url, said in {
        f"redis+sentinel://{login}{members}/{watched.name}?sentinel_password=s3ntinel": "says WRONGPASS: wrong user name",
        f"redis+sentinel://{login}{members}/{watched.name}": "says NOAUTH: wants a password",
        f"redis+sentinel://:s3cret@{members}/{watched.name}{asking}": "WRONGPASS: wrong user name or password",
        f"redis+sentinel://{members}/{watched.name}{asking}": "NOAUTH: wants a password",
    }.items():
        async with connected(mode, url) as client:
            with pytest.raises(NoQuorum) as raised:
                await client.lock("a").acquire(wait=0)
            assert said in str(raised.value)
            assert not [secret for secret in (*SECRETS, PASSWORD, SENTINEL_PASSWORD) if secret in str(raised.value)]


@both
async def test_wrong_password_of_cluster_is_reported(mode: str, sharded: Cluster) -> None:
    members = sharded.url.partition("@")[2]
    async with connected(mode, f"redis+cluster://:s3cret@{members}") as client:
        with pytest.raises(NoQuorum, match="WRONGPASS: wrong user name or password") as raised:
            await client.lock("a").acquire(wait=0)
        assert "s3cret" not in str(raised.value)


# -- members of a quorum -----------------------------------------------------------------------------------------------


@pytest.fixture
def two() -> Iterator[Servers]:
    with Servers(2) as servers:
        yield servers


@both
async def test_quorum_with_sentinel_group_as_member_works(mode: str, watched: SentinelGroup, two: Servers) -> None:
    async with connected(mode, [*two.urls, watched.url], max_ttl=5, ttl=5) as client:
        said = await bootstrap(client)
        assert set(said.values()) == {"opened"}
        lease = await client.lock("a").acquire(wait=5)
        await eventually_async(lambda: len(masters_with_key([*two, *watched], "handfast:{a}")) == 3)
        assert await lease.release()
        two[0].pause()
        lease = await client.lock("a").acquire(wait=5)
        assert len(lease.votes) == 2
        assert two.urls[0] not in lease.votes
        assert await lease.release()
        two[0].resume()


@plain
async def test_cluster_as_quorum_member_needs_guard_off() -> None:
    urls = ["redis+cluster://h1", "redis://h2", "redis://h3"]
    with pytest.raises(ConfigError, match="set guard=False"):
        handfast.connect(urls)
    with pytest.raises(ConfigError, match="the restart guard does not work on a cluster"):
        handfast.connect("redis+cluster://h1", guard=True)
    handfast.connect(urls, guard=False).close()


@both
async def test_quorum_with_cluster_as_member_works(mode: str, sharded: Cluster, two: Servers) -> None:
    async with connected(mode, [*two.urls, sharded.url], guard=False) as client:
        names = [f"name-{number}" for number in range(6)]
        for _ in range(2):  # the first time a majority does not wait for nodes that are still being connected
            leases = [await client.lock(name).acquire(wait=5) for name in names]
            assert all([await lease.release() for lease in leases])
        leases = [await client.lock(name).acquire(wait=5) for name in names]
        for name in names:
            await eventually_async(lambda key=f"handfast:{{{name}}}": len(masters_with_key([*two, *sharded], key)) == 3)
        assert len({sharded.node_for(f"handfast:{{{name}}}") for name in names}) > 1, "names live on several nodes"
        assert all([await lease.release() for lease in leases])
        # A slot that has moved costs a vote, until the cluster's node is found that has it.
        source = sharded.node_for("handfast:{name-0}")
        target = next(master for master in sharded.masters if master is not source)
        sharded.move_slot(sharded.slot_of("handfast:{name-0}"), target)
        votes, end = 0, time.monotonic() + 10
        while votes < 3 and time.monotonic() < end:
            lease = await client.lock("name-0").acquire(wait=5)
            await asyncio.sleep(0.02)  # for the last vote, for which the client does not wait
            votes = len(masters_with_key([*two, *sharded], "handfast:{name-0}"))
            assert await lease.release()
        assert votes == 3
        sharded.move_slot(sharded.slot_of("handfast:{name-0}"), source)
