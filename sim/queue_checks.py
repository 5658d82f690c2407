"""The invariants of the wait queues: a vote goes to the waiter whose turn it is (11), no waiter is overtaken again and
again (16), and split votes soon go to one waiter (17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from handfast.core.hold import HELD, RELEASING, Hold
from handfast.core.local_queue import Waiter
from handfast.protocol.claims import QueuedClaim, decode_claim, decode_record
from handfast.protocol.commands import Identity
from handfast.protocol.keys import CLAIMS, GENERATIONS, QUEUE
from sim.node import Node
from sim.store import is_generation, name_of

if TYPE_CHECKING:
    from sim.client import Client
    from sim.observer import Observer

__all__ = ["QueueChecks"]

OVERTAKEN: Final = 1
"""How many later acquisitions may overtake a waiter."""
SPLIT: Final = 0.2
"""Seconds for which votes may be split among waiters while there is no fault."""


class QueueChecks:
    """The part of the observer that checks waiters."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._world = observer.world
        self._complain = observer.complain
        self._expected = observer.expected_guarantees
        self._split_since: dict[bytes, float] = {}
        self._queued_since: dict[bytes, float] = {}
        """By id of an acquisition: since when a majority of the nodes knows that it waits."""
        self._overtaken: dict[bytes, int] = {}
        """By id: how often it was overtaken since."""
        self.most_overtaken = 0

    def _heads(self) -> list[tuple[Client, Waiter, Identity]]:
        """The waiters of all clients that are in the servers' queues."""
        found: list[tuple[Client, Waiter, Identity]] = []
        for client in self._observer.clients:
            if not client.actor.stopped:
                heads = [queue.head for queue in client.queues.by_key.values()]
                found += [
                    (client, head, head.acquisition.who)
                    for head in heads
                    if head is not None and head.acquisition.who is not None
                ]
        return found

    # -- order

    def _majority_knows(self, client: Client, key: bytes, who: Identity, since: float) -> bool:
        """A majority of the nodes has known since `since` that it waits.

        What a node knew before a restart or a loss of data does not count: the first claims afterwards are the first in
        its queue.
        """
        nodes = [node for node in self._observer.nodes if node.disturbed_at < since and _knows(node, key, who)]
        return len(nodes) >= client.group.need

    def note_waiters(self) -> None:
        """Notes which waiters a majority knows."""
        if not self._expected.fair:
            return
        now, queued = self._world.now, dict[bytes, float]()
        for client, waiter, who in self._heads():
            keys, since = waiter.acquisition.request.keys, self._queued_since.get(who.id, now)
            if len(keys) == 1 and self._majority_knows(client, keys[0], who, since):
                queued[who.id] = since
            elif len(keys) == 1 and self._majority_knows(client, keys[0], who, now):
                queued[who.id] = now
        self._queued_since = queued
        self._overtaken = {each: times for each, times in self._overtaken.items() if each in queued}

    def has_its_turn(self, owner: bytes) -> None:
        """A single node has given its vote. If the network is too slow for the waiter to use it, the waiter loses its
        place, and waits anew."""
        if len(self._observer.nodes) == 1:
            self._queued_since.pop(owner, None)
            self._overtaken.pop(owner, None)

    def overtakes(self, client: Client, hold: Hold, asked: float) -> None:
        """An acquisition that began at `asked` was granted. It has overtaken the waiters that waited before."""
        if not self._queued_since:
            return
        for other, waiter, who in self._heads():
            since, key = self._queued_since.get(who.id), waiter.acquisition.request.key
            if other is client or since is None or since >= asked or key not in hold.keys:
                continue
            if not self._majority_knows(client, key, who, since):
                continue
            times = self._overtaken[who.id] = self._overtaken.get(who.id, 0) + 1
            self.most_overtaken = max(self.most_overtaken, times)
            self._world.note("overtaken", other.name, who.id, times, "by", hold.who.id)
            if times > OVERTAKEN:
                self._complain(
                    16, f"{who.id!r} waits since {since:.3f} s and was overtaken {times} times by later claims"
                )

    # -- hand-overs

    def handed_over(
        self, node: Node, key: bytes, by: bytes, waiting: dict[bytes, float], claims: dict[bytes, bytes]
    ) -> None:
        """An acquisition has passed or yielded a vote: it goes to the lowest ticket whose waiter listens, if any.

        `waiting` and `claims` are the queue and the claims before that.
        """
        second = node.micros() // 1_000_000
        queue = [decode_claim(each, b"%.17g" % ticket, claims.get(each)) for each, ticket in waiting.items()]
        alive = [claim for claim in queue if claim is not None and claim.id != by and _alive(node, claim, second)]
        if alive and node.shows(key) is None:
            self._complain(11, f"{key!r} was released, and {min(alive).id!r}, which waits for it, got no push")
        before, given = (decode_record(table.get(b"*")) for table in (claims, node.table(key + CLAIMS)))
        if given is None or given == before:
            return  # nobody has it, or other acquisitions of the same owner still have it
        next_holder = given.claim.id
        if next_holder == by and given.claim.ends >= second:
            alive.append(given.claim)  # it yielded, and was in the queue again
        if not alive or next_holder != min(alive).id:
            in_queue = [(claim.ticket, claim.id) for claim in sorted(alive)]
            self._complain(11, f"{key!r} went to {next_holder!r}, whose turn it is not; in the queue are {in_queue}")

    # -- split votes

    def splits_end(self) -> None:
        """If waiters have a majority of the votes and nobody holds the lock, one of the waiters soon holds it.

        Votes of nodes that cannot push do not count. No waiter queues there, so such a node never asks for its vote back.
        A waiter that got it by its first attempt may keep it.
        """
        if not self._expected.queues:
            return
        split: dict[bytes, float] = {}
        observer, now = self._observer, self._world.now
        voters = {node: None for client in observer.clients for node in observer.voters(client)}
        for key, waiters in self._waiters().items():
            if any(hold.state in (HELD, RELEASING) for hold in observer.now_held.get(name_of(key), ())):
                continue
            votes = [node.shows(key) for node in voters]
            if sum(1 for node in voters if _has_vote_of(node, key, waiters)) > len(observer.nodes) // 2:
                split[key] = max(observer.granted_at.get(key, 0.0), self._split_since.get(key, now))
                if now - split[key] > SPLIT:
                    self._complain(17, f"the votes for {key!r} have been split since {split[key]:.3f} s: {votes}")
        self._split_since = split

    def _waiters(self) -> dict[bytes, list[tuple[Client, Identity]]]:
        """By key: the waiters whose processes were not stopped lately, with their clients."""
        waiting: dict[bytes, list[tuple[Client, Identity]]] = {}
        for client, waiter, who in self._heads():
            if client.ran_for(SPLIT) and len(waiter.acquisition.request.names) == 1:
                waiting.setdefault(waiter.acquisition.request.key, []).append((client, who))
        return waiting

    def forget_splits(self) -> None:
        """There is a fault at present: split votes may last longer."""
        self._split_since.clear()


def _has_vote_of(node: Node, key: bytes, waiters: list[tuple[Client, Identity]]) -> bool:
    """The node has given its vote to one of these waiters, and to no other acquisition of the same explicit owner. It
    can push to that waiter."""
    owner = node.shows(key)
    ends = node.table(key + GENERATIONS).items()
    alive = {field for field, end in ends if is_generation(field) and int(end) > node.millis()}
    return any(
        who.owner == owner and alive <= {who.generation} and client.group.nodes[node.index].no_push is None
        for client, who in waiters
    )


def _alive(node: Node, claim: QueuedClaim, second: int) -> bool:
    """The claim is good, and its waiter listens."""
    return claim.ends >= second and claim.channel in node.channels


def _knows(node: Node, key: bytes, who: Identity) -> bool:
    """The node has the claim of a waiter that it can reach, or has given it its vote."""
    claims = node.table(key + CLAIMS)
    text = claims.get(who.id)
    if text is None or who.id not in node.table(key + QUEUE):
        # A vote that was given to a first attempt has no ticket yet.
        record = decode_record(claims.get(b"*"))
        return node.shows(key) == who.owner and record is not None and record.claim.id == who.id
    claim = decode_claim(who.id, b"0", text)
    return claim is not None and claim.channel in node.channels
