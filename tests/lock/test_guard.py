"""The restart guard on real servers: a node that may have forgotten a lease has no vote until that lease is over.

max_ttl is small here, so that Q, the quarantine, is about a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import handfast
from handfast import ConfigError, NoQuorum, NotAcquired
from handfast.core.guard import Marker
from handfast.testing import Server, Servers
from handfast.testing.clock import Clock, missing
from handfast.testing.proxy import Proxy
from tests.support.eventually import eventually
from tests.support.sync_and_async import both, connected
from tests.support.topologies import KINDS, binary

MAX_TTL = 0.8
Q = MAX_TTL * 1.02 + 0.1
QUICK: dict[str, Any] = {"max_ttl": MAX_TTL, "node_timeout": 0.25}
AOF = {"appendonly": "yes", "appendfsync": "always"}


def opened(urls: list[str] | str, **options: Any) -> handfast.Client:
    client = handfast.connect(urls, **{**QUICK, **options})
    handfast.bootstrap(client)
    return client


def marker_of(node: Server) -> Marker | None:
    raw = node.command("GET", "handfast:guard")
    assert raw is None or isinstance(raw, bytes)
    return Marker.parse(raw)


def votes_again(node: Server) -> bool:
    marker = marker_of(node)
    return marker is not None and marker.votes and marker.incarnation.startswith(node.info("run_id").encode())


def take(client: handfast.Client, name: str, **options: Any) -> tuple[int, tuple[str, ...]]:
    """One acquisition that is not renewed (so nothing is healed): its token and its votes."""
    lease = client.lock(name, renew=False, **options).acquire(wait=2)  # a disk or a core may be busy for a moment
    token, votes = lease.token or 0, lease.votes
    lease.release()
    return token, votes


def refusal(client: handfast.Client, name: str, pattern: str, **options: Any) -> NoQuorum:
    """The error of an acquisition, once it has this text: a broken connection must be replaced first."""
    said: list[NoQuorum] = []

    def refused() -> bool:
        with pytest.raises(NoQuorum) as error:
            client.lock(name, renew=False, **options).acquire(wait=0)
        said.append(error.value)
        return pattern in str(error.value)

    eventually(refused, within=Q - 0.1)
    return said[-1]


@pytest.fixture
def guarded(three: Servers) -> Iterator[handfast.Client]:
    with opened(three.urls) as client:
        yield client


def test_new_deployment_waits_one_quarantine_and_error_says_how_long(three: Servers) -> None:
    began = time.monotonic()
    with handfast.connect(three.urls, **QUICK) as client:
        with pytest.raises(NoQuorum, match=r"no vote for another [01]\.\d s"):
            client.lock("a").acquire(wait=0)
        client.lock("a").acquire(wait=5).release()
        assert Q <= time.monotonic() - began < Q + 1.5
    with handfast.connect(three.urls, **QUICK) as other:
        other.lock("a").acquire(wait=0).release()


def test_bootstrap_opens_new_deployment_at_once(three: Servers) -> None:
    with handfast.connect(three.urls, **QUICK) as client:
        assert set(handfast.bootstrap(client).values()) == {"opened"}
        client.lock("a").acquire(wait=0).release()
        assert set(handfast.bootstrap(client).values()) == {"open already"}


def test_bootstrap_does_not_open_restarted_node_of_deployment_in_use(three: Servers) -> None:
    with opened(three.urls):
        pass
    three[0].restart(empty=True)
    with handfast.connect(three.urls, **QUICK) as client:
        said = handfast.bootstrap(client)
        assert "after its quarantine" in said[three[0].url]
        marker = marker_of(three[0])
        assert marker is not None
        assert not marker.votes


def test_bootstrap_does_not_open_restarted_nodes_while_nodes_in_use_are_unreachable(five: Servers) -> None:
    with opened(five.urls):
        pass
    for node in five.nodes[:2]:
        node.restart(empty=True)
    for node in five.nodes[2:]:
        node.pause()
    with handfast.connect(five.urls, **QUICK) as client:
        handfast.bootstrap(client)
    for node in five.nodes[:2]:
        marker = marker_of(node)
        assert marker is None or not marker.votes


def test_bootstrap_opens_reachable_nodes_while_one_is_down(three: Servers) -> None:
    three[2].kill()
    with handfast.connect(three.urls, **QUICK) as client:
        said = handfast.bootstrap(client)
        assert [said[node.url] for node in three.nodes[:2]] == ["opened", "opened"]
        client.lock("a", renew=False).acquire(wait=0).release()


def test_new_deployment_opens_after_quarantine_while_one_node_is_down(three: Servers) -> None:
    three[2].kill()
    with handfast.connect(three.urls, **QUICK) as client:
        client.lock("a", renew=False).acquire(wait=Q + 1).release()


def test_restarted_node_votes_again_while_another_is_down(five: Servers) -> None:
    with opened(five.urls) as client:
        take(client, "a")
        five[0].restart(empty=True)
        five[4].kill()
        lease = client.lock("a").acquire(wait=2)
        eventually(lambda: votes_again(five[0]), within=2 * Q)
        lease.release()


def test_error_reports_no_silence_of_node_it_did_not_wait_for(five: Servers) -> None:
    with opened(five.urls) as client:
        take(client, "a")
        for node in five.nodes[:3]:
            node.kill()
        refused = refusal(client, "a", "refused")
        assert not any("no answer" in refused.nodes[node.url] for node in five.nodes[3:])


@pytest.mark.parametrize("empty", [True, False], ids=["empty", "from its append-only file"])
def test_restarted_node_votes_after_quarantine_with_repaired_counters(empty: bool) -> None:
    with Servers(3, config={} if empty else AOF) as three, opened(three.urls) as client:
        for node in three:
            node.command("SET", "handfast:{far}:f", str(10**15 * 4))
        far, _ = take(client, "far")
        assert far > 10**15 * 4
        began = time.monotonic()
        three[0].restart(empty=empty)
        three[2].pause()
        assert "no vote for another" in refusal(client, "far", "no vote for another").nodes[three[0].url]
        three[2].resume()
        eventually(lambda: three[2].url in take(client, "far")[1], what="the resumed node is back")
        assert three[0].url not in take(client, "far")[1]
        eventually(lambda: take(client, "far") and votes_again(three[0]), within=Q + 3)
        assert time.monotonic() - began >= Q
        marker = marker_of(three[0])
        assert marker is not None
        assert int(marker.floor) >= far
        three[2].pause()
        token, votes = take(client, "another name: the floor is for them all")
        assert three[0].url in votes
        assert token > far


def test_restarted_node_never_issues_token_below_forgotten_ones(three: Servers) -> None:
    with opened(three.urls) as client:
        for node in three:
            node.command("SET", "handfast:{far}:f", str(10**15 * 4))
        far, _ = take(client, "far")
        three[0].restart(empty=True)
        eventually(lambda: take(client, "far") and votes_again(three[0]), within=Q + 3)
        # Only its own counter matters here, so the others lose theirs.
        for node in three.nodes[1:]:
            node.command("DEL", "handfast:{far}:f")
        three[2].pause()
        lease = client.lock("far", renew=False).acquire(wait=2)  # on a busy machine two of two may be slow
        assert int(three[0].command("GET", "handfast:{far}:f") or 0) > far  # type: ignore[arg-type]
        lease.release()


def test_idle_clients_respect_floor_of_node_that_forgot(three: Servers) -> None:
    """They encode their request before they reconnect to the node. It must not carry the old floor."""
    names = [f"far-{i}" for i in range(4)]
    with ExitStack() as stack:
        busy, *idle = [stack.enter_context(opened(three.urls)) for _ in range(1 + len(names))]
        for client in (busy, *idle):
            take(client, "warm")
        for node in three.nodes[:2]:
            for name in names:
                node.command("SET", f"handfast:{{{name}}}:f", str(10**15 * 4))
        three[2].pause()
        # Not released: a release would carry the token to the third node too.
        far = {name: busy.lock(name, ttl=0.1, renew=False).acquire(wait=0).token or 0 for name in names}
        assert all(token > 10**15 * 4 for token in far.values())
        three[2].resume()
        three[0].restart(empty=True)
        eventually(lambda: take(busy, "other") and votes_again(three[0]), within=Q + 3)
        marker = marker_of(three[0])
        assert marker is not None
        assert int(marker.floor) >= max(far.values())
        three[1].pause()
        for client, name in zip(idle, names, strict=True):
            lease = client.lock(name, renew=False).acquire(wait=2)
            assert (lease.token or 0) > far[name]
            lease.release()


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_flushall_on_a_live_connection_is_noticed_at_the_next_vote(
    three: Servers, guarded: handfast.Client, fence: bool
) -> None:
    take(guarded, "a", fence=fence)
    three[2].pause()
    three[0].command("FLUSHALL")
    with pytest.raises(NoQuorum, match="forgot its data"):
        guarded.lock("a", fence=fence, renew=False).acquire(wait=0)
    eventually(lambda: not three[0].command("EXISTS", "handfast:{a}"), what="the vote of a flushed node is undone")


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_flushed_node_of_working_quorum_is_quarantined_and_returns(
    three: Servers, guarded: handfast.Client, fence: bool
) -> None:
    take(guarded, "a", fence=fence)
    three[0].command("FLUSHALL")

    def back() -> bool:
        take(guarded, "a", fence=fence)
        return votes_again(three[0])

    eventually(back, within=Q + 3)


def test_restarted_majority_is_unavailable_for_one_quarantine(five: Servers) -> None:
    with opened(five.urls) as client:
        first, _ = take(client, "a")
        began = time.monotonic()
        for node in five.nodes[:3]:
            node.restart(empty=True)
        refusal(client, "a", "no vote for another")
        lease = client.lock("a", renew=False).acquire(wait=Q + 3)
        assert Q <= time.monotonic() - began < Q + 2
        assert (lease.token or 0) > first
        lease.release()


def test_second_restart_during_quarantine_restarts_quarantine() -> None:
    with Server() as node, opened(node.url, guard=True) as client:
        node.restart(empty=True)
        refusal(client, "a", "no vote for another")
        half = time.monotonic() + Q / 2
        eventually(lambda: time.monotonic() > half)
        began = time.monotonic()
        node.restart(empty=True)
        client.lock("a").acquire(wait=Q + 3).release()
        assert Q <= time.monotonic() - began < Q + 2


@pytest.mark.parametrize("count", [1, 3])
def test_client_with_another_max_ttl_is_refused(count: int) -> None:
    with Servers(count) as nodes:
        with opened(nodes.urls, guard=True):
            pass
        with (
            handfast.connect(nodes.urls, guard=True, max_ttl=2.0) as other,
            pytest.raises(ConfigError, match=r"max_ttl=0\.8, this client has max_ttl=2"),
        ):
            other.lock("a").acquire(wait=0)


def test_one_server_under_two_names_is_refused(three: Servers) -> None:
    urls = [three[0].url, three[0].url.replace("127.0.0.1", "localhost"), three[1].url]
    with handfast.connect(urls, **QUICK) as client, pytest.raises(ConfigError, match="is the same server as"):
        client.lock("a").acquire(wait=0)


def test_replica_listed_as_node_has_no_vote_and_is_reported(three: Servers) -> None:
    with Server(replica_of=three[0]) as replica:
        urls = [three[0].url, three[1].url, replica.url]
        with handfast.connect(urls, **QUICK) as client:
            lease = client.lock("a", renew=False).acquire(wait=Q + 3)
            assert replica.url not in lease.votes
            lease.release()
            three[1].pause()
            assert "is a replica" in refusal(client, "a", "is a replica").nodes[replica.url]


def test_majority_that_forgot_opens_without_rest_at_different_times(three: Servers) -> None:
    """Two of three nodes are new, the third is gone; one of the new nodes is ready earlier than the other."""
    for node, after in ((three[0], 0), (three[1], 600_000)):
        ready = int(time.time() * 1e6) + after
        node.command("SET", "handfast:guard", f"1 {node.info('run_id')}:0 {ready} {round(MAX_TTL * 1000)} -")
    three[2].kill()
    with handfast.connect(three.urls, **QUICK) as client:
        assert "no vote for another" in refusal(client, "a", "no vote for another").nodes[three[1].url]
        assert not votes_again(three[0]), "alone it is no quorum, and would look as if it had never forgotten"
        client.lock("a").acquire(wait=Q + 3).release()
        assert votes_again(three[0])
        assert votes_again(three[1])


def test_single_node_can_be_guarded() -> None:
    with Server() as node, opened(node.url, guard=True) as client:
        take(client, "a")
        began = time.monotonic()
        node.restart(empty=True)
        refusal(client, "a", "no vote for another")
        client.lock("a").acquire(wait=Q + 3).release()
        assert time.monotonic() - began >= Q


def test_quorum_without_guard_votes_at_once_after_restarts(three: Servers) -> None:
    with handfast.connect(three.urls, guard=False, **QUICK) as client:
        take(client, "a")
        for node in three:
            node.restart(empty=True)
        client.lock("a", renew=False).acquire(wait=2).release()
        assert three[0].command("EXISTS", "handfast:guard") == 0


def test_quarantine_ends_after_server_clock_was_set_back(one: Server) -> None:
    """Its marker says "ready in an hour", although no quarantine is longer than Q."""
    incarnation = f"{one.info('run_id')}:0"
    ready = int(time.time() * 1e6) + 3_600_000_000
    one.command("SET", "handfast:guard", f"1 {incarnation} {ready} {round(MAX_TTL * 1000)} -")
    with handfast.connect(one.url, guard=True, **QUICK) as client:
        client.lock("a").acquire(wait=Q + 1).release()


def test_first_replica_locks_clients_of_guarded_node_out_for_one_quarantine_at_most() -> None:
    """A master takes a new replication id when its first replica connects, and live connections do not see that."""
    with Server() as node, opened(node.url, guard=True) as early:
        take(early, "a")
        with Server(replica_of=node), handfast.connect(node.url, guard=True, **QUICK) as late:
            end = time.monotonic() + 3 * Q + 1

            def works(client: handfast.Client) -> bool:
                try:
                    take(client, "a")
                except NotAcquired:
                    return False
                return True

            eventually(lambda: all([works(late), works(early)]), within=end - time.monotonic())


@pytest.mark.parametrize("kind", KINDS)
def test_node_demoted_and_promoted_on_live_connection_does_not_vote_at_once(kind: str) -> None:
    """The node now has the data of the other server, without the lock; the marker in it is still the node's own."""
    server = binary(kind)
    with Server(server) as node, Server(server) as other, opened(node.url, guard=True, max_ttl=3.0) as client:
        take(client, "warm")
        other.command("REPLICAOF", "127.0.0.1", str(node.port))
        eventually(lambda: other.command("GET", "handfast:guard") == node.command("GET", "handfast:guard"), within=5)
        other.command("REPLICAOF", "NO", "ONE")
        first = client.lock("a", ttl=3.0, renew=False).acquire(wait=0)
        node.command("REPLICAOF", "127.0.0.1", str(other.port))
        eventually(
            lambda: node.info("master_link_status") == "up" and not node.command("EXISTS", "handfast:{a}"), within=5
        )
        node.command("REPLICAOF", "NO", "ONE")
        with pytest.raises(NotAcquired):
            client.lock("a", renew=False).acquire(wait=0)
        assert first.valid


def test_node_that_missed_votes_while_demoted_does_not_vote_when_promoted_again() -> None:
    """It was cut off from its new master, so it has dropped no data, and its marker is still its own."""
    with Server() as node, Server() as other, opened(node.url, guard=True) as client:
        take(client, "warm")
        other.command("REPLICAOF", "127.0.0.1", str(node.port))
        eventually(lambda: other.command("GET", "handfast:guard") == node.command("GET", "handfast:guard"), within=5)
        other.command("REPLICAOF", "NO", "ONE")
        node.command("REPLICAOF", "127.0.0.1", "1")
        with handfast.connect(other.url, guard=True, **QUICK) as moved:
            first = moved.lock("a", renew=True).acquire(wait=2 * Q + 1)
            node.command("REPLICAOF", "NO", "ONE")
            with pytest.raises(NotAcquired):
                client.lock("a", renew=False).acquire(wait=0)
            first.check()


def test_demotion_is_noticed_on_busy_connection() -> None:
    """Its votes come so often that not each is checked for promotions; other replies must show the demotion."""
    with (
        Server() as node,
        Server() as other,
        opened(node.url, guard=True, max_ttl=5.0) as client,
        handfast.connect(node.url, guard=True, max_ttl=5.0, ttl=1.0) as busy,
    ):
        other.command("REPLICAOF", "127.0.0.1", str(node.port))
        eventually(lambda: other.command("GET", "handfast:guard") == node.command("GET", "handfast:guard"), within=5)
        other.command("REPLICAOF", "NO", "ONE")
        first = client.lock("a", ttl=5.0, renew=False).acquire(wait=0)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    busy.lock("b", renew=False).acquire(wait=0).release()
                except handfast.HandfastError:
                    continue

        thread = threading.Thread(target=work)
        thread.start()
        try:
            node.command("REPLICAOF", "127.0.0.1", str(other.port))
            eventually(
                lambda: node.info("master_link_status") == "up" and not node.command("EXISTS", "handfast:{a}"), within=5
            )
            node.command("REPLICAOF", "NO", "ONE")
        finally:
            stop.set()
            thread.join()
        with pytest.raises(NotAcquired):
            busy.lock("a", renew=False).acquire(wait=0)
        assert first.valid


@pytest.mark.parametrize("names", ["a", ["a", "b"]], ids=["one name", "several names"])
def test_client_with_smaller_max_ttl_does_not_shorten_lease_without_guard(one: Server, names: str | list[str]) -> None:
    with handfast.connect(one.url, max_ttl=5.0) as patient, handfast.connect(one.url, max_ttl=0.3) as hasty:
        lease = patient.lock(names, ttl=5.0, renew=False).acquire(wait=0)
        assert hasty.lock(names).try_acquire() is None
        left = one.command("PTTL", "handfast:{a}")
        assert isinstance(left, int)
        assert left >= lease.remaining() * 1000
        lease.release()


@both
async def test_wait_for_node_without_vote_is_reported_as_outage(mode: str, one: Server) -> None:
    """The key is free, so this is no contention."""
    async with connected(mode, one.url, guard=True) as client:
        with pytest.raises(NoQuorum, match=r"no vote for another \d+"):
            await client.lock("a").acquire(wait=0.3)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_clock_set_back_prolongs_no_fair_lease() -> None:
    """Its hand-over was not heard, and when it asks again the server says that an hour is left."""
    options: dict[str, Any] = {"fair": True, "guard": True, "ttl": 0.7, **QUICK}
    with ExitStack() as stack:
        clock = stack.enter_context(Clock())
        node = stack.enter_context(Server(env=clock.environment))
        proxy = stack.enter_context(Proxy(node))
        first = stack.enter_context(opened(node.url, **options))
        cut_off, third = (stack.enter_context(handfast.connect(url, **options)) for url in (proxy.url, node.url))
        for client in (cut_off, third):
            client.lock("warm").acquire(wait=3).release()
        lease = first.lock("a", renew=False).acquire(wait=1)
        got: list[handfast.Lease] = []
        waiting = threading.Thread(target=lambda: got.append(cut_off.lock("a", renew=False).acquire(wait=20)))
        waiting.start()
        eventually(lambda: node.command("EXISTS", "handfast:{a}:q"))
        proxy.half_open()
        assert lease.release()
        assert node.command("GET", "handfast:{a}"), "handed over, and nobody hears of it"
        clock.step(-3600)
        proxy.reset()
        proxy.heal()
        waiting.join(20)
        assert 0 < got[0].remaining() < 0.7
        other = third.lock("a").acquire(wait=5)
        assert not got[0].valid
        other.release()
