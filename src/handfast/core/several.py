"""Acquires several names at once, all or none, without starving any waiter.

One atomic attempt at all names comes first (attempt.py). If it is refused, the waiter queues for one name after another,
in an order that all clients share, so that no two waiters can wait for each other. Meanwhile the names that it has are
renewed. In the end the parts become one hold with one token, which is larger than every earlier token of each name.
"""

from __future__ import annotations

from handfast.core.attempt import make_hold, start_over
from handfast.core.config import LockRequest
from handfast.core.hold import HELD, Hold
from handfast.core.io import IO
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.queue import CopiesMissing, begin_again, wait_in_queue
from handfast.core.votes import Ballot
from handfast.protocol import commands

__all__ = ["wait_for_each"]


async def wait_for_each(io: IO, queues: WaitQueues, waiter: Waiter, ballot: Ballot | None) -> Hold:
    """Queue for one name after another. `ballot`: the answers to the attempt at all names."""
    acquisition = waiter.acquisition
    start_over(io, queues, acquisition)
    missing_since: float | None = None
    while True:
        parts: list[Hold] = []
        whole: Hold | None = None
        missing: CopiesMissing | None = None
        who = acquisition.identify(io.nonce)
        try:
            for index, name in enumerate(acquisition.request.names):
                part = _part(acquisition, name)
                part.who = who.for_name(index)
                acquisition.touched = (1 << acquisition.request.group.n) - 1
                hold = await wait_in_queue(io, queues, waiter, part, ballot)
                ballot = None
                if hold is waiter.given:
                    return hold  # a sibling has handed over all names
                queues.renew(hold)
                parts.append(hold)
            whole = await _join(io, acquisition, parts)
            if whole is not None:
                return whole
        except CopiesMissing as error:
            missing = error
        finally:
            for part_hold in parts:
                queues.forget(part_hold)
                part_hold.give_up()
                if part_hold.healed and whole is None:
                    # The release must follow the restored vote on the watchdog's connections, too.
                    queues.abandon(part_hold)
        if missing is None:
            start_over(io, queues, acquisition)  # a part is lost: begin again
        else:
            missing_since = await begin_again(io, queues, waiter, missing, missing_since)


def _part(acquisition: Acquisition, name: str) -> Acquisition:
    """The acquisition of one of the names."""
    request = acquisition.request
    part = Acquisition(LockRequest(request.config, (name,), request.owner), acquisition.timing, None, acquisition.began)
    part.wait, part.until = acquisition.wait, acquisition.until
    return part


async def _join(io: IO, acquisition: Acquisition, parts: list[Hold]) -> Hold | None:
    """Make one hold of all parts; None if a part has ended."""
    config, group = acquisition.request.config, acquisition.request.group
    who = acquisition.identify(io.nonce)
    token = max(part.token_floor for part in parts)
    keys = acquisition.request.keys
    if config.fence:
        payload = commands.raise_token(keys, config.mark_keys, who, token, config.retention)
    else:
        payload = commands.extend(keys, who, acquisition.timing.ttl_ms, b"%d" % config.longest_ms)
    # Either command succeeds only on a node where this acquisition has all names. So a majority has all of them.
    ballot = Ballot(group.n, group.need)
    await io.broadcast(payload, ballot, acquisition.timing.timeout)
    deadline = min(part.deadline for part in parts)
    if not ballot.won or io.now() >= deadline or any(part.state != HELD for part in parts):
        return None
    renew_from = min(part.renew_from for part in parts)
    standstills = min(part.standstills for part in parts)
    hold = make_hold(acquisition, deadline, renew_from, ballot.votes, token, standstills)
    hold.healed = any(part.healed for part in parts)
    acquisition.hold = hold
    return hold
