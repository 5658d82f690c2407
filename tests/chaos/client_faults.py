"""Faults of those who lock: they are stopped, killed, blocked, cancelled, forked, and have wrong clocks."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from functools import partial

from handfast.testing import Proxy
from handfast.testing.clock import Clock
from handfast.testing.history import now
from tests.chaos.crew import Member, WorkerError
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.stage import MODES, TTL, WAIT, Stage

YEAR = 365 * 86400.0


@scenario("paused while acquiring", 1)
def paused_while_acquiring(stage: Stage) -> None:
    """Stopped when the server has granted and the client does not know yet; resumed when the ttl is over."""
    (node,) = stage.servers(1)
    rival = stage.member()
    for mode in MODES:
        proxy = stage.enter(Proxy(node))
        slow = stage.member(mode, urls=[proxy.url])
        slow.ask("acquire", WAIT)
        slow.ask("release")
        proxy.delay(0.3, down=True)
        slow.tell("acquire", WAIT)
        stage.until(partial(stage.held, node), "the server has granted it")
        with stage.paused(slow):
            proxy.heal()
            rival.ask("acquire", WAIT)
        with contextlib.suppress(TimeoutError):
            stage.until(slow.audible, "it believes that it has it", within=0.3)
        stage.uses(rival)
        slow.hear()
        stage.uses(slow)


def _stale_write(stage: Stage, *, look: bool) -> None:
    """One holder is stopped until another has come and gone, and then writes, whatever its lease says."""
    stage.servers(1)
    for mode in MODES:
        slow, rival = stage.member(mode), stage.member()
        slow.ask("acquire", WAIT)
        slow.ask("read")
        if look:
            stage.certain(slow.ask("check"), "it looked while it still held it")
        with stage.paused(slow):
            rival.ask("acquire", WAIT)
            stage.uses(rival)
        if not look:
            stage.expect(not slow.ask("check"), "a lease that is over says so")
        stage.writes_late(slow)


@scenario("paused while holding, then writes", 2, promise=TOKENS)
def paused_while_holding(stage: Stage) -> None:
    _stale_write(stage, look=False)


@scenario("paused between check and write", 3, promise=TOKENS)
def paused_after_the_check(stage: Stage) -> None:
    _stale_write(stage, look=True)


@scenario("clients paused at random", 1, 2, 3)
def paused_at_random(stage: Stage) -> None:
    stage.servers(1)
    crowd = stage.crowd(think=0.03)
    end = now() + 2 * stage.seconds
    for member in itertools.cycle(crowd):
        if now() > end:
            break
        with stage.paused(member):
            stage.lapse(random.uniform(0.2, 1.3) * TTL)
    stage.recovers()


@scenario("clients killed at random", 2)
def killed_at_random(stage: Stage) -> None:
    stage.servers(1)
    crowd = stage.crowd(think=0.03)
    end = now() + 2 * stage.seconds
    while now() < end:
        stage.kill(crowd.pop(0))
        crowd += stage.crowd(1, think=0.03)
        stage.lapse(0.2)
    stage.recovers()


@scenario("replies held beyond the ttl", 4)
def replies_held(stage: Stage) -> None:
    (node,) = stage.servers(1)
    proxy = stage.enter(Proxy(node))
    proxy.delay(1.4 * TTL, down=True)
    for mode in MODES:
        stage.member(mode, urls=[proxy.url], names=stage.names).ask("work")
    stage.crowd(2)
    stage.fault("replies held", 1)
    stage.lapse(2 * stage.seconds)
    proxy.heal()
    stage.recovers()


@scenario("requests delivered after the ttl", 5)
def orphans(stage: Stage) -> None:
    (node,) = stage.servers(1)
    proxy = stage.enter(Proxy(node))
    for mode in MODES:
        stage.member(mode, urls=[proxy.url], names=stage.names, wait=1.0).ask("work")
    stage.crowd(2)
    for _ in range(2):
        proxy.delay(math.inf, up=True)
        stage.fault("requests held")
        stage.lapse(1.3 * TTL)
        proxy.heal()
        stage.lapse(0.3)
    stage.recovers()


@scenario("renewals under way at the release", 30, quorum=True, peers=False)
def renewal_at_release(stage: Stage) -> None:
    """With a slow network and critical sections about as long as a third of the ttl, when a renewal is sent."""
    nodes = stage.servers(3)
    stage.open(node_timeout=0.5)
    proxies = stage.proxies()
    stage.crowd(4, users=1, think=0.8)
    for proxy in proxies:
        proxy.delay(0.05)
        stage.fault("slow network")
    stage.lapse(2 * stage.seconds)
    for proxy in proxies:
        proxy.heal()
    stage.recovers()
    for node in nodes:
        stage.until(partial(stage.free, node), "no late renewal has brought the lock back", within=TTL + 1)


def _over(holder: Member) -> bool:
    return not holder.ask("check")


@scenario("renewal answered after the deadline", 31)
def late_renewal(stage: Stage) -> None:
    (node,) = stage.servers(1)
    rival = stage.member("asyncio")
    for mode in MODES:
        proxy = stage.enter(Proxy(node))
        holder = stage.member(mode, urls=[proxy.url])
        holder.ask("acquire", WAIT)
        proxy.delay(1.3 * TTL, down=True)
        stage.fault("replies held")
        holder.ask("read")
        with contextlib.suppress(TimeoutError):
            stage.until(partial(_over, holder), "its lease is over", within=3 * TTL)
        stage.expect(not holder.ask("check"), "what was confirmed too late does not count")
        stage.takes_over(rival)
        proxy.heal()
        stage.lets_go(holder)


@scenario("tasks cancelled at random", 32, peers=False)
def cancelled(stage: Stage) -> None:
    nodes = stage.servers(3)
    stage.open()
    for _ in range(2):
        stage.member("asyncio", names=stage.names, users=6, cancel=True).ask("work")
    stage.crowd(2)
    stage.lapse(2 * stage.seconds)
    stage.recovers()
    stage.faults["task cancelled"] = stage.counts["cancelled"]
    stage.certain(stage.counts["cancelled"] > 20, "tasks were cancelled")
    for node in nodes:
        stage.until(partial(stage.free, node), "nobody has left a lock behind", within=TTL + 1)


def _blocked(stage: Stage, mode: str, how: str) -> tuple[Member, Member]:
    """A holder that is blocked for two ttls, and a rival that waits for it meanwhile."""
    holder, rival = stage.member(mode), stage.member("threads")
    holder.ask("acquire", WAIT)
    holder.ask("read")
    rival.tell("acquire", WAIT)
    holder.tell(how, 2 * stage.ttl)
    stage.fault("blocked")
    holder.hear()
    return holder, rival


@scenario("event loop blocked for two ttls", 33)
def loop_blocked(stage: Stage) -> None:
    """Renewal has a thread of its own: the lease is as good as before."""
    stage.lasting()
    stage.servers(1)
    holder, rival = _blocked(stage, "asyncio", "block")
    stage.expect(not rival.audible(), "nobody else has got it")
    stage.expect(holder.ask("check"), "it is still held")
    stage.finishes(holder)
    rival.hear()
    stage.uses(rival)


@scenario("C code holds the GIL for two ttls", 34)
def gil_held(stage: Stage) -> None:
    """No thread can renew: the lease must be over, and say so at the first look."""
    stage.servers(1)
    for mode in MODES:
        holder, rival = _blocked(stage, mode, "grip")
        stage.expect(not holder.ask("check"), "the lease is over")
        if holder.ask("check"):
            holder.ask("write")
        rival.hear()
        stage.uses(rival)
        stage.lets_go(holder)


@scenario("fork while holding", 35, peers=False)
def fork(stage: Stage) -> None:
    stage.lasting()
    (node,) = stage.servers(1)
    for mode in MODES:
        holder = stage.member(mode)
        holder.ask("acquire", WAIT)
        for _ in range(3):
            child = holder.ask("fork")
            stage.fault("fork")
            stage.expect(not child["valid"], "a child has no lease")
            stage.expect(child["released"] is not True, "a child cannot release its parent's lease")
        stage.lapse(1.5 * stage.ttl)
        stage.expect(stage.held(node), "the lock is still there")
        stage.expect(holder.ask("check"), "and still its parent's, who goes on renewing it")
        stage.uses(holder)


@scenario("fifty waiters at one release", 36)
def fifty_waiters(stage: Stage) -> None:
    stage.servers(1)
    stage.names = stage.names[:1]
    holder = stage.member()
    stage.crowd(5, users=10, think=0.001)
    end = now() + 2 * stage.seconds
    while now() < end:
        if not stage.takes_over(holder):
            break
        stage.fault("release to fifty")
    stage.recovers()


@scenario("a client's wall clock a year ahead", 40, quorum=True, clock=True, peers=False)
def year_ahead(stage: Stage) -> None:
    stage.servers(3)
    stage.open()
    early = stage.enter(Clock(ahead=YEAR))
    for mode in MODES:
        stage.member(mode, names=stage.names, env=early.environment).ask("work")
        stage.fault("clock a year ahead")
    stage.crowd(2)
    stage.lapse(stage.seconds)
    early.step(-2 * YEAR)
    stage.fault("and a year behind")
    stage.lapse(stage.seconds)
    stage.recovers()


@scenario("another max_ttl", 41, peers=False)
def another_max_ttl(stage: Stage) -> None:
    stage.servers(3)
    stage.open()
    stage.crowd(2)
    for mode in MODES:
        stranger = stage.member(mode, options={"max_ttl": 5.0})
        stage.fault("client with another max_ttl")
        try:
            stranger.ask("acquire", 1)
            stage.expect(False, "it is told so")
        except WorkerError as error:
            stage.expect(error.kind == "ConfigError", f"it is told so, by {error}")
    stage.recovers()
