"""Acquire, extend, release: on one node or a quorum, which is the same algorithm with N = 1.

Validity counts from the moment before the first byte was sent. An attempt that fails, in whatever way, is undone on
every node that did not clearly refuse, on the connections that carried it. The owner is new with every
attempt, so that a late SET of an old one can never be taken for the present one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast.core import fencing, guard, renewal
from handfast.core.commands import Copies, Want, fence_key, lock_key
from handfast.core.effects import Effects, Fault
from handfast.core.group import Group
from handfast.core.hold import RELEASING, Hold
from handfast.core.quorum import Ballot, said_yes
from handfast.errors import ConfigError, Contended, NoQuorum, NotAcquired
from handfast.options import Policy

__all__ = ["Request", "acquire", "extend", "release"]

OUTAGE: Final = 5.0
"""Seconds for which a caller that set no end to its waiting is kept waiting for servers that do not answer at all.
Contention is waited for without end; an outage without end would be a hang."""


class Request:
    """What a lock asks for, worked out once per lock object."""

    __slots__ = ("fences", "keys", "name", "names", "owner", "owner_prefix", "policy", "ttl_ms")

    def __init__(self, names: tuple[str, ...], policy: Policy, owner: str | None, owner_prefix: str) -> None:
        self.names = names
        self.name = names[0] if len(names) == 1 else ", ".join(names)
        self.policy = policy
        self.owner = owner
        self.owner_prefix = owner_prefix
        self.keys = tuple([lock_key(policy.prefix, name, policy.fence) for name in names])
        self.fences = tuple([fence_key(policy.prefix, name) for name in names]) if policy.fence else ()

    def want(self, io: Effects, group: Group, ttl: float) -> Want:
        policy = self.policy
        copies = None
        if policy.replicas or policy.durable:
            # Below the patience for the whole round trip, so that the answer still arrives in it.
            copies = Copies(policy.replicas, policy.durable, round(policy.patience(ttl, group.n) * 800))
        owner = self.owner_prefix + io.nonce() if self.owner is None else self.owner
        return Want(group, self.keys, self.fences, owner.encode(), shared=self.owner is not None, copies=copies)


async def attempt(io: Effects, group: Group, request: Request, ttl: float) -> Hold | Ballot:
    """One try: a Hold, or the ballot that was lost."""
    policy = request.policy
    want = request.want(io, group, ttl)
    ttl_ms = round(ttl * 1000)
    patience = policy.patience(ttl, group.n)
    proposal = b""
    if want.fences:
        proposal = b"%d" % group.proposal(io.wall()) if group.n > 1 else b"0"
    width = want.acquire_width()
    ballot = Ballot(group.n, group.need, width=width, judge=want.judge if width > 1 else None)
    sent = io.now()
    try:
        await io.exchange(_payloads(group, want, ballot, ttl_ms, proposal, sent), ballot, patience)
        if ballot.yeses >= group.need:
            token = await fencing.agree(io, want, ballot, patience) if want.fences else 0
            deadline = sent + policy.validity(ttl)
            if token is not None and io.now() < deadline:
                hold = Hold(request.name, want, policy, ttl, deadline, sent, ballot.mask(), token)
                ballot.late = hold.late_vote
                return hold
    except BaseException:
        _undo(io, want, ballot)
        raise
    _undo(io, want, ballot)
    for node, answer in zip(group.nodes, ballot.answers, strict=True):
        if type(answer) is Fault and answer.kind == "UNREADY":
            node.marker = b""
    return ballot


def _payloads(group: Group, want: Want, ballot: Ballot, ttl_ms: int, proposal: bytes, now: float) -> list[bytes | None]:
    """What to send to each node; a node that may not vote gets nothing, and its reason goes into the ballot."""
    nodes = group.nodes
    if not group.guard:
        return [want.acquire(nodes[0], ttl_ms, proposal)] * group.n
    payloads: list[bytes | None] = []
    for node in nodes:
        closed = group.closed(node, now)
        if closed is not None:
            ballot.add(node.index, closed)
        payloads.append(want.acquire(node, ttl_ms, proposal) if closed is None else None)
    return payloads


def _undo(io: Effects, want: Want, ballot: Ballot) -> None:
    """Take back what was or may have been granted. Nothing is awaited, so nothing can come between."""
    releases = want.releases(0)
    payloads: list[bytes | None] = []
    for node, answer in enumerate(ballot.answers):
        if want.shared:
            # Others may hold under this owner: only what this very attempt was newly given is taken back.
            ours = type(answer) is int and answer > 0
        else:
            ours = answer is None or type(answer) is Fault or said_yes(answer)
        payloads.append(releases[node] if ours else None)
    if any(payloads):
        io.post(payloads)


async def acquire(
    io: Effects,
    group: Group,
    request: Request,
    ttl: float,
    wait: float | None,
    cell: Callable[[Hold], Any],
) -> Hold:
    """Try until granted, or until the caller's patience ends. `cell` gets the hold before anything can interrupt."""
    policy = request.policy
    began = io.now()
    tried = 0
    while True:
        if not io.settled:
            await io.settle(group.need)
        if group.n > 1 and (mistake := group.mistake()) is not None:
            raise ConfigError(mistake)
        if group.guard and group.voters() < group.need:
            await guard.repair(io, group)
        result = await attempt(io, group, request, ttl)
        if type(result) is Hold:
            cell(result)
            return result
        assert isinstance(result, Ballot)
        tried += 1
        held = result.refused() > group.n - group.need
        limit = wait if wait is not None or held else OUTAGE
        now = io.now()
        over = limit is not None and now >= began + limit
        if over or wait == 0 or (policy.tries is not None and tried >= policy.tries) or _lasting(group, result):
            raise await _explain(io, group, request, result, held)
        pause = now + policy.backoff(tried, io.random())
        await io.sleep(pause if limit is None else min(pause, began + limit))


def _lasting(group: Group, ballot: Ballot) -> bool:
    """So many nodes gave a reason that time will not mend that no majority is left."""
    lasting = sum(1 for a in ballot.answers if type(a) is Fault and a.lasting)
    return lasting > group.n - group.need


def _said(group: Group, request: Request, ballot: Ballot, patience: float) -> dict[str, str]:
    """What each node said, in words."""
    said: dict[str, str] = {}
    for node, answer in zip(group.nodes, ballot.answers, strict=True):
        if answer is None:
            text = f"no answer in {patience * 1000:.0f} ms"
        elif type(answer) is Fault:
            text = answer.text
        elif said_yes(answer):
            text = "granted"
        elif type(answer) is list:
            text = f"held by {answer[0].decode(errors='replace')}"
        else:
            text = "held by another"
        said[node.label] = text
    return said


async def _explain(io: Effects, group: Group, request: Request, ballot: Ballot, held: bool) -> NotAcquired | ConfigError:
    """The error for a lost ballot."""
    patience = request.policy.patience(request.policy.ttl, group.n)
    nodes = _said(group, request, ballot, patience)
    if not held:
        if ballot.yeses >= group.need:
            return NoQuorum(
                request.name, granted=0, needed=group.need, total=group.n,
                nodes=dict.fromkeys(nodes, "granted, but only after the lease's own validity had passed"),
            )  # fmt: skip
        return NoQuorum(request.name, granted=ballot.yeses, needed=group.need, total=group.n, nodes=nodes)
    holders = [a for a in ballot.answers if type(a) is list and len(a) == 2]
    if not holders:
        holders = await _peek(io, group, request, patience)
    owners = [holder for holder, _ in holders]
    if not owners:
        return Contended(request.name, holder=None, remaining=None, nodes=nodes)
    owner = max(owners, key=owners.count)
    left = max(ms for holder, ms in holders if holder == owner)
    return Contended(
        request.name,
        holder=owner.decode(errors="replace"),
        remaining=left / 1000 if left >= 0 else None,
        nodes=nodes,
    )


async def _peek(io: Effects, group: Group, request: Request, patience: float) -> list[Any]:
    """Holder and remaining ttl as the nodes see them now."""
    want = Want(group, request.keys, (), b"")
    found: list[Any] = []

    def judge(node: int, replies: list[Any]) -> Any:
        pairs = [[o, ms] for o, ms in zip(replies[::2], replies[1::2], strict=True) if type(o) is bytes]
        found.extend(pairs[:1])
        return 1

    poll = Ballot(group.n, group.need, width=2 * len(request.keys), judge=judge)
    await io.exchange([want.peek()] * group.n, poll, patience)
    return found


async def extend(io: Effects, hold: Hold, ttl: float) -> None:
    """One renewal now, asked for by the caller; `hold` tells how it went."""
    if not io.settled:
        await io.settle(hold.want.group.need)
    await renewal.renew(io, hold.want.group, [hold], ttl=ttl)


async def release(io: Effects, hold: Hold) -> bool:
    """Give it back; True if it was still ours. Only the first caller sends anything."""
    in_time = io.now() < hold.deadline
    if not hold.leave(RELEASING):
        return False
    group = hold.want.group
    try:
        if not io.settled:
            await io.settle(group.need)
        ballot = Ballot(group.n, group.need)
        await io.exchange(hold.want.releases(hold.token), ballot, hold.policy.patience(hold.ttl, group.n))
    finally:
        hold.end()
    # Unknown is not a loss: within the deadline the lease was valid, whoever could be told of its end.
    return in_time and ballot.refused() <= group.n - group.need
