"""Waiting for keys that other programs hold. These programs do not hand over, so the waiter tracks the keys.

The waiter reads the keys on every node, and with this read asks for a push when they change (client tracking). A release,
an expiry and a plain DEL by any program all end its wait. The read shows every earlier change, and every later change is
pushed, so no wake-up is lost. A timer at the end of the holder's ttl is a second way to notice.

A push may also mean that the holder has renewed. In this case the attempt is refused, and the waiter reads the keys once
more. A holder that renews many times a second slows down its waiters, not the server. If a server refuses tracking, the
waiter reads the keys again after a random pause.
"""

from __future__ import annotations

from typing import Any, Final

from handfast.core import explain
from handfast.core.attempt import attempt, outage_since, prepare, start_over
from handfast.core.hold import Hold
from handfast.core.io import IO, Fault
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.votes import AllReplies, Ballot, is_grant
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol import commands
from handfast.protocol.claims import Refused

__all__ = ["look", "wait_for_change"]

LOOK_AGAIN: Final = 5.0
"""Seconds after which to read a key again that has no ttl, or whose node has not answered."""
OVERDUE: Final = 0.001
"""Seconds after the end of a ttl at which the key is certainly gone: servers count whole milliseconds."""
CALM: Final = 2
"""After more renewals than this in a row, a waiter pauses before it reads the keys again."""


class Tracker:
    """The state of the tracked keys on each node. A PushListener."""

    def __init__(self, waiter: Waiter) -> None:
        self.keys = waiter.acquisition.request.keys
        self.changed: set[int] = set()
        """Nodes on which the lock may have become free."""
        self._wakeup = waiter.wakeup

    def on_push(self, node: int, push: Any) -> None:
        """Ignore messages: such a lock is never handed over."""

    def on_change(self, node: int) -> None:
        self.changed.add(node)
        self._wakeup.set_here()

    on_connection_lost = on_change


async def wait_for_change(io: IO, queues: WaitQueues, waiter: Waiter, ballot: Ballot) -> Hold:
    """Wait until the lock looks free, make an attempt, and repeat until one succeeds."""
    acquisition = waiter.acquisition
    group, policy = acquisition.request.group, acquisition.request.config.policy
    tracker = Tracker(waiter)
    io.track(tracker)
    tried, renewed, seen = 1, 0, b""
    try:
        waiter.queue.explain = _explainer(waiter, ballot.answers, io.now())
        # The first attempt may already have waited OUTAGE seconds for connections.
        unreachable_since = outage_since(waiter, _silent(ballot.answers), acquisition.began, io.now())
        while True:
            # Withdraw before any pause: clients that keep their votes meanwhile could block each other for ever.
            start_over(io, queues, acquisition)
            # A missing answer may be a vote that came after the decision.
            split = any(answer is None or is_grant(answer) for answer in ballot.answers)
            if split or renewed > CALM:
                # Clients with split votes must not try again at the same time.
                pause = policy.backoff(tried, io.random()) if split else min(0.05, 0.001 * 2.0 ** min(renewed, 6))
                await io.sleep(acquisition.earlier(io.now() + pause))
            answers = await _look(io, waiter, tracker)
            holder = next((a.holder for a in answers if type(a) is Refused), b"")
            renewed, seen = (renewed + 1, seen) if holder and holder == seen else (0, holder)
            waiter.queue.explain = _explainer(waiter, answers, io.now())
            unreachable_since = outage_since(waiter, _silent(answers), unreachable_since, io.now())
            if unreachable_since is not None:
                await io.wait(waiter.wakeup, acquisition.earlier(io.now() + policy.backoff(tried, io.random())))
            else:
                await _until_free(io, queues, waiter, tracker, answers, tried)
            queues.check(waiter, io.now())
            given = waiter.usable(io.now())
            if given is not None:
                return given
            if unreachable_since is not None:
                continue
            await prepare(io, acquisition)
            failed = await attempt(io, acquisition)
            tried += 1
            if failed is None:
                assert acquisition.hold is not None
                return acquisition.hold
            ballot = failed
            if explain.cannot_succeed(group, ballot.answers):
                raise explain.not_acquired(acquisition.request, ballot.answers, acquisition.timing.timeout)
    finally:
        io.untrack(tracker)
        waiter.queue.explain = None


async def _look(io: IO, waiter: Waiter, tracker: Tracker) -> list[Any]:
    """Read the keys, and track them from now on."""
    acquisition = waiter.acquisition
    if not io.ready:
        await prepare(io, acquisition)
    tracker.changed.clear()
    answers = await look(io, acquisition, tracked=True)
    # If the lock is already free on a node, nothing changes there and no push follows.
    tracker.changed.update(node for node, answer in enumerate(answers) if answer == 1)
    return answers


async def look(io: IO, acquisition: Acquisition, *, tracked: bool = False) -> list[Any]:
    """The state on each node: Refused with the holder, 1 if the lock is free, a Fault, or None."""
    group, keys = acquisition.request.group, acquisition.request.keys

    def read(node: int, replies: list[Any]) -> Any:
        if tracked and type(replies[0]) is Fault and replies[0].lasting:
            group.nodes[node].tracks = False  # the user may switch tracking on, but not ask for a key to be tracked
        fault = next((reply for reply in replies[1:] if type(reply) is Fault), None)
        if fault is not None:
            return fault
        holders = replies[1:2] if len(keys) == 1 else replies[1]
        held = [(holder, left) for holder, left in zip(holders, replies[2:], strict=True) if holder is not None]
        if not held:
            return 1
        left = -1 if any(each < 0 for _, each in held) else max(each for _, each in held)
        return Refused(left, held[0][0], True, 0, b"")

    ballot = AllReplies(group.n, 2 + len(keys), read)
    payloads = [commands.track(keys, tracked=tracked and node.tracks) for node in group.nodes]
    await io.broadcast(payloads, ballot, acquisition.timeout(acquisition.timing.timeout, io.now()))
    return ballot.answers


async def _until_free(
    io: IO, queues: WaitQueues, waiter: Waiter, tracker: Tracker, answers: list[Any], tried: int
) -> None:
    """Wait until a majority of the nodes may have become free."""
    acquisition = waiter.acquisition
    group, policy = acquisition.request.group, acquisition.request.config.policy
    now = io.now()
    ends = sorted(_end(answer) for answer in answers)
    again = now + ends[group.need - 1] + OVERDUE
    if sum(1 for node, answer in zip(group.nodes, answers, strict=True) if _pushes(node.tracks, answer)) < group.need:
        untracked = [node.label for node in group.nodes if not node.tracks]
        if untracked and not queues.warned.issuperset(untracked):
            queues.warned.update(untracked)
            queues.warn(f"{', '.join(untracked)}: client tracking is refused; waiters poll there")
        again = min(again, now + policy.backoff(tried, io.random()))
    while len(tracker.changed) < group.need and waiter.given is None and io.now() < again:
        await io.wait(waiter.wakeup, min(acquisition.earlier(again), waiter.report_at))
        queues.check(waiter, io.now())


def _pushes(tracks: bool, answer: Any) -> bool:
    """Whether the node will push when the keys change: it supports tracking, and has answered the read."""
    return tracks and answer is not None and type(answer) is not Fault


def _end(answer: Any) -> float:
    """Seconds until the keys on this node expire."""
    if answer == 1:
        return 0.0
    if type(answer) is Refused and answer.left_ms >= 0:
        return answer.left_ms / 1000
    return LOOK_AGAIN


def _explainer(waiter: Waiter, answers: list[Any], seen_at: float) -> Any:
    acquisition = waiter.acquisition

    def error(now: float) -> NotAcquired | ConfigError:
        known = [Refused(0, b"", True, 0, b"") if answer == 1 else answer for answer in answers]
        return explain.not_acquired(acquisition.request, known, acquisition.timing.timeout, age=now - seen_at)

    return error


def _silent(answers: list[Any]) -> int:
    """The number of nodes that failed or have not answered."""
    return sum(1 for answer in answers if answer is None or type(answer) is Fault)
