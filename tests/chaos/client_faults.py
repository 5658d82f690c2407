"""Faults of clients: they are stopped, killed, blocked, cancelled, forked, and have wrong clocks."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from functools import partial

from handfast.testing import Proxy
from handfast.testing.clock import Clock
from handfast.testing.history import now
from tests.chaos.environment import MODES, TTL, WAIT, Environment
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.workers import Member, WorkerError

YEAR = 365 * 86400.0


@scenario("paused while acquiring", 1)
def paused_while_acquiring(env: Environment) -> None:
    """A client is stopped after the server's grant and before it reads the reply; it is resumed after the ttl."""
    (node,) = env.servers(1)
    rival = env.member()
    for mode in MODES:
        proxy = env.enter(Proxy(node))
        slow = env.member(mode, urls=[proxy.url])
        slow.ask("acquire", WAIT)
        slow.ask("release")
        proxy.delay(0.3, down=True)
        slow.tell("acquire", WAIT)
        env.until(partial(env.held, node), "the server has granted it")
        with env.paused(slow):
            proxy.heal()
            rival.ask("acquire", WAIT)
        with contextlib.suppress(TimeoutError):
            env.until(slow.audible, "it believes that it has it", within=0.3)
        env.uses(rival)
        slow.hear()
        env.uses(slow)


def _stale_write(env: Environment, *, look: bool) -> None:
    """A holder is stopped until another has acquired and released the lock; after that it writes without a check."""
    env.servers(1)
    for mode in MODES:
        slow, rival = env.member(mode), env.member()
        slow.ask("acquire", WAIT)
        slow.ask("read")
        if look:
            env.certain(slow.ask("check"), "it looked while it still held it")
        with env.paused(slow):
            rival.ask("acquire", WAIT)
            env.uses(rival)
        if not look:
            env.expect(not slow.ask("check"), "a lease that is over says so")
        env.writes_late(slow)


@scenario("paused while holding, then writes", 2, promise=TOKENS)
def paused_while_holding(env: Environment) -> None:
    _stale_write(env, look=False)


@scenario("paused between check and write", 3, promise=TOKENS)
def paused_after_the_check(env: Environment) -> None:
    _stale_write(env, look=True)


@scenario("clients paused at random", 1, 2, 3)
def paused_at_random(env: Environment) -> None:
    env.servers(1)
    workers = env.start_workers(think=0.03)
    end = now() + 2 * env.seconds
    for member in itertools.cycle(workers):
        if now() > end:
            break
        with env.paused(member):
            env.lapse(random.uniform(0.2, 1.3) * TTL)
    env.recovers()


@scenario("clients killed at random", 2)
def killed_at_random(env: Environment) -> None:
    env.servers(1)
    workers = env.start_workers(think=0.03)
    end = now() + 2 * env.seconds
    while now() < end:
        env.kill(workers.pop(0))
        workers += env.start_workers(1, think=0.03)
        env.lapse(0.2)
    env.recovers()


@scenario("replies held beyond the ttl", 4)
def replies_held(env: Environment) -> None:
    (node,) = env.servers(1)
    proxy = env.enter(Proxy(node))
    proxy.delay(1.4 * TTL, down=True)
    for mode in MODES:
        env.member(mode, urls=[proxy.url], names=env.names).ask("work")
    env.start_workers(2)
    env.fault("replies held", 1)
    env.lapse(2 * env.seconds)
    proxy.heal()
    env.recovers()


@scenario("requests delivered after the ttl", 5)
def orphans(env: Environment) -> None:
    (node,) = env.servers(1)
    proxy = env.enter(Proxy(node))
    for mode in MODES:
        env.member(mode, urls=[proxy.url], names=env.names, wait=1.0).ask("work")
    env.start_workers(2)
    for _ in range(2):
        proxy.delay(math.inf, up=True)
        env.fault("requests held")
        env.lapse(1.3 * TTL)
        proxy.heal()
        env.lapse(0.3)
    env.recovers()


@scenario("renewals under way at the release", 30, quorum=True, peers=False)
def renewal_at_release(env: Environment) -> None:
    """A slow network, and critical sections of about a third of the ttl, which is when a renewal is sent."""
    nodes = env.servers(3)
    env.open(node_timeout=0.5)
    proxies = env.proxies()
    env.start_workers(4, users=1, think=0.8)
    for proxy in proxies:
        proxy.delay(0.05)
        env.fault("slow network")
    env.lapse(2 * env.seconds)
    for proxy in proxies:
        proxy.heal()
    env.recovers()
    for node in nodes:
        env.until(partial(env.free, node), "no late renewal has brought the lock back", within=TTL + 1)


def _over(holder: Member) -> bool:
    return not holder.ask("check")


@scenario("renewal answered after the deadline", 31)
def late_renewal(env: Environment) -> None:
    (node,) = env.servers(1)
    rival = env.member("asyncio")
    for mode in MODES:
        proxy = env.enter(Proxy(node))
        holder = env.member(mode, urls=[proxy.url])
        holder.ask("acquire", WAIT)
        proxy.delay(1.3 * TTL, down=True)
        env.fault("replies held")
        holder.ask("read")
        with contextlib.suppress(TimeoutError):
            env.until(partial(_over, holder), "its lease is over", within=3 * TTL)
        env.expect(not holder.ask("check"), "what was confirmed too late does not count")
        env.takes_over(rival)
        proxy.heal()
        env.tries_to_release(holder)


@scenario("tasks cancelled at random", 32, peers=False)
def cancelled(env: Environment) -> None:
    nodes = env.servers(3)
    env.open()
    for _ in range(2):
        env.member("asyncio", names=env.names, users=6, cancel=True).ask("work")
    env.start_workers(2)
    env.lapse(2 * env.seconds)
    env.recovers()
    env.faults["task cancelled"] = env.counts["cancelled"]
    env.certain(env.counts["cancelled"] > 20, "tasks were cancelled")
    for node in nodes:
        env.until(partial(env.free, node), "nobody has left a lock behind", within=TTL + 1)


def _blocked(env: Environment, mode: str, how: str) -> tuple[Member, Member]:
    """A holder that is blocked for two ttls, and a rival that waits for the lock."""
    holder, rival = env.member(mode), env.member("threads")
    holder.ask("acquire", WAIT)
    holder.ask("read")
    rival.tell("acquire", WAIT)
    holder.tell(how, 2 * env.ttl)
    env.fault("blocked")
    holder.hear()
    return holder, rival


@scenario("event loop blocked for two ttls", 33)
def loop_blocked(env: Environment) -> None:
    """Renewal has its own thread, so the lease is still valid."""
    env.lasting()
    env.servers(1)
    holder, rival = _blocked(env, "asyncio", "block")
    env.expect(not rival.audible(), "nobody else has got it")
    env.expect(holder.ask("check"), "it is still held")
    env.finishes(holder)
    rival.hear()
    env.uses(rival)


@scenario("C code holds the GIL for two ttls", 34)
def gil_held(env: Environment) -> None:
    """No thread can renew: the lease must be over, and its first check must show that."""
    env.servers(1)
    for mode in MODES:
        holder, rival = _blocked(env, mode, "grip")
        env.expect(not holder.ask("check"), "the lease is over")
        if holder.ask("check"):
            holder.ask("write")
        rival.hear()
        env.uses(rival)
        env.tries_to_release(holder)


@scenario("fork while holding", 35, peers=False)
def fork(env: Environment) -> None:
    env.lasting()
    (node,) = env.servers(1)
    for mode in MODES:
        holder = env.member(mode)
        holder.ask("acquire", WAIT)
        for _ in range(3):
            child = holder.ask("fork")
            env.fault("fork")
            env.expect(not child["valid"], "a child has no lease")
            env.expect(child["released"] is not True, "a child cannot release its parent's lease")
        env.lapse(1.5 * env.ttl)
        env.expect(env.held(node), "the lock is still there")
        env.expect(holder.ask("check"), "and still its parent's, who goes on renewing it")
        env.uses(holder)


@scenario("fifty waiters at one release", 36)
def fifty_waiters(env: Environment) -> None:
    env.servers(1)
    env.names = env.names[:1]
    holder = env.member()
    env.start_workers(5, users=10, think=0.001)
    end = now() + 2 * env.seconds
    while now() < end:
        if not env.takes_over(holder):
            break
        env.fault("release to fifty")
    env.recovers()


@scenario("a client's wall clock a year ahead", 40, quorum=True, clock=True, peers=False)
def year_ahead(env: Environment) -> None:
    env.servers(3)
    env.open()
    early = env.enter(Clock(ahead=YEAR))
    for mode in MODES:
        env.member(mode, names=env.names, env=early.environment).ask("work")
        env.fault("clock a year ahead")
    env.start_workers(2)
    env.lapse(env.seconds)
    early.step(-2 * YEAR)
    env.fault("and a year behind")
    env.lapse(env.seconds)
    env.recovers()


@scenario("another max_ttl", 41, peers=False)
def another_max_ttl(env: Environment) -> None:
    env.servers(3)
    env.open()
    env.start_workers(2)
    for mode in MODES:
        stranger = env.member(mode, options={"max_ttl": 5.0})
        env.fault("client with another max_ttl")
        try:
            stranger.ask("acquire", 1)
            env.expect(False, "it is told so")
        except WorkerError as error:
            env.expect(error.kind == "ConfigError", f"it is told so, by {error}")
    env.recovers()
