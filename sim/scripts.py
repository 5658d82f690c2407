"""The transitions of the Lua files, in Python, over a `Store`: same keys, same arguments, same replies, same order.

Each function is one `.lua` file of handfast.lua, named like it; read them side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast import lua
from handfast.core.commands import owner_in
from sim.store import Store

__all__ = ["SCRIPTS"]

LIMIT: Final = 2**53
EXHAUSTED: Final = "-EXHAUSTED the fence counter has reached 2^53"
Words = list[bytes]


def acquire(at: Store, keys: Words, args: Words) -> Any:
    owner, ttl, n, proposal, floor, most = args[0], int(args[1]), int(args[2]), args[3], int(args[4]), int(args[5])
    step = int(args[6]) if len(args) > 6 else 1
    locks, fences, marks = keys[:n], keys[n : 2 * n] if proposal else [], keys[2 * n :]
    ours = 0
    for key in locks:
        holder = at.get(key)
        if holder == owner:
            ours += 1
        elif holder is not None:
            return [holder, _clamped(at, key, holder, most)]
    if ours == n:
        for key in locks:
            left = at.pttl(key)
            if left < ttl or left > most:
                at.put(key, owner, ttl, owner)
        return [max([1, *map(at.count, fences)])]
    token = 1
    if proposal:
        token = int(proposal) or at.micros()
        for key in fences:
            token = max(token, max(floor, at.count(key)) + step)
        if token >= LIMIT:
            return EXHAUSTED
        for key in fences:
            at.plainly(key, b"%d" % token)
        at.lift(marks, b"%d" % token)
    for key in locks:
        at.put(key, owner, ttl, owner)
    return token


def _clamped(at: Store, key: bytes, holder: bytes, most: int) -> int:
    """What is left; more than max_ttl is cut."""
    left = at.pttl(key)
    if left > most:
        left = most
        at.put(key, holder, left, holder)
    return left


def raise_(at: Store, keys: Words, args: Words) -> Any:
    owner, n, token = args[0], int(args[1]), args[2]
    if any(at.get(key) != owner for key in keys[:n]):
        return 0
    at.lift(keys[n:], token)
    return 1


def extend(at: Store, keys: Words, args: Words) -> Any:
    owner, ttl, most = args[0], int(args[1]), int(args[2])
    if any(at.get(key) != owner for key in keys):
        return 0
    for key in keys:
        left = at.pttl(key)
        if left < ttl or left > most:
            at.put(key, owner, ttl, owner)
    return 1


def heal(at: Store, keys: Words, args: Words) -> Any:
    owner, ttl, n, token = args[0], int(args[1]), int(args[2]), args[3]
    if any(at.get(key) not in (None, owner) for key in keys[:n]):
        return 0
    for key in keys[:n]:
        if at.pttl(key) < ttl:
            at.put(key, owner, ttl, owner)
    if token:
        at.lift(keys[n:], token)
    return 1


def release(at: Store, keys: Words, args: Words) -> Any:
    owner, n, token = args[0], int(args[1]), args[2]
    released = 0
    for key in keys[:n]:
        if at.get(key) == owner:
            at.drop(key, owner)
            released += 1
    if token:
        at.lift(keys[n:], token)
    return int(released == n)


def mark(at: Store, keys: Words, args: Words) -> Any:
    seen = at.get(keys[0]) or b""
    if seen != args[0]:
        return seen
    marker = args[1].replace(b"@", b"%d" % (at.micros() + int(args[2])))
    at.plainly(keys[0], marker)
    return marker


# -- fair locks --------------------------------------------------------------------------------------------------------


def _token_of(at: Store, fence: bytes, step: int) -> bytes:
    if step == 0:
        return b"0"
    token = max(at.micros(), at.count(fence) + step)
    at.plainly(fence, b"%d" % token)
    return at.data[fence]


def _hand_over(at: Store, keys: Words, me: bytes, holder: bytes, voice: bytes = b"") -> tuple[bytes, int, bytes] | None:
    lock, queue, fence = keys
    seconds, micros = divmod(at.micros(), 1_000_000)
    claims = at.queue(queue)
    while claims:
        claim = claims.pop(0)
        if int(claim[:10]) < seconds:
            continue
        owner, ttl, step = owner_in(claim), int(claim[10:23]), int(claim[23:39])
        token = _token_of(at, fence, step)
        if voice:
            at.publish(voice, b"")
            voice = b""
        if owner == me or _tell(at, claim, b"%b %d %d " % (token, seconds, micros)):
            at.put(lock, owner, ttl, holder)
            for after in list(claims):
                if int(after[:10]) - seconds - 3 <= (int(after[10:23]) + ttl) / 1000 or _tell(
                    at, after, b"- %d 0 " % ttl
                ):
                    break
            return owner, ttl, token
    return None


def _tell(at: Store, claim: bytes, what: bytes) -> bool:
    return at.publish(claim[43 : 43 + int(claim[39:43])], what + owner_in(claim)) > 0


def _place(at: Store, queue: bytes, claim: bytes, owner: bytes) -> int:
    """Where it stands in the queue, or would; `?` is whatever claim the owner has."""
    claims = at.queue(queue)
    found = [i for i, each in enumerate(claims) if each == claim or (claim == b"?" and owner_in(each) == owner)]
    return found[0] if found else len(claims)


def claim(at: Store, keys: Words, args: Words) -> Any:
    lock, queue, fence = keys
    owner, ttl, step, rest, before, most = args[0], int(args[1]), int(args[2]), args[3], args[4], int(args[5])
    holder = at.get(lock)
    seconds, micros = divmod(at.micros(), 1_000_000)
    time = [b"%d" % seconds, b"%d" % micros]
    left = 0
    if holder == owner:
        return [1, at.pttl(lock), (at.get(fence) if step else None) or b"0", *time]
    if holder is not None and before == b"!":
        second = seconds + -(-ttl // 1000) + 2
        at.queues.setdefault(queue, []).append(b"%d%b" % (second, rest))
        return second
    if holder is not None:
        left = _clamped(at, lock, holder, most)
    elif not at.exists(queue):
        at.put(lock, owner, ttl, owner)
        return [1, ttl, _token_of(at, fence, step), *time]
    mine = b""
    if rest:
        mine = b"%d%b" % (seconds + -(-(max(left, 0) + ttl) // 1000) + 1, rest)
        place = _place(at, queue, before, owner)
        at.queues.setdefault(queue, [])[place : place + 1] = [mine]
    if holder is None:
        heir = _hand_over(at, keys, owner, b"")
        if heir is None:
            at.put(lock, owner, ttl, owner)
            return [1, ttl, _token_of(at, fence, step), *time]
        holder, left, token = heir
        if holder == owner:
            return [1, left, token, *time]
    return [0, left, holder, *time, mine]


def pass_(at: Store, keys: Words, args: Words) -> Any:
    lock, queue, _ = keys
    owner, before, voice = args
    if before:
        place = _place(at, queue, before, owner)
        del at.queue(queue)[place : place + 1]
    if at.get(lock) != owner:
        return 0
    if _hand_over(at, keys, b"", owner, voice) is None:
        at.drop(lock, owner)
    return 1


_BY_NAME: Final[dict[str, Callable[[Store, Words, Words], Any]]] = {
    "acquire": acquire,
    "raise": raise_,
    "extend": extend,
    "heal": heal,
    "release": release,
    "mark": mark,
    "claim": claim,
    "pass": pass_,
}
SCRIPTS: Final = {lua.SHA[name]: (name, script) for name, script in _BY_NAME.items()}
"""By digest."""
