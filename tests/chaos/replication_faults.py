"""Faults of a replicated master: a failover to a replica that does not know the lock."""

from __future__ import annotations

from typing import Any

from handfast.discovery.urls import parse
from handfast.testing import Proxy, Server
from tests.chaos.environment import WAIT, Environment
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.workers import Member


class Address(Proxy):
    """An address that a failover moves: it leads to the present master."""

    def move_to(self, server: Server) -> None:
        self._target = parse(server.url)
        self.reset()


class Pair:
    """A master, its replica behind a link that can be cut, and the address that clients know."""

    def __init__(self, env: Environment, **options: Any) -> None:
        (self.master,) = env.servers(1)
        self.link: Proxy = env.enter(Proxy(self.master))
        self.replica: Server = env.enter(Server(replica_of=self.link))
        self.address: Address = env.enter(Address(self.master))
        env.urls = [self.address.url]
        env.open(**options)
        self.wait_in_step()

    def wait_in_step(self) -> None:
        offset = int(self.master.info("master_repl_offset"))
        self.replica.wait_for(lambda: int(self.replica.info("slave_repl_offset")) >= offset)

    def promote(self) -> None:
        self.replica.command("REPLICAOF", "NO", "ONE")
        self.replica.wait_for(lambda: self.replica.info("role") == "master")


@scenario("failover with an unreplicated lock", 27)
def failover(env: Environment) -> None:
    pair = Pair(env, guard=True)
    holder, rival = env.member("asyncio"), env.member()
    for member in (holder, rival):
        env.takes_over(member)
    pair.wait_in_step()
    pair.link.drop(down=True)
    holder.ask("acquire", WAIT)
    holder.ask("read")
    pair.master.kill()
    pair.promote()
    env.certain(not env.held(pair.replica), "the lock was not replicated")
    pair.address.move_to(pair.replica)
    env.fault("failover")
    env.takes_over(rival)
    env.finishes(holder)


@scenario("failover among many users", 27, peers=False)
def failover_in_a_crowd(env: Environment) -> None:
    pair = Pair(env, guard=True)
    env.start_workers(think=0.05)
    pair.link.delay(0.1, down=True)
    env.lapse(0.5)
    pair.master.kill()
    pair.promote()
    pair.address.move_to(pair.replica)
    env.fault("failover")
    env.lapse(env.seconds)
    env.recovers()


@scenario("demoted and promoted again on a live connection", 28)
def demoted_and_promoted(env: Environment) -> None:
    """A master takes over another server's data, without the lock, and is a master again before any client reconnects."""
    env.lasting()  # a replica needs a second to be in step
    node, other = env.servers(2)
    env.urls = [node.url]
    env.open(guard=True)
    holder, rival = env.member("asyncio"), env.member()
    for member in (holder, rival):
        env.takes_over(member)
    other.command("REPLICAOF", "127.0.0.1", str(node.port))
    other.wait_for(lambda: other.info("master_link_status") == "up")
    if env.ours:
        other.wait_for(lambda: other.command("GET", "handfast:guard") == node.command("GET", "handfast:guard"))
    other.command("REPLICAOF", "NO", "ONE")
    holder.ask("acquire", WAIT)
    holder.ask("read")
    node.command("REPLICAOF", "127.0.0.1", str(other.port))
    node.wait_for(lambda: node.info("master_link_status") == "up" and not env.held(node))
    node.command("REPLICAOF", "NO", "ONE")
    env.fault("demotion and promotion")
    env.takes_over(rival)
    env.finishes(holder)


def _old_master(env: Environment, holder: Member, pair: Pair) -> Member:
    """The holder stays with the old master; all others have a new one. Returns the client that takes over there."""
    holder.ask("acquire", WAIT)
    holder.ask("read")
    pair.link.drop()
    pair.promote()
    env.fault("failover")
    env.enter(Server(replica_of=pair.replica))
    rival = env.member(urls=[pair.replica.url])
    rival.ask("acquire", WAIT)
    return rival


@scenario("old master cut off with its holder, replicas=1", 29, peers=False)
def old_master_with_copies(env: Environment) -> None:
    """No replica confirms its renewals any more."""
    pair = Pair(env, guard=True, replicas=1, node_timeout=0.3)
    holder = env.member("asyncio", urls=[pair.master.url])
    rival = _old_master(env, holder, pair)
    env.expect(not holder.ask("check"), "its lease is over")
    env.uses(rival)
    env.tries_to_release(holder)


@scenario("old master cut off with its holder", 29, promise=TOKENS)
def old_master(env: Environment) -> None:
    """Its renewals still succeed: there are two leases, one on each master."""
    pair = Pair(env, guard=True)
    holder = env.member("asyncio", urls=[pair.master.url])
    rival = _old_master(env, holder, pair)
    env.uses(rival)
    env.writes_late(holder)
