"""What only the blocking lock has, and options of a lock. test_contract has what both facades promise."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

import handfast
from handfast import ConfigError, Contended, LeaseLost, NoQuorum
from handfast.testing import Server
from tests.support.eventually import eventually, renewal_of

pytestmark = pytest.mark.slow


def key(name: str) -> str:
    return f"handfast:{{{name}}}"


@pytest.fixture
def client(server: Server) -> Iterator[handfast.Client]:
    with handfast.connect(server.url) as client:
        yield client


@pytest.fixture
def rival(server: Server) -> Iterator[handfast.Client]:
    with handfast.connect(server.url) as client:
        yield client


@pytest.fixture
def own(any_server: Server) -> Iterator[Server]:
    """A server of the same kind that the test may pause or kill."""
    with Server(any_server.binary) as server:
        yield server


def holder_of(server: Server, name: str) -> str | None:
    value = server.command("GET", key(name))
    return value.decode() if isinstance(value, bytes) else None


def pttl(server: Server, name: str) -> float:
    left = server.command("PTTL", key(name))
    assert isinstance(left, int)
    return left / 1000


# -- acquire and release ----------------------------------------------------------------------------------------------


def test_creating_lock_sends_nothing(server: Server) -> None:
    before = int(server.info("total_connections_received"))
    with handfast.connect(server.url) as client:
        client.lock("a")
        client.rlock("a")
        client.locked("a")(print)
    assert int(server.info("total_connections_received")) == before + 1  # the reading itself


def test_leases_of_one_lock_object_exclude_each_other(client: handfast.Client) -> None:
    lock = client.lock("a")
    first = lock.acquire()
    assert lock.try_acquire() is None
    first.release()
    second = lock.acquire(wait=0)
    assert second.owner != first.owner
    # The first lease is over: its release has nothing to do with the second.
    assert first.release() is False
    assert second.valid
    assert lock.try_acquire() is None
    assert second.release() is True


def test_wait_of_call_overrides_wait_of_lock_and_client(server: Server) -> None:
    with handfast.connect(server.url) as rival, rival.lock("a"), handfast.connect(server.url, wait=0) as client:
        began = time.monotonic()
        with pytest.raises(Contended):
            client.lock("a").acquire()
        with pytest.raises(Contended):
            client.lock("a", wait=60).acquire(wait=0)
        assert time.monotonic() - began < 1
        with pytest.raises(Contended):
            client.lock("a").acquire(wait=0.2)
        assert time.monotonic() - began >= 0.2


def test_tries_limits_number_of_attempts(client: handfast.Client, rival: handfast.Client) -> None:
    attempts: list[int] = []

    def delay(attempt: int, random: float) -> float:
        attempts.append(attempt)
        return 0.001

    with rival.lock("a"), pytest.raises(Contended):
        client.lock("a", wait=30, tries=3, backoff=handfast.backoff.Backoff(delay)).acquire()
    assert attempts == [1, 2]


def test_threads_exclude_each_other(client: handfast.Client) -> None:
    lock = client.lock("counter", wait=20, backoff=handfast.backoff.steady(0.002).jittered(0.5))
    inside: list[int] = []
    overlaps: list[int] = []
    count = 0

    def work(me: int) -> None:
        nonlocal count
        for _ in range(10):
            with lock:
                inside.append(me)
                seen = count
                time.sleep(0)  # lets another thread get here too
                count = seen + 1
                if len(inside) > 1:
                    overlaps.append(me)
                inside.pop()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert count == 60


# -- with -------------------------------------------------------------------------------------------------------------


def test_body_never_runs_without_lock(own: Server, client: handfast.Client, rival: handfast.Client) -> None:
    ran: list[str] = []
    with client.lock("a"), pytest.raises(Contended), rival.lock("a", wait=0):
        ran.append("while another held it")
    with client.lock("a"), pytest.raises(Contended), rival.lock("a", wait=0.1):
        ran.append("when its patience was over")
    own.kill()
    with handfast.connect(own.url) as lonely, pytest.raises(NoQuorum), lonely.lock("a", wait=0.1):
        ran.append("without a server")
    client.close()
    with pytest.raises(ConfigError), client.lock("a"):
        ran.append("on a closed client")
    assert not ran


def test_reply_after_deadline_is_no_grant(own: Server) -> None:
    with handfast.connect(own.url) as client:
        client.lock("warm").acquire().release()
        own.pause()
        threading.Timer(0.4, own.resume).start()
        # The server takes the SET 0.4 s after it was sent, when a lease of 0.2 s is over.
        with pytest.raises(NoQuorum, match="too late for the lease's validity"):
            client.lock("a", ttl=0.2, wait=0, node_timeout=2).acquire()
        eventually(lambda: own.command("EXISTS", key("a")) == 0)


def test_exit_does_not_mask_error_of_body(own: Server, server: Server, client: handfast.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.lock("a"):
        raise ZeroDivisionError
    assert holder_of(server, "a") is None

    def lose() -> None:
        with client.lock("a", ttl=0.1, renew=False) as lease:
            assert lease.lost.wait(2)
            raise ZeroDivisionError

    def lose_the_server() -> None:
        with handfast.connect(own.url) as other, other.lock("a"):
            own.kill()
            raise ZeroDivisionError

    for body in (lose, lose_the_server):
        with pytest.raises(ZeroDivisionError):
            body()


def test_exit_raises_lease_lost_after_loss(client: handfast.Client) -> None:
    with pytest.raises(LeaseLost, match="not renewed"), client.lock("a", ttl=0.1, renew=False) as lease:
        assert lease.lost.wait(2)


def test_exit_is_silent_when_server_is_gone_before_deadline(own: Server) -> None:
    # Unknown is not lost: the body ran within the lease's validity.
    with handfast.connect(own.url) as client, client.lock("a"):
        own.kill()


def test_one_lock_object_can_be_entered_by_many_threads(client: handfast.Client) -> None:
    lock = client.lock("a", wait=0)
    outcome: list[object] = []

    def enter() -> None:
        try:
            with lock:
                outcome.append("entered")
        except Contended as error:
            outcome.append(error.holder)

    with lock as lease:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert outcome == [lease.owner]


# -- release ----------------------------------------------------------------------------------------------------------


def test_release_returns_false_when_key_is_gone(server: Server, client: handfast.Client) -> None:
    lease = client.lock("a").acquire()
    server.command("DEL", key("a"))
    assert lease.release() is False


# -- time -------------------------------------------------------------------------------------------------------------


def test_lease_is_never_valid_longer_than_its_key(server: Server, client: handfast.Client) -> None:
    with client.lock("a", ttl=5) as lease:
        kept = pttl(server, "a")
        assert 4.5 < lease.remaining() < kept
        lease.extend(ttl=8)
        kept = pttl(server, "a")
        assert 7.5 < lease.remaining() < kept
        assert lease.remaining() <= 8 - 8 * 0.01 - 0.002


def test_larger_drift_shortens_the_validity(client: handfast.Client) -> None:
    with client.lock("a", ttl=10, drift=0.2) as lease:
        assert 7.5 < lease.remaining() < 8


def test_check_passes_only_while_enough_time_is_left(client: handfast.Client) -> None:
    with client.lock("a", ttl=5, renew=False) as lease:
        lease.check()
        lease.check(need=4)
        lease.check(need=timedelta(seconds=4))  # type: ignore[arg-type]
        for need in (5, 60, timedelta(minutes=1)):
            with pytest.raises(LeaseLost):
                lease.check(need=need)  # type: ignore[arg-type]
        for bad in (-1, float("nan"), "1"):
            with pytest.raises(ConfigError):
                lease.check(need=bad)  # type: ignore[arg-type]
        assert lease.valid
        assert not lease.lost.is_set()


def test_ttl_given_to_extend_is_used_by_later_renewals(client: handfast.Client) -> None:
    with client.lock("a", ttl=20) as lease:
        lease.extend(ttl=0.3)
        assert lease.remaining() < 0.3
        eventually(renewal_of(lease))
        assert lease.remaining() < 0.3
        lease.extend()
        assert lease.remaining() < 0.3


def test_extend_with_bad_ttl_changes_nothing(server: Server, client: handfast.Client) -> None:
    with client.lock("a", ttl=5) as lease:
        for bad in (0, -1, 31, float("nan"), "5", True):
            with pytest.raises(ConfigError):
                lease.extend(ttl=bad)  # type: ignore[arg-type]
        assert lease.valid
        assert pttl(server, "a") <= 5


def test_extend_raises_lease_lost_after_expiry_deletion_or_release(server: Server, client: handfast.Client) -> None:
    expired = client.lock("a", ttl=0.1, renew=False).acquire()
    deleted = client.lock("b").acquire()
    released = client.lock("c").acquire()
    server.command("DEL", key("b"))
    released.release()
    assert expired.lost.wait(2)
    for lease in (expired, deleted, released):
        with pytest.raises(LeaseLost):
            lease.extend()
        # The lease ends some milliseconds before its key, because of drift.
        eventually(lambda lease=lease: holder_of(server, lease.name) is None)
    assert deleted.lost.is_set()
    assert not released.lost.is_set()


def test_unconfirmed_extension_raises_without_losing_lease(own: Server) -> None:
    with handfast.connect(own.url) as client:
        lease = client.lock("a", ttl=5, renew=False, node_timeout=0.05).acquire()
        own.pause()
        with pytest.raises(handfast.HandfastError):
            lease.extend(ttl=20)
        own.resume()
        assert lease.valid
        assert not lease.lost.is_set()
        assert lease.remaining() < 5
        lease.extend(ttl=20)
        assert lease.remaining() > 15
        assert lease.release() is True


# -- loss -------------------------------------------------------------------------------------------------------------


def test_lost_is_not_set_by_release(client: handfast.Client) -> None:
    lease = client.lock("a", ttl=0.6).acquire()
    lost = lease.lost
    assert lease.release()
    assert not lost.wait(0.65)


# -- several names ----------------------------------------------------------------------------------------------------


def test_losing_one_of_several_names_loses_lease(server: Server, client: handfast.Client) -> None:
    lease = client.lock(["a", "b"]).acquire()
    server.command("SET", key("b"), "a stranger")
    with pytest.raises(LeaseLost):
        lease.extend()
    assert lease.lost.is_set()


# -- owners and tokens ------------------------------------------------------------------------------------------------


def test_reentry_with_shorter_ttl_does_not_shorten_first_lease(
    server: Server, client: handfast.Client, rival: handfast.Client
) -> None:
    first = client.lock("a", owner="job-42", ttl=20, renew=False).acquire()
    rival.lock("a", owner="job-42", ttl=0.5, renew=False).acquire(wait=0)
    assert first.remaining() < pttl(server, "a") <= 20
    first.release()


def test_owner_names_host_process_and_label_and_is_unique(client: handfast.Client) -> None:
    import os
    import socket

    lock = client.lock("a", label="billing")
    owners = set()
    for _ in range(3):
        with lock as lease:
            host, pid, label, nonce = lease.owner.rsplit(":", 3)
            assert (host, pid, label) == (socket.gethostname(), str(os.getpid()), "billing")
            assert len(bytes.fromhex(nonce)) == 16
            owners.add(lease.owner)
    assert len(owners) == 3


def test_tokens_grow_across_leases_clients_and_expiry(
    server: Server, client: handfast.Client, rival: handfast.Client
) -> None:
    tokens: list[int] = []
    for who in (client, rival, client, rival):
        with who.lock("a") as lease:
            assert isinstance(lease.token, int)
            tokens.append(lease.token)
    # A counter far ahead, as after a server's clock was set back, is still counted up.
    ahead = tokens[-1] + 10**12
    server.command("SET", key("a") + ":f", ahead)
    for who in (client, rival):
        with who.lock("a") as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert tokens[-2:] == [ahead + 1, ahead + 2]
    assert tokens[-1] < 2**53


def test_refused_attempt_uses_up_no_token(server: Server, client: handfast.Client, rival: handfast.Client) -> None:
    with client.lock("a") as lease:
        for _ in range(3):
            assert rival.lock("a").try_acquire() is None
        assert server.command("GET", key("a") + ":f") == str(lease.token).encode()


def test_unfenced_lease_has_no_token_and_no_counter(server: Server, client: handfast.Client) -> None:
    with client.lock("a", fence=False) as lease:
        assert lease.token is None
    assert server.command("KEYS", "*") == []


def test_every_duration_can_be_a_timedelta(server: Server) -> None:
    seconds = timedelta(seconds=1)
    with handfast.connect(
        server.url,
        ttl=5 * seconds,
        wait=seconds,
        node_timeout=seconds,
        max_ttl=20 * seconds,
        max_hold=60 * seconds,
    ) as client:
        with client.lock("a") as lease:
            assert 4 < lease.remaining() < 5
            with pytest.raises(Contended):
                client.lock("a").acquire(wait=timedelta(0))
        with client.lock("a", ttl=6 * seconds).acquire(ttl=7 * seconds) as lease:
            assert 6 < lease.remaining() < 7
        with pytest.raises(ConfigError):
            client.lock("a", ttl=21 * seconds)


# -- reentrant --------------------------------------------------------------------------------------------------------


def test_last_release_of_reentrant_lock_frees_it_in_any_order(server: Server, client: handfast.Client) -> None:
    lock = client.rlock("a")
    first, second, third = lock.acquire(), lock.acquire(), lock.acquire()
    assert first.release() is True
    assert (first.valid, second.valid, third.valid) == (False, True, True)
    assert first.release() is False
    assert third.release() is True
    assert holder_of(server, "a") == second.owner
    assert second.release() is True
    assert holder_of(server, "a") is None
    again = lock.acquire(wait=0)
    assert again.token > first.token
    again.release()


def test_reentrant_lock_excludes_other_threads_and_other_clients(client: handfast.Client, rival: handfast.Client) -> None:
    lock = client.rlock("a")
    seen: list[object] = []
    with lock:
        thread = threading.Thread(target=lambda: seen.append(lock.try_acquire()))
        thread.start()
        thread.join()
        assert rival.rlock("a").try_acquire() is None
        assert client.lock("a").try_acquire() is None
        with lock:
            pass
        assert rival.rlock("a").try_acquire() is None
    assert seen == [None]


def test_loss_of_reentrant_lock_is_seen_at_every_level(client: handfast.Client) -> None:
    lock = client.rlock("a", ttl=0.2, renew=False)
    outer = lock.acquire()
    with pytest.raises(LeaseLost), lock as inner:
        assert inner.lost.wait(2)
    assert outer.lost.is_set()
    assert not outer.valid
    with pytest.raises(LeaseLost):
        outer.__exit__(None, None, None)


# -- decorator --------------------------------------------------------------------------------------------------------


class Order:
    def __init__(self, number: int) -> None:
        self.number = number
        self.tags = {"region": "eu"}


def test_decorated_function_holds_lock_named_by_its_arguments(server: Server, client: handfast.Client) -> None:
    def held() -> list[str]:
        keys = server.command("KEYS", "*}")
        assert isinstance(keys, list)
        return sorted(k.decode() for k in keys if isinstance(k, bytes))

    @client.locked("report:{user_id}:{kind}")
    def report(user_id: int, kind: str = "daily", *more: int, **rest: int) -> list[str]:
        """Says what is locked."""
        return held()

    assert report(7) == [key("report:7:daily")]
    assert report(7, "weekly", 1, 2) == [key("report:7:weekly")]
    assert report(kind="x", user_id=8, other=1) == [key("report:8:x")]
    assert held() == []
    assert (report.__name__, report.__doc__) == ("report", "Says what is locked.")

    @client.locked("order:{order.number}:{order.tags[region]}")
    def ship(order: Order) -> list[str]:
        return held()

    assert ship(Order(5)) == [key("order:5:eu")]

    @client.locked("fixed", ttl=5)
    def fixed() -> list[str]:
        return held()

    assert fixed() == [key("fixed")]

    class Service:
        number = 3

        @client.locked("service:{self.number}:{x:03d}")
        def run(self, x: int) -> list[str]:
            return held()

    assert Service().run(9) == [key("service:3:009")]


def test_doubled_braces_in_template_become_single_braces(server: Server, client: handfast.Client) -> None:
    seen: list[object] = []

    @client.locked("{{tag}}:{x}")
    def with_field(x: int) -> None:
        seen.append(server.command("EXISTS", "handfast:<{tag}:1>"))

    @client.locked("{{tag}}")
    def without_field() -> None:
        seen.append(server.command("EXISTS", "handfast:<{tag}>"))

    with_field(1)
    without_field()
    assert seen == [1, 1]


def test_decorated_function_never_runs_without_lock_and_its_errors_propagate(client: handfast.Client) -> None:
    ran: list[int] = []

    @client.locked("job:{x}", wait=0)
    def job(x: int) -> None:
        ran.append(x)
        raise ZeroDivisionError

    with client.lock("job:1"), pytest.raises(Contended):
        job(1)
    assert not ran
    with pytest.raises(ZeroDivisionError):
        job(1)
    with client.lock("job:1", wait=0):
        pass
    with pytest.raises(TypeError, match="missing a required argument"):
        job()  # type: ignore[call-arg]


def test_decorated_function_with_an_owner_reenters(client: handfast.Client) -> None:
    @client.locked("job", owner="job-42", wait=0)
    def job() -> str:
        return "done"

    with client.lock("job", owner="job-42"):
        assert job() == "done"
    with client.lock("job"), pytest.raises(Contended):
        job()
