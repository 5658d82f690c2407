"""Acquire, extend, release: on a quorum, or on one node, where the same algorithm has nothing to count.

Validity counts from the moment before the first byte was sent. An attempt that fails, in whatever way, is undone on
every node that did not clearly refuse, on the connections that carried it. The owner is new with every attempt, so that
a late SET of an old one can never be taken for the present one; an owner that the caller presents is its own business,
and only what was newly granted under it is undone.
"""

from __future__ import annotations

from typing import Any, Final

from handfast.core import commands, fencing, guard, renewal
from handfast.core.commands import Request
from handfast.core.effects import SILENT, Brief, Effects, Fault, Payloads
from handfast.core.group import Group
from handfast.core.hold import HELD, RELEASED, RELEASING, Hold, Keeper, Usher
from handfast.core.line import Place
from handfast.core.quorum import Ballot, Vote, WideBallot, said_yes
from handfast.core.terms import Terms
from handfast.errors import ConfigError, Contended, NoQuorum, NotAcquired

__all__ = ["OUTAGE", "acquire", "admit", "extend", "release"]

OUTAGE: Final = 5.0
"""Seconds for which a caller that set no end to its waiting is kept waiting for servers that do not answer at all.
Contention is waited for without end; an outage without end would be a hang."""


async def acquire(
    io: Effects, request: Request, terms: Terms, wait: float | None, keeper: Usher, place: Place | None = None
) -> Any:
    """One attempt: what `keeper` makes of the hold.

    If it fails, whoever wants to wait is lined up; one that has a `place` at the head of its line gets None.
    One frame for the whole of it: coroutines within coroutines would cost more than the rest.
    """
    settings = request.settings
    group = settings.group
    fenced = settings.fence
    began, patience, settled = 0.0, terms.patience, True
    if wait or place is not None or not io.settled or not group.fine:
        began = io.now()
        patience = await _prepare(io, group, terms, wait, began, place)
        settled = io.settled
    owner = request.owner or settings.owner_start + io.nonce()
    key = request.key
    if key and not fenced and request.owner is None:
        payloads: Any = terms.set_form % (len(key), key, len(owner), owner)
    else:
        proposal = b"" if not fenced else b"0" if group.n == 1 else b"%d" % group.proposal(io.wall())
        payloads = commands.acquire(request, owner, terms, proposal)
    answer: Any = SILENT
    ballot: Ballot | None = None
    token: int | None = None
    sent = io.now()
    # Made beforehand: as many objects wait for the grant as for the release, so the garbage collector is not called.
    hold = Hold(request, owner, terms.ttl, sent + terms.validity, sent, 1, 0)
    try:
        if settings.single:
            asked = io.ask(payloads, patience)
            answer = await asked if io.suspends else asked
            kind = type(answer)
            if kind is bytes or (kind is int and answer > 0):
                token = answer if fenced else 0
            elif said_yes(answer):
                token = fencing.value(answer) if fenced else 0
        else:
            ballot = _ballot(group, terms)
            await io.exchange(_asked(group, terms, ballot, payloads, sent), ballot, patience)
            if ballot.won and not fenced:
                token = 0
            elif ballot.won and (token := fencing.agreed(group, ballot)) is None:
                token = await fencing.agree(io, request, owner, ballot, patience)
        if token is not None and io.now() < hold.deadline:
            hold.token = token
            if ballot is not None:
                hold.votes = ballot.votes
                ballot.late = hold.late_vote
            if request.owner is not None:
                hold.presented = True
            elif settings.cohort:
                hold.form_cohort()
            if place is not None:
                place.line.holder = hold
            return keeper._granted(hold)
    except BaseException:
        hold.abandon()
        if not _undo(io, request, owner, ballot or _single(answer)) and request.owner is None:
            # What struck has also cost a connection: let the release take another way.
            keeper._unfinished(hold)
        raise
    ballot = ballot or _single(answer)
    if not _undo(io, request, owner, ballot) and settled and request.owner is None:
        # A grant may have been lost with its connection: let the release take another way.
        hold.abandon()
        keeper._unfinished(hold)
    if wait == 0 or settings.tries == 1 or _lasting(group, ballot):
        raise await _explain(io, request, terms, ballot)
    over = wait and io.now() >= (began if place is None else place.since) + wait
    if over and (place is None or not _contended(group, ballot)):
        raise await _explain(io, request, terms, ballot)  # in line it would be told what was known before
    if place is None:
        return await keeper._line_up(request, terms, wait, began or sent)
    place.split = ballot.yeses > 0
    line, barred = place.line, None
    if not ballot.won and not _contended(group, ballot):
        barred = (line.barred[0] if line.barred else io.now(), _said(group, ballot, terms))
    line.barred = barred
    return None


async def _prepare(
    io: Effects, group: Group, terms: Terms, wait: float | None, began: float, place: Place | None
) -> float:
    """Connect, and let nodes vote that may; how long the attempt may then wait for an answer."""
    until = place.until if place is not None else began + wait if wait else None
    if not io.settled:
        within = _connect_patience(terms, wait)
        await io.settle(group.need, within if until is None else max(0.0, min(within, until - began)))
    if not group.fine:
        await admit(io, group, until)
    elif place is not None and group.overdue(io.now()):
        # Who waits has nothing in hand for whose sake the watchdog would look.
        await guard.repair(io, group, until)
    if until is None:
        return terms.patience
    left = max(0.0, until - io.now())
    return terms.patience if place is None and left >= terms.patience else Brief(terms.patience, left)


def _connect_patience(terms: Terms, wait: float | None) -> float:
    """How long to wait for connections: a new one takes longer than a round trip, but no caller waits without end."""
    return OUTAGE if wait is None else wait or max(0.5, terms.patience)


def _contended(group: Group, ballot: Ballot) -> bool:
    """Somebody else has what we want, and enough nodes are there to say so: faults alone do not explain the failure."""
    faults = sum(1 for a in ballot.answers if type(a) is Fault or (a is None and not ballot.decided))
    return ballot.refused() > 0 and faults <= group.n - group.need


async def admit(io: Effects, group: Group, until: float | None) -> None:
    """Before voting on a quorum: nothing is misconfigured, and nodes that have waited long enough may vote."""
    mistake = group.mistake()
    if mistake is not None:
        raise ConfigError(mistake)
    if not group.all_vote and group.voters() < group.need:
        await guard.repair(io, group, until)


def _ballot(group: Group, terms: Terms) -> Ballot:
    if terms.copies is None:
        return Vote(group.n, group.need)
    return WideBallot(group.n, group.need, 2, terms.copies.judge, guarded=True)


def _single(answer: Any) -> Ballot:
    """The ballot of one node that has answered, or not."""
    ballot = Ballot(1, 1)
    if type(answer) is not Fault or answer.kind != "timeout":
        ballot.add(0, answer)
    return ballot


def _asked(group: Group, terms: Terms, ballot: Ballot, payloads: Payloads, now: float) -> Payloads:
    """What each node is sent: with the copies it must wait for, and nothing if it may not vote."""
    if terms.copies is not None:
        payloads = [(payload or b"") + terms.copies.command for payload in _each(group, payloads)]
    return payloads if group.all_vote else _excuse(group, ballot, payloads, now)


def _each(group: Group, payloads: Payloads) -> list[bytes | None]:
    return [payloads] * group.n if isinstance(payloads, bytes) else list(payloads)


def _excuse(group: Group, ballot: Ballot, payloads: Payloads, now: float) -> list[bytes | None]:
    """A node that may not vote is not asked; its reason goes into the ballot."""
    asked = _each(group, payloads)
    for node in group.nodes:
        closed = group.closed(node, now)
        if closed is not None:
            asked[node.index] = None
            ballot.add(node.index, closed)
    return asked


def _undo(io: Effects, request: Request, owner: bytes, ballot: Ballot) -> bool:
    """Take back what was or may have been granted; False if a connection for that is gone.

    Nothing is awaited, so nothing can come between.
    """
    releases = _each(request.group, commands.release(request, owner, 0))
    # So many hold it for another that nobody can hold it under this owner: what was found of it is a leftover, and
    # asking again and again would keep it there for ever.
    leftover = ballot.refused() > request.group.n - request.group.need
    for node, answer in enumerate(ballot.answers):
        if request.owner is not None:
            # Others may hold under this owner: only what this very attempt was newly given is taken back.
            ours = (type(answer) is int and answer > 0) or (leftover and said_yes(answer))
        else:
            ours = answer is None or type(answer) is Fault or said_yes(answer)
        if not ours:
            releases[node] = None
    return not any(releases) or io.post(releases)


def _lasting(group: Group, ballot: Ballot) -> bool:
    """So many nodes gave a reason that time will not mend that no majority is left."""
    lasting = sum(1 for a in ballot.answers if type(a) is Fault and a.lasting)
    return lasting > group.n - group.need


def _said(group: Group, ballot: Ballot, terms: Terms) -> dict[str, str]:
    """What each node said, in words."""
    said: dict[str, str] = {}
    for node, answer in zip(group.nodes, ballot.answers, strict=True):
        if answer is None:
            # Where the others had decided already, it had no time to answer.
            silent = "not waited for" if ballot.decided else f"no answer in {terms.patience * 1000:.0f} ms"
            text = node.fault.text if node.fault is not None else silent
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


async def _explain(io: Effects, request: Request, terms: Terms, ballot: Ballot) -> NotAcquired | ConfigError:
    """The error for a lost ballot."""
    group, name = request.group, request.name
    held = _contended(group, ballot)
    for node, answer in zip(group.nodes, ballot.answers, strict=True):
        if type(answer) is Fault and answer.kind == "config":
            return ConfigError(f"{node.label}: {answer.text}")
    nodes = _said(group, ballot, terms)
    if not held:
        if ballot.won:
            nodes = dict.fromkeys(
                nodes, "granted, but too late for the lease's validity, or with no agreement on a token"
            )
        return NoQuorum(
            name, granted=0 if ballot.won else ballot.yeses, needed=group.need, total=group.n, nodes=nodes
        )  # fmt: skip
    holders = [a for a in ballot.answers if type(a) is list and len(a) == 2]
    faults: dict[str, str] = {}
    if not holders:
        holders = await _peek(io, request, terms, faults)
    owners = [holder for holder, _ in holders]
    if faults and not owners:
        return NoQuorum(name, granted=ballot.yeses, needed=group.need, total=group.n, nodes={**nodes, **faults})
    if not owners:
        return Contended(name, holder=None, remaining=None, nodes=nodes)
    owner = max(owners, key=owners.count)
    left = max(ms for holder, ms in holders if holder == owner)
    return Contended(
        name, holder=owner.decode(errors="replace"), remaining=left / 1000 if left >= 0 else None, nodes=nodes
    )


async def _peek(io: Effects, request: Request, terms: Terms, faults: dict[str, str]) -> list[Any]:
    """Holder and remaining ttl as the nodes see them now; `faults` takes what else they say of the key."""
    found: list[Any] = []
    group = request.group

    def judge(node: int, replies: list[Any]) -> Any:
        for owner, left in zip(replies[::2], replies[1::2], strict=True):
            if type(owner) is Fault:
                if owner.lasting:  # else it is known to be held, if not by whom
                    faults[group.nodes[node].label] = owner.text
            elif type(owner) is bytes:
                found.append([owner, left])
        return 1

    poll = WideBallot(group.n, group.need, 2 * len(request.keys), judge)
    await io.exchange(commands.peek(request), poll, terms.patience)
    return found


async def extend(io: Effects, hold: Hold, ttl: float) -> None:
    """One renewal now, asked for by the caller; `hold` tells how it went."""
    group = hold.group
    if not io.settled:
        await io.settle(group.need, _connect_patience(hold.settings.terms, 0.0))
        # Connecting may have taken long; nothing is sent for what is over.
        if hold.state != HELD or renewal.expire(hold, io.now()):
            return
    await renewal.renew(io, group, [hold], ttl=ttl)


async def release(io: Effects, hold: Hold, keeper: Keeper, lease: object = None) -> bool:
    """Give it back; True if it was still ours. Only the first caller sends anything.

    `lease` is only held: a lease that nobody has any more is released by its finalizer, which must not come first.
    """
    settings = hold.settings
    group = settings.group
    now = io.now
    in_time = now() < hold.deadline
    try:
        try:  # as in `leave`, without the call
            del hold._ticket
        except AttributeError:
            return False
        hold.state = RELEASING
        if not io.settled:
            await io.settle(group.need, _connect_patience(settings.terms, 0.0))
        key, parting = hold.key, hold.parting
        if parting is not None and parting[0] == io.channel:
            payloads: Any = parting[1]
        elif settings.single and key and not settings.fair:  # as in commands.release, without the call
            payloads = group.nodes[0].delete % (len(key), key, len(hold.owner), hold.owner)
        elif settings.fair:
            payloads = commands.pass_on(hold, hold.owner, b"", b"" if group.clustered else io.channel)
        else:
            payloads = commands.release(hold, hold.owner, hold.token + hold.spare)
        if group.n == 1 and not settings.cohort:
            asked = io.ask(payloads, settings.terms.patience)
            answer = await asked if io.suspends else asked
            known = type(answer) is int
            gone = known and answer < 1
        else:
            if settings.cohort and not settings.fair:
                ballot = await _let_go(io, hold, payloads, keeper)
            else:
                ballot = Ballot(group.n, group.need)
                await io.exchange(payloads, ballot, settings.terms.patience)
            gone = not ballot.won and ballot.refused() > group.n - group.need
            known = ballot.won or gone
    except BaseException:
        hold.abandon()
        keeper._unfinished(hold)
        raise
    hold.state = RELEASED
    ending = keeper._ending  # often not a method: see facade.py
    ending(hold)
    if hold.healed or not known:
        keeper._unfinished(hold)
    # Unknown is not a loss: within the deadline the lease was valid, whoever could be told of its end.
    if in_time and not gone:
        return True
    hold.reason = "it had ended before it was released" if gone else "its deadline had passed when it was released"
    return False


async def _let_go(io: Effects, hold: Hold, payloads: Payloads, keeper: Keeper) -> Ballot:
    """Release a cohort's lock, and ask whether somebody of another process waits for it."""
    group = hold.group
    asked_for: set[int] = set()

    def judge(node: int, replies: list[Any]) -> Any:
        if type(replies[1]) is int and replies[1] > 0:
            asked_for.add(node)
        return replies[0]

    ask = commands.ask_for_others(hold)
    ballot = WideBallot(group.n, group.need, 2, judge)
    both = [(payload or b"") + ask for payload in _each(group, payloads)]
    keeper._letting_go(hold, io.now())
    await io.exchange(both, ballot, hold.settings.terms.patience)
    keeper._let_go(hold, bool(asked_for))
    return ballot
