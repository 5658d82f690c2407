"""A client under Sentinel never returns to a master of an older epoch, and no sentinel can make it wait without end."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import handfast
from handfast import Lease, LeaseLost
from handfast.discovery.sentinel import GRACE, SentinelMaster
from handfast.testing import Proxy, Server, Servers, available
from handfast.testing.sentinel import Sentinel
from handfast.testing.server_versions import any_binary
from sim.resp import commands_in
from tests.support.eventually import eventually
from tests.support.programs import attempt, program
from tests.support.tcp_relay import Impostor

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

NAME = "mymaster"
KEY = "handfast:{a}"
HELLO = "__sentinel__:hello"


def _sentinel(master: Server, epoch: int) -> Sentinel:
    """A sentinel that names this master, with this configuration epoch."""
    sentinel = Sentinel(any_binary(), "")
    sentinel.watches = [
        ["sentinel", "monitor", NAME, "127.0.0.1", str(master.port), "2"],
        ["sentinel", "config-epoch", NAME, str(epoch)],
    ]
    return sentinel


def _url(*ports: int) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}"


class Failover:
    """A failover that one sentinel knows and two do not. The old master lives, cut off from the new one."""

    def __init__(self, stack: ExitStack) -> None:
        self.old, self.new = stack.enter_context(Servers(2))
        self.knowing, *self.lagging = [
            stack.enter_context(_sentinel(*each)) for each in ((self.new, 2), (self.old, 1), (self.old, 1))
        ]
        for sentinel in self.lagging:
            # Else they would make the old master a replica of the new one, as soon as they hear of it.
            sentinel.command("SENTINEL", "DEBUG", "publish-period", 60_000)
        self.url = _url(self.knowing.port, *(sentinel.port for sentinel in self.lagging))

    def meets_new_master(self, client: handfast.Client) -> None:
        """The client learns of the later epoch, and uses the new master."""
        self.lagging[1].pause()
        lease = client.lock("warm").acquire(wait=5)
        there = self.new.command("EXISTS", "handfast:{warm}")
        lease.release()
        if not there:
            raise RuntimeError("the client did not go to the new master at first")

    def hears_old_epoch(self) -> None:
        """From now on only the sentinels answer that do not know the failover."""
        self.knowing.pause()
        self.lagging[1].resume()
        # A client that waits for a lock is subscribed, which a server takes for another type.
        for kind in ("normal", "pubsub"):
            self.new.command("CLIENT", "KILL", "TYPE", kind)

    def catch_up(self) -> None:
        """All sentinels hear of the failover, and tell their clients."""
        self.knowing.resume()
        hello = f"127.0.0.1,1,{secrets.token_hex(20)},2,{NAME},127.0.0.1,{self.new.port},2"
        named = [str(self.new.port)] * 2

        def told() -> bool:
            self.old.command("PUBLISH", HELLO, hello)
            return [sentinel.tells("MASTER", NAME)[0]["port"] for sentinel in self.lagging] == named

        self.old.wait_for(told)


@pytest.fixture
def failover() -> Iterator[Failover]:
    with ExitStack() as stack:
        yield Failover(stack)


@pytest.mark.parametrize("guard", [False, True], ids=["unguarded", "guarded"])
def test_client_never_goes_back_to_older_epoch(failover: Failover, guard: bool) -> None:
    options: dict[str, Any] = {"guard": guard, "max_ttl": 10.0}
    if guard:
        for server in (failover.old, failover.new):
            with handfast.connect(server.url, **options) as direct:
                handfast.bootstrap(direct)
    with handfast.connect(failover.url, **options) as client, handfast.connect(failover.new.url, **options) as other:
        failover.meets_new_master(client)
        held = other.lock("a", ttl=10.0).acquire(wait=1)
        failover.hears_old_epoch()
        lease = attempt(client.lock("a"), wait=1)
        assert not (isinstance(lease, Lease) and held.valid), "two clients hold the lock, on two masters"
        held.release()


def test_client_leaves_old_master_when_sentinels_catch_up(failover: Failover) -> None:
    with handfast.connect(failover.url) as client:
        failover.meets_new_master(client)
        failover.hears_old_epoch()
        lease = attempt(client.lock("a"), wait=1)
        if isinstance(lease, Lease):
            lease.release()
        failover.catch_up()
        end, there = time.monotonic() + 1.5, False
        while not there and time.monotonic() < end:
            with client.lock("b", wait=5):
                there = failover.new.command("EXISTS", "handfast:{b}") == 1
        assert there, "the client stays with the old master"


@pytest.fixture
def distant(failover: Failover) -> Iterator[Proxy]:
    """The sentinel that knows the failover, a long way off."""
    with Proxy(f"redis://127.0.0.1:{failover.knowing.port}") as proxy:
        yield proxy


def _ports(failover: Failover, distant: Proxy) -> list[int]:
    return [distant.port, *(sentinel.port for sentinel in failover.lagging)]


def test_fresh_client_waits_for_distant_sentinel_with_later_epoch(failover: Failover, distant: Proxy) -> None:
    distant.delay(0.1)
    with (
        handfast.connect(failover.new.url) as other,
        handfast.connect(_url(*_ports(failover, distant))) as client,
    ):
        held = other.lock("a", ttl=10.0).acquire(wait=1)
        lease = attempt(client.lock("a"), wait=0)
        assert not (isinstance(lease, Lease) and held.valid), "two clients hold the lock, on two masters"
        held.release()


def test_client_on_old_master_hears_of_later_epoch_from_distant_sentinel(failover: Failover, distant: Proxy) -> None:
    """It takes longer than a search, so the client begins on the old master. It must leave it soon."""
    distant.delay(0.55)
    with handfast.connect(_url(*_ports(failover, distant)), ttl=3.0) as client:
        lease = client.lock("a").acquire(wait=0)
        if failover.old.command("EXISTS", KEY) != 1:
            raise RuntimeError("the client did not begin on the old master")
        eventually(lease.lost.is_set, within=8, what="the client hears that there is a new master")
        with pytest.raises(LeaseLost, match="key is gone"):
            lease.check()


def test_silent_sentinel_delays_a_search_by_no_more_than_the_grace(failover: Failover, distant: Proxy) -> None:
    distant.half_open()
    resolver = SentinelMaster(NAME, [("127.0.0.1", port) for port in _ports(failover, distant)], {})
    try:
        began = time.monotonic()
        assert resolver.find() == ("127.0.0.1", failover.old.port)
        assert time.monotonic() - began < GRACE + 0.3
    finally:
        resolver.close()


def test_lease_of_old_master_is_lost_when_the_client_hears_of_later_epoch(failover: Failover) -> None:
    """The next renewal would notice it 10 s later."""
    with handfast.connect(_url(*(sentinel.port for sentinel in failover.lagging)), ttl=30.0) as client:
        lease = client.lock("a").acquire(wait=5)
        failover.catch_up()
        eventually(lease.lost.is_set, within=5, what="the lease is lost")


def test_connection_that_was_made_while_the_master_moved_is_hung_up(failover: Failover) -> None:
    """As if the failover became known between the search and the end of the handshake."""
    with handfast.connect(failover.url) as client:
        failover.meets_new_master(client)
        resolver: Any = client._addresses[0].resolver
        ended: list[Server] = []
        for server in (failover.new, failover.old):
            resolver.opened(server, ("127.0.0.1", server.port), ended.append)  # in place of connections
        assert ended == [failover.old]


def _moving_sentinel(*said: tuple[int, int]) -> Impostor:
    """A sentinel that names these epochs and ports, one after the other: each question moves it to the next."""
    moments = [*said]

    def talk(sock: socket.socket) -> None:
        array = b"*4\r\n"
        while request := sock.recv(65536):
            for words in commands_in(request):
                reply = b"+OK\r\n"
                if words[0] == b"HELLO":
                    array = b"%2\r\n"
                    reply = b"%1\r\n+proto\r\n:3\r\n"
                elif words[0] == b"SENTINEL":
                    epoch, port = moments.pop(0) if len(moments) > 1 else moments[0]
                    told: tuple[bytes, ...]
                    told, head = (b"127.0.0.1", b"%d" % port), b"*2\r\n"
                    if words[1] == b"MASTER":
                        told, head = (b"config-epoch", b"%d" % epoch, b"flags", b"master"), array
                    reply = head + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in told)
                sock.sendall(reply)

    return Impostor(talk)


def test_failover_between_two_questions_does_not_mix_epochs() -> None:
    """Otherwise the new address would come with the old epoch, and the old address would be as good."""
    old, new = 2, 1
    with _moving_sentinel((1, old), (2, new)) as quick, _moving_sentinel((1, old)) as lagging:
        resolver = SentinelMaster(NAME, [("127.0.0.1", each.port) for each in (quick, lagging)], {})
        try:
            assert resolver.find() == ("127.0.0.1", new)
        finally:
            resolver.close()


# -- sentinels that answer nonsense ------------------------------------------------------------------------------------


def _always(reply: bytes) -> Callable[[socket.socket], None]:
    def talk(sock: socket.socket) -> None:
        while request := sock.recv(65536):
            sock.sendall(reply * max(1, request.count(b"*")))

    return talk


def _dripping(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"$100000\r\n")
    while True:
        sock.sendall(b"x")
        time.sleep(0.1)


NONSENSE = {
    "a number": _always(b":1\r\n"),
    "an epoch in words": _always(b"*2\r\n$12\r\nconfig-epoch\r\n$4\r\nlast\r\n"),
    "without end": _dripping,
}


ASKING = """
import sys, handfast, redis.asyncio

client = handfast.connect(sys.argv[1])
try:
    lease = client.lock("a").acquire(wait=2.5)
except handfast.HandfastError as error:
    print(error)
else:
    print("granted")
    lease.release()
"""


@pytest.mark.parametrize("talk", NONSENSE.values(), ids=NONSENSE)
def test_unreadable_sentinels_are_not_waited_for(one: Server, talk: Callable[[socket.socket], None]) -> None:
    """As with sentinels that are down: the third one is enough to find the master.

    In a separate process, because threads of redis-py may fail there.
    """
    with Impostor(talk) as first, Impostor(talk) as second, _sentinel(one, 1) as good:
        said = program(ASKING, _url(first.port, second.port, good.port))
        said.check_returncode()
        assert said.stdout.strip() == "granted", f"two sentinels that answer nonsense stop the client: {said.stdout}"


# -- the first use in a process ----------------------------------------------------------------------------------------

SLOW_START = """
import sys, threading, time
from importlib.machinery import PathFinder

run, delays = threading.Thread.run, [0.1]


def late(thread):
    if delays:
        time.sleep(delays.pop())
    run(thread)


class SlowDisk:
    @staticmethod
    def find_spec(name, path, target=None):
        if name != "redis":
            return None
        spec = PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def slowly(module):
            time.sleep(0.3)
            load(module)

        spec.loader.exec_module = slowly
        return spec


threading.Thread.run = late
sys.meta_path.insert(0, SlowDisk)
"""
"""The first thread starts a little later than the others, and redis-py takes a while to be read."""


def test_first_use_in_process_finds_master(one: Server) -> None:
    """Without any help one process in sixty failed so on a busy machine."""
    with _sentinel(one, 1) as sentinel:
        said = program(SLOW_START + ASKING.replace(", redis.asyncio", ""), _url(sentinel.port))
        said.check_returncode()
        assert said.stdout.strip() == "granted", f"a new process gets no lock: {said.stdout}{said.stderr[-600:]}"
