"""Faults of servers: they die, lose data, hang, are full, and refuse commands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from handfast.embedded.resp import Connection, ReplyError
from handfast.testing import Server
from handfast.testing.history import now
from handfast.testing.servers import LOOPBACK
from tests.chaos.environment import MODES, TTL, WAIT, Environment, Q
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.workers import Member, WorkerError

LATE = 5.0
"""Seconds: on a busy machine servers start late, and clients notice that late."""


def restart(env: Environment, *nodes: Server, empty: bool = True) -> float:
    """Restart all at once. Returns the moment at which all of them were down."""
    for node in nodes:
        node.kill()
    dead = now()
    for node in nodes:
        node.restart(empty=empty)
        env.fault("kill -9 of a node")
    return dead


def hold_on_three(env: Environment, holder: Member, nodes: Sequence[Server]) -> None:
    """A lease on the first three of five nodes only: the others have another owner."""
    for node in nodes[3:]:
        node.command("SET", env.key(env.names[0]), "somebody else")
    holder.ask("acquire", WAIT)
    holder.ask("read")
    for node in nodes[3:]:
        node.command("DEL", env.key(env.names[0]))


def expect_q(env: Environment, dead: float) -> None:
    """Check that no caller acquired before the end of Q, and that one did soon after it."""
    outage = min(each.since for each in env.history().holdings if each.began > dead) - dead
    env.expect(Q <= outage <= Q + LATE, f"unavailable for {outage:.2f} s, and Q is {Q:.2f} s")


@scenario("empty restart of the node that two majorities share", 6, quorum=True)
def shared_node_forgets(env: Environment) -> None:
    """A holds on a, b, c; c restarts empty; B wants c, d, e."""
    nodes = env.servers(5)
    env.open()
    holder, rival = env.member("asyncio"), env.member()
    hold_on_three(env, holder, nodes)
    restart(env, nodes[2])
    env.certain(not env.held(nodes[2]), "the node has forgotten")
    env.takes_over(rival)
    env.finishes(holder)


@scenario("empty restarts of a minority", 6, quorum=True, peers=False)
def minority_restarts(env: Environment) -> None:
    nodes = env.servers(5)
    env.open()
    env.start_workers()
    for i in range(3):
        restart(env, nodes[i], nodes[i + 1])
        env.lapse(Q + 0.5)
    env.recovers()


def _one_node_dies(env: Environment, fsync: str, *, guard: bool) -> None:
    (node,) = env.servers(1, config={"appendonly": "yes", "appendfsync": fsync})
    env.open(guard=guard)
    env.start_workers(think=0.05)
    for _ in range(2):
        restart(env, node, empty=False)
        env.lapse(env.seconds / 2)
    env.recovers()


@scenario("kill -9, append-only file every second", 7, peers=False)
def aof_everysec(env: Environment) -> None:
    _one_node_dies(env, "everysec", guard=True)


@scenario("kill -9, append-only file always", 8, peers=False)
def aof_always(env: Environment) -> None:
    _one_node_dies(env, "always", guard=False)


@scenario("append-only file without its tail", 9)
def aof_tail_cut(env: Environment) -> None:
    """As a power failure leaves it: the grant was answered and is not on the disk."""
    (node,) = env.servers(1, config={"appendonly": "yes", "appendfsync": "always"})
    env.open(guard=True)
    holder, rival = env.member("asyncio"), env.member()
    for member in (holder, rival):
        env.takes_over(member)
    (file,) = Path(node.folder, "appendonlydir").glob("*.incr.aof")
    size = file.stat().st_size
    holder.ask("acquire", WAIT)
    holder.ask("read")
    node.kill()
    with file.open("r+b") as tail:
        tail.truncate(size)
    restart(env, node, empty=False)
    env.fault("cut of a file")
    env.certain(not env.held(node), "the lock is not in the file")
    env.takes_over(rival)
    env.finishes(holder)


@scenario("rolling restart under a long hold", 10, quorum=True)
def rolling_restart(env: Environment) -> None:
    """Every node loses its data, one after the other; renewals restore the vote on each."""
    env.lasting()
    nodes = env.servers(5)
    env.open()
    holder, rival = env.member("asyncio"), env.member()
    holder.ask("acquire", WAIT)
    holder.ask("read")
    rival.tell("acquire", WAIT)
    for node in nodes:
        with contextlib.suppress(WorkerError):
            holder.ask("renew")
        restart(env, node)
        if env.ours:
            env.until(partial(env.held, node), "a renewal has healed the node")
        else:
            env.lapse(env.ttl / 3)
    env.expect(not rival.audible(), "nobody else has got it")
    env.expect(holder.ask("check"), "it was held all the time")
    env.finishes(holder)
    rival.hear()
    env.uses(rival)


@scenario("empty restart of a majority", 11, quorum=True)
def majority_restarts(env: Environment) -> None:
    """The lock is unavailable for Q, and not much longer."""
    nodes = env.servers(5)
    env.open()
    env.start_workers()
    dead = restart(env, *nodes[:3])
    env.lapse(Q)
    env.recovers()
    expect_q(env, dead)


@scenario("two empty restarts within Q", 12, peers=False)
def two_restarts(env: Environment) -> None:
    (node,) = env.servers(1)
    env.open(guard=True)
    env.start_workers()
    restart(env, node)
    env.lapse(Q / 2)
    dead = restart(env, node)
    env.lapse(Q)
    env.recovers()
    expect_q(env, dead)


@scenario("FLUSHALL on one node", 13)
def one_node_flushed(env: Environment) -> None:
    (node,) = env.servers(1)
    env.open(guard=True)
    env.start_workers()
    node.command("FLUSHALL")
    env.fault("FLUSHALL")
    env.lapse(Q)
    env.recovers()


@scenario("FLUSHALL on a minority", 13, quorum=True, peers=False)
def minority_flushed(env: Environment) -> None:
    nodes = env.servers(5)
    env.open()
    env.start_workers()
    for i in range(3):
        for node in (nodes[i], nodes[i + 1]):
            node.command("FLUSHALL")
            env.fault("FLUSHALL")
        env.lapse(Q + 0.5)
    env.recovers()


@scenario("node stopped, then a burst of old commands", 24)
def node_stopped(env: Environment) -> None:
    (node,) = env.servers(1)
    env.start_workers(wait=1.0)
    for _ in range(2):
        node.pause()
        env.fault("SIGSTOP of a node")
        env.lapse(1.3 * TTL)
        node.resume()
        env.lapse(0.3)
    env.recovers()


@scenario("minority stopped, then a burst of old commands", 24, quorum=True)
def minority_stopped(env: Environment) -> None:
    nodes = env.servers(5)
    env.open()
    env.start_workers()
    for _ in range(2):
        for node in nodes[:2]:
            node.pause()
            env.fault("SIGSTOP of a node")
        env.lapse(1.3 * TTL)
        for node in nodes[:2]:
            node.resume()
        env.lapse(0.3)
    env.recovers()


@scenario("too many clients", 26, quorum=True, peers=False)
def maxclients(env: Environment) -> None:
    """Servers refuse clients that reconnect."""
    nodes = env.servers(3)
    env.open()
    env.start_workers()
    for some in (nodes[:1], nodes[:2]):
        # connections that were accepted before
        inside = [env.enter(Connection((LOOPBACK, node.port), timeout=5.0)) for node in some]
        for link in inside:
            link.command("CONFIG", "SET", "maxclients", "1")
            link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            env.fault("maxclients")
        env.lapse(0.7)
        for link in inside:
            link.command("CONFIG", "SET", "maxclients", "1000")
    env.recovers()


@scenario("the same server twice", 37, peers=False)
def same_server_twice(env: Environment) -> None:
    a, b = env.servers(2)
    urls = [a.url, a.url.replace("127.0.0.1", "localhost"), b.url]
    for mode in MODES:
        member = env.member(mode, urls=urls)
        env.fault("server listed twice")
        try:
            member.ask("acquire", 1)
            env.expect(False, "it is refused")
        except WorkerError as error:
            env.expect(error.kind == "ConfigError" and "same server" in str(error), f"it is refused: {error}")


def _evict(node: Server, gone: Callable[[], bool]) -> None:
    """Fill the server until it has evicted all that it may evict."""
    node.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    used = int(node.info("used_memory"))
    node.command("CONFIG", "SET", "maxmemory", str(used + 500_000))
    junk = "x" * 20_000
    with contextlib.suppress(ReplyError):  # in the end there is nothing left to evict
        for i in range(1000):
            if gone():
                break
            node.command("SET", f"junk-{i}", junk)
    node.command("CONFIG", "SET", "maxmemory", "0")
    node.command("EVAL", "for i = 0, 1000 do redis.call('DEL', 'junk-' .. i) end", 0)


@scenario("the lock is evicted", 38, promise=TOKENS)
def evicted(env: Environment) -> None:
    """A server that evicts a lock leaves no trace, so no client can notice it. Only tokens help."""
    (node,) = env.servers(1)
    holder, rival = env.member("asyncio"), env.member()
    env.takes_over(rival)
    holder.ask("acquire", WAIT)
    holder.ask("read")
    _evict(node, lambda: not env.held(node))
    env.fault("eviction")
    env.takes_over(rival)
    env.writes_late(holder)


@scenario("locks are evicted on a minority", 38, promise=TOKENS, sure=False, quorum=True, peers=False)
def evicted_on_a_minority(env: Environment) -> None:
    """A lease may have a bare majority, and the evicting node may be part of it."""
    nodes = env.servers(3)
    env.open()
    env.start_workers()
    for _ in range(3):
        _evict(nodes[0], lambda: False)
        env.fault("eviction")
    env.recovers()
