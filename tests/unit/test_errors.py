"""The texts of errors: the holder of the lock, the answer of each node, the reason why a lease ended."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import handfast
import handfast.aio
from handfast import Contended, LeaseLost, NoQuorum, StaleToken
from handfast.testing import Server, Servers
from handfast.testing.servers import reserve_port
from tests.support.eventually import eventually, renewal_of
from tests.support.sync_and_async import plain


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that the test may pause or kill."""
    with Server() as server:
        yield server


@pytest.fixture
def dead() -> Iterator[str]:
    """The URL of a port on which nothing listens."""
    with reserve_port() as port:
        yield f"redis://127.0.0.1:{port.getsockname()[1]}"


START = "check that the server runs, and its address in the URL"


def refused(client: handfast.Client, **options: float) -> NoQuorum:
    with pytest.raises(NoQuorum) as caught:
        client.lock("orders", wait=0).acquire(**options)
    return caught.value


# -- contention -------------------------------------------------------------------------------------------------------


def test_contended_names_the_holder_and_how_long_it_has_left(client: handfast.Client) -> None:
    lease = client.lock("orders", ttl=20, label="billing").acquire()
    with pytest.raises(Contended) as caught:
        client.lock("orders", wait=0).acquire()
    error = caught.value
    assert error.name == "orders"
    assert error.holder == lease.owner
    assert ":billing:" in lease.owner
    assert error.remaining is not None
    assert 18 < error.remaining <= 20
    assert str(error) == f"orders: held by {lease.owner}, for another {error.remaining:.1f} s unless renewed"
    assert error.nodes == {lease.votes[0]: f"held by {lease.owner}"}
    lease.release()


def test_contended_says_that_the_key_has_no_end(client: handfast.Client, one: Server) -> None:
    one.command("SET", "handfast:{orders}", "a stranger")
    with pytest.raises(Contended) as caught:
        client.lock("orders", wait=0).acquire()
    assert (caught.value.holder, caught.value.remaining) == ("a stranger", None)
    assert (
        str(caught.value) == "orders: held by a stranger, on a key without a ttl; if that holder is gone, delete the key"
    )


def test_contended_names_the_holder_in_the_published_protocol_too(client: handfast.Client, one: Server) -> None:
    one.command("SET", "orders", b"\xffraw", "PX", 5000)
    with pytest.raises(Contended, match="held by \ufffdraw, for another") as caught:
        client.lock("orders", wait=0, prefix="", fence=False).acquire()
    assert caught.value.remaining is not None
    assert 4 < caught.value.remaining <= 5


def test_contended_on_several_names_names_the_holder_of_one(client: handfast.Client) -> None:
    with client.lock("b", label="billing") as lease, pytest.raises(Contended) as caught:
        client.lock(["a", "b", "c"], wait=0).acquire()
    assert caught.value.name == "a, b, c"
    assert caught.value.holder == lease.owner


def test_contended_in_a_quorum_lists_every_node(three: Servers) -> None:
    with handfast.connect(three.urls) as holder, handfast.connect(three.urls) as rival:
        handfast.bootstrap(holder)
        lease = holder.lock("orders", ttl=20).acquire()
        for node in three:
            eventually(lambda node=node: node.command("EXISTS", "handfast:{orders}"))
        with pytest.raises(Contended) as caught:
            rival.lock("orders", wait=0).acquire()
        assert caught.value.holder == lease.owner
        assert set(caught.value.nodes) == set(three.urls)
        said = list(caught.value.nodes.values())
        # Two refusals decide it; the third node may not have answered yet.
        assert said.count(f"held by {lease.owner}") >= 2


# -- outage -----------------------------------------------------------------------------------------------------------


def test_dead_port_is_reported_as_a_refused_connection(dead: str) -> None:
    with handfast.connect(dead) as client:
        error = refused(client)
    assert str(error) == f"orders: 0 of 1 node granted, 1 needed ({dead}: refused the connection); {START}"
    assert (error.name, error.granted, error.needed, error.total) == ("orders", 0, 1, 1)
    assert error.nodes == {dead: "refused the connection"}


def test_unknown_host_name_is_reported(one: Server) -> None:
    with handfast.connect("redis://no-such-host.invalid") as client:
        error = refused(client)
    assert error.nodes["redis://no-such-host.invalid:6379"].startswith("host name not found")


def test_missing_socket_is_reported() -> None:
    with handfast.connect("unix:///no/such.sock") as client:
        assert refused(client).nodes == {"unix:///no/such.sock": "no such socket"}


def test_silent_server_is_reported_with_the_time_that_this_call_waited(own: Server) -> None:
    with handfast.connect(own.url, ttl=10) as client:
        client.lock("warm").acquire().release()
        own.pause()
        # a quarter of the call's ttl, not of the lock's
        assert refused(client, ttl=0.4).nodes == {own.url: "no answer in 100 ms"}
        own.resume()


def test_server_that_accepts_and_says_nothing_is_reported_as_silent(own: Server) -> None:
    own.pause()
    with handfast.connect(own.url, ttl=0.4) as client:
        (said,) = refused(client).nodes.values()
    assert re.fullmatch(r"no answer in \d+ ms|did not answer the connection in time", said)
    own.resume()


def test_wrong_password_is_reported_at_once() -> None:
    with Server(config={"requirepass": "right"}) as server:
        place = server.url.replace(":right@", "")
        for url, said in (
            (server.url.replace("right", "wrong"), "WRONGPASS: wrong user name or password"),
            (place, "NOAUTH: wants a password"),
        ):
            with handfast.connect(url) as client, pytest.raises(NoQuorum) as caught:
                client.lock("orders", wait=30).acquire()  # waiting does not help
            assert caught.value.nodes == {place: said}
            assert "wrong@" not in str(caught.value)


def test_no_quorum_lists_each_node_with_its_own_reason(three: Servers, dead: str) -> None:
    urls = [*three.urls, dead, "redis://no-such-host.invalid"]
    with handfast.connect(urls, guard=False, ttl=2) as client:

        def resolver_has_replied() -> bool:
            with client.lock("orders") as lease:  # this also dials again the nodes that are not connected
                assert len(lease.votes) == 3
            return "host name not found" in str(client._group.nodes[4].fault)

        eventually(resolver_has_replied)
        three[0].pause()
        error = refused(client)
        three[0].resume()
    assert error.nodes[three.urls[0]] == "no answer in 50 ms"
    assert error.nodes[dead] == "refused the connection"
    assert error.nodes["redis://no-such-host.invalid:6379"].startswith("host name not found")
    assert [error.nodes[url] for url in three.urls[1:]] == ["granted", "granted"]
    assert list(error.nodes) == [*urls[:4], "redis://no-such-host.invalid:6379"]
    assert (error.granted, error.needed, error.total) == (2, 3, 5)
    assert str(error).startswith(f"orders: 2 of 5 nodes granted, 3 needed ({three.urls[0]}: no answer in 50 ms; ")


def test_quarantined_node_says_for_how_long(three: Servers) -> None:
    with handfast.connect(three.urls, max_ttl=5) as client:
        error = refused(client)
    for said in error.nodes.values():
        assert (left := re.fullmatch(r"restarted or new, no vote for another (\d\.\d) s", said))
        assert 4 < float(left[1]) <= 6


@plain
async def test_asyncio_client_reports_the_same(dead: str) -> None:
    async with handfast.aio.connect(dead) as client:
        with pytest.raises(NoQuorum) as caught:
            await client.lock("orders", wait=0).acquire()
    assert str(caught.value) == f"orders: 0 of 1 node granted, 1 needed ({dead}: refused the connection); {START}"


# -- loss -------------------------------------------------------------------------------------------------------------


def loss(lease: handfast.Lease) -> LeaseLost:
    """The error of a lease that is being lost."""
    assert lease.lost.wait(5)
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    error = caught.value
    assert (error.name, error.owner, error.token) == (lease.name, lease.owner, lease.token)
    assert str(error) == f"{error.name}: lease lost ({error.reason}); owner {error.owner}, token {error.token}"
    return error


def test_lease_without_renewal_says_that_its_ttl_ended(client: handfast.Client) -> None:
    lease = client.lock("orders", ttl=0.1, renew=False).acquire()
    assert loss(lease).reason == "the ttl ended and it was not renewed"


def test_lease_whose_key_was_taken_names_the_new_holder(client: handfast.Client, one: Server) -> None:
    lease = client.lock("orders", ttl=1.5).acquire()
    one.command("SET", "handfast:{orders}", "a stranger")
    assert loss(lease).reason == "now held by a stranger"


def test_lease_whose_server_hangs_says_that_no_majority_confirmed(own: Server) -> None:
    with handfast.connect(own.url) as client:
        lease = client.lock("orders", ttl=0.5).acquire()
        # Renewed at least once, so that the watchdog is known to be connected.
        eventually(renewal_of(lease))
        own.pause()
        assert loss(lease).reason == f"no majority confirmed a renewal in time: {own.url}: no answer"
        own.resume()


def test_released_lease_says_that_it_was_released(client: handfast.Client) -> None:
    for lock in (client.lock("orders"), client.rlock("orders")):
        lease = lock.acquire()
        lease.release()
        with pytest.raises(LeaseLost, match=r"orders: lease lost \(it was released\); owner "):
            lease.check()


def test_check_says_how_much_time_is_left(client: handfast.Client) -> None:
    with client.lock("orders", ttl=5, renew=False) as lease, pytest.raises(LeaseLost) as caught:
        lease.check(need=60)
    assert re.fullmatch(r"4\.9\d\d s left, 60 s needed", caught.value.reason)


def test_loss_of_an_unfenced_lease_names_no_token(client: handfast.Client) -> None:
    lease = client.lock("orders", fence=False).acquire()
    lease.release()
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    assert caught.value.token is None
    assert str(caught.value) == f"orders: lease lost (it was released); owner {lease.owner}"


def test_repr_of_a_lease_shows_its_state(client: handfast.Client) -> None:
    lease = client.lock("orders", ttl=5).acquire()
    assert re.fullmatch(rf"<Lease 'orders' held, 4\.9 s left, token {lease.token}, owner {lease.owner}>", repr(lease))
    lease.release()
    assert repr(lease) == f"<Lease 'orders' released, token {lease.token}, owner {lease.owner}>"


def test_stale_token_says_what_was_seen() -> None:
    error = StaleToken("invoice 7", token=3, seen=9)
    assert (error.resource, error.token, error.seen) == ("invoice 7", 3, 9)
    assert str(error) == "invoice 7: token 3 is stale, 9 was seen; nothing was changed"
    assert isinstance(error, handfast.HandfastError)


@pytest.mark.parametrize("kind", [Contended, NoQuorum])
def test_failures_to_acquire_share_a_type_and_a_loss_has_another(kind: type[Exception]) -> None:
    assert issubclass(kind, handfast.NotAcquired)
    assert issubclass(handfast.NotAcquired, handfast.HandfastError)
    assert not issubclass(LeaseLost, handfast.NotAcquired)
    assert not issubclass(handfast.NotAcquired, TimeoutError)
