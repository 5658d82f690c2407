"""Which bytes each node gets, for every transition.

A `Request` is what a lock asks for: names, owner, terms. Every command of its life is made from it. A single, unfenced
name with an owner of its own uses the published protocol to the letter; all else is a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from handfast import lua
from handfast.core.effects import Payloads
from handfast.core.resp import encode
from handfast.core.terms import Settings, Terms

__all__ = ["Request", "fence_key", "lock_key"]


def lock_key(prefix: str, name: str, fence: bool) -> bytes:
    """`prefix{name}`; exactly the name where it is to be shared with other implementations."""
    return f"{prefix}{{{name}}}".encode() if prefix or fence else name.encode()


def fence_key(prefix: str, name: str) -> bytes:
    return f"{prefix}{{{name}}}:f".encode()


def script(name: str, keys: Sequence[bytes], *args: bytes) -> bytes:
    return encode(b"EVALSHA", lua.SHA[name], b"%d" % len(keys), *keys, *args)


# The commands of the usual case, with everything that is known beforehand filled in: making a command from its words
# costs more than sending it.
_SET: Final = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"
_EXTEND: Final = (
    b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % lua.SHA["extend"]
    + b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n"
)
_ACQUIRE: Final = (
    b"*%%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%%d\r\n" % lua.SHA["acquire"]
    + b"$%d\r\n%b\r\n$%d\r\n%b:f\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n1\r\n$%d\r\n%b\r\n%b"
)


class Request:
    """What a lock asks for. `owner` is None where each attempt makes its own."""

    __slots__ = ("group", "keys", "names", "owner", "settings")

    def __init__(self, settings: Settings, names: tuple[str, ...], owner: bytes | None) -> None:
        self.settings = settings
        self.group = settings.group
        self.names = names
        self.owner = owner
        prefix, fence = settings.policy.prefix, settings.policy.fence
        if len(names) == 1:
            self.keys: tuple[bytes, ...] = (lock_key(prefix, names[0], fence),)
        else:
            self.keys = tuple([lock_key(prefix, name, fence) for name in names])

    @property
    def fences(self) -> tuple[bytes, ...]:
        """The counters; none when unfenced."""
        policy = self.settings.policy
        return tuple([fence_key(policy.prefix, name) for name in self.names]) if policy.fence else ()

    @property
    def name(self) -> str:
        return self.names[0] if len(self.names) == 1 else ", ".join(self.names)

    def acquire(self, owner: bytes, terms: Terms, proposal: bytes) -> Payloads:
        """For every node, as long as their floors are the same; `proposal` is empty when unfenced."""
        keys = self.keys
        if not proposal and self.owner is None and len(keys) == 1:
            return _SET % (len(keys[0]), keys[0], len(owner), owner, len(terms.px), terms.px)
        group = self.group
        if not group.floors:
            return self._acquire(owner, terms, proposal, group.tail)
        return [self._acquire(owner, terms, proposal, group.tail_of(node)) for node in group.nodes]

    def _acquire(self, owner: bytes, terms: Terms, proposal: bytes, tail: bytes) -> bytes:
        keys, px = self.keys, terms.px
        mark = self.group.mark_arg
        if proposal and len(keys) == 1:
            key = keys[0]
            return _ACQUIRE % (
                12 if mark else 11, 3 if mark else 2,
                len(key), key, len(key) + 2, key, mark, len(owner), owner, len(px), px, len(proposal), proposal, tail,
            )  # fmt: skip
        all_keys = self._counted() if proposal else keys
        words = (lua.SHA["acquire"], b"%d" % len(all_keys), *all_keys, owner, px, b"%d" % len(keys), proposal)
        return b"*%d\r\n" % (len(words) + 3) + encode(b"EVALSHA", *words).partition(b"\r\n")[2] + tail

    def release(self, owner: bytes, token: int) -> Payloads:
        """Delete what is this owner's. On a quorum the token goes along as a floor; on one node the counter has it."""
        group, keys = self.group, self.keys
        if token and group.n > 1:
            return script("release", self._counted(), owner, b"%d" % len(keys), b"%d" % token)
        if len(keys) > 1:
            return script("release", keys, owner, b"%d" % len(keys), b"")
        key = keys[0]
        if group.uniform:
            return group.nodes[0].delete % (len(key), key, len(owner), owner)
        return [node.delete % (len(key), key, len(owner), owner) for node in group.nodes]

    def extend(self, owner: bytes, px: bytes) -> bytes:
        keys = self.keys
        most = self.group.most_px
        if len(keys) == 1:
            key = keys[0]
            return _EXTEND % (len(key), key, len(owner), owner, len(px), px, len(most), most)
        return script("extend", keys, owner, px, most)

    def raise_to(self, owner: bytes, token: int) -> bytes:
        return script("raise", self._counted(), owner, b"%d" % len(self.keys), b"%d" % token)

    def heal(self, owner: bytes, ttl_ms: int, token: int) -> bytes:
        floor = b"%d" % token if self.fences else b""
        return script("heal", self._counted(), owner, b"%d" % ttl_ms, b"%d" % len(self.keys), floor)

    def _counted(self) -> tuple[bytes, ...]:
        """Lock keys, and all that keeps count of tokens."""
        marks = (self.group.mark_key,) if self.group.guard and self.fences else ()
        return (*self.keys, *self.fences, *marks)

    def peek(self) -> bytes:
        """Who is there, and for how long: GET and PTTL of each name."""
        return b"".join(encode(b"GET", key) + encode(b"PTTL", key) for key in self.keys)
