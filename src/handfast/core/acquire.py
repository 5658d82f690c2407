"""From a call to a hold. Start reading here.

An acquisition begins with one attempt (attempt.py). If that is refused, the caller waits: first in the FIFO of its
process (local_queue.py), and at the head of it in the queues of the nodes (queue.py). For keys that other programs hold,
it tracks the keys instead (foreign.py). If the nodes cannot push, or the caller limits its tries, it repeats the attempt.

If an acquisition fails, `take` withdraws what it has left on the servers. A loop that tries again calls `start_over`
before each try.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from handfast.core import explain, several, single
from handfast.core.attempt import attempt, outage_since, prepare, start_over, withdraw
from handfast.core.foreign import look, wait_for_change
from handfast.core.hold import Hold
from handfast.core.io import IO, Access
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.queue import CannotQueue, CopiesMissing, begin_again, can_queue, wait_in_queue
from handfast.core.single import Refusal
from handfast.core.votes import Ballot
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol.claims import Refused

__all__ = ["acquire", "put_back"]

LOCAL_FIRST = 0.005
"""Seconds for which the head of a cohort's queue waits for its sibling before it asks a server."""


def acquire(
    access: Access, queues: WaitQueues, acquisition: Acquisition, failed: Ballot | Refusal | None = None
) -> Coroutine[Any, Any, Hold]:
    """Acquire the lock, or raise NotAcquired.

    `failed`: the outcome of the attempt that the caller has already made; see single.py.
    """
    if failed is not None:
        return take(access, queues, acquisition, None, failed)
    # An explicit owner may hold the lock already, and must not wait for its own waiters.
    waits = acquisition.wait != 0 and acquisition.request.owner is None
    if queues.by_key and waits and queues.has_waiters(acquisition.request):
        return _wait_in_line(access, queues, acquisition)
    return take(access, queues, acquisition, None)


async def _wait_in_line(access: Access, queues: WaitQueues, acquisition: Acquisition) -> Hold:
    """Wait in the queue of this process and, at its head, for the servers."""
    waiter = queues.enter(acquisition, access.wakeup(), access.caller())
    outcome = "acquired"
    try:
        if queues.telling:
            queues.began(waiter)
        while waiter.queue.head is not waiter:
            await access.wait(waiter.wakeup, acquisition.until)
            queues.check(waiter, access.now())
        hold = await _from_sibling(access, queues, waiter)
        if hold is None:
            hold = await take(access, queues, acquisition, waiter)
        return _keep(waiter, hold)
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        leave(queues, waiter)
        if waiter.announced:
            queues.ended(waiter, access.now(), outcome)


def _keep(waiter: Waiter, hold: Hold) -> Hold:
    """Note that the waiter has its hold. From here on the caller must release it."""
    waiter.acquisition.hold = waiter.queue.holder = hold
    if waiter.given is hold:
        waiter.given = None
    return hold


def leave(queues: WaitQueues, waiter: Waiter) -> None:
    """Leave the local queue. The watchdog releases a hold that a sibling has handed over and the waiter has not taken."""
    given: Hold | None = None
    try:
        given = queues.leave(waiter)
    except BaseException:
        # Leave again after an interrupt: a waiter that is left in the queue would block it.
        given = queues.leave(waiter)
        raise
    finally:
        if given is not None:
            queues.abandon(given)


async def _from_sibling(access: Access, queues: WaitQueues, waiter: Waiter) -> Hold | None:
    """Wait for a sibling of the cohort to hand the lock over. This is the usual case, and needs no connection. None if no
    sibling does so soon."""
    config = waiter.acquisition.request.config
    if not config.cohort:
        return None
    holder, now = waiter.queue.holder, access.now()
    if waiter.given is None and holder is not None and holder.held_at(now) and holder.handovers < config.cohort:
        await access.wait(waiter.wakeup, waiter.acquisition.earlier(now + LOCAL_FIRST))
        queues.check(waiter, access.now())
    return waiter.usable(access.now())


async def take(
    access: Access, queues: WaitQueues, acquisition: Acquisition, waiter: Waiter | None,
    failed: Ballot | Refusal | None = None,
) -> Hold:  # fmt: skip
    """Make an attempt with borrowed connections, and wait if it is refused.

    `waiter`: the caller's waiter at the head of its queue; None if it is in no queue. `failed`: see `acquire`.
    """
    done = False
    io = access.borrow()
    try:
        if failed is None:
            failed = await _first_attempt(io, queues, acquisition)
        hold = acquisition.hold
        if hold is None:
            hold = await _wait(io, access, queues, acquisition, waiter, failed)
        if queues.closed:
            queues.check_open()
        if hold is not None and hold.who is acquisition.who:
            done = True
            acquisition.hold = hold
            hold.carrier, hold.asked = io, acquisition.touched
    finally:
        put_back(access, io, acquisition, done=done)
    # Without a hold, another waiter of this process was first: the caller queues behind it.
    return hold if hold is not None else await _wait_in_line(access, queues, acquisition)


async def _first_attempt(io: IO, queues: WaitQueues, acquisition: Acquisition) -> Ballot | Refusal | None:
    """Make the first attempt, if one is worth making. Returns why it failed; None if it was not made, or has set
    `acquisition.hold`."""
    request, channel = acquisition.request, b""
    if not io.ready or not request.group.quorum_can_vote:
        await prepare(io, acquisition)
    one_name = len(request.names) == 1
    # On one node, a refused attempt for one name is in the queue at once.
    if request.config.queues_on_arrival and acquisition.wait != 0 and one_name:
        channel = io.channels[0] or await _subscribe(io, acquisition)
    if acquisition.timing.one_claim and one_name:
        return single.read(io, acquisition, await single.ask(io, acquisition, channel))
    if request.group.n == 1 or not _claims_first(io, queues, acquisition):
        return await attempt(io, acquisition, channel)
    return None


def put_back(access: Access, io: IO, acquisition: Acquisition, *, done: bool) -> None:
    """Give borrowed connections back. Unless the acquisition is done, first withdraw what it has left on the servers."""
    try:
        if acquisition.who is not None:
            io.mailbox.pop(acquisition.who.id, None)
        if not done:
            withdraw(io, acquisition)
    finally:
        access.give_back(io)


async def _wait(
    io: IO, access: Access, queues: WaitQueues, acquisition: Acquisition, waiter: Waiter | None,
    failed: Ballot | Refusal | None,
) -> Hold | None:  # fmt: skip
    """Wait after an attempt that has failed; None if no attempt was made. Returns None if this process has waiters
    already."""
    if isinstance(failed, Ballot) and not _worth_waiting(io, acquisition, failed):
        raise await _named_failure(io, acquisition, failed)
    if waiter is not None:
        return await _wait_at_head(io, queues, waiter, failed)
    waiter = queues.enter_empty(acquisition, io.wakeup(), access.caller())
    if waiter is None:
        return None
    outcome = "acquired"
    try:
        if queues.telling:
            queues.began(waiter)
        return _keep(waiter, await _wait_at_head(io, queues, waiter, failed))
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        leave(queues, waiter)
        if waiter.announced:
            queues.ended(waiter, io.now(), outcome)


def _claims_first(io: IO, queues: WaitQueues, acquisition: Acquisition) -> bool:
    """Whether to claim without an attempt: on a quorum, if others want the lock, an attempt would only be refused."""
    request, config = acquisition.request, acquisition.request.config
    if acquisition.wait == 0 or not queues.is_wanted(request):
        return False
    return config.tries is None and not config.exact and len(request.names) == 1 and all(io.channels)


async def _subscribe(io: IO, acquisition: Acquisition) -> bytes:
    """Subscribe on a single node. Returns the channel, which is empty if the node cannot push."""
    if acquisition.request.group.nodes[0].no_push is None:
        await io.subscribe(acquisition.timeout(acquisition.timing.timeout, io.now()))
    return io.channels[0]


def _worth_waiting(io: IO, acquisition: Acquisition, ballot: Ballot) -> bool:
    request = acquisition.request
    if acquisition.wait == 0 or request.config.tries == 1:
        return False
    over = acquisition.until is not None and io.now() >= acquisition.until
    return not over and not explain.cannot_succeed(request.group, ballot.answers)


async def _named_failure(io: IO, acquisition: Acquisition, ballot: Ballot) -> NotAcquired | ConfigError:
    """The error for a failed attempt. The published protocol does not name the holder, so this asks the nodes."""
    request = acquisition.request
    if request.config.exact and explain.contended(request.group, ballot.answers, decided=ballot.decided):
        seen = await look(io, acquisition)
        ballot.answers = [new if type(new) is Refused else old for new, old in zip(seen, ballot.answers, strict=True)]
    return failure(acquisition, ballot)


def failure(acquisition: Acquisition, ballot: Ballot) -> NotAcquired | ConfigError:
    """The error for a failed attempt."""
    timeout = acquisition.timing.timeout
    if acquisition.wait:
        timeout = min(timeout, acquisition.wait)
    return explain.not_acquired(acquisition.request, ballot.answers, timeout, decided=ballot.decided, won=ballot.won)


async def _wait_at_head(io: IO, queues: WaitQueues, waiter: Waiter, failed: Ballot | Refusal | None) -> Hold:
    """Wait for the servers, at the head of the local queue."""
    acquisition = waiter.acquisition
    if isinstance(failed, Refusal):
        hold = await single.wait_for_hand_over(io, waiter, failed)
        if hold is not None and not queues.closed:
            return hold
        failed = failed.ballot()
    ballot = failed
    config = acquisition.request.config
    if config.tries is not None:
        return await _retry(io, queues, waiter, ballot or Ballot(config.group.n, config.group.need))
    if config.exact:
        return await wait_for_change(io, queues, waiter, ballot or Ballot(config.group.n, config.group.need))
    if not all(io.channels):
        # Subscribe first: a refusal shows which nodes cannot push.
        await io.subscribe(acquisition.timeout(acquisition.timing.timeout, io.now()))
    if not can_queue(io, acquisition):
        return await _retry(io, queues, waiter, ballot or Ballot(config.group.n, config.group.need))
    try:
        if len(acquisition.request.names) > 1:
            return await several.wait_for_each(io, queues, waiter, ballot)
        return await _wait_with_copies(io, queues, waiter, ballot)
    except CannotQueue:
        return await _retry(io, queues, waiter, Ballot(config.group.n, config.group.need))


async def _wait_with_copies(io: IO, queues: WaitQueues, waiter: Waiter, ballot: Ballot | None) -> Hold:
    """Wait in the queues of the nodes, again and again while copies of the votes are missing."""
    missing_since: float | None = None
    while True:
        try:
            return await wait_in_queue(io, queues, waiter, waiter.acquisition, ballot)
        except CopiesMissing as missing:
            missing_since, ballot = await begin_again(io, queues, waiter, missing, missing_since), None


async def _retry(io: IO, queues: WaitQueues, waiter: Waiter, ballot: Ballot) -> Hold:
    """Repeat the attempt with the caller's backoff: if the caller limits its tries, or the servers cannot push."""
    acquisition = waiter.acquisition
    request = acquisition.request
    config, group = request.config, request.group
    if config.tries is None:
        _warn_about_polling(queues, acquisition)
    tried = 1
    silent_since: float | None = None
    while True:
        waiter.queue.explain = lambda now, last=ballot: failure(acquisition, last)
        now = io.now()
        silent_since = outage_since(waiter, ballot.faults(), silent_since, now)
        start_over(io, queues, acquisition)
        await io.wait(waiter.wakeup, acquisition.earlier(now + config.policy.backoff(tried, io.random())))
        queues.check(waiter, io.now())
        given = waiter.usable(io.now())
        if given is not None:
            return given
        await prepare(io, acquisition)
        failed = await attempt(io, acquisition)
        tried += 1
        if failed is None:
            assert acquisition.hold is not None
            return acquisition.hold
        ballot = failed
        if tried == config.tries or explain.cannot_succeed(group, ballot.answers):
            raise await _named_failure(io, acquisition, ballot)


def _warn_about_polling(queues: WaitQueues, acquisition: Acquisition) -> None:
    for node in acquisition.request.group.nodes:
        if node.no_push is not None and node.label not in queues.warned:
            queues.warned.add(node.label)
            queues.warn(f"{node.label}: {node.no_push.text}; waiters poll there, in no fair order")
