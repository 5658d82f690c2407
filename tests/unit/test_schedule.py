"""When the watchdog looks at a hold."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from handfast.core.hold import HELD, LOST, Hold
from handfast.core.schedule import FOREVER, SLOTS_PER_SECOND, Schedule
from handfast.protocol.commands import Identity
from tests.support.fake_io import lock_request

SENT = 100.0


@pytest.mark.parametrize("ttl", [0.4, 1.0, 10.0])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.9])
def test_loss_is_noticed_at_the_deadline_however_little_of_the_ttl_is_left(ttl: float, share: float) -> None:
    """The servers answer no renewal."""
    request = lock_request(3, ttl=ttl)
    deadline = SENT + request.config.timing.validity
    hold = Hold(request, Identity(b"host:1::nonce", b"host:1::nonce"), ttl, deadline, SENT, 0b111, 7)
    now = deadline - share * ttl
    schedule = Schedule(nullcontext(), wake=lambda: None, now=lambda: now)
    schedule.add(hold)
    while hold.state == HELD:
        wakes_at = schedule.next_wake()
        assert wakes_at < FOREVER
        now = max(now, wakes_at)
        for holds in schedule.take_due().values():
            schedule.sort_out(holds)
    assert hold.state == LOST
    assert deadline <= now <= deadline + 2 / SLOTS_PER_SECOND
