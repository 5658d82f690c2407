"""Faults of the network between clients and servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from handfast.testing import Proxy
from handfast.testing.history import now
from tests.chaos.scenario import scenario
from tests.chaos.stage import MODES, TTL, WAIT, Stage


def _waves(stage: Stage, proxies: Sequence[Proxy], fault: Callable[[Proxy], object], what: str) -> None:
    """The same trouble twice, for longer than a ttl, and good times in between."""
    for _ in range(2):
        for proxy in proxies:
            fault(proxy)
            stage.fault(what)
        stage.lapse(1.3 * TTL)
        for proxy in proxies:
            proxy.heal()
        stage.lapse(0.3)


def _crowd(stage: Stage, nodes: int) -> list[Proxy]:
    stage.servers(nodes)
    stage.open()
    proxies = stage.proxies()
    stage.crowd(wait=1.0)
    return proxies


@scenario("minority cut off", 19, quorum=True)
def minority_cut_off(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 5)[:2], Proxy.drop, "cut off")
    stage.recovers()


@scenario("majority cut off", 19, quorum=True)
def majority_cut_off(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 5)[:3], Proxy.drop, "cut off")
    stage.recovers()


@scenario("holder cut off from a majority", 19, quorum=True)
def holder_cut_off(stage: Stage) -> None:
    """It cannot renew; the others may have the lock when its lease is over, and not before."""
    nodes = stage.servers(5)
    stage.open()
    for mode in MODES:
        proxies = [stage.enter(Proxy(node)) for node in nodes]
        holder, rival = stage.member(mode, urls=[proxy.url for proxy in proxies]), stage.member()
        holder.ask("acquire", WAIT)
        holder.ask("read")
        for proxy in proxies[:3]:
            proxy.drop()
            stage.fault("cut off")
        stage.takes_over(rival)
        for proxy in proxies:
            proxy.heal()
        stage.finishes(holder)


@scenario("requests lost, replies pass", 20, peers=False)
def one_way_up(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 1), lambda proxy: proxy.drop(up=True), "one way cut")
    stage.recovers()


@scenario("requests pass, replies lost", 20)
def one_way_down(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 1), lambda proxy: proxy.drop(down=True), "one way cut")
    stage.recovers()


@scenario("requests pass, replies lost, on a majority", 20, quorum=True, peers=False)
def one_way_down_majority(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 3)[:2], lambda proxy: proxy.drop(down=True), "one way cut")
    stage.recovers()


@scenario("connections half open", 21)
def half_open(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 1), Proxy.half_open, "half open")
    stage.recovers()


@scenario("connections half open on a majority", 21, quorum=True, peers=False)
def half_open_majority(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 3)[:2], Proxy.half_open, "half open")
    stage.recovers()


def _resets(stage: Stage, nodes: int) -> None:
    proxies = _crowd(stage, nodes)
    end = now() + stage.seconds
    while now() < end:
        stage.fault("reset inside a reply", random.choice(proxies).reset(after=random.randrange(0, 12)))
        stage.lapse(0.05)
    for proxy in proxies:
        proxy.heal()
    stage.recovers()


@scenario("resets inside replies", 22)
def resets(stage: Stage) -> None:
    _resets(stage, 1)


@scenario("resets inside replies of a quorum", 22, quorum=True, peers=False)
def resets_of_a_quorum(stage: Stage) -> None:
    _resets(stage, 3)


@scenario("one byte each 100 ms", 23)
def drip(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 1), lambda proxy: proxy.drip(1, 0.1), "drip")
    stage.recovers()


@scenario("one byte each 100 ms from a minority", 23, quorum=True)
def drip_minority(stage: Stage) -> None:
    _waves(stage, _crowd(stage, 3)[:1], lambda proxy: proxy.drip(1, 0.1), "drip")
    stage.recovers()
