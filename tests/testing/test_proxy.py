"""The faults of the proxy, on raw connections and on a client."""

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
NO_DATA_WITHIN = 0.15
"""Seconds that a raw connection waits for data that must not arrive."""


@pytest.fixture
def proxy(one: Server) -> Iterator[Proxy]:
    with Proxy(one) as proxy:
        yield proxy


@pytest.fixture
def dial(proxy: Proxy) -> Iterator[Dial]:
    """A function that makes raw connections through the proxy."""
    made: list[Connection] = []

    def dial(timeout: float = 5.0) -> Connection:
        made.append(Connection(("127.0.0.1", proxy.port), timeout=timeout))
        return made[-1]

    yield dial
    for link in made:
        link.close()


def ask_in_thread(link: Connection, *words: str) -> Callable[[], object]:
    """Send a command from another thread. Returns a function that waits for the reply."""
    replies: list[object] = []
    thread = threading.Thread(target=lambda: replies.append(link.command(*words)))
    thread.start()

    def reply() -> object:
        thread.join(5)
        return replies[0]

    return reply


# -- a good network


def test_data_arrives_and_is_counted(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    assert link.command("SET", "k", "v" * 300_000) == "OK"
    assert link.command("GET", "k") == b"v" * 300_000
    assert (proxy.accepted, proxy.connections) == (1, 1)
    assert proxy.up.passed > 300_000
    assert proxy.down.passed > 300_000
    assert proxy.up.held == proxy.down.held == proxy.down.swallowed == 0


def test_end_of_connection_is_forwarded(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial()
    assert link.command("CLIENT", "SETNAME", "guest") == "OK"
    link.close()
    one.wait_for(lambda: b"name=guest" not in one.command("CLIENT", "LIST"))  # type: ignore[operator]
    eventually(lambda: proxy.connections == 0)


def test_proxy_reaches_unix_socket() -> None:
    with Server(unix=True, config={"requirepass": "a b"}) as server, Proxy(server.url) as proxy:
        assert proxy.url == f"redis://:a%20b@127.0.0.1:{proxy.port}"
        with handfast.connect(proxy.url) as client, client.lock("a") as lease:
            assert lease.votes == (f"redis://127.0.0.1:{proxy.port}",)


def test_url_changes_only_address() -> None:
    proxy = Proxy("rediss://me:pw@db.example:7000/2?client_name=x")
    assert proxy.url == f"rediss://me:pw@127.0.0.1:{proxy.port}/2?client_name=x"
    proxy.close()


def test_proxy_without_server_resets_connections() -> None:
    with Server() as server, Proxy(server) as proxy:
        server.kill()
        # The reset may already happen while connecting.
        with pytest.raises(ConnectionResetError), Connection(("127.0.0.1", proxy.port), timeout=5) as link:
            link.command("PING")


def test_invalid_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown scheme"):
        Proxy("http://localhost")


def test_stopped_proxy_raises(one: Server) -> None:
    proxy = Proxy(one)
    with pytest.raises(RuntimeError, match="not running"):
        proxy.heal()
    with proxy:
        proxy.heal()
    with pytest.raises(RuntimeError, match="not running"):
        proxy.drop()


def test_closed_proxy_leaves_no_thread_and_no_connection(one: Server) -> None:
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
def test_fault_applies_to_chosen_directions(proxy: Proxy, dial: Dial, ways: dict[str, bool], held_up: bool) -> None:
    proxy.delay(60, **ways)
    reply = ask_in_thread(dial(), "PING")
    eventually(lambda: proxy.up.held if held_up else proxy.down.held)
    assert bool(proxy.up.passed) is not held_up
    proxy.heal()
    assert reply() == "PONG"


def test_delay_applies_to_each_direction(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    proxy.delay(0.05)
    began = time.monotonic()
    assert link.command("PING") == "PONG"
    assert time.monotonic() - began >= 0.1


def test_delay_is_same_for_all_data_in_flight(proxy: Proxy, dial: Dial) -> None:
    """A delay adds latency, but does not reduce the bandwidth."""
    links = [dial() for _ in range(5)]
    proxy.delay(0.2, up=True)
    began = time.monotonic()
    waits = [ask_in_thread(link, "PING") for link in links]
    assert [wait() for wait in waits] == ["PONG"] * 5
    assert time.monotonic() - began < 0.5


def test_delayed_data_arrives_at_once_after_heal(proxy: Proxy, dial: Dial) -> None:
    proxy.delay(60)
    reply = ask_in_thread(dial(), "PING")
    eventually(lambda: proxy.up.held)
    proxy.heal()
    assert reply() == "PONG"
    assert proxy.up.held == 0


def test_dropped_request_never_arrives(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial(timeout=NO_DATA_WITHIN)
    link.command("PING")
    proxy.drop(up=True)
    with pytest.raises(TimeoutError):
        link.command("SET", "k", "v")
    assert proxy.up.swallowed
    assert one.command("EXISTS", "k") == 0


def test_request_with_dropped_reply_is_executed(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial(timeout=NO_DATA_WITHIN)
    link.command("PING")
    proxy.drop(down=True)
    with pytest.raises(TimeoutError):
        link.command("SET", "k", "v")
    assert proxy.down.swallowed == len("+OK\r\n")
    assert one.command("EXISTS", "k") == 1


def test_connection_with_lost_data_ends_with_fault(proxy: Proxy, dial: Dial) -> None:
    torn, whole = dial(timeout=NO_DATA_WITHIN), dial()
    assert torn.command("PING") == whole.command("PING") == "PONG"
    proxy.drop(down=True)
    with pytest.raises(TimeoutError):
        torn.command("PING")
    proxy.heal()
    assert whole.command("PING") == "PONG"
    eventually(lambda: proxy.connections == 1)


def test_half_open_network_keeps_connections_and_accepts_new_ones_without_answer(
    proxy: Proxy, dial: Dial, one: Server
) -> None:
    old = dial()
    old.command("PING")
    proxy.half_open()
    known = one.info("total_connections_received")
    new = dial()
    replies = [ask_in_thread(old, "SET", "k", "v"), ask_in_thread(new, "PING")]
    eventually(lambda: proxy.up.held and proxy.accepted == 2)
    assert proxy.connections == 2
    assert one.command("EXISTS", "k") == 0
    # These two are the requests of this test.
    assert int(one.info("total_connections_received")) == int(known) + 2
    proxy.heal()
    assert [reply() for reply in replies] == ["OK", "PONG"]


def test_half_open_network_does_not_forward_hang_up(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial()
    link.command("CLIENT", "SETNAME", "guest")
    proxy.half_open()
    link.close()
    assert b"name=guest" in one.command("CLIENT", "LIST")  # type: ignore[operator]
    proxy.heal()
    one.wait_for(lambda: b"name=guest" not in one.command("CLIENT", "LIST"))  # type: ignore[operator]


def test_reset_ends_only_current_connections(proxy: Proxy, dial: Dial) -> None:
    links = [dial(), dial()]
    for link in links:
        link.command("PING")
    assert proxy.reset() == 2
    for link in links:
        with pytest.raises(ConnectionResetError):
            link.command("PING")
    assert dial().command("PING") == "PONG"


def test_reset_happens_inside_reply(proxy: Proxy, dial: Dial, one: Server) -> None:
    one.command("SET", "k", "0123456789")
    link = dial()
    link.command("PING")
    before = proxy.down.passed
    assert proxy.reset(after=8) == 1
    with pytest.raises(ConnectionResetError):
        link.command("GET", "k")
    assert proxy.down.passed == before + 8
    eventually(lambda: proxy.connections == 0)


def test_reset_can_happen_after_execution_and_before_reply(proxy: Proxy, dial: Dial, one: Server) -> None:
    link = dial()
    link.command("PING")
    proxy.reset(after=0)
    with pytest.raises(ConnectionResetError):
        link.command("SET", "k", "v")
    assert one.command("EXISTS", "k") == 1


def test_drip_sends_single_bytes(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    link.command("PING")
    proxy.drip(1, 0.02, down=True)
    began = time.monotonic()
    assert link.command("PING") == "PONG"
    assert time.monotonic() - began >= 0.02 * (len("+PONG\r\n") - 1)


def test_rest_of_drip_arrives_at_once_after_heal(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    link.command("PING")
    before = proxy.down.passed
    proxy.drip(2, 60, down=True)
    reply = ask_in_thread(link, "PING")
    eventually(lambda: proxy.down.passed == before + 2)
    proxy.heal()
    assert reply() == "PONG"


def test_refuse_applies_to_new_connections(proxy: Proxy, dial: Dial) -> None:
    link = dial()
    link.command("PING")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial()
    assert link.command("PING") == "PONG"
    proxy.heal()
    assert dial().command("PING") == "PONG"


@pytest.mark.parametrize("call", [lambda p: p.delay(-1), lambda p: p.drip(0), lambda p: p.reset(after=-1)])
def test_invalid_arguments_are_refused(proxy: Proxy, call: Callable[[Proxy], object]) -> None:
    with pytest.raises(ValueError, match=r"not -?[01]"):
        call(proxy)


# -- a client behind it


def test_lease_is_lost_on_time_behind_dead_network(proxy: Proxy) -> None:
    with handfast.connect(proxy.url, ttl=0.5) as client:
        lease = client.lock("a").acquire()
        proxy.half_open()
        assert lease.lost.wait(1.0)
        with pytest.raises(handfast.LeaseLost):
            lease.check()
        proxy.heal()


def test_client_recovers_from_reset_inside_reply(proxy: Proxy) -> None:
    with handfast.connect(proxy.url) as client:
        client.lock("a").acquire().release()
        assert proxy.reset(after=3)
        with client.lock("a", wait=5) as lease:
            assert lease.valid
