"""Faults of servers: they die, forget, hang, are full, and refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from handfast.embedded.resp import Connection, ReplyError
from handfast.testing import Server
from handfast.testing.history import now
from handfast.testing.servers import LOOPBACK
from tests.chaos.crew import Member, WorkerError
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.stage import MODES, TTL, WAIT, Q, Stage

LATE = 5.0
"""Seconds: on a busy machine servers start late, and clients notice late that they may go on."""


def restart(stage: Stage, *nodes: Server, empty: bool = True) -> float:
    """All at once; the moment at which none of them was there."""
    for node in nodes:
        node.kill()
    dead = now()
    for node in nodes:
        node.restart(empty=empty)
        stage.fault("kill -9 of a node")
    return dead


def hold_on_three(stage: Stage, holder: Member, nodes: Sequence[Server]) -> None:
    """A lease on the first three of five nodes only: on the others somebody else seems to be there."""
    for node in nodes[3:]:
        node.command("SET", stage.key(stage.names[0]), "somebody else")
    holder.ask("acquire", WAIT)
    holder.ask("read")
    for node in nodes[3:]:
        node.command("DEL", stage.key(stage.names[0]))


def expect_q(stage: Stage, dead: float) -> None:
    """Nobody who asked since then got a lock before Q was over; soon afterwards somebody did."""
    outage = min(each.since for each in stage.history().holdings if each.began > dead) - dead
    stage.expect(Q <= outage <= Q + LATE, f"unavailable for {outage:.2f} s, and Q is {Q:.2f} s")


@scenario("empty restart of the node that two majorities share", 6, quorum=True)
def shared_node_forgets(stage: Stage) -> None:
    """A holds on a, b, c; c restarts empty; B wants c, d, e."""
    nodes = stage.servers(5)
    stage.open()
    holder, rival = stage.member("asyncio"), stage.member()
    hold_on_three(stage, holder, nodes)
    restart(stage, nodes[2])
    stage.certain(not stage.held(nodes[2]), "the node has forgotten")
    stage.takes_over(rival)
    stage.finishes(holder)


@scenario("empty restarts of a minority", 6, quorum=True, peers=False)
def minority_restarts(stage: Stage) -> None:
    nodes = stage.servers(5)
    stage.open()
    stage.crowd()
    for i in range(3):
        restart(stage, nodes[i], nodes[i + 1])
        stage.lapse(Q + 0.5)
    stage.recovers()


def _one_node_dies(stage: Stage, fsync: str, *, guard: bool) -> None:
    (node,) = stage.servers(1, config={"appendonly": "yes", "appendfsync": fsync})
    stage.open(guard=guard)
    stage.crowd(think=0.05)
    for _ in range(2):
        restart(stage, node, empty=False)
        stage.lapse(stage.seconds / 2)
    stage.recovers()


@scenario("kill -9, append-only file every second", 7, peers=False)
def aof_everysec(stage: Stage) -> None:
    _one_node_dies(stage, "everysec", guard=True)


@scenario("kill -9, append-only file always", 8, peers=False)
def aof_always(stage: Stage) -> None:
    _one_node_dies(stage, "always", guard=False)


@scenario("append-only file without its tail", 9)
def aof_tail_cut(stage: Stage) -> None:
    """As a power failure leaves it: the grant was answered and is not on the disk."""
    (node,) = stage.servers(1, config={"appendonly": "yes", "appendfsync": "always"})
    stage.open(guard=True)
    holder, rival = stage.member("asyncio"), stage.member()
    for member in (holder, rival):
        stage.takes_over(member)
    (file,) = Path(node.folder, "appendonlydir").glob("*.incr.aof")
    size = file.stat().st_size
    holder.ask("acquire", WAIT)
    holder.ask("read")
    node.kill()
    with file.open("r+b") as tail:
        tail.truncate(size)
    restart(stage, node, empty=False)
    stage.fault("cut of a file")
    stage.certain(not stage.held(node), "the lock is not in the file")
    stage.takes_over(rival)
    stage.finishes(holder)


@scenario("rolling restart under a long hold", 10, quorum=True)
def rolling_restart(stage: Stage) -> None:
    """Every node forgets, one after the other; renewals put the lock back on each."""
    stage.lasting()
    nodes = stage.servers(5)
    stage.open()
    holder, rival = stage.member("asyncio"), stage.member()
    holder.ask("acquire", WAIT)
    holder.ask("read")
    rival.tell("acquire", WAIT)
    for node in nodes:
        with contextlib.suppress(WorkerError):
            holder.ask("renew")
        restart(stage, node)
        if stage.ours:
            stage.until(partial(stage.held, node), "a renewal has healed the node")
        else:
            stage.lapse(stage.ttl / 3)
    stage.expect(not rival.audible(), "nobody else has got it")
    stage.expect(holder.ask("check"), "it was held all the time")
    stage.finishes(holder)
    rival.hear()
    stage.uses(rival)


@scenario("empty restart of a majority", 11, quorum=True)
def majority_restarts(stage: Stage) -> None:
    """Unavailable for Q, and not much longer."""
    nodes = stage.servers(5)
    stage.open()
    stage.crowd()
    dead = restart(stage, *nodes[:3])
    stage.lapse(Q)
    stage.recovers()
    expect_q(stage, dead)


@scenario("two empty restarts within Q", 12, peers=False)
def two_restarts(stage: Stage) -> None:
    (node,) = stage.servers(1)
    stage.open(guard=True)
    stage.crowd()
    restart(stage, node)
    stage.lapse(Q / 2)
    dead = restart(stage, node)
    stage.lapse(Q)
    stage.recovers()
    expect_q(stage, dead)


@scenario("FLUSHALL on one node", 13)
def one_node_flushed(stage: Stage) -> None:
    (node,) = stage.servers(1)
    stage.open(guard=True)
    stage.crowd()
    node.command("FLUSHALL")
    stage.fault("FLUSHALL")
    stage.lapse(Q)
    stage.recovers()


@scenario("FLUSHALL on a minority", 13, quorum=True, peers=False)
def minority_flushed(stage: Stage) -> None:
    nodes = stage.servers(5)
    stage.open()
    stage.crowd()
    for i in range(3):
        for node in (nodes[i], nodes[i + 1]):
            node.command("FLUSHALL")
            stage.fault("FLUSHALL")
        stage.lapse(Q + 0.5)
    stage.recovers()


@scenario("node stopped, then a burst of old commands", 24)
def node_stopped(stage: Stage) -> None:
    (node,) = stage.servers(1)
    stage.crowd(wait=1.0)
    for _ in range(2):
        node.pause()
        stage.fault("SIGSTOP of a node")
        stage.lapse(1.3 * TTL)
        node.resume()
        stage.lapse(0.3)
    stage.recovers()


@scenario("minority stopped, then a burst of old commands", 24, quorum=True)
def minority_stopped(stage: Stage) -> None:
    nodes = stage.servers(5)
    stage.open()
    stage.crowd()
    for _ in range(2):
        for node in nodes[:2]:
            node.pause()
            stage.fault("SIGSTOP of a node")
        stage.lapse(1.3 * TTL)
        for node in nodes[:2]:
            node.resume()
        stage.lapse(0.3)
    stage.recovers()


@scenario("too many clients", 26, quorum=True, peers=False)
def maxclients(stage: Stage) -> None:
    """Those who have to connect again are turned away."""
    nodes = stage.servers(3)
    stage.open()
    stage.crowd()
    for some in (nodes[:1], nodes[:2]):
        # Connections that were let in before.
        inside = [stage.enter(Connection((LOOPBACK, node.port), timeout=5.0)) for node in some]
        for link in inside:
            link.command("CONFIG", "SET", "maxclients", "1")
            link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            stage.fault("maxclients")
        stage.lapse(0.7)
        for link in inside:
            link.command("CONFIG", "SET", "maxclients", "1000")
    stage.recovers()


@scenario("the same server twice", 37, peers=False)
def same_server_twice(stage: Stage) -> None:
    a, b = stage.servers(2)
    urls = [a.url, a.url.replace("127.0.0.1", "localhost"), b.url]
    for mode in MODES:
        member = stage.member(mode, urls=urls)
        stage.fault("server listed twice")
        try:
            member.ask("acquire", 1)
            stage.expect(False, "it is refused")
        except WorkerError as error:
            stage.expect(error.kind == "ConfigError" and "same server" in str(error), f"it is refused: {error}")


def _evict(node: Server, gone: Callable[[], bool]) -> None:
    """Fill it until it has thrown out what it may."""
    node.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    used = int(node.info("used_memory"))
    node.command("CONFIG", "SET", "maxmemory", str(used + 500_000))
    junk = "x" * 20_000
    with contextlib.suppress(ReplyError):  # in the end there is nothing left to throw out
        for i in range(1000):
            if gone():
                break
            node.command("SET", f"junk-{i}", junk)
    node.command("CONFIG", "SET", "maxmemory", "0")
    node.command("EVAL", "for i = 0, 1000 do redis.call('DEL', 'junk-' .. i) end", 0)


@scenario("the lock is evicted", 38, promise=TOKENS)
def evicted(stage: Stage) -> None:
    """A server that is set to evict forgets without a trace: nobody can notice, only tokens help."""
    (node,) = stage.servers(1)
    holder, rival = stage.member("asyncio"), stage.member()
    stage.takes_over(rival)
    holder.ask("acquire", WAIT)
    holder.ask("read")
    _evict(node, lambda: not stage.held(node))
    stage.fault("eviction")
    stage.takes_over(rival)
    stage.writes_late(holder)


@scenario("locks are evicted on a minority", 38, promise=TOKENS, sure=False, quorum=True, peers=False)
def evicted_on_a_minority(stage: Stage) -> None:
    """A lease may stand on a bare majority, and the node that evicts be one of it."""
    nodes = stage.servers(3)
    stage.open()
    stage.crowd()
    for _ in range(3):
        _evict(nodes[0], lambda: False)
        stage.fault("eviction")
    stage.recovers()
