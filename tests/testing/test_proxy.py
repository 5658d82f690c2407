"""The fault proxy does what it says, to a raw connection and to a client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

import handfast
from handfast.embedded.resp import Connection
from handfast.errors import ConfigError
from handfast.testing import Proxy, Server
from tests.support.eventually import eventually

Dial = Callable[[], Connection]
NEVER = 0.15
"""Seconds that a raw connection waits for what must not come."""


@pytest.fixture
def proxy(one: Server) -> Iterator[Proxy]:
    with Proxy(one) as proxy:
        yield proxy


@pytest.fixture
def dial(proxy: Proxy) -> Iterator[Dial]:
    """Makes raw connections through the proxy."""
    made: list[Connection] = []

    def dial(timeout: float = 5.0) -> Connection:
        made.append(Connection(("127.0.0.1", proxy.port), timeout=timeout))
        return made[-1]

    yield dial
    for link in made:
        link.close()


def ask_in_thread(link: Connection, *words: str) -> Callable[[], object]:
    """Send a command from another thread; what is returned waits for the reply."""
    replies: list[object] = []
    thread = threading.Thread(target=lambda: replies.append(link.command(*words)))
    thread.start()

    def reply() -> object:
        thread.join(5)
        return replies[0]

    return reply


# -- a good network


def test_what_is_sent_arrives_and_is_counted(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    assert link.command("SET", "k", "v" * 300_000) == "OK"
    assert link.command("GET", "k") == b"v" * 300_000
    assert (proxy.accepted, proxy.connections) == (1, 1)
    assert proxy.up.passed > 300_000
    assert proxy.down.passed > 300_000
    assert proxy.up.held == proxy.down.held == proxy.down.swallowed == 0


def test_the_end_of_a_connection_is_passed_on(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial()
    assert link.command("CLIENT", "SETNAME", "guest") == "OK"
    link.close()
    one.wait_for(lambda: b"name=guest" not in one.command("CLIENT", "LIST"))  # type: ignore[operator]
    eventually(lambda: proxy.connections == 0)


def test_a_server_behind_a_unix_socket_is_reached() -> None:
    with Server(unix=True, config={"requirepass": "a b"}) as server, Proxy(server.url) as proxy:
        assert proxy.url == f"redis://:a%20b@127.0.0.1:{proxy.port}"
        with handfast.connect(proxy.url) as client, client.lock("a") as lease:
            assert lease.votes == (f"redis://127.0.0.1:{proxy.port}",)


def test_the_url_keeps_everything_but_the_place() -> None:
    proxy = Proxy("rediss://me:pw@db.example:7000/2?client_name=x")
    assert proxy.url == f"rediss://me:pw@127.0.0.1:{proxy.port}/2?client_name=x"
    proxy.close()


def test_a_proxy_in_front_of_nothing_resets_who_comes() -> None:
    with Server() as server, Proxy(server) as proxy:
        server.kill()
        # It may be as early as in the connecting.
        with pytest.raises(ConnectionResetError), Connection(("127.0.0.1", proxy.port), timeout=5) as link:
            link.command("PING")


def test_what_is_no_server_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="unknown scheme"):
        Proxy("http://localhost")


def test_a_proxy_that_does_not_run_says_so(one: Server) -> None:
    proxy = Proxy(one)
    with pytest.raises(RuntimeError, match="not running"):
        proxy.heal()
    with proxy:
        proxy.heal()
    with pytest.raises(RuntimeError, match="not running"):
        proxy.drop()


def test_a_closed_proxy_leaves_no_thread_and_no_connection(one: Server) -> None:
    with Proxy(one) as proxy:
        link = Connection(("127.0.0.1", proxy.port), timeout=5)
        link.command("PING")
        proxy.half_open()
    assert not [thread for thread in threading.enumerate() if thread.name == "handfast-proxy"]
    with link, pytest.raises(ConnectionError):
        link.command("PING")


# -- faults


@pytest.mark.parametrize(
    ("ways", "held_up"), [({}, True), ({"up": True}, True), ({"down": True}, False), ({"up": False}, False)]
)
def test_a_fault_holds_for_the_directions_that_are_meant(
    proxy: Proxy, dial: Dial, ways: dict[str, bool], held_up: bool
) -> None:
    proxy.delay(60, **ways)
    reply = ask_in_thread(dial(), "PING")
    eventually(lambda: proxy.up.held if held_up else proxy.down.held)
    assert bool(proxy.up.passed) is not held_up
    proxy.heal()
    assert reply() == "PONG"


def test_a_delay_lasts_as_long_as_it_says_each_way(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    proxy.delay(0.05)
    began = time.monotonic()
    assert link.command("PING") == "PONG"
    assert time.monotonic() - began >= 0.1


def test_a_delay_is_the_same_for_all_that_is_under_way(proxy: Proxy, dial: Dial) -> None:
    """It is a longer way, not a slower one."""
    links = [dial() for _ in range(5)]
    proxy.delay(0.2, up=True)
    began = time.monotonic()
    waits = [ask_in_thread(link, "PING") for link in links]
    assert [wait() for wait in waits] == ["PONG"] * 5
    assert time.monotonic() - began < 0.5


def test_what_is_delayed_goes_on_at_once_when_it_is_healed(proxy: Proxy, dial: Dial) -> None:
    proxy.delay(60)
    reply = ask_in_thread(dial(), "PING")
    eventually(lambda: proxy.up.held)
    proxy.heal()
    assert reply() == "PONG"
    assert proxy.up.held == 0


def test_a_request_that_is_dropped_never_arrives(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial(timeout=NEVER)
    link.command("PING")
    proxy.drop(up=True)
    with pytest.raises(TimeoutError):
        link.command("SET", "k", "v")
    assert proxy.up.swallowed
    assert one.command("EXISTS", "k") == 0


def test_a_request_whose_reply_is_dropped_is_carried_out(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial(timeout=NEVER)
    link.command("PING")
    proxy.drop(down=True)
    with pytest.raises(TimeoutError):
        link.command("SET", "k", "v")
    assert proxy.down.swallowed == len("+OK\r\n")
    assert one.command("EXISTS", "k") == 1


def test_a_connection_that_lost_something_does_not_outlive_the_fault(proxy: Proxy, dial: Dial) -> None:
    torn, whole = dial(timeout=NEVER), dial()
    assert torn.command("PING") == whole.command("PING") == "PONG"
    proxy.drop(down=True)
    with pytest.raises(TimeoutError):
        torn.command("PING")
    proxy.heal()
    assert whole.command("PING") == "PONG"
    eventually(lambda: proxy.connections == 1)


def test_half_open_connections_stay_and_new_ones_are_accepted_in_vain(proxy: Proxy, dial: Dial, one: Server) -> None:
    old = dial()
    old.command("PING")
    proxy.half_open()
    known = one.info("total_connections_received")
    new = dial()
    replies = [ask_in_thread(old, "SET", "k", "v"), ask_in_thread(new, "PING")]
    eventually(lambda: proxy.up.held and proxy.accepted == 2)
    assert proxy.connections == 2
    assert one.command("EXISTS", "k") == 0
    # Those are our own two questions.
    assert int(one.info("total_connections_received")) == int(known) + 2
    proxy.heal()
    assert [reply() for reply in replies] == ["OK", "PONG"]


def test_a_half_open_network_does_not_pass_on_a_hang_up(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial()
    link.command("CLIENT", "SETNAME", "guest")
    proxy.half_open()
    link.close()
    assert b"name=guest" in one.command("CLIENT", "LIST")  # type: ignore[operator]
    proxy.heal()
    one.wait_for(lambda: b"name=guest" not in one.command("CLIENT", "LIST"))  # type: ignore[operator]


def test_a_reset_ends_what_is_connected_and_nothing_else(proxy: Proxy, dial: Dial) -> None:
    links = [dial(), dial()]
    for link in links:
        link.command("PING")
    assert proxy.reset() == 2
    for link in links:
        with pytest.raises(ConnectionResetError):
            link.command("PING")
    assert dial().command("PING") == "PONG"


def test_a_reset_strikes_inside_a_reply(proxy: Proxy, dial: Dial, one: Server) -> None:
    one.command("SET", "k", "0123456789")
    link = dial()
    link.command("PING")
    before = proxy.down.passed
    assert proxy.reset(after=8) == 1
    with pytest.raises(ConnectionResetError):
        link.command("GET", "k")
    assert proxy.down.passed == before + 8
    eventually(lambda: proxy.connections == 0)


def test_a_reset_may_come_after_the_work_and_before_the_reply(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial()
    link.command("PING")
    proxy.reset(after=0)
    with pytest.raises(ConnectionResetError):
        link.command("SET", "k", "v")
    assert one.command("EXISTS", "k") == 1


def test_a_drip_comes_byte_by_byte(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    link.command("PING")
    proxy.drip(1, 0.02, down=True)
    began = time.monotonic()
    assert link.command("PING") == "PONG"
    assert time.monotonic() - began >= 0.02 * (len("+PONG\r\n") - 1)


def test_the_rest_of_a_drip_comes_at_once_when_it_is_healed(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    link.command("PING")
    before = proxy.down.passed
    proxy.drip(2, 60, down=True)
    reply = ask_in_thread(link, "PING")
    eventually(lambda: proxy.down.passed == before + 2)
    proxy.heal()
    assert reply() == "PONG"


def test_a_refusal_is_for_newcomers(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    link.command("PING")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    assert link.command("PING") == "PONG"
    proxy.heal()
    assert dial().command("PING") == "PONG"


@pytest.mark.parametrize("call", [lambda p: p.delay(-1), lambda p: p.drip(0), lambda p: p.reset(after=-1)])
def test_nonsense_is_refused(proxy: Proxy, call: Callable[[Proxy], object]) -> None:
    with pytest.raises(ValueError, match=r"not -?[01]"):
        call(proxy)


# -- a client behind it


def test_a_lease_is_lost_on_time_behind_a_dead_network(proxy: Proxy) -> None:
    with handfast.connect(proxy.url, ttl=0.5) as client:
        lease = client.lock("a").acquire()
        proxy.half_open()
        assert lease.lost.wait(1.0)
        with pytest.raises(handfast.LeaseLost):
            lease.check()
        proxy.heal()


def test_a_client_gets_over_a_reset_inside_a_reply(proxy: Proxy) -> None:
    with handfast.connect(proxy.url) as client:
        client.lock("a").acquire().release()
        assert proxy.reset(after=3)
        with client.lock("a", wait=5) as lease:
            assert lease.valid
