"""The usual way to a lock on a single node: what ends the wait for a hand-over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from handfast.core.attempt import EarlyPushes
from handfast.core.single import wait_for_hand_over
from handfast.protocol.claims import Refused


def test_loss_that_came_with_the_refusal_ends_the_wait() -> None:
    """The same packet may bring the refusal of a claim and the news that all data was deleted."""
    owner = b"host:1::%032x"
    early = EarlyPushes()
    early.on_change(0)

    async def wait(*_: Any) -> None:
        raise AssertionError("nothing would end this wait before the holder's ttl")

    io: Any = SimpleNamespace(mailbox={b"me": early}, wait=wait)
    request = SimpleNamespace(owner=None)
    acquisition = SimpleNamespace(
        who=SimpleNamespace(id=b"me"), request=request, answered=0.0, until=None, timing=SimpleNamespace(ttl=10.0)
    )
    waiter: Any = SimpleNamespace(acquisition=acquisition, given=None, queue=SimpleNamespace(explain=None), wakeup=None)
    refusal: Any = SimpleNamespace(answer=Refused(9000, owner % 1, True, 0, b""), explain=None)
    assert asyncio.run(wait_for_hand_over(io, waiter, refusal)) is None
