"""The restart guard: a node that has lost data must not vote until every lease that it may have forgotten has expired.

Each node has a marker: `1 <incarnation> <ready-at, server µs> <max_ttl ms> <floor>`. The incarnation is the server's
run_id and its last promotion. A connection reads both when it is made. A marker of another incarnation, or none
(FLUSHALL), starts a quarantine of Q = max_ttl * (1 + 2*drift) + margin. The floor is a
number once the node's counters are repaired, and only such a marker lets a node vote. Before that, the floor is
- `-` if the node had no marker, so it has forgotten for certain (an empty restart, FLUSHALL);
- `?` if the node still had a marker of an earlier incarnation, so it kept its data, perhaps without the last writes (a
  restart from an append-only file or a snapshot, a promotion).
The marker is read together with each vote. So a loss of data on a live connection shows: the marker is gone, or another.

There is one exception: a master that is demoted and promoted again. It keeps its connections, and the marker that it
copies from the other master may equal the one that it had. Two things show this.
- If it drops its data for a copy, it first sends an invalidation of everything to all connections that use client
  tracking, ahead of every later reply. A guarded connection ends with this push. The next one reads the incarnation.
- If it keeps its data, it may miss votes of the other master. That one was promoted too, so it gives none for Q. A
  connection asks for role and promotion again before a request, if the last question is a second old, or Q/4 if that
  is less. A vote does not count if it comes later than Q/2 after its claim.
If a server refuses tracking, each vote is followed by the question for the promotion, and no waiter queues there.

Waiting heals locks, but not counters. After Q, before the node's first vote, the largest token that enough other nodes
know becomes the floor of its counters. They know it from their high-water marks, which may be a little too high: a floor
that is too high only skips tokens. The scripts read the floor in the marker, so no client can use an old one. The promise
is that tokens stay in order while fewer than M nodes forget; M of N nodes are a majority. M nodes have stored each
token, so N-M+1 nodes that remember are enough: one of them has it. Of the nodes that answer:
- a node that votes remembers;
- a node with `-` has forgotten;
- a node with `?` may have forgotten: a durable restart loses nothing, but a node cannot prove that its last writes are
  there. The promise allows M-1 nodes to forget, so that many, less those with `-`, are assumed to have forgotten.
If too few nodes remember, the node waits for the others, which may only be unreachable. If M nodes have `-`, a majority
has forgotten for certain. In this case nothing is promised, and waiting would never end: the maximum of the nodes that
answer is used.

All clients of a namespace must have the same max_ttl, or Q would be too short for some leases. A client counts no votes
of a node whose marker has another max_ttl. If no majority can agree with the client, it is the odd one: it gets a
ConfigError and writes nothing. If a majority agrees with it, the odd marker is the mistake of a client that met the node
first after a restart: a new quarantine with the majority's max_ttl replaces it. A node that restarted with its data keeps
its setting, and a client that more nodes contradict than agree with marks no node. Otherwise rolling restarts could give
the odd client a majority.

A node whose clock stepped forward has forgotten leases too: its keys expired early. So the node's time is read with the
marker, together with votes and renewals. A client that has talked to the node before notices the step (clocks.py), does
not count the votes, and puts the node in quarantine again. It leaves M nodes that vote, because its own clock may be the
one that is wrong.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from handfast.core.clocks import read_clock
from handfast.core.io import IO, Fault
from handfast.core.nodes import Node, NodeGroup
from handfast.core.votes import AllReplies, Ballot
from handfast.errors import ConfigError
from handfast.protocol import commands
from handfast.protocol.resp import encode

__all__ = [
    "REPLICA",
    "Marker",
    "adopt",
    "bootstrap",
    "check_vote",
    "contradicted",
    "incarnation",
    "install",
    "is_recent",
    "quarantine",
    "repair",
    "server_time",
]

MARGIN: Final = 0.1
"""Seconds added to Q for rounding on both sides."""
TIMEOUT: Final = 0.5
BOOTSTRAP_TIMEOUT: Final = 12.0
"""Seconds. An embedded server may have to start first."""


FORGOT: Final = b"-"
KEPT: Final = b"?"
"""The two words that stand for the floor in the marker of a node in quarantine."""


class Marker(NamedTuple):
    """The fields of a node's marker."""

    incarnation: bytes
    ready_at: int
    max_ttl_ms: int
    floor: bytes

    @classmethod
    def parse(cls, text: bytes | None) -> Marker | None:
        """Parse a marker. None if there is none, or if no version of handfast wrote it."""
        words = (text or b"").split(b" ")
        if len(words) != 5 or words[0] != b"1" or not words[2].isdigit() or not words[3].isdigit():
            return None
        if words[4] not in (FORGOT, KEPT) and not words[4].isdigit():
            return None
        return cls(words[1], int(words[2]), int(words[3]), words[4])

    @property
    def votes(self) -> bool:
        return self.floor not in (FORGOT, KEPT)


def text(incarnation: bytes, ready_at: bytes, max_ttl_ms: int, floor: bytes) -> bytes:
    return b"1 %b %b %d %b" % (incarnation, ready_at, max_ttl_ms, floor)


def period(group: NodeGroup) -> float:
    """Q in seconds: the longest time for which a forgotten lease can still be valid."""
    return group.policy.max_ttl * (1 + 2 * group.policy.drift) + MARGIN


def memory(seen: bytes | None) -> bytes:
    """FORGOT or KEPT, by the marker that a node shows: a node with a marker may remember everything."""
    marker = Marker.parse(seen)
    return FORGOT if marker is None or marker.floor == FORGOT else KEPT


def quarantine(group: NodeGroup, node: Node, seen: bytes | None) -> bytes:
    """The command that starts a quarantine, unless another client was first."""
    marker = text(node.incarnation, b"@", group.max_ttl_ms, memory(seen))
    return commands.set_marker(group.marker_key, seen or b"", marker, round(period(group) * 1e6))


def adopt(group: NodeGroup, node: Node, raw: bytes | None, server_us: int, now: float) -> bool:
    """Copy a marker into the node's fields. False if the node needs a new one: it has none of its present incarnation."""
    marker = Marker.parse(raw)
    node.other_max_ttl = 0
    if marker is not None and marker.max_ttl_ms != group.max_ttl_ms:
        # Also in the marker of an earlier incarnation: a restart does not change the setting of a namespace.
        node.other_max_ttl = marker.max_ttl_ms
        node.opens_at = now  # no wait: either this client's max_ttl is wrong, or the marker will be replaced
        group.set_marker(node, b"")
        return True
    if marker is None or raw is None or marker.incarnation != node.incarnation:
        group.set_marker(node, b"")
        return False
    if raw != node.waiting:
        # Count on this machine's clock from the first reading: a step of the server's clock must not end a quarantine.
        node.opens_at = now + (marker.ready_at - server_us) / 1e6
        node.waiting = raw
    if marker.votes and node.index not in group.suspects:
        group.set_marker(node, raw)
    else:
        group.set_marker(node, b"")
    return True


class _State(NamedTuple):
    """The state of one node, as it replied."""

    raw: bytes
    marker: Marker | None
    """The marker, if it is of the node's present incarnation; else None."""
    mark: int
    server_us: int
    asked_at: float
    """When the question was sent."""

    @property
    def votes(self) -> bool:
        return self.marker is not None and self.marker.votes

    @property
    def forgot(self) -> bool:
        return memory(self.raw) == FORGOT


async def _survey(io: IO, group: NodeGroup, timeout: float = TIMEOUT) -> tuple[dict[int, _State], Ballot]:
    """Read marker, high-water mark and time of every node that answers."""
    question = encode(b"GET", group.marker_key) + encode(b"GET", group.mark_key) + encode(b"TIME")
    question += encode(b"INFO", b"replication")
    states: dict[int, _State] = {}
    sent = io.now()

    def judge(index: int, replies: list[Any]) -> Any:
        for reply in replies:
            if type(reply) is Fault:
                return reply
        raw, mark, time, info = replies
        node = group.nodes[index]
        # A promotion changes the incarnation without a new connection.
        node.incarnation = incarnation(node.run_id, info)
        marker = Marker.parse(raw)
        if marker is not None and marker.incarnation != node.incarnation:
            marker = None
        known = max(int(mark or 0), int(marker.floor) if marker and marker.votes else 0)
        server_us = server_time(time)
        read_clock(group, index, sent, io.now(), server_us)
        states[index] = _State(raw or b"", marker, known, server_us, sent)
        return 1

    poll = AllReplies(group.n, 4, judge)
    await io.broadcast(question, poll, timeout)
    return states, poll


UNREADY: Final = Fault("UNREADY", "forgot its data while connected, no vote until it is checked again")
STEPPED: Final = Fault(
    "clock", "its clock stepped forward against ours, so it may have ended leases early; no vote until it is checked"
)

LATE: Final = Fault("late", "answered so late that it may have lost votes since it was asked")
REPLICA: Final = Fault("replica", "is a replica, not a master, so it cannot vote: name its master")


def check_vote(group: NodeGroup, index: int, proof: bytes, server_us: int, sent: float, received: float) -> Fault | None:
    """Why a vote does not count, or None. `proof`: the marker that the node showed when it gave the vote, or later."""
    if not group.guard:
        return None
    node = group.nodes[index]
    if not proof or proof != node.marker:
        group.set_marker(node, b"")
        return UNREADY
    if read_clock(group, index, sent, received, server_us):
        return STEPPED
    return None if is_recent(group, sent, received) else LATE


def is_recent(group: NodeGroup, sent: float, now: float) -> bool:
    """Whether a vote that comes now may count for a claim that was sent at `sent`. The connection's last confirmation may
    be up to Q/4 older than the claim."""
    return not group.guard or now - sent < period(group) / 2


class VoteCheck:
    """The check behind the votes of one write: the node still has its marker, and its clock has not stepped. It comes
    after the votes, so a node that had forgotten a lease before one of them would show it.

    A node that refuses client tracking must also show that it was not promoted. INFO takes a server longer than a vote.
    """

    emptied = UNREADY
    confirmation = commands.INFO_REPLICATION

    def __init__(self, group: NodeGroup) -> None:
        self._group = group
        self.confirmed_for = min(1.0, period(group) / 4)
        self._short = encode(b"GET", group.marker_key) + encode(b"TIME")

    def refuted(self, node: int, reply: bytes) -> Fault | None:
        """Why the server may have missed votes: it is a replica, or was promoted again."""
        state = self._group.nodes[node]
        if b"role:master" not in reply:
            return REPLICA
        return None if incarnation(state.run_id, reply) == state.incarnation else UNREADY

    def question(self, node: int) -> tuple[bytes, int]:
        if self._group.nodes[node].tracks:
            return self._short, 2
        return self._short + commands.INFO_REPLICATION, 3

    def fault(self, node: int, replies: list[Any], sent: float, received: float) -> Fault | None:
        for reply in replies:
            if type(reply) is Fault:
                return reply
        state = self._group.nodes[node]
        proof = replies[0] or b""
        if len(replies) > 2 and incarnation(state.run_id, replies[2]) != state.incarnation:
            proof = b""
        return check_vote(self._group, node, proof, server_time(replies[1]), sent, received)


def install(group: NodeGroup) -> None:
    """Let a check follow every vote of this guarded group."""
    group.check = VoteCheck(group)


def incarnation(run_id: str, info: bytes) -> bytes:
    """The incarnation of a server: its run_id and, if it was promoted from a replica, that promotion.

    The first replication id is not used: a master takes a new one when its first replica connects, and loses nothing.
    The second one is the id of the master that it followed before its promotion; zeros if there was no promotion.
    """
    fields = dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)
    promoted = fields.get(b"master_replid2", b"0").strip(b"0")
    return run_id.encode() + b":" + (fields.get(b"master_replid", b"") if promoted else b"0")


def _stuck(group: NodeGroup, state: _State) -> bool:
    """Whether a quarantine ends later than a new quarantine would. If so, the server's clock was set back."""
    marker = state.marker
    if marker is None or marker.votes:
        return False
    return marker.ready_at - state.server_us > (period(group) + MARGIN) * 1e6


def floor_for(group: NodeGroup, states: dict[int, _State], ready: int) -> int | None:
    """The floor with which a node may vote after its quarantine, or None if too little is known.

    `ready`: the number of nodes whose quarantine is over.
    """
    known = max(state.mark for state in states.values())
    forgot = sum(1 for state in states.values() if state.forgot)
    if forgot >= group.need:
        # Enough nodes for a majority are re-admitted together. If one came earlier, it would look to the next ones as if
        # it had not forgotten. A node that is about to go into quarantine does not count.
        voting = sum(1 for i, state in states.items() if state.votes and i not in group.suspects)
        return known if voting + ready >= group.need else None
    doubtful = sum(1 for state in states.values() if not state.votes and not state.forgot)
    remember = len(states) - forgot - min(doubtful, group.need - 1 - forgot)
    return known if remember > group.n - group.need else None


def _end_suspicions(group: NodeGroup, now: float) -> None:
    """End the suspicions that are older than Q: every lease that such a node has forgotten is over."""
    for index in group.suspects:
        step = group.nodes[index].step
        if step is not None and now >= step.before + period(group):
            group.cleared(index)


def _to_quarantine(group: NodeGroup, node: Node, state: _State, states: dict[int, _State]) -> bool:
    """Whether the node's quarantine must begin, or begin again."""
    if node.other_max_ttl:
        return _agreeing(group, states) >= group.need
    if state.marker is None:
        return not contradicted(group, _agreeing(group, states))
    return _stuck(group, state) or (node.index in group.suspects and group.may_quarantine(node))


def _agreeing(group: NodeGroup, states: dict[int, _State]) -> int:
    """How many nodes have this client's max_ttl in their present marker."""
    return sum(1 for each in states.values() if each.marker and each.marker.max_ttl_ms == group.max_ttl_ms)


def contradicted(group: NodeGroup, agreeing: int) -> bool:
    """Whether more nodes have another max_ttl than agree with this client. If so, the client must not mark a node that
    has no marker: if it is the odd one, it would win one node after another."""
    return sum(1 for node in group.nodes if node.other_max_ttl) > agreeing


def _is_over(node: Node, marker: Marker, server_us: int, now: float) -> bool:
    """Whether the node's quarantine has ended, by the node's clock and by this machine's."""
    if marker.votes or node.other_max_ttl:
        return False
    return server_us >= marker.ready_at and now >= node.opens_at


def _adopt_all(group: NodeGroup, states: dict[int, _State], now: float) -> None:
    for i, state in states.items():
        # Skip a reply to a question from before this client's last change, or from the same instant. The client may have
        # two repairs under way, and the reply to the older one would make a node in quarantine look as if it voted. Never
        # skip a new incarnation.
        if state.marker is None or state.asked_at > group.nodes[i].marker_changed_at:
            adopt(group, group.nodes[i], state.raw, state.server_us, now)


async def repair(io: IO, group: NodeGroup, until: float | None = None) -> None:
    """Re-admit nodes whose quarantine is over. Any number of clients may run this at any time."""

    def timeout() -> float:
        return TIMEOUT if until is None else max(0.0, min(TIMEOUT, until - io.now()))

    if not io.ready:
        await io.connect(group.need, timeout())
    states, _ = await _survey(io, group, timeout())
    now = io.now()
    _end_suspicions(group, now)
    _adopt_all(group, states, now)
    if group.config_error() is not None:
        return
    payloads: list[bytes | None] = [None] * group.n
    ready: dict[int, Marker] = {}
    for i, state in states.items():
        node, marker = group.nodes[i], state.marker
        if _to_quarantine(group, node, state, states):
            payloads[i] = quarantine(group, node, state.raw)
            if i in group.suspects:
                node.quarantined_until = now + period(group)
        elif marker is not None and _is_over(node, marker, state.server_us, now):
            ready[i] = marker
    floor = floor_for(group, states, len(ready)) if ready else None
    if floor is not None:
        for i, marker in ready.items():
            opened = text(marker.incarnation, b"%d" % marker.ready_at, group.max_ttl_ms, b"%d" % floor)
            payloads[i] = commands.set_marker(group.marker_key, states[i].raw, opened, 0)
    await _write(io, group, payloads, states, timeout())


async def _write(
    io: IO,
    group: NodeGroup,
    payloads: list[bytes | None],
    states: dict[int, _State],
    timeout: float = TIMEOUT,
) -> list[int]:
    """Send changes of markers, and read the resulting markers. Returns the nodes that were asked."""
    asked = [i for i, payload in enumerate(payloads) if payload is not None]
    if asked:
        poll = Ballot(group.n, len(asked), len(asked))
        for i in asked:
            group.nodes[i].marker_changed_at = io.now()
        await io.broadcast(payloads, poll, timeout)
        for i in asked:
            if type(poll.answers[i]) is bytes:
                group.cleared(i)
                adopt(group, group.nodes[i], poll.answers[i], states[i].server_us, io.now())
    return asked


async def bootstrap(io: IO, group: NodeGroup) -> dict[str, str]:
    """Open a new deployment: let its nodes vote at once. Only allowed if no lease can be outstanding.

    A deployment in which a node votes already is not new: its other nodes open by themselves, after Q and repair.
    """
    if not group.guard:
        # Do not even read the marker: a member of a quorum has one, and it does not belong to this client.
        raise ConfigError("this client has no restart guard, so there is nothing to open: name all members of the quorum")
    await io.connect(group.n, BOOTSTRAP_TIMEOUT)
    states, poll = await _survey(io, group)
    _adopt_all(group, states, io.now())
    error = group.config_error()
    if error is not None:
        raise ConfigError(error)
    # This many nodes include one of every majority. If the deployment were in use, one of them would vote.
    seen = len(states) > group.n - group.need
    in_use = any(state.votes for state in states.values())
    result: dict[str, str] = {}
    payloads: list[bytes | None] = [None] * group.n
    for i, node in enumerate(group.nodes):
        state = states.get(i)
        if state is None:
            fault = poll.answers[i]
            result[node.label] = fault.text if type(fault) is Fault else "no answer"
        elif state.votes:
            closed = group.closed(node, io.now())
            result[node.label] = "open already" if closed is None else closed.text
        elif in_use:
            result[node.label] = (
                "other nodes are in use: it votes after its quarantine, if enough of them are up to restore its counters"
            )
        elif not seen:
            result[node.label] = "not opened: too few nodes answer to tell whether the deployment is in use"
        else:
            opened = text(node.incarnation, b"@", group.max_ttl_ms, b"%d" % state.mark)
            payloads[i] = commands.set_marker(group.marker_key, state.raw, opened, 0)
    for i in await _write(io, group, payloads, states):
        node = group.nodes[i]
        result[node.label] = "opened" if node.marker else "another client changed it meanwhile"
    return result


def server_time(reply: Any) -> int:
    """The reply to TIME, in µs."""
    return int(reply[0]) * 1_000_000 + int(reply[1])
