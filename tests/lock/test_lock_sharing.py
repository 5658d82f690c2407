"""Sharing with others: the published protocol, redis-py's lock, redis-py's clients, namespaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

import handfast
import handfast.aio
from handfast import ConfigError, Contended, LeaseLost, NoQuorum
from handfast.testing import Server, Servers
from tests.support.sync_and_async import plain

pytestmark = pytest.mark.slow


@pytest.fixture
def client(server: Server) -> Iterator[handfast.Client]:
    """A client that speaks the published protocol and nothing else."""
    with handfast.connect(server.url, prefix="", fence=False) as client:
        yield client


@pytest.fixture
def peer(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as peer:
        yield peer


def commands_of(server: Server, peer: redis.Redis, work: object) -> list[str]:
    """The commands that `work` sends to the server."""
    assert callable(work)
    peer.ping()  # without the handshake of a new connection
    with redis.Redis(port=server.port) as watcher, watcher.monitor() as monitor:
        work()
        peer.set("the end", 1)
        seen: list[str] = []
        for command in monitor.listen():
            if "the end" in command["command"]:
                return seen
            if command["client_type"] != "lua":
                seen.append(command["command"])
    raise AssertionError("not reached")


def test_lock_without_prefix_and_fence_sends_published_protocol(
    server: Server, client: handfast.Client, peer: redis.Redis
) -> None:
    lock = client.lock("orders:42", ttl=5)
    lock.acquire().release()  # connects
    owners: list[str] = []

    def work() -> None:
        with lock as lease:
            owners.append(lease.owner)
            assert peer.get("orders:42") == lease.owner.encode()
            assert 4000 < peer.pttl("orders:42") <= 5000

    seen = [command for command in commands_of(server, peer, work) if not command.startswith(("GET", "PTTL"))]
    assert seen[0] == f"SET orders:42 {owners[0]} NX PX 5000"
    assert len(seen) == 2
    assert f" orders:42 {owners[0]}" in seen[1]  # an owner-checked delete: DELIFEQ, DELEX or a script
    assert peer.keys("*orders*") == []


def test_handfast_lock_excludes_redis_py_lock(client: handfast.Client, peer: redis.Redis) -> None:
    with client.lock("a") as lease:
        theirs = peer.lock("a", timeout=5)
        assert theirs.acquire(blocking=False) is False
        assert theirs.locked()
        # Nor can they release handfast's lock.
        with pytest.raises(redis.exceptions.LockError):
            theirs.release()
        assert peer.get("a") == lease.owner.encode()
    assert theirs.acquire(blocking=False) is True
    theirs.release()


def test_redis_py_lock_excludes_handfast_lock(client: handfast.Client, peer: redis.Redis) -> None:
    with peer.lock("a", timeout=5) as theirs:
        assert client.lock("a").try_acquire() is None
        with pytest.raises(Contended) as caught:
            client.lock("a").acquire(wait=0.1)
        assert caught.value.holder == theirs.local.token.decode()
        assert caught.value.remaining is not None
        assert 4 < caught.value.remaining <= 5
        assert theirs.owned()
    with client.lock("a", wait=0):
        pass


def test_expired_redis_py_lock_can_be_acquired_and_late_release_does_not_end_it(
    client: handfast.Client, peer: redis.Redis
) -> None:
    theirs = peer.lock("a", timeout=0.15)
    assert theirs.acquire()
    with client.lock("a", wait=2) as lease:
        with pytest.raises(redis.exceptions.LockError):
            theirs.release()
        lease.extend()
        assert lease.valid


def test_redis_py_acquires_expired_lock_and_late_release_does_not_end_it(
    client: handfast.Client, peer: redis.Redis
) -> None:
    lease = client.lock("a", ttl=0.15, renew=False).acquire()
    with peer.lock("a", timeout=5, blocking_timeout=2, sleep=0.01) as theirs:
        assert lease.release() is False
        with pytest.raises(LeaseLost):
            lease.extend()
        assert theirs.owned()


def test_renewal_in_published_protocol_compares_owner(client: handfast.Client, peer: redis.Redis) -> None:
    lease = client.lock("a", ttl=0.3).acquire()
    peer.set("a", "a stranger", px=5000)
    assert lease.lost.wait(2)
    assert peer.get("a") == b"a stranger"
    assert peer.pttl("a") > 3000


def test_prefix_is_a_separate_namespace(server: Server, peer: redis.Redis) -> None:
    with handfast.connect(server.url, prefix="app:") as app, handfast.connect(server.url) as other:
        with app.lock("a"), other.lock("a", wait=0), other.lock("a", prefix="third:", wait=0):
            locks = {name for name in peer.keys("*") if not name.endswith(b":f")}
            assert locks == {b"app:{a}", b"handfast:{a}", b"third:{a}"}
        # Only the counters stay, for token_memory.
        assert set(peer.keys("*")) == {b"app:{a}:f", b"handfast:{a}:f", b"third:{a}:f"}
        assert 604_790 < peer.ttl("app:{a}:f") <= 604_801


@pytest.mark.parametrize("name", ["ключ", "a b\tc", "x" * 1024, "{tag}", "a\nb", "%s", "\x00"])
def test_name_can_be_any_text(server: Server, name: str) -> None:
    with handfast.connect(server.url) as client:
        with client.lock(name) as lease:
            assert lease.name == name
            key = f"handfast:<{name}>" if name == "{tag}" else f"handfast:{{{name}}}"
            assert server.command("GET", key.encode()) == lease.owner.encode()
            assert client.lock(name).try_acquire() is None
        assert client.lock(name, wait=0).acquire().release() is True


# -- from_client ------------------------------------------------------------------------------------------------------


def test_from_client_uses_address_and_database_and_leaves_client_alone(server: Server, peer: redis.Redis) -> None:
    for theirs in (redis.Redis(port=server.port, db=3), redis.Redis.from_url(f"{server.url}/3", decode_responses=True)):
        with theirs, handfast.from_client(theirs) as client:
            with client.lock("a") as lease:
                assert theirs.exists("handfast:{a}")
                assert not peer.exists("handfast:{a}")
                assert lease.votes == (f"redis://127.0.0.1:{server.port}/3",) or "localhost" in lease.votes[0]
            client.close()
            assert theirs.ping()


class Provider(redis.CredentialProvider):
    """Credentials that change with every connection."""

    def __init__(self, *given: tuple[str, ...]) -> None:
        self.given = list(given)

    def get_credentials(self) -> tuple[str, ...]:
        return self.given.pop(0) if len(self.given) > 1 else self.given[0]


def test_from_client_uses_credentials(one: Server) -> None:
    one.command("ACL", "SETUSER", "ann", "on", ">first", ">second", "~*", "+@all")
    try:
        for theirs in (
            redis.Redis(port=one.port, username="ann", password="first"),
            redis.Redis(port=one.port, credential_provider=Provider(("ann", "first"))),
        ):
            with theirs, handfast.from_client(theirs) as client, client.lock("a") as lease:
                assert lease.valid
                who = one.command("CLIENT", "LIST")
                assert isinstance(who, bytes)
                assert b"user=ann" in who
        wrong = redis.Redis(port=one.port, username="ann", password="wrong")
        with wrong, handfast.from_client(wrong) as client, pytest.raises(NoQuorum, match="WRONGPASS"):
            client.lock("a").acquire()
    finally:
        one.command("ACL", "DELUSER", "ann")


def test_credential_provider_is_asked_at_each_connection(one: Server) -> None:
    one.command("ACL", "SETUSER", "ann", "on", ">first", "~*", "+@all")
    try:
        provider = Provider(("ann", "first"), ("ann", "second"))
        with redis.Redis(port=one.port, credential_provider=provider) as theirs, handfast.from_client(theirs) as client:
            client.lock("a").acquire().release()
            one.command("ACL", "SETUSER", "ann", "resetpass", ">second")
            one.command("CLIENT", "KILL", "USER", "ann")
            client.lock("a", wait=2).acquire().release()
    finally:
        one.command("ACL", "DELUSER", "ann")


def test_from_client_uses_password_without_user_and_unix_socket() -> None:
    with Server(unix=True, config={"requirepass": "p w@"}) as own:
        path = str(own.socket_path)
        for theirs in (
            redis.Redis(unix_socket_path=path, password="p w@"),
            redis.Redis(unix_socket_path=path, credential_provider=Provider(("p w@",))),
        ):
            with theirs, handfast.from_client(theirs) as client, client.lock("a") as lease:
                assert lease.votes == (f"unix://{path}",)
                assert theirs.exists("handfast:{a}")
        with handfast.connect(own.url) as client, client.lock("a"):
            pass


def test_from_client_with_several_clients_is_a_quorum(three: Servers) -> None:
    theirs = [redis.Redis(host="127.0.0.1", port=node.port) for node in three]
    with handfast.from_client(theirs) as client:
        handfast.bootstrap(client)
        with client.lock("a") as lease:
            assert len(lease.votes) >= 2
            assert set(lease.votes) <= set(three.urls)
        three[0].kill()
        with client.lock("a") as lease:
            assert set(lease.votes) == set(three.urls[1:])
    with pytest.raises(ConfigError, match="twice"):
        handfast.from_client([theirs[0], theirs[1], theirs[0]])
    for each in theirs:
        each.close()


@plain
async def test_from_client_accepts_asyncio_client(one: Server) -> None:
    async with redis.asyncio.Redis(port=one.port, db=2) as theirs, handfast.aio.from_client(theirs) as client:
        async with client.lock("a"):
            assert await theirs.exists("handfast:{a}")
        assert not await theirs.exists("handfast:{a}")
