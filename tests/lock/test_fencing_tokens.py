"""Fencing tokens from real servers: they grow with every acquisition of a name, whatever the clients' clocks say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import handfast
from handfast import NoQuorum
from handfast.testing import Server, Servers
from tests.support.eventually import eventually

YEAR = 365 * 24 * 3600

TAKE = """
import sys
import handfast
from handfast.net import clock, threads

real, ahead = clock.wall, int(sys.argv[1]) * 1_000_000
clock.wall = threads.ThreadIO.wall = staticmethod(lambda: real() + ahead)
with handfast.connect(sys.argv[2:]) as client:
    for _ in range(2):
        lease = client.lock("shared").acquire(wait=2)
        print(lease.token)
        lease.release()
"""


def counter(node: Server, name: str) -> int:
    value = node.command("GET", f"handfast:{{{name}}}:f")
    assert value is None or isinstance(value, bytes)
    return int(value or 0)


def calls(node: Server, command: str) -> int:
    found = re.match(r"calls=(\d+)", node.info(f"cmdstat_{command}"))
    return int(found.group(1)) if found else 0


def tokens_of_a_process(urls: list[str], ahead: int = 0) -> list[int]:
    """The tokens of two acquisitions in a process of its own, whose wall clock is `ahead` seconds ahead."""
    done = subprocess.run(
        [sys.executable, "-c", TAKE, str(ahead), *urls], capture_output=True, text=True, timeout=30, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def take(client: handfast.Client, name: str) -> int:
    with client.lock(name, renew=False).acquire(wait=2) as lease:
        assert lease.token is not None
        return lease.token


@pytest.fixture(params=[1, 3], ids=["one node", "quorum"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with Servers(request.param) as servers:
        with handfast.connect(servers.urls) as client:
            if len(servers) > 1:
                handfast.bootstrap(client)
        yield servers


def test_tokens_grow_across_processes_whatever_their_wall_clocks_say(nodes: Servers) -> None:
    tokens: list[int] = []
    with handfast.connect(nodes.urls) as client:
        tokens.append(take(client, "shared"))
        for ahead in (0, YEAR, -YEAR):
            tokens += tokens_of_a_process(nodes.urls, ahead)
        tokens.append(take(client, "shared"))
    assert tokens == sorted(set(tokens))
    assert tokens[-1] < 2**53


def test_tokens_grow_across_clients_of_one_process(nodes: Servers) -> None:
    with handfast.connect(nodes.urls) as one, handfast.connect(nodes.urls) as two:
        tokens = [take(client, "shared") for _ in range(20) for client in (one, two)]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("minority", [[0, 1], [3, 4], [0, 4]])
def test_tokens_grow_across_empty_restarts_of_a_minority(five: Servers, minority: list[int]) -> None:
    with handfast.connect(five.urls) as client:
        handfast.bootstrap(client)
        # As if a client far ahead in time had been here: wall time alone would not do any more.
        for node in five:
            node.command("SET", "handfast:{shared}:f", 4 * 10**15)
        tokens = [take(client, "shared")]
        for index in minority:
            five[index].restart(empty=True)
        tokens.append(take(client, "shared"))
    with handfast.connect(five.urls) as stranger:
        tokens.append(take(stranger, "shared"))
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("count", [1, 5])
def test_acquisition_usually_costs_one_command_per_node(count: int) -> None:
    with Servers(count) as servers, handfast.connect(servers.urls) as client:
        if count > 1:
            handfast.bootstrap(client)
        client.lock("warm").acquire(wait=1).release()
        before = [calls(node, "evalsha") for node in servers]
        leases = [client.lock(f"name-{i}", renew=False).acquire(wait=0) for i in range(10)]
        for node, known in zip(servers, before, strict=True):
            eventually(lambda node=node, known=known: calls(node, "evalsha") == known + 10)
        assert len({lease.token for lease in leases}) == 10


@pytest.mark.parametrize("guard", [False, True])
def test_majority_of_counters_is_raised_to_token(five: Servers, guard: bool) -> None:
    with handfast.connect(five.urls, guard=guard, node_timeout=0.5) as client:
        if guard:
            handfast.bootstrap(client)
        for i, node in enumerate(five):
            node.command("SET", "handfast:{apart}:f", 2 * 10**15 + 10 * i)
        lease = client.lock("apart", renew=False).acquire(wait=2)
        assert lease.token is not None
        assert lease.token > 2 * 10**15
        assert sum(counter(node, "apart") == lease.token for node in five) >= 3
        lease.release()
        # The release carries the token as a floor to all the others.
        eventually(lambda: all(counter(node, "apart") >= (lease.token or 0) for node in five))
        assert take(client, "apart") > lease.token


def test_several_names_share_token_above_all_earlier_ones(nodes: Servers) -> None:
    with handfast.connect(nodes.urls) as client:
        for node in nodes:
            node.command("SET", "handfast:{b}:f", 3 * 10**15)
        before = take(client, "b")
        with client.lock(["a", "b"]).acquire(wait=1) as both:
            assert both.token is not None
            assert both.token > before
        assert take(client, "a") > both.token
        assert take(client, "b") > both.token


def test_exhausted_counter_is_reported_at_once(nodes: Servers) -> None:
    with handfast.connect(nodes.urls) as client:
        for node in nodes:
            node.command("SET", "handfast:{worn}:f", 2**53 - 2)
        assert take(client, "worn") == 2**53 - 1
        with pytest.raises(NoQuorum, match="its fence counter is used up"):
            client.lock("worn").acquire(wait=None)
        assert all(node.command("EXISTS", "handfast:{worn}") == 0 for node in nodes)


def test_clock_far_ahead_does_not_exhaust_tokens(nodes: Servers) -> None:
    tokens = tokens_of_a_process(nodes.urls, 300 * YEAR)
    assert tokens[-1] < 2**52


def test_explicit_owner_that_re_enters_keeps_the_token(nodes: Servers) -> None:
    with handfast.connect(nodes.urls) as one, handfast.connect(nodes.urls) as two:
        first = one.lock("a", owner="job-42").acquire(wait=0)
        again = two.lock("a", owner="job-42").acquire(wait=0)
        assert again.token >= first.token
        assert take_after(one, [first, again]) > (first.token or 0)


def test_reentry_never_gets_smaller_token_when_counters_differ(three: Servers) -> None:
    with handfast.connect(three.urls, guard=False, node_timeout=0.3) as client:
        client.lock("warm").acquire(wait=1).release()
        for node, count in zip(three, (2 * 10**15, 2 * 10**15 + 2, 3 * 10**15), strict=True):
            node.command("SET", "handfast:{a}:f", count)
        three[2].pause()
        first = client.lock("a", owner="job-42", renew=False).acquire(wait=0)
        assert first.token == 2 * 10**15 + 3
        three[2].resume()
        eventually(lambda: three[2].command("EXISTS", "handfast:{a}"), what="the vote that came late")
        three[0].kill()
        again = client.lock("a", owner="job-42", renew=False).acquire(wait=1)
        assert again.token >= first.token


def take_after(client: handfast.Client, leases: list[handfast.Lease]) -> int:
    for lease in leases:
        lease.release()
    return take(client, "a")
