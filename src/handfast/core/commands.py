"""Which bytes each node gets, for every transition.

A `Request` is what a lock asks for: names, owner, settings. Every command of its life is made from it. A single,
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

__all__ = ["Request"]


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

    # One is made for each lock: nothing in it that the garbage collector has to follow further.
    __slots__ = ("_names", "key", "owner", "settings")

    def __init__(self, settings: Settings, names: tuple[str, ...] | str, owner: bytes | None) -> None:
        self.settings = settings
        self.owner = owner
        self._names = names
        # As in Settings.key, without the call.
        self.key = (settings.key_start + names + settings.key_end).encode() if isinstance(names, str) else b""
        """The lock's key; empty where there are several names."""

    @property
    def group(self) -> Group:
        return self.settings.group

    @property
    def names(self) -> tuple[str, ...]:
        return (self._names,) if isinstance(self._names, str) else self._names

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (self.key,) if self.key else tuple([self.settings.key(name) for name in self._names])

    @property
    def fences(self) -> tuple[bytes, ...]:
        """The counters; none when unfenced."""
        return tuple([key + b":f" for key in self.keys]) if self.settings.policy.fence else ()

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    def acquire(self, owner: bytes, terms: Terms, proposal: bytes) -> Any:
        """Payloads: bytes for all nodes (always so without a guard), or a list. `proposal` is empty when unfenced."""
        key, px = self.key, terms.px
        if key and not proposal and self.owner is None:
            return _SET % (len(key), key, len(owner), owner, len(px), px)
        group = self.settings.group
        if not group.floors:
            return self._acquire(owner, terms, proposal, group.tail)
        return [self._acquire(owner, terms, proposal, group.tail_of(node)) for node in group.nodes]

    def _acquire(self, owner: bytes, terms: Terms, proposal: bytes, tail: bytes) -> bytes:
        key, px = self.key, terms.px
        mark = self.settings.group.mark_arg
        if proposal and key:
            return _ACQUIRE % (
                12 if mark else 11, 3 if mark else 2,
                len(key), key, len(key) + 2, key, mark, len(owner), owner, len(px), px, len(proposal), proposal, tail,
            )  # fmt: skip
        keys = self.keys
        all_keys = self._counted() if proposal else keys
        words = (lua.SHA["acquire"], b"%d" % len(all_keys), *all_keys, owner, px, b"%d" % len(keys), proposal)
        return b"*%d\r\n" % (len(words) + 3) + encode(b"EVALSHA", *words).partition(b"\r\n")[2] + tail

    def release(self, owner: bytes, token: int) -> Any:
        """Payloads: delete what is this owner's. A quorum gets the token along as a floor; one node's counter has it."""
        group, key = self.settings.group, self.key
        if token and group.n > 1:
            return script("release", self._counted(), owner, b"%d" % len(self.names), b"%d" % token)
        if not key:
            return script("release", self.keys, owner, b"%d" % len(self.names), b"")
        if group.uniform:
            return group.nodes[0].delete % (len(key), key, len(owner), owner)
        return [node.delete % (len(key), key, len(owner), owner) for node in group.nodes]

    def extend(self, owner: bytes, px: bytes) -> bytes:
        key, most = self.key, self.settings.group.most_px
        if key:
            return _EXTEND % (len(key), key, len(owner), owner, len(px), px, len(most), most)
        return script("extend", self.keys, owner, px, most)

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
