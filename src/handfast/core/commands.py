"""Which bytes each node gets, for every transition.

A `Target` is what is to be locked, or is: names, and how they are set. Every command is made from it. A single,
unfenced name with an owner of its own is taken by the published protocol to the letter; else by a script. What is held
on one node is released by the server's own compare-and-delete, where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from handfast import lua
from handfast.core.group import Group
from handfast.core.resp import encode
from handfast.core.terms import Settings, Terms

__all__ = [
    "Request",
    "Target",
    "acquire",
    "ask_for_others",
    "claim",
    "claimed",
    "extend",
    "heal",
    "leave_word",
    "look",
    "owner_in",
    "pass_on",
    "peek",
    "queue",
    "raise_to",
    "release",
]


def script(name: str, keys: Sequence[bytes], *args: bytes) -> bytes:
    return encode(b"EVALSHA", lua.SHA[name], b"%d" % len(keys), *keys, *args)


# The commands of the usual case, with everything that is known beforehand filled in: making a command from its words
# costs more than sending it.
_EXTEND: Final = (
    b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % lua.SHA["extend"]
    + b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
)
_ACQUIRE: Final = (
    b"*%%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%%d\r\n" % lua.SHA["acquire"]
    + b"$%d\r\n%b\r\n$%d\r\n%b:f\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n1\r\n$%d\r\n%b\r\n%b"
)

_QUEUED: Final = b"$40\r\n%b\r\n$1\r\n3\r\n$%d\r\n%b\r\n$%d\r\n%b:q\r\n$%d\r\n%b:f\r\n$%d\r\n"
"""Of a fair lock: a script, the lock, its queue, its counter, and the length of the owner, which follows."""


class Target:
    """The names of a lock, and its settings."""

    # One is made for each lock: nothing in it that the garbage collector has to follow further.
    __slots__ = ("key", "settings", "spelt")

    key: bytes
    """The lock's key; empty where there are several names."""
    settings: Settings
    spelt: tuple[str, ...] | str
    """The name, or several."""

    @property
    def group(self) -> Group:
        return self.settings.group

    @property
    def names(self) -> tuple[str, ...]:
        return (self.spelt,) if isinstance(self.spelt, str) else self.spelt

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (self.key,) if self.key else tuple([self.settings.key(name) for name in self.names])

    @property
    def fences(self) -> tuple[bytes, ...]:
        """The counters; none when unfenced."""
        return tuple([key + b":f" for key in self.keys]) if self.settings.policy.fence else ()

    @property
    def name(self) -> str:
        """The name; several are joined by a comma."""
        return ", ".join(self.names)


class Request(Target):
    """What a lock asks for. `owner` is None where each attempt makes its own."""

    __slots__ = ("owner",)

    def __init__(self, settings: Settings, names: tuple[str, ...] | str, owner: bytes | None) -> None:
        self.settings = settings
        self.owner = owner
        self.spelt = names
        self.key = settings.key(names) if isinstance(names, str) else b""


def acquire(request: Request, owner: bytes, terms: Terms, proposal: bytes) -> Any:
    """Payloads: bytes for all nodes (always so without a guard), or a list. `proposal` is empty when unfenced.

    For whatever `Terms.set_form` is not enough.
    """
    group = request.settings.group
    if not group.floors:
        return _acquire(request, owner, terms, proposal, group.tail)
    return [_acquire(request, owner, terms, proposal, group.tail_of(node)) for node in group.nodes]


def _acquire(request: Request, owner: bytes, terms: Terms, proposal: bytes, tail: bytes) -> bytes:
    key, px = request.key, terms.px
    mark = request.settings.group.mark_arg
    step = 1 + request.settings.cohort
    if proposal and key and step == 1:
        return _ACQUIRE % (
            12 if mark else 11, 3 if mark else 2,
            len(key), key, len(key) + 2, key, mark, len(owner), owner, len(px), px, len(proposal), proposal, tail,
        )  # fmt: skip
    keys = request.keys
    all_keys = _counted(request) if proposal else keys
    words = (lua.SHA["acquire"], b"%d" % len(all_keys), *all_keys, owner, px, b"%d" % len(keys), proposal)
    more = b"$%d\r\n%d\r\n" % (len(b"%d" % step), step) if step > 1 else b""
    count = len(words) + 3 + (step > 1)
    return b"*%d\r\n" % count + encode(b"EVALSHA", *words).partition(b"\r\n")[2] + tail + more


def release(target: Target, owner: bytes, token: int, claim: bytes = b"") -> Any:
    """Payloads: delete what is this owner's. A quorum gets the token along as a floor; one node's counter has it.

    Of a fair lock a `claim` that may still be in the queue goes as well.
    """
    group, key = target.settings.group, target.key
    if target.settings.fair:
        return pass_on(target, owner, claim)
    if token and group.n > 1:
        return script("release", _counted(target), owner, b"%d" % len(target.names), b"%d" % token)
    if not key:
        return script("release", target.keys, owner, b"%d" % len(target.names), b"")
    if group.uniform:
        return group.nodes[0].delete % (len(key), key, len(owner), owner)
    return [node.delete % (len(key), key, len(owner), owner) for node in group.nodes]


def extend(target: Target, owner: bytes, px: bytes) -> bytes:
    key, most = target.key, target.settings.group.most_px
    if key:
        return _EXTEND % (len(key), key, len(owner), owner, len(px), px, len(most), most)
    return script("extend", target.keys, owner, px, most)


def raise_to(target: Target, owner: bytes, token: int) -> bytes:
    return script("raise", _counted(target), owner, b"%d" % len(target.keys), b"%d" % token)


def heal(target: Target, owner: bytes, ttl_ms: int, token: int) -> bytes:
    floor = b"%d" % token if target.fences else b""
    return script("heal", _counted(target), owner, b"%d" % ttl_ms, b"%d" % len(target.keys), floor)


def _counted(target: Target) -> tuple[bytes, ...]:
    """Lock keys, and all that keeps count of tokens."""
    marks = (target.group.mark_key,) if target.group.guard and target.fences else ()
    return (*target.keys, *target.fences, *marks)


def peek(target: Target, *, counted: bool = False) -> bytes:
    """Who is there, and for how long: GET and PTTL of each name; `counted`: and its counter."""
    count = [encode(b"GET", key + b":f") if counted else b"" for key in target.keys]
    return b"".join(
        encode(b"GET", key) + encode(b"PTTL", key) + more for key, more in zip(target.keys, count, strict=True)
    )


def owner_in(claim: bytes) -> bytes:
    """Whose claim it is."""
    return claim[43 + int(claim[39:43]) :]


def queue(target: Target) -> bytes:
    """The claims in a fair lock's queue; and one reply to drop."""
    return encode(b"LRANGE", target.key + b":q", b"0", b"-1") + _UNTRACKED


_TRACKED: Final = encode(b"CLIENT", b"CACHING", b"YES")
_UNTRACKED: Final = encode(b"PING")


def look(target: Target) -> Any:
    """Payloads: who is there, and for how long; with the wish to be told of changes, where the node grants that.

    Replies: one to drop, the holder (of several names: all holders), the PTTL of each name.
    """
    keys = target.keys
    read = encode(b"GET", keys[0]) if len(keys) == 1 else encode(b"MGET", *keys)
    read += b"".join(encode(b"PTTL", key) for key in keys)
    nodes = target.group.nodes
    if all(node.tracks for node in nodes):
        return _TRACKED + read
    return [(_TRACKED if node.tracks else _UNTRACKED) + read for node in nodes]


def claim(target: Target, owner: bytes, terms: Terms, channel: bytes, before: bytes) -> bytes:
    """Take a fair lock, or stand in its queue."""
    key, width = target.key, len(owner)
    known, for_channel, for_width, head, middle, tail = terms.claim_form
    if key != known or channel != for_channel or width != for_width:
        settings, px = target.settings, terms.px
        step = b"%d" % (1 + settings.cohort if settings.fence else 0)
        # The server puts the claim's end before it.
        start = _start(target, terms, channel) if channel else b""
        size = len(start) + width if channel else 0
        most = settings.group.most_px
        head = b"*12\r\n$7\r\nEVALSHA\r\n" + _queued("claim", key, width)
        middle = b"\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b" % (len(px), px, len(step), step, size, start)
        tail = b"\r\n$%d\r\n%b\r\n" % (len(most), most)
        terms.claim_form = (key, channel, width, head, middle, tail)
    return b"%b%b%b%b\r\n$%d\r\n%b%b" % (head, owner, middle, owner if channel else b"", len(before), before, tail)


def claimed(target: Target, owner: bytes, terms: Terms, channel: bytes, second: int) -> bytes:
    """The claim as it stands in the queue, if it is good until that second."""
    return b"%d%b%b" % (second, _start(target, terms, channel), owner)


def _start(target: Target, terms: Terms, channel: bytes) -> bytes:
    """What comes between a claim's end and its owner: see lua/hand_over.lua."""
    step = 1 + target.settings.cohort if target.settings.fence else 0
    return b"%013d%016d%04d%b" % (int(terms.px), step, len(channel), channel)


def pass_on(target: Target, owner: bytes, before: bytes, channel: bytes = b"") -> bytes:
    """Leave a fair lock, or its queue. With the channel of whoever says so its heir is told first."""
    key, width, settings = target.key, len(owner), target.settings
    known, for_width, for_channel, head, tail = settings.pass_form
    if key != known or width != for_width or channel != for_channel:
        head = b"*9\r\n$7\r\nEVALSHA\r\n" + _queued("pass", key, width)
        tail = b"\r\n$%d\r\n%b\r\n" % (len(channel), channel)
        settings.pass_form = (key, width, channel, head, tail)
    return b"%b%b\r\n$%d\r\n%b%b" % (head, owner, len(before), before, tail)


def _queued(name: str, key: bytes, width: int) -> bytes:
    longer = len(key) + 2
    return _QUEUED % (lua.SHA[name], len(key), key, longer, key, longer, key, width)


def _hint(target: Target) -> bytes:
    """Where those of other processes say that they wait for a cohort's lock."""
    return target.keys[0] + b":w"


def leave_word(target: Target, px: bytes) -> bytes:
    """We of this process wait for a cohort's lock that another process has."""
    return encode(b"SET", _hint(target), b"1", b"PX", px)


def ask_for_others(target: Target) -> bytes:
    """Whether such a word was left; it is taken away, who still waits leaves another."""
    return encode(b"DEL", _hint(target))
