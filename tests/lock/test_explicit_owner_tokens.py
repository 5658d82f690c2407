"""Tokens grow with every acquisition of a name, also under an explicit owner that has held it before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import handfast
from handfast.testing import Server, available, lose

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
