"""Every release that a client sends: of a hold, of a failed acquisition, and of a hold whose owner is gone.

On each node a release leaves the queue and hands the vote over to the next waiter, in one step (scripts/pass.lua). The
release of a hold goes to all nodes, also to nodes that are not known to have voted for it. A release is repeatable. It
never touches another acquisition, because each acquisition has an identity of its own.
"""

from __future__ import annotations

from typing import Any, Final

from handfast.core.config import LockKeys
from handfast.core.hold import Hold
from handfast.core.io import IO, SILENT, Fault, Payloads, payload_for
from handfast.core.votes import Ballot, MultiReplyBallot
from handfast.protocol import commands
from handfast.protocol.commands import NO_GENERATION, Identity
from handfast.protocol.keys import queue_keys

__all__ = ["payloads", "release", "repeat", "take_back"]


RELEASED: Final = 1
"""The reply of a node that had given the vote, and that has no waiters."""
HANDED_OVER: Final = 2
"""The reply of a node that has given the vote to a waiter."""


def payloads(target: LockKeys, who: Identity, floor: int = 0) -> Payloads:
    """The commands that end an acquisition, with one reply for each name. `floor`: later tokens must be larger."""
    config = target.config
    if config.exact and who.generation == NO_GENERATION:
        return _published(target, who)
    # A single node needs no floor: its counter has the token already.
    word = b"%d" % (floor if config.group.n > 1 else 0)
    if len(target.names) == 1:
        return commands.pass_on(target.queue_keys, config.guard_keys, who, word, config.retention_arg)
    return b"".join(
        commands.pass_on(queue_keys(key), config.guard_keys, who.for_name(i), word, config.retention_arg)
        for i, key in enumerate(target.keys)
    )


def _published(target: LockKeys, who: Identity) -> Payloads:
    """The commands of the published protocol. Nodes differ in how they compare and delete. They know no generations, so
    they must not be used for an explicit owner: they would end its next acquisition."""
    ways = [node.deletes_by for node in target.group.nodes]

    def payload(way: str) -> bytes:
        return b"".join([commands.delete_owned(way, key, who.owner) for key in target.keys])

    return payload(ways[0]) if ways.count(ways[0]) == len(ways) else [payload(way) for way in ways]


def _ballot(target: LockKeys, need: int, asked: int = 0) -> Ballot:
    names = len(target.names)
    if names == 1:
        return Ballot(target.group.n, need, asked, proves_loss=True)

    def least(_: int, replies: list[Any]) -> Any:
        return next((reply for reply in replies if type(reply) is Fault), None) or min(replies)

    return MultiReplyBallot(target.group.n, need, names, least, asked)


def take_back(io: IO, target: LockKeys, who: Identity, nodes: int) -> bool:
    """Undo an acquisition on these nodes (as bits). False if one of its connections is lost.

    This awaits nothing, so no cancellation can interrupt it.
    """
    if not nodes:
        return True
    words = payloads(target, who)
    undo = [payload_for(words, i) if nodes >> i & 1 else None for i in range(target.group.n)]
    return io.send_and_forget(undo, width=len(target.names))


async def release(io: IO, hold: Hold) -> bool:
    """Release the lock. True if the hold still had it. Only the first caller sends anything.

    Afterwards `hold.release_unconfirmed` says whether the watchdog must repeat the release.
    """
    config, timeout = hold.config, hold.config.timing.timeout
    in_time = io.now() < hold.deadline
    if not hold.begin_release():
        return False
    hold.release_unconfirmed = True
    if not io.ready:
        await io.connect(config.group.need, max(0.5, timeout))
    if not config.alone or len(hold.names) > 1:
        ballot = _ballot(hold, config.group.need)
        await io.broadcast(payloads(hold, hold.who, hold.token_floor), ballot, timeout)
        return await _conclude(io, hold, ballot, in_time)
    # A single node: its reply decides, and no ballot is needed unless it is unusual.
    reply = await io.ask(_payload(hold), timeout)
    if reply in (RELEASED, HANDED_OVER) and in_time and not hold.healed:
        hold.release_unconfirmed = False
        hold.handed_over = reply == HANDED_OVER
        hold.finish_release()
        return True
    ballot = _ballot(hold, 1)
    if reply is not SILENT:
        ballot.add(0, reply)
    return await _conclude(io, hold, ballot, in_time)


def _payload(hold: Hold) -> bytes:
    """The command that releases one name on a single node."""
    config = hold.config
    if config.exact and hold.who.generation == NO_GENERATION:
        return commands.delete_owned(hold.group.nodes[0].deletes_by, hold.key, hold.who.owner)
    return commands.pass_on(hold.queue_keys, config.guard_keys, hold.who, b"0", config.retention_arg)


async def _conclude(io: IO, hold: Hold, ballot: Ballot, in_time: bool) -> bool:
    """Read the replies to a release. True if the hold still had the lock."""
    config, group = hold.config, hold.group
    gone = failed = False
    if ballot.noes:
        if _slot_moves(hold, ballot):
            ballot = _ballot(hold, group.need)
            await io.broadcast(_published(hold, hold.who), ballot, config.timing.timeout)
        gone = not ballot.won and ballot.refused() > group.n - group.need
        failed = any(type(answer) is Fault and hold.is_on(node) for node, answer in enumerate(ballot.answers))
    hold.release_unconfirmed = hold.healed or failed or not (ballot.won or gone)
    hold.handed_over = HANDED_OVER in ballot.answers
    ballot.failed = hold.release_failed
    hold.finish_release()
    # A missing reply is no loss: before the deadline the lease was valid, though its end is not confirmed.
    if in_time and not gone:
        return True
    hold.reason = "it had ended before it was released" if gone else "its deadline had passed when it was released"
    return False


def _slot_moves(hold: Hold, ballot: Ballot) -> bool:
    """Whether a cluster refused the script because a slot is being moved. Scripts with several keys are refused there,
    but the lock's own key can be deleted. Nobody gets a hand-over: the waiters look again."""
    if hold.explicit_owner or not hold.group.clustered:
        return False
    return any(type(answer) is Fault and answer.kind == "TRYAGAIN" for answer in ballot.answers)


async def repeat(io: IO, hold: Hold, nodes: set[int]) -> set[int]:
    """Release on these nodes once more. Returns the nodes that could not be asked."""
    words = payloads(hold, hold.who, hold.token_floor)
    ballot = _ballot(hold, len(nodes), len(nodes))
    some = [payload_for(words, i) if i in nodes else None for i in range(hold.group.n)]
    await io.broadcast(some, ballot, hold.config.timing.timeout)
    if _slot_moves(hold, ballot):
        ballot = _ballot(hold, len(nodes), len(nodes))
        await io.broadcast(_published(hold, hold.who), ballot, hold.config.timing.timeout)
    return {i for i in nodes if ballot.answers[i] is None or type(ballot.answers[i]) is Fault}
