"""Faults of the network between clients and servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from handfast.testing import Proxy
from handfast.testing.history import now
from tests.chaos.environment import MODES, TTL, WAIT, Environment
from tests.chaos.scenario import scenario


def _waves(env: Environment, proxies: Sequence[Proxy], fault: Callable[[Proxy], object], what: str) -> None:
    """The same fault twice, for longer than a ttl, with a pause in between."""
    for _ in range(2):
        for proxy in proxies:
            fault(proxy)
            env.fault(what)
        env.lapse(1.3 * TTL)
        for proxy in proxies:
            proxy.heal()
        env.lapse(0.3)


def _crowd(env: Environment, nodes: int) -> list[Proxy]:
    env.servers(nodes)
    env.open()
    proxies = env.proxies()
    env.start_workers(wait=1.0)
    return proxies


@scenario("minority cut off", 19, quorum=True)
def minority_cut_off(env: Environment) -> None:
    _waves(env, _crowd(env, 5)[:2], Proxy.drop, "cut off")
    env.recovers()


@scenario("majority cut off", 19, quorum=True)
def majority_cut_off(env: Environment) -> None:
    _waves(env, _crowd(env, 5)[:3], Proxy.drop, "cut off")
    env.recovers()


@scenario("holder cut off from a majority", 19, quorum=True)
def holder_cut_off(env: Environment) -> None:
    """The holder cannot renew; others get the lock after the end of its lease, and not before."""
    nodes = env.servers(5)
    env.open()
    for mode in MODES:
        proxies = [env.enter(Proxy(node)) for node in nodes]
        holder, rival = env.member(mode, urls=[proxy.url for proxy in proxies]), env.member()
        holder.ask("acquire", WAIT)
        holder.ask("read")
        for proxy in proxies[:3]:
            proxy.drop()
            env.fault("cut off")
        env.takes_over(rival)
        for proxy in proxies:
            proxy.heal()
        env.finishes(holder)


@scenario("requests lost, replies pass", 20, peers=False)
def one_way_up(env: Environment) -> None:
    _waves(env, _crowd(env, 1), lambda proxy: proxy.drop(up=True), "one way cut")
    env.recovers()


@scenario("requests pass, replies lost", 20)
def one_way_down(env: Environment) -> None:
    _waves(env, _crowd(env, 1), lambda proxy: proxy.drop(down=True), "one way cut")
    env.recovers()


@scenario("requests pass, replies lost, on a majority", 20, quorum=True, peers=False)
def one_way_down_majority(env: Environment) -> None:
    _waves(env, _crowd(env, 3)[:2], lambda proxy: proxy.drop(down=True), "one way cut")
    env.recovers()


@scenario("connections half open", 21)
def half_open(env: Environment) -> None:
    _waves(env, _crowd(env, 1), Proxy.half_open, "half open")
    env.recovers()


@scenario("connections half open on a majority", 21, quorum=True, peers=False)
def half_open_majority(env: Environment) -> None:
    _waves(env, _crowd(env, 3)[:2], Proxy.half_open, "half open")
    env.recovers()


def _resets(env: Environment, nodes: int) -> None:
    proxies = _crowd(env, nodes)
    end = now() + env.seconds
    while now() < end:
        env.fault("reset inside a reply", random.choice(proxies).reset(after=random.randrange(0, 12)))
        env.lapse(0.05)
    for proxy in proxies:
        proxy.heal()
    env.recovers()


@scenario("resets inside replies", 22)
def resets(env: Environment) -> None:
    _resets(env, 1)


@scenario("resets inside replies of a quorum", 22, quorum=True, peers=False)
def resets_of_a_quorum(env: Environment) -> None:
    _resets(env, 3)


@scenario("one byte each 100 ms", 23)
def drip(env: Environment) -> None:
    _waves(env, _crowd(env, 1), lambda proxy: proxy.drip(1, 0.1), "drip")
    env.recovers()


@scenario("one byte each 100 ms from a minority", 23, quorum=True)
def drip_minority(env: Environment) -> None:
    _waves(env, _crowd(env, 3)[:1], lambda proxy: proxy.drip(1, 0.1), "drip")
    env.recovers()
