"""A client with a wrong setting, or one that was paused, must not keep others from their locks."""

from __future__ import annotations

import time
from typing import Any

import pytest

import handfast
from handfast import ConfigError, Lease, NoQuorum
from handfast.testing import Servers, available
from tests.support.eventually import eventually
from tests.support.programs import attempt, running

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

MAX_TTL = 0.8
Q = MAX_TTL * 1.02 + 0.1
"""How long a node that restarted does not vote."""
RIGHT: dict[str, Any] = {"max_ttl": MAX_TTL, "node_timeout": 0.25}
WRONG: dict[str, Any] = {"max_ttl": 2 * MAX_TTL, "node_timeout": 0.25}


def _wrong_client_meets_restarted_node(three: Servers) -> None:
    """Two of three nodes have the right max_ttl. The third lost its data, and a client with another max_ttl is first."""
    with handfast.connect(three.urls, **RIGHT) as client:
        handfast.bootstrap(client)
        client.lock("warm").acquire(wait=1).release()
    three[0].restart(empty=True)
    with handfast.connect(three.urls, **WRONG) as wrong:
        end, refused = time.monotonic() + 1, None
        while not (isinstance(refused, ConfigError) and three[0].command("DBSIZE")) and time.monotonic() < end:
            refused = attempt(wrong.lock("a"), wait=0)
        if not isinstance(refused, ConfigError):
            raise RuntimeError(f"the wrong client was not refused: {refused}")


def test_client_with_other_max_ttl_does_not_stop_right_clients(three: Servers) -> None:
    _wrong_client_meets_restarted_node(three)
    with handfast.connect(three.urls, **RIGHT) as client:
        lease = attempt(client.lock("a"), wait=1)
        assert isinstance(lease, Lease), f"a right client is refused: {lease}"
        lease.release()


def test_node_that_wrong_client_marked_first_votes_again(three: Servers) -> None:
    _wrong_client_meets_restarted_node(three)
    with handfast.connect(three.urls, **RIGHT) as client:

        def votes() -> bool:
            lease = attempt(client.lock("a"), wait=0.1)
            if not isinstance(lease, Lease):
                return False
            lease.release()
            return three[0].url in lease.votes

        eventually(votes, within=Q + 5, what="the node votes")


def test_client_with_other_max_ttl_changes_no_marker(three: Servers) -> None:
    with handfast.connect(three.urls, **RIGHT) as client:
        handfast.bootstrap(client)
    before = [node.command("GET", "handfast:guard") for node in three]
    with handfast.connect(three.urls, **WRONG) as wrong:
        for _ in range(3):
            assert isinstance(attempt(wrong.lock("a"), wait=0), ConfigError)
        with pytest.raises(ConfigError, match="max_ttl"):
            handfast.bootstrap(wrong)
    assert [node.command("GET", "handfast:guard") for node in three] == before


def test_restarts_with_data_do_not_give_wrong_client_a_majority() -> None:
    """Two of three nodes restart, and the wrong client is the first to connect to each of them."""
    with Servers(3, config={"appendonly": "yes", "appendfsync": "always"}) as three:
        with handfast.connect(three.urls, **RIGHT) as client:
            handfast.bootstrap(client)
        for node in three[:2]:
            node.restart(empty=False)
            with handfast.connect(three.urls, **WRONG) as wrong:
                assert not isinstance(attempt(wrong.lock("a"), wait=0.2), Lease)
        with handfast.connect(three.urls, **RIGHT) as client:
            lease = attempt(client.lock("a"), wait=Q + 5)
            assert isinstance(lease, Lease), f"a right client is refused: {lease}"
            lease.release()


def test_wrong_client_marks_no_node_while_another_contradicts_it(three: Servers) -> None:
    with handfast.connect(three.urls, **RIGHT) as client:
        handfast.bootstrap(client)
    forgetful, knowing, missing = three
    missing.pause()
    with handfast.connect(three.urls, **WRONG) as wrong:
        refused = attempt(wrong.lock("a"), wait=0)
        assert isinstance(refused, ConfigError | NoQuorum), refused
        forgetful.restart(empty=True)
        for _ in range(3):
            refused = attempt(wrong.lock("a"), wait=0.1)
            assert isinstance(refused, NoQuorum), refused
        assert "max_ttl=0.8, this client has max_ttl=1.6" in refused.nodes[knowing.url]
        assert forgetful.command("GET", "handfast:guard") is None
    missing.resume()


def test_client_that_no_majority_contradicts_waits_for_missing_node(three: Servers) -> None:
    """One node agrees with it, one does not, one is down: the third decides which setting stands."""
    with handfast.connect(three.urls, **RIGHT) as client:
        handfast.bootstrap(client)
    _, odd, missing = three
    odd.command("SET", "handfast:guard", f"1 {odd.info('run_id')}:0 1 {round(2000 * MAX_TTL)} 0")
    missing.kill()
    with handfast.connect(three.urls, **RIGHT) as client:
        refused = attempt(client.lock("a"), wait=0)
        assert isinstance(refused, NoQuorum), refused
        assert "max_ttl=1.6, this client has max_ttl=0.8" in refused.nodes[odd.url]


# -- a client whose clock stood still ----------------------------------------------------------------------------------

PAUSE = 1.0
PAUSED = """
import sys
from tests.support import fake_clocks
import handfast

client = handfast.connect(sys.argv[2:], max_ttl=float(sys.argv[1]), node_timeout=0.25)
for line in sys.stdin:
    verb, *rest = line.split()
    try:
        if verb == "bootstrap":
            handfast.bootstrap(client)
            print("done")
        elif verb == "take":
            with client.lock("other", wait=float(rest[0])):
                print("taken")
        elif verb == "hold":
            lease = client.lock("a", ttl=float(rest[0]), renew=False).acquire(wait=1)
            print("held")
        elif verb == "remaining":
            print(lease.remaining())
        elif verb == "pause":
            fake_clocks.stand_still(float(rest[0]))
            print("done")
    except handfast.HandfastError as error:
        print(str(error).replace(chr(10), " "))
    sys.stdout.flush()
"""


def test_client_whose_clock_stood_still_does_not_stop_others(five: Servers) -> None:
    with running(PAUSED, "10", *five.urls) as paused, handfast.connect(five.urls, max_ttl=10.0) as healthy:
        _expect(paused.ask("bootstrap"), "done")
        _expect(paused.ask("take 1"), "taken")
        healthy.lock("a").acquire(wait=1).release()
        _expect(paused.ask(f"pause {PAUSE}"), "done")
        for _ in range(5):
            paused.ask("take 0")
        lease = attempt(healthy.lock("a"), wait=1)
        assert isinstance(lease, Lease), f"the healthy client is refused: {lease}"
        lease.release()


def test_client_whose_clock_stood_still_does_not_overrate_its_lease(five: Servers) -> None:
    ttl = 5.0
    with running(PAUSED, "10", *five.urls) as paused:
        _expect(paused.ask("bootstrap"), "done")
        _expect(paused.ask(f"hold {ttl}"), "held")
        ends = time.monotonic() + ttl
        _expect(paused.ask(f"pause {PAUSE}"), "done")
        paused.ask("take 0")  # this reads the time of each node
        left = ends - time.monotonic()
        remaining = float(paused.ask("remaining"))
        assert remaining <= left, f"it says {remaining:.2f} s, and the servers keep the key for {left:.2f} s at most"


def _expect(answer: str, expected: str) -> None:
    if answer != expected:
        raise RuntimeError(f"expected {expected!r}, got {answer!r}")
