"""Tokens grow with every acquisition of a name, also under an explicit owner that has held it before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

import handfast
from handfast.testing import Proxy, Server, Servers, available, lose
from handfast.testing.clock import Clock

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

Ending = Callable[[list[handfast.Lease]], None]


def _lost(leases: list[handfast.Lease]) -> None:
    lose(leases[0])


def _dropped(leases: list[handfast.Lease]) -> None:
    leases.clear()


ENDINGS = pytest.mark.parametrize("end", [_lost, _dropped], ids=["lost", "dropped"])
"""How a lease can end that nobody releases. Afterwards its key ends by itself."""
KEY = "handfast:{a}"


def _next_lease(
    server: Server, client: handfast.Client, other: handfast.Client, end: Ending
) -> tuple[int, handfast.Lease]:
    """The token of a holder in between, and the next lease of the owner whose first lease ended that way."""
    leases = [client.lock("a", owner="job", ttl=0.2, renew=False).acquire(wait=0)]
    end(leases)
    server.wait_for(lambda: server.command("EXISTS", KEY) == 0)
    with other.lock("a", wait=0) as between:
        token = between.token or 0
    return token, client.lock("a", owner="job", ttl=5.0).acquire(wait=0)


@ENDINGS
def test_owner_gets_larger_token_than_holder_in_between(one: Server, end: Ending) -> None:
    with handfast.connect(one.url) as client, handfast.connect(one.url) as other:
        between, lease = _next_lease(one, client, other, end)
        assert (lease.token or 0) > between, "the token does not grow"
        lease.release()


@ENDINGS
def test_release_after_unreleased_lease_removes_key(one: Server, end: Ending) -> None:
    with handfast.connect(one.url) as client, handfast.connect(one.url) as other:
        _, lease = _next_lease(one, client, other, end)
        lease.release()
        assert one.command("GET", KEY) is None, "release() leaves the key behind"


def test_fenced_lease_beside_unfenced_one_has_token_of_its_own(one: Server) -> None:
    with handfast.connect(one.url) as client, handfast.connect(one.url) as other:
        with other.lock("a", wait=0) as earlier:
            token = earlier.token or 0
        unfenced = client.lock("a", owner="job", fence=False).acquire(wait=0)
        with other.lock("a", owner="job", wait=0) as fenced:
            assert (fenced.token or 0) > token, "two leases have the same token"
        unfenced.release()


def test_fenced_lease_beside_unfenced_one_of_same_client_has_token(one: Server) -> None:
    with handfast.connect(one.url) as client:
        unfenced = client.lock("a", owner="job", fence=False).acquire(wait=0)
        with client.lock("a", owner="job", wait=0) as fenced:
            assert fenced.token is not None, "a fenced lease has no token"
        unfenced.release()


def test_token_does_not_fall_after_a_vote_was_restored(three: Servers) -> None:
    """The first lease heals a node that knows the larger token of a lease in between."""

    def without(stack: ExitStack, cut: Server) -> tuple[handfast.Client, Proxy]:
        proxy = stack.enter_context(Proxy(cut))
        urls = [proxy.url if node is cut else node.url for node in three]
        client = stack.enter_context(handfast.connect(urls, guard=False, node_timeout=0.3))
        proxy.refuse()
        return client, proxy

    with ExitStack() as stack:
        (one, to_third), (two, _), (three_, _) = (without(stack, three[cut]) for cut in (2, 1, 0))
        first = one.lock("a", owner="job", ttl=3.0).acquire(wait=5)
        between = two.lock("a", owner="job", ttl=3.0).acquire(wait=5)
        assert between.release()
        assert three[2].command("EXISTS", KEY) == 0
        to_third.heal()
        three[2].wait_for(lambda: three[2].command("EXISTS", KEY) == 1)
        last = three_.lock("a", owner="job", ttl=3.0).acquire(wait=5)
        assert (last.token or 0) >= (between.token or 0), "a later lease of the owner has a smaller token"
        assert first.valid


def test_token_of_several_names_is_counted_under_each_of_them() -> None:
    with Clock() as clock, Server(env=clock.environment) as server, handfast.connect(server.url) as client:
        clock.step(3600)
        client.lock("b").acquire().release()  # its counter is an hour ahead of the other's
        clock.step(-3600)
        leases = [client.lock(name, owner="job").acquire() for name in ("a", "b", ["a", "b"])]
        for lease in leases:
            assert lease.release()
        with client.lock("a", wait=0) as later:
            assert (later.token or 0) > (leases[-1].token or 0), "the token does not grow"


@pytest.mark.parametrize("nodes", [1, 3])
def test_token_of_several_names_exceeds_that_of_a_name_held_without_token(nodes: int, three: Servers) -> None:
    with handfast.connect(three.urls[:nodes], guard=False) as client:
        fenced = client.lock("a", owner="job").acquire()
        with client.lock("b", owner="other") as other:
            token = other.token or 0
        unfenced = client.lock("b", owner="job", fence=False).acquire()
        for names in (["a", "b"], "b"):
            with client.lock(names, owner="job", wait=0) as lease:
                assert (lease.token or 0) > token, "the token is smaller than that of an earlier holder"
        for lease in (fenced, unfenced):
            assert lease.release()


def test_unfenced_names_share_no_token_that_they_have_not_counted(one: Server) -> None:
    with handfast.connect(one.url) as client:
        fenced = client.lock("b", owner="job").acquire()
        unfenced = client.lock(["a", "b"], owner="job", fence=False).acquire()
        with client.lock("a", owner="job", wait=0) as first:
            assert first.token != fenced.token, "two names have the same token, and one has not counted it"
        for lease in (fenced, unfenced):
            assert lease.release()
        with client.lock("a", wait=0) as later:
            assert (later.token or 0) > (first.token or 0)
