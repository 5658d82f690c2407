"""Waiting for a lock that somebody else has: nobody polls.

A waiter first stands in the line of its process (line.py, lineup.py). At the head of it, it looks at the lock's keys on
every node and asks, by the same read, to be told when they change (client tracking): a release, an expiry, a plain DEL by
whichever program all ring its bell. What changed before the read is seen by the read, what changes after it is pushed:
no wake-up can be lost. A timer at the end of the holder's ttl is the net below that.

A push may also mean that the holder has renewed. Then the attempt is refused, and another look follows; a holder that
does so many times a second slows its waiters down, not the server.

Where a server refuses tracking, the waiter looks again after a random pause.
"""

from __future__ import annotations

from typing import Any, Final

from handfast.core import commands, mutex
from handfast.core.effects import Effects, Fault, Lobby, Watch
from handfast.core.hold import Hold, Usher
from handfast.core.line import Lines, Place, Sight, still_held
from handfast.core.quorum import WideBallot
from handfast.errors import ConfigError, Contended, NoQuorum

__all__ = [
    "LOCAL_FIRST",
    "LOOK_AGAIN",
    "LOOK_AT_DEAF",
    "OVERDUE",
    "at_the_head",
    "given_up",
    "outage",
    "rely_on_sibling",
    "stay",
    "take",
]

LOOK_AGAIN: Final = 5.0
"""Seconds after which to look again at a key that has no end, or whose node has not answered."""
LOOK_AT_DEAF: Final = 0.25
"""Seconds after which to look again where a majority may have become free without a push."""
OVERDUE: Final = 0.001
"""Seconds after the end of a ttl at which the key is surely gone: servers count whole milliseconds."""
LOCAL_FIRST: Final = 0.005
"""Seconds for which the head of a cohort's line relies on its sibling, before it asks a server."""
CALM: Final = 2
"""How many renewals in a row a waiter follows at once; then it takes its time."""
LONGEST: Final = 3600.0
"""Seconds; no timer is longer."""


def stay(lines: Lines, place: Place, now: float) -> None:
    """Go on waiting, or raise why not."""
    if lines.exiting:
        raise SystemExit  # of a thread that nobody waits for: it ends without a word
    if lines.closed:
        raise ConfigError("this client was closed while it waited for the lock")
    if place.until is not None and now >= place.until and place.given is None:
        raise given_up(place, now)


def given_up(place: Place, now: float) -> Contended | NoQuorum:
    """What one is told who has waited in vain: from memory, because its time is over."""
    name, sight, group = place.request.name, place.line.sight, place.request.group
    mine = place.line.holder
    if sight is None and mine is not None and still_held(mine, now):
        sight = (mine.owner, round((mine.deadline - now) * 1000), now, None)
    if sight is None and place.line.queued:  # that somebody has it is all that was said
        return Contended(name, holder=None, remaining=None, nodes={group.nodes[0].label: "held by another"})
    if sight is None:  # nobody of its line has heard anything at all
        silent = {node.label: node.fault.text if node.fault is not None else "no answer" for node in group.nodes}
        return NoQuorum(name, granted=0, needed=group.need, total=group.n, nodes=silent)
    if place.line.outage is not None or place.line.barred is not None:
        nodes = sight[3] or {} if place.line.barred is None else place.line.barred[1]
        return NoQuorum(name, granted=0, needed=group.need, total=group.n, nodes=nodes)
    owner, left, at, said = sight
    holder = None if owner is None else owner.decode(errors="replace")
    remaining = None if left < 0 else max(0.0, left / 1000 - (now - at))
    nodes = {group.nodes[0].label: f"held by {holder}"} if said is None else said
    return Contended(name, holder=holder, remaining=remaining, nodes=nodes)


async def at_the_head(io: Effects, lines: Lines, place: Place, keeper: Usher) -> Any:
    """Nobody of this process is before us: wait for the servers, and take it."""
    line, settings = place.line, place.request.settings
    lines.began(place)
    watch = Watch(place.bell, place.request.keys)
    io.watch(watch)
    try:
        tried, renewed = 1, 0
        seen: bytes | None = None
        while True:
            if renewed > CALM or place.split:
                pause = min(0.05, 0.001 * 2.0 ** min(renewed, 6))
                if place.split:  # rivals whose votes were split should not meet again at once
                    pause = settings.policy.backoff(tried, io.random())
                await io.sleep(place.sooner(io.now() + pause))
            await _until_worth_a_try(io, lines, place, watch, tried)
            given = place.usable(io.now())
            if given is not None:
                return take(place, given, keeper)
            lease = await mutex.acquire(io, place.request, place.terms, place.wait, keeper, place)
            if lease is not None:
                return lease
            tried += 1
            if tried == settings.tries:
                raise given_up(place, io.now())
            if line.barred is not None:
                await outage(io, lines, place, tried)
            holder = line.sight[0] if line.sight is not None else None
            renewed = renewed + 1 if holder == seen else 0
            seen = holder
    finally:
        io.unwatch(watch)


def take(place: Place, given: Hold, keeper: Usher) -> Any:
    """Take what a sibling has passed on."""
    place.line.holder = given
    lease = keeper._granted(given)
    place.given = None  # until then an interrupt would leave it to whoever empties the place
    return lease


async def _until_worth_a_try(io: Effects, lines: Lines, place: Place, watch: Watch, tried: int) -> None:
    """Back when the lock looks free, has changed, or was given to us."""
    line, group = place.line, place.request.group
    while True:
        stay(lines, place, io.now())
        sibling = await rely_on_sibling(io, lines, place)
        now = io.now()
        if place.given is not None or (sibling is not None and not still_held(sibling, now) and now >= line.yields):
            return
        if not io.settled:
            await io.settle(group.need, to_connect(place, now))
        watch.changed.clear()
        poll, expires = await _look(io, lines, place, watch)
        if line.outage is not None:
            await outage(io, lines, place, tried)
            tried += 1
            continue
        now = io.now()
        if poll.won and now >= line.yields:
            return
        again = line.yields
        if not poll.won:
            rest = _rest(io, lines, place, tried, poll)
            # What is free is as good as changed; and where pushes are relied on, who cannot push may have changed.
            watch.changed.update(node for node, answer in enumerate(poll.answers) if answer == 1)
            deaf = {node.index for node in group.nodes if not node.tracks}
            if rest == LONGEST and deaf:
                if len(watch.changed | deaf) < group.need:
                    watch.changed |= deaf
                else:  # they may be a majority at any time, and no push will say so
                    rest = LOOK_AT_DEAF
            again = min(expires, now + rest)
        while len(watch.changed) < group.need:
            await io.park(place.bell, place.sooner(again))
            now = io.now()
            stay(lines, place, now)
            if now >= again or place.given is not None or (poll.won and now >= line.yields):
                return
            if sibling is not None and not still_held(sibling, now):
                break
        if not poll.won and now < line.yields:
            continue  # our own let go of it: see whether others want it
        line.yields = 0.0
        return


async def rely_on_sibling(io: Effects | Lobby, lines: Lines, place: Place) -> Hold | None:
    """For a moment one of a cohort counts on its sibling, which may pass the lock on; the sibling, if there is one."""
    holder, now = place.line.holder, io.now()
    if place.given is not None or holder is None or not still_held(holder, now):
        return None
    if holder.passes < place.request.settings.cohort:
        await io.park(place.bell, place.sooner(now + LOCAL_FIRST))
        stay(lines, place, io.now())  # it rings once only
    return holder


def _rest(io: Effects, lines: Lines, place: Place, tried: int, poll: WideBallot) -> float:
    """How long to wait for a push: as long as it takes, unless none can come, or the caller counts its tries."""
    settings = place.request.settings
    group, policy = settings.group, settings.policy
    deaf = [node.label for node in group.nodes if not node.tracks]
    if deaf and not lines.warned:
        lines.warned = True
        lines.warn(f"{', '.join(deaf)}: client tracking is refused, so waiting for locks there means asking now and then")
    # Only those push that were asked to: not one that was away, or whose connection was still being made.
    heard = sum(
        1
        for node, answer in zip(group.nodes, poll.answers, strict=True)
        if node.tracks and type(answer) is not Fault and (answer is not None or node.fault is None)
    )
    if settings.tries is None and heard >= group.need:
        return LONGEST
    return policy.backoff(tried, io.random())


async def _look(io: Effects, lines: Lines, place: Place, watch: Watch) -> tuple[WideBallot, float]:
    """Who has it, and when a majority of the nodes will have lost it if nobody renews it."""
    line, request, group = place.line, place.request, place.request.group
    said: dict[int, tuple[bytes, int]] = {}
    single = len(request.keys) == 1

    def judge(node: int, replies: list[Any]) -> Any:
        fault = next((reply for reply in replies[1:] if type(reply) is Fault), None)
        if fault is not None:
            return fault
        holders = replies[1:2] if single else replies[1]
        held = [(holder, left) for holder, left in zip(holders, replies[2:], strict=True) if holder is not None]
        if not held:
            return 1
        said[node] = (held[0][0], -1 if any(left < 0 for _, left in held) else max(left for _, left in held))
        return 0

    def free_there(node: int) -> None:
        # Not waited for, and free before it was asked: nothing will be pushed from there.
        watch.changed.add(node)
        watch.bell.note()

    poll = WideBallot(group.n, group.need, 2 + len(request.keys), judge)
    poll.late = free_there
    await io.exchange(commands.look(request), poll, place.at_most(place.terms.patience, io.now()))
    now = io.now()
    faults = sum(1 for a in poll.answers if type(a) is Fault or (a is None and not poll.decided))
    if faults <= group.n - group.need:
        line.outage = None
    else:
        out_of_reach(place, now)
    line.sight = _sight(place, poll, said, now)
    if request.settings.cohort and said and not _ours(lines, place):
        io.post(commands.leave_word(request, place.terms.px))
    lefts = {node: LOOK_AGAIN if left < 0 else left / 1000 for node, (_, left) in said.items()}
    # One that was not waited for ends with the others, it may be assumed: its push can be lost with its connection.
    unheard = min(LOOK_AGAIN, max(lefts.values(), default=LOOK_AGAIN))
    otherwise = {1: 0.0, None: unheard}
    ends = [lefts.get(node, otherwise.get(answer, LOOK_AGAIN)) for node, answer in enumerate(poll.answers)]
    return poll, now + sorted(ends)[group.need - 1] + OVERDUE


def _ours(lines: Lines, place: Place) -> bool:
    """One of this client has it."""
    turn, sight = lines.turns.get(place.request.key or place.request.keys), place.line.sight
    return turn is not None and sight is not None and turn.owner == sight[0]


def _sight(place: Place, poll: WideBallot, said: dict[int, tuple[bytes, int]], now: float) -> Sight:
    nodes: dict[str, str] = {}
    for node, answer in zip(place.request.group.nodes, poll.answers, strict=True):
        if node.index in said:
            nodes[node.label] = f"held by {said[node.index][0].decode(errors='replace')}"
        elif type(answer) is Fault:
            nodes[node.label] = answer.text
        elif answer is None:
            silent = "not waited for" if poll.decided else f"no answer in {place.terms.patience * 1000:.0f} ms"
            nodes[node.label] = node.fault.text if node.fault is not None else silent
        else:
            nodes[node.label] = "free"
    owners = [holder for holder, _ in said.values()]
    owner = max(owners, key=owners.count, default=None)
    lefts = [left for holder, left in said.values() if holder == owner]
    return owner, -1 if min(lefts, default=0) < 0 else max(lefts, default=0), now, nodes


def out_of_reach(place: Place, now: float) -> None:
    """Nobody could be asked: since now, or from the beginning."""
    line = place.line
    if line.outage is None:
        line.outage = now if line.sight is not None else place.headed


def to_connect(place: Place, now: float) -> float:
    """Seconds to wait for connections."""
    since = place.line.outage
    return place.at_most(mutex.OUTAGE if since is None else max(0.0, since + mutex.OUTAGE - now), now)


async def outage(io: Effects, lines: Lines, place: Place, tried: int) -> None:
    """Nobody could be asked: try again after a pause. Whoever set no end to its waiting is not kept without end."""
    line, now = place.line, io.now()
    since = line.barred[0] if line.barred is not None else line.outage
    stay(lines, place, now)
    if place.until is None and since is not None and now >= since + mutex.OUTAGE:
        raise given_up(place, now)
    await io.sleep(place.sooner(now + place.request.settings.policy.backoff(tried, io.random())))
