"""Connections: addresses, dialects, and the handling of everything that a server or another program can send.

Each promise is kept by the blocking client and by the asyncio one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

import handfast
import handfast.aio
from handfast import ConfigError, NoQuorum
from handfast.core.votes import Ballot
from handfast.embedded.resp import ReplyError
from handfast.protocol.resp import encode
from handfast.testing import Server, Servers, TlsFiles, available
from tests.support.eventually import eventually, eventually_async
from tests.support.server_errors import ERRORS, attempt
from tests.support.sync_and_async import MODES, bootstrap, both, connected, plain
from tests.support.tcp_relay import Impostor, Relay
from tests.support.tls_servers import make_files, start_with_tls

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")


async def works(client: Any, **options: Any) -> None:
    """Acquire, extend and release a lock."""
    lease = await client.lock("works", **options).acquire(wait=0)
    assert lease.valid
    await lease.extend()
    assert await lease.release()


async def reason(client: Any, name: str = "reason", **options: Any) -> str:
    """The first node's answer to an attempt that must fail without a quorum."""
    with pytest.raises(NoQuorum) as raised:
        await client.lock(name, **options).acquire(wait=0)
    assert raised.value.nodes, "an outage without a reason"
    said = next(iter(raised.value.nodes.values()))
    assert said in str(raised.value)
    return said


def calls(server: Server, command: str) -> int:
    """How often a command was called, as the server counts."""
    said = server.info(f"cmdstat_{command}")
    return int(said.partition("calls=")[2].partition(",")[0]) if said else 0


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A certificate for 127.0.0.1."""
    return make_files(authority, tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="module")
def secured(tls: TlsFiles) -> Iterator[Server]:
    server = start_with_tls(tls)
    yield server
    server.close()


@both
async def test_certificate_of_configured_authority_is_trusted(mode: str, secured: Server, tls: TlsFiles) -> None:
    async with connected(mode, f"{secured.url}?ssl_ca_certs={tls.authority}") as client:
        await works(client)


@both
async def test_certificate_of_another_authority_is_refused_with_reason(
    mode: str, secured: Server, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    async with connected(mode, f"{secured.url}?ssl_ca_certs={other}") as client:
        assert "certificate" in await reason(client)
        began = time.monotonic()
        with pytest.raises(NoQuorum, match="certificate"):
            await client.lock("a").acquire(wait=30)
        assert time.monotonic() - began < 2, "waiting does not mend a certificate"


@both
async def test_private_authority_is_refused_by_default_and_accepted_with_ssl_cert_reqs_none(
    mode: str, secured: Server
) -> None:
    async with connected(mode, secured.url) as client:
        assert "certificate" in await reason(client)
    async with connected(mode, f"{secured.url}?ssl_cert_reqs=none") as client:
        await works(client)


@both
async def test_certificate_of_another_host_is_refused_unless_check_is_off(
    mode: str, secured: Server, tls: TlsFiles
) -> None:
    url = f"rediss://localhost:{secured.port}?ssl_ca_certs={tls.authority}"
    async with connected(mode, url) as client:
        said = await reason(client)
        assert "certificate" in said
        assert "localhost" in said
    async with connected(mode, f"{url}&ssl_check_hostname=false") as client:
        await works(client)


@both
async def test_client_certificate_is_presented_when_server_requires_it(
    mode: str, authority: trustme.CA, tls: TlsFiles, tmp_path: Path
) -> None:
    mine = make_files(authority, tmp_path, "client.example")
    server = start_with_tls(tls)
    try:
        server.command("CONFIG", "SET", "tls-auth-clients", "yes")
        trusted = f"{server.url}?ssl_ca_certs={tls.authority}"
        async with connected(mode, trusted) as client:
            said = await reason(client)
            assert "TLS" in said or "closed" in said
        async with connected(mode, f"{trusted}&ssl_certfile={mine.certificate}&ssl_keyfile={mine.key}") as client:
            await works(client)
    finally:
        server.close()


@both
async def test_plain_connection_to_tls_port_fails_with_reason(mode: str, secured: Server) -> None:
    async with connected(mode, secured.url.replace("rediss:", "redis:")) as client:
        said = await reason(client)
        assert "closed" in said or "protocol" in said


@both
async def test_many_tasks_or_threads_over_tls(mode: str, secured: Server, tls: TlsFiles) -> None:
    url = f"{secured.url}?ssl_ca_certs={tls.authority}"
    # Far more than one TLS record each way.
    names = [f"{i:04}-{'x' * 200}" for i in range(300)]
    async with connected(mode, url) as client:
        lease = await client.lock(names).acquire(wait=0)
        assert await lease.release()
        if mode == "asyncio":
            leases = await asyncio.gather(*[client.lock(name).acquire(wait=0) for name in names])
            assert all(await asyncio.gather(*[lease.release() for lease in leases]))


@both
async def test_correct_password_is_accepted_and_wrong_password_is_reported(mode: str) -> None:
    with Server(config={"requirepass": "s3cret/with?odd#signs"}) as server:
        async with connected(mode, server.url) as client:
            await works(client)
        for login, word in (("", "NOAUTH"), (":wrong@", "WRONGPASS")):
            url = f"redis://{login}127.0.0.1:{server.port}"
            async with connected(mode, url) as client:
                said = await reason(client)
                assert word in said
                assert "wrong" not in said.removeprefix("WRONGPASS: wrong user name")
            async with connected(mode, f"redis://127.0.0.1:{server.port}?password=s3cret/with?odd%23signs") as client:
                await works(client)


# The smallest rights that suffice, found by leaving out each in turn (see the test behind these). HELLO, AUTH and
# SETNAME need none. DELIFEQ is a convenience of Valkey: without the right to it releases are scripts.
COMMANDS = ("script|load", "evalsha", "get", "set", "del", "exists", "pexpire", "pttl", "time")
GUARDED = (*COMMANDS, "info")
PLAIN = ("script|load", "evalsha", "get", "set", "del", "exists", "pexpire", "pttl", "time")
"""With fence=False; pttl is only for the error that names the holder."""


def allow(server: Server, commands: tuple[str, ...], keys: str = "~handfast:*") -> None:
    if server.info("server_name") == "valkey" and "evalsha" in commands:
        commands = (*commands, "delifeq")
    server.command("ACL", "SETUSER", "locker", "reset", "on", ">pw", keys, *[f"+{command}" for command in commands])


def as_locker(server: Server) -> str:
    return f"redis://locker:pw@127.0.0.1:{server.port}"


async def everything(client: Any, **options: Any) -> None:
    """Everything that a client sends to a server: acquire, be refused, extend, several names, release."""
    lease = await client.lock("a", **options).acquire(wait=0)
    with pytest.raises(handfast.Contended) as raised:
        await client.lock("a", **options).acquire(wait=0)
    assert raised.value.holder == lease.owner
    assert raised.value.remaining
    await lease.extend(20.0)  # longer than it is: else there is nothing to do
    several = await client.lock(["b", "c"], **options).acquire(wait=0)
    await several.extend()
    assert await several.release()
    assert await lease.release()
    again = await client.lock(["a", "b"], **options).acquire(wait=0)
    assert await again.release()


@both
async def test_user_with_only_the_documented_rights_can_lock(mode: str, server: Server) -> None:
    allow(server, COMMANDS)
    async with connected(mode, as_locker(server)) as client:
        await everything(client)
    allow(server, PLAIN)
    async with connected(mode, as_locker(server), fence=False) as client:
        await everything(client)


@both
async def test_user_with_only_the_documented_rights_can_lock_on_a_guarded_quorum(mode: str, three: Servers) -> None:
    for node in three:
        allow(node, GUARDED)
    async with connected(mode, [as_locker(node) for node in three]) as client:
        said = await bootstrap(client)
        assert set(said.values()) == {"opened"}, said
        await everything(client)
        await everything(client, fence=False)


@pytest.mark.slow
@pytest.mark.parametrize("missing", COMMANDS)
@plain
async def test_each_documented_right_is_needed_and_reported_when_missing(missing: str, server: Server) -> None:
    allow(server, tuple(command for command in COMMANDS if command != missing))
    async with handfast.aio.connect(as_locker(server)) as client:
        with pytest.raises(handfast.HandfastError) as raised:
            await everything(client)
        # Without rights a lease cannot be extended and is lost, or its key stays. All else is a refusal.
        if missing != "del":
            assert "NOPERM" in str(raised.value)


@both
async def test_keys_outside_acl_pattern_are_refused_by_name(mode: str, server: Server) -> None:
    allow(server, COMMANDS, keys="~elsewhere:*")
    async with connected(mode, as_locker(server)) as client:
        assert "NOPERM" in await reason(client)
    async with connected(mode, as_locker(server), prefix="elsewhere:") as client:
        await everything(client)


@both
async def test_unix_socket_works_like_port(mode: str) -> None:
    with Server(unix=True, config={"requirepass": "pw"}) as server:
        async with connected(mode, server.url) as client:
            await works(client)
        async with connected(mode, f"unix://{server.socket_path}?password=pw&db=2") as client:
            await works(client)
        async with connected(mode, "unix:///nowhere/server.sock") as client:
            assert "no such socket" in await reason(client)


@both
async def test_databases_have_separate_locks(mode: str, server: Server) -> None:
    async with connected(mode, f"{server.url}/3") as third, connected(mode, f"{server.url}?db=4") as fourth:
        mine = await third.lock("a").acquire(wait=0)
        yours = await fourth.lock("a").acquire(wait=0)
        assert mine.votes == (f"{server.url}/3",)
        assert "db3:" in str(server.command("INFO", "keyspace"))
        assert await mine.release()
        assert await yours.release()
    async with connected(mode, f"{server.url}/99") as client:
        assert "DB index" in await reason(client)


@both
async def test_ipv6_address_works_and_is_shown_in_brackets(mode: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with Server() as server:
        server.command("CONFIG", "SET", "bind", "127.0.0.1 ::1")
        async with connected(mode, f"redis://[::1]:{server.port}") as client:
            lease = await client.lock("a").acquire(wait=0)
            assert lease.votes == (f"redis://[::1]:{server.port}",)
            assert await lease.release()


@both
async def test_client_list_shows_client_name(mode: str, server: Server) -> None:
    for given, shown in (("", "handfast"), ("?client_name=worker-7", "worker-7"), ("?client_name=", "")):
        async with connected(mode, server.url + given) as client:
            lease = await client.lock("a", renew=False).acquire(wait=0)
            names = [
                field.removeprefix("name=")
                for line in bytes(server.command("CLIENT", "LIST")).decode().splitlines()  # type: ignore[arg-type]
                if "cmd=client" not in line
                for field in line.split()
                if field.startswith("name=")
            ]
            assert shown in names
            await lease.release()


# -- the dialects ------------------------------------------------------------------------------------------------------


@both
async def test_newest_protocol_of_each_server_is_used(mode: str, server: Server) -> None:
    native = not isinstance(attempt(server, "DELIFEQ", "no-such-key", "-"), ReplyError)
    async with connected(mode, server.url, prefix="", fence=False, renew=False) as client:
        await works(client)
        server.command("CONFIG", "RESETSTAT")
        await works(client)
    assert calls(server, "set") == 1, "SET NX PX"
    assert calls(server, "delifeq") == (1 if native else 0)
    assert calls(server, "evalsha") == (1 if native else 2), "what must not shorten is a script everywhere"


@both
async def test_protocol_is_negotiated_and_not_guessed_from_version(mode: str, one: Server) -> None:
    """With a server that supports it, but forbids it, scripts are used."""
    one.command("ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", "-delifeq")
    async with connected(mode, f"redis://plain:pw@127.0.0.1:{one.port}", prefix="", fence=False) as client:
        one.command("CONFIG", "RESETSTAT")
        await works(client)
        assert calls(one, "evalsha") == 2
    assert not one.info("cmdstat_delifeq") or "calls=0" in one.info("cmdstat_delifeq")


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@both
async def test_missing_scripts_are_loaded_without_an_error(mode: str, server: Server, fence: bool) -> None:
    async with connected(mode, server.url, fence=fence) as client:
        await works(client)
        for names in ("a", ["a", "b"], "a"):
            server.command("SCRIPT", "FLUSH")
            lease = await client.lock(names).acquire(wait=0)
            server.command("SCRIPT", "FLUSH")
            await lease.extend()
            server.command("SCRIPT", "FLUSH")
            assert await lease.release()
            assert server.command("GET", "handfast:{a}") is None


@plain
async def test_missing_scripts_cost_no_lock_with_a_thousand_tasks(server: Server) -> None:
    async with handfast.aio.connect(server.url) as client:
        done = asyncio.Event()

        async def forget() -> int:
            times = 0
            while not done.is_set():
                await asyncio.to_thread(server.command, "SCRIPT", "FLUSH")
                times += 1
            return times

        async def pair(i: int) -> int | None:
            lease = await client.lock(f"n{i % 500}").acquire(wait=10)
            token: int | None = lease.token
            assert await lease.release()
            return token

        flushing = asyncio.create_task(forget())
        tokens = await asyncio.gather(*[pair(i) for i in range(1000)])
        done.set()
        assert await flushing > 1
        assert None not in tokens
        # A release whose script was forgotten twice is repeated by the watchdog.
        await eventually_async(
            lambda: not [key for key in server.command("KEYS", "handfast:*") if not key.endswith(b":f")]  # type: ignore
        )


def test_missing_scripts_cost_no_lock_with_several_threads(server: Server) -> None:
    """Nor a release: nobody waits here, so each pair needs the release of the one before it."""
    with handfast.connect(server.url) as client, ThreadPoolExecutor(4) as pool:

        def pairs(i: int) -> bool:
            return all(client.lock(f"n{i}").acquire(wait=0).release() for _ in range(100))

        working = [pool.submit(pairs, i) for i in range(4)]
        while not all(each.done() for each in working):
            server.command("SCRIPT", "FLUSH")
        assert all(each.result() for each in working)


@both
async def test_release_does_not_overtake_acquire_that_is_sent_again(mode: str, server: Server) -> None:
    """The acquire gets NOSCRIPT, its caller is gone, the undo is sent: no key may be left."""
    async with connected(mode, server.url, ttl=20, node_timeout=0.05) as client:
        await works(client)
        server.command("SCRIPT", "FLUSH")
        server.pause()
        try:
            assert "no answer" in await reason(client)
        finally:
            server.resume()
        # The next one goes over the same connection, so it is answered after everything before it.
        lease = await client.lock("next").acquire(wait=5)
        await eventually_async(lambda: server.command("GET", "handfast:{reason}") is None, within=3)
        assert await lease.release()


# -- what servers answer -----------------------------------------------------------------------------------------------


@pytest.fixture(params=list(available()))
def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of its own, in a folder that can go away; of each kind."""
    (tmp_path / "data").mkdir()
    config = {"dir": str(tmp_path / "data"), "rdbcompression": "no"}
    if request.param != "redis-6.2":
        config["enable-debug-command"] = "yes"
    with Server(available()[request.param], folder=tmp_path, config=config) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("text", ERRORS)
@plain
async def test_refusal_of_server_is_reported_and_ends_with_its_cause(text: str, breakable: Server) -> None:
    """On old and on new connections, by both clients. Afterwards each client works."""
    async with contextlib.AsyncExitStack() as stack:
        old = [await stack.enter_async_context(connected(mode, breakable.url)) for mode in MODES]
        new = [await stack.enter_async_context(connected(mode, breakable.url)) for mode in MODES]
        for client in old:
            await works(client)
        with ERRORS[text](breakable):
            for client in (*old, *new):
                began = time.monotonic()
                said = await reason(client)
                assert time.monotonic() - began < 2.5
                # Where connections were cut, a client with an old connection may see that first.
                cut = text.startswith(("NOAUTH", "has reached")) and client in old and said == "closed the connection"
                assert cut or said.startswith(text), said
        for client in (*old, *new):
            lease = await client.lock("reason").acquire(wait=5)
            await lease.extend()
            assert await lease.release()


@both
async def test_unfenced_lock_reports_same_refusals(mode: str, one: Server) -> None:
    async with connected(mode, one.url, fence=False) as client:
        for text in [each for each in ERRORS if each.startswith(("OOM", "READONLY", "NOREPLICAS", "BUSY", "NOPERM"))]:
            await works(client)
            with ERRORS[text](one):
                assert (await reason(client)).startswith(text)
        await works(client)


@both
async def test_list_under_key_of_unfenced_lock_is_reported(mode: str, one: Server) -> None:
    one.command("RPUSH", "handfast:{a}", "x")
    async with connected(mode, one.url, fence=False) as client:
        with pytest.raises(handfast.NotAcquired):
            await client.lock("a").acquire(wait=0)
        await works(client)


@plain
async def test_cluster_node_reports_that_it_is_down_or_key_is_elsewhere(tmp_path: Path) -> None:
    """One node of a cluster whose other node, the owner of all slots, is not there."""
    if "valkey-9.1" not in available():
        pytest.skip("no valkey-9.1 on this machine")
    with socket.create_server(("127.0.0.1", 0)) as bus:
        port = bus.getsockname()[1]
    me, other = "a" * 40, "b" * 40
    (tmp_path / "nodes.conf").write_text(
        f"{me} 127.0.0.1:1@{port} myself,master - 0 0 1 connected\n"
        f"{other} 127.0.0.1:2@2 master - 0 0 2 connected 0-16383\n"
        "vars currentEpoch 2 lastVoteEpoch 0\n"
    )
    config = {"cluster-enabled": "yes", "cluster-port": str(port), "cluster-node-timeout": "60000"}
    with Server(available()["valkey-9.1"], folder=tmp_path, config=config) as server:
        async with connected("threads", server.url) as threads, connected("asyncio", server.url) as aio:
            for client in (threads, aio):
                assert (await reason(client)).startswith("CLUSTERDOWN: its cluster is down")
            await eventually_async(lambda: server.info("cluster_enabled") == "1")
            await eventually_async(lambda: b"cluster_state:ok" in bytes(server.command("CLUSTER", "INFO")), within=10)  # type: ignore
            for client in (threads, aio):
                said = await reason(client)
                assert said.startswith("MOVED: is a cluster node and the key lives elsewhere")
                assert "127.0.0.1:2" in said
            for name in ("works",):
                slot = server.command("CLUSTER", "KEYSLOT", name)
                server.command("CLUSTER", "SETSLOT", slot, "NODE", me)  # type: ignore[arg-type]
            for client in (threads, aio):
                await works(client)
                with pytest.raises(NoQuorum, match=r"MOVED|CROSSSLOT"):
                    await client.lock(["works", "other"]).acquire(wait=0)


# -- connections that end ----------------------------------------------------------------------------------------------


async def idle(mode: str, client: Any, server: Server, end: Callable[[], object]) -> None:
    """Let the server close the client's idle connections, and make sure that the client could notice."""
    await asyncio.to_thread(end)
    # The blocking client looks at connections that rested for 50 ms; this is the rest, not a synchronisation.
    await asyncio.sleep(0.06)


def kill_clients(server: Server) -> None:
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@both
async def test_connection_closed_while_idle_does_not_fail_next_acquire(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        for _ in range(3):
            await works(client)
            await idle(mode, client, server, lambda: kill_clients(server))
            await works(client)


@both
async def test_lease_outlives_connection_that_acquired_it(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        for operation in ("extend", "release"):
            lease = await client.lock("a").acquire(wait=0)
            await idle(mode, client, one, lambda: kill_clients(one))
            if operation == "extend":
                await lease.extend()
                await idle(mode, client, one, lambda: kill_clients(one))
            assert await lease.release()
            assert one.command("GET", "handfast:{a}") is None


@both
async def test_restart_while_idle_does_not_fail_next_acquire(mode: str) -> None:
    with Server() as server:
        async with connected(mode, server.url) as client:
            await works(client)
            await idle(mode, client, server, server.restart)
            await works(client)


@both
async def test_quorum_connections_closed_while_idle_do_not_fail_next_acquire(mode: str, three: Servers) -> None:
    async with connected(mode, three.urls, guard=False) as client:
        await works(client)
        for node in three:
            kill_clients(node)
        await idle(mode, client, three[0], lambda: None)
        await works(client)


@both
async def test_connection_cut_inside_reply_is_reported_and_next_acquire_works(mode: str, one: Server) -> None:
    with Relay(one.url) as relay:
        async with connected(mode, relay.url) as client:
            await works(client)
            for bytes_in in (0, 1, 3):
                name = f"cut:{bytes_in}"
                relay.cut_only, relay.cut_after = name.encode(), bytes_in
                assert await reason(client, name) == "closed the connection"
                # The grant cannot be undone over a connection that is gone: the watchdog does it over its own.
                await eventually_async(lambda key=f"handfast:{{{name}}}": one.command("EXISTS", key) == 0)
                lease = await client.lock("next").acquire(wait=5)
                assert await lease.release()


# -- nodes that are not there ------------------------------------------------------------------------------------------


@both
async def test_dead_node_is_retried_with_backoff_and_delays_nothing(mode: str, three: Servers) -> None:
    async with connected(mode, three.urls, guard=False, node_timeout=1.0) as client:
        healthy = await durations(client, 0.2)
    with Impostor.hanging_up() as dead:
        async with connected(mode, [*three.urls[:2], dead.url], guard=False, node_timeout=1.0) as client:
            await works(client)
            first = dead.accepted
            took = await durations(client, 0.8)
            # 50 ms, doubled each time: 4 tries in 0.8 s, and never one per operation.
            assert first <= 2
            assert dead.accepted - first <= 5 < len(took)
            assert min(took) < max(3 * min(healthy), 0.005)


async def durations(client: Any, seconds: float) -> list[float]:
    """The durations of pairs of acquire and release, for some seconds."""
    took: list[float] = []
    end = time.monotonic() + seconds
    lock = client.lock("timed", renew=False)
    while (began := time.monotonic()) < end:
        lease = await lock.acquire(wait=0)
        assert await lease.release()
        took.append(time.monotonic() - began)
    return took


@both
async def test_node_that_comes_back_is_used_again(mode: str, three: Servers) -> None:
    async with connected(mode, three.urls, guard=False) as client:
        three[2].kill()
        await works(client)
        three[2].spawn()
        three[2].wait_ready()
        deadline = time.monotonic() + 10
        votes: tuple[str, ...] = ()
        while three[2].url not in votes and time.monotonic() < deadline:
            lease = await client.lock("a").acquire(wait=0)
            await asyncio.sleep(0.01)  # a late vote counts too
            votes = lease.votes
            await lease.release()
        assert three[2].url in votes


@plain
async def test_unknown_servers_are_reported_with_their_reply() -> None:
    """Five of them and both clients at once, so that the test waits for their silence only once."""
    http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    noise = bytes((i * 151 + 7) % 256 for i in range(4096))
    with (
        Impostor.saying(http, hang_up=True) as web,
        Impostor.saying(noise) as noisy,
        Impostor.saying(b"%7\r\n$6\r\nserv") as half,
        Impostor.saying(*[bytes([b]) for b in b"$500\r\n" + b"x" * 300], every=0.02) as slow,
        Impostor.silent() as silent,
    ):
        nodes = [web, noisy, half, slow, silent]

        async def meet(mode: str) -> list[str]:
            async with connected(mode, [node.url for node in nodes], guard=False) as client:
                began = time.monotonic()
                with pytest.raises(NoQuorum) as raised:
                    await client.lock("a").acquire(wait=0)
                assert time.monotonic() - began < 4
                return [raised.value.nodes[node.url] for node in nodes]

        threads = asyncio.to_thread(lambda: asyncio.run(meet("threads")))
        for said in await asyncio.gather(meet("asyncio"), threads):
            assert "does not speak Redis' protocol" in said[0]
            assert "does not speak Redis' protocol" in said[1]
            assert said[2:] == ["did not answer the connection in time"] * 3
        await eventually_async(lambda: not any(node.connections for node in nodes), within=3)


@both
async def test_single_unknown_server_is_reported_without_waiting(mode: str) -> None:
    with Impostor.saying(b"HTTP/1.1 400 Bad Request\r\n\r\n") as web:
        async with connected(mode, web.url) as client:
            began = time.monotonic()
            with pytest.raises(NoQuorum, match="does not speak Redis' protocol"):
                await client.lock("a").acquire(wait=30)
            assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"%1\r\n%0\r\n:1\r\n",
        b"*1000000000000\r\n",
        b"$-7\r\n",
        b":12a\r\n",
        b"+OK\r\n+OK\r\n",
    ],
    ids=["http", "unhashable key", "endless array", "negative length", "no number", "one too many"],
)
@both
async def test_malformed_reply_is_reported_as_fault_of_node(mode: str, one: Server, garbage: bytes) -> None:
    with Relay(one.url) as relay:
        async with connected(mode, relay.url) as client:
            await works(client)
            relay.instead = garbage
            with contextlib.suppress(NoQuorum):
                lease = await client.lock("a", fence=False).acquire(wait=0)
                assert garbage.startswith(b"+OK"), "only what looks like a grant may be taken for one"
                await lease.release()
            lease = await client.lock("b").acquire(wait=5)
            assert one.command("GET", "handfast:{b}") == lease.owner.encode()
            assert await lease.release()


@both
async def test_unrequested_reply_ends_connection_but_not_client(mode: str, one: Server) -> None:
    """If it were taken for the reply to the next request, a lock would seem granted."""
    with Impostor(_echo_twice(one)) as twice:
        async with connected(mode, twice.url) as client:
            for _ in range(5):
                with contextlib.suppress(handfast.NotAcquired):  # also Contended: an earlier turn may have left its key
                    lease = await client.lock("a").acquire(wait=0)
                    assert one.command("GET", "handfast:{a}") == lease.owner.encode()
                    await lease.release()


def _echo_twice(server: Server) -> Callable[[socket.socket], None]:
    """Answers for the server, and sends every short reply twice."""

    def talk(sock: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as upstream:
            upstream.settimeout(5)
            while data := sock.recv(65536):
                upstream.sendall(data)
                reply = upstream.recv(65536)
                sock.sendall(reply * 2 if len(reply) < 30 else reply)

    return talk


@both
async def test_silent_node_among_three_delays_no_caller(mode: str, three: Servers) -> None:
    with Impostor.silent() as silent:
        async with connected(mode, [*three.urls[:2], silent.url], guard=False, node_timeout=1.0) as client:
            began = time.monotonic()
            await works(client)
            assert time.monotonic() - began < 1.0, "a first use waits a moment for the rest, not for their timeout"
            took = await durations(client, 0.2)
            assert min(took) < 0.025  # each would wait for it if one did; the others are as a busy machine makes them


@plain
async def test_second_caller_does_not_wait_for_silent_node_either(three: Servers) -> None:
    """The majority is connected when the second caller comes, while the first one still waits a moment for the rest."""
    with Impostor.silent() as silent:
        async with handfast.aio.connect([*three.urls[:2], silent.url], guard=False) as client:
            first = asyncio.create_task(client.lock("first").acquire())
            await eventually_async(lambda: client._io is not None and client._io.up == 2)
            async with client.lock("second"):
                assert silent.connections  # it was not given up yet
            await (await first).release()


@plain
async def test_close_ends_unfinished_connections(three: Servers) -> None:
    with Impostor.silent() as silent:
        async with handfast.aio.connect([*three.urls[:2], silent.url], guard=False) as client:
            await works(client)
            assert silent.connections
        await eventually_async(lambda: not silent.connections, within=1)


@plain
async def test_close_ends_wait_for_unfinished_connection(three: Servers) -> None:
    """Requests for it get no reply, and nothing else would end their wait."""
    with Impostor.silent() as silent:
        async with handfast.aio.connect([*three.urls[:2], silent.url], guard=False) as client:
            await works(client)
            io = client._io
            assert io is not None
            assert io.links[2].connecting is not None
            everybody = Ballot(3, 3, 3)

            async def ask() -> None:
                await io.broadcast(encode(b"PING"), everybody, 60.0)

            asking = asyncio.create_task(ask())
            await eventually_async(lambda: everybody.answers[0] is not None and everybody.answers[1] is not None)
        await asyncio.wait_for(asking, 1.0)


@pytest.mark.parametrize("options", [{}, {"fair": True}, {"cohort": 8}], ids=["plain", "fair", "cohort"])
@plain
async def test_close_before_reply_to_acquire_leaves_no_key(one: Server, options: dict[str, Any]) -> None:
    """The grant is undone, before the connection is closed."""
    client = handfast.aio.connect(one.url)
    await client.lock("warm", **options).acquire()
    with contextlib.ExitStack() as stack:
        one.pause()
        stack.callback(one.resume)
        asking = asyncio.create_task(client.lock("a", **options).acquire())
        await asyncio.sleep(0)  # it is on its way
        await asyncio.sleep(0)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.02)  # less than a closing client waits for its servers
    with pytest.raises(ConfigError, match="closed"):
        await asking
    await closing
    await eventually_async(lambda: one.command("EXISTS", "handfast:{a}", "handfast:{a}:q") == 0, what="nothing is left")


@plain
async def test_cancelled_request_raises_cancelled_error(one: Server) -> None:
    """After `uncancel` (Python 3.13) the task runs on, and has no reply."""
    async with handfast.aio.connect(one.url) as client:
        await works(client)
        io: Any = client._io

        async def ask() -> None:
            await io.broadcast(encode(b"PING"), Ballot(1, 1), 5.0)

        asking: Any = asyncio.create_task(ask())
        await asyncio.sleep(0)  # it waits
        asking._fut_waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await works(client)


def test_close_while_connecting_writes_into_no_other_descriptor(three: Servers) -> None:
    """A connecting thread reports late; by that time the number of a closed descriptor may belong to another file."""
    with Impostor.silent() as silent:
        with handfast.connect([*three.urls[:2], silent.url], guard=False) as client:
            client.lock("a").acquire(wait=0).release()
        pipes = [os.pipe() for _ in range(20)]
        try:
            silent.hang_up()
            eventually(lambda: not [t for t in threading.enumerate() if t.name == "handfast-connect"], within=5)
            written = []
            for reader, _ in pipes:
                os.set_blocking(reader, False)
                with contextlib.suppress(BlockingIOError):
                    written.append(os.read(reader, 100))
            assert not written
        finally:
            for pipe in pipes:
                for fd in pipe:
                    os.close(fd)


@both
async def test_lease_released_at_once_is_not_taken_for_dropped(
    mode: str, one: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the release itself has a reference to the lease: it must not count as dropped."""
    async with connected(mode, one.url) as client:
        for _ in range(20):
            assert await (await client.lock("a").acquire(wait=0)).release()
    assert "dropped" not in caplog.text


# -- bytes that come in odd pieces -------------------------------------------------------------------------------------


@both
async def test_replies_can_arrive_byte_by_byte(mode: str, server: Server) -> None:
    with Relay(server.url) as relay:
        relay.byte_by_byte = True
        async with connected(mode, relay.url) as client:
            await everything(client)
        async with connected(mode, relay.url, guard=True) as client:
            await bootstrap(client)
            await everything(client)


@both
async def test_request_larger_than_socket_buffers_arrives_whole(mode: str, one: Server) -> None:
    names = [f"{i:04}{'x' * 1000}" for i in range(2000)]
    async with connected(mode, one.url, ttl=30) as client:
        lease = await client.lock(names).acquire(wait=0)
        with pytest.raises(handfast.Contended):
            await client.lock([*names, "one-more"]).acquire(wait=0)
        await lease.extend()
        assert await lease.release()
        assert one.command("EXISTS", f"handfast:{{{names[-1]}}}") == 0


@plain
async def test_five_thousand_concurrent_requests_get_their_own_replies(one: Server) -> None:
    async with handfast.aio.connect(one.url, fence=False, ttl=30, node_timeout=10) as client:
        leases = await asyncio.gather(*[client.lock(f"n{i}").acquire(wait=0) for i in range(5000)])
        values = one.command("MGET", *[f"handfast:{{n{i}}}" for i in range(5000)])
        assert values == [lease.owner.encode() for lease in leases]
        assert all(await asyncio.gather(*[lease.release() for lease in leases]))
        assert one.command("DBSIZE") == 0


def test_threads_that_share_client_get_their_own_replies(one: Server) -> None:
    with handfast.connect(one.url) as client, ThreadPoolExecutor(16) as pool:

        def pairs(i: int) -> bool:
            for _ in range(20):
                lease = client.lock(f"n{i}").acquire(wait=0)
                if one.command("GET", f"handfast:{{n{i}}}") != lease.owner.encode() or not lease.release():
                    return False
            return True

        assert all(pool.map(pairs, range(16)))
