"""Which bytes each node gets, for every transition.

`Want` is one acquisition in bytes: it is built once and every later command (extend, heal, release) is made from it.
A single, unfenced name with an owner of its own uses the published protocol to the letter; all else is a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from handfast import lua
from handfast.core.effects import Fault
from handfast.core.group import Group, Node
from handfast.core.resp import encode

__all__ = ["Copies", "Want", "fence_key", "lock_key"]

UNREADY: Final = "forgot its data while connected, no vote until it is checked again"


def lock_key(prefix: str, name: str, fence: bool) -> bytes:
    """`prefix{name}`; exactly the name where it is to be shared with other implementations."""
    return f"{prefix}{{{name}}}".encode() if prefix or fence else name.encode()


def fence_key(prefix: str, name: str) -> bytes:
    return f"{prefix}{{{name}}}:f".encode()


def script(name: str, keys: Sequence[bytes], *args: bytes) -> bytes:
    return encode(b"EVALSHA", lua.SHA[name], b"%d" % len(keys), *keys, *args)


class Copies:
    """How many copies a write must have before it counts: WAIT for replicas, WAITAOF for the disk."""

    __slots__ = ("command", "durable", "replicas", "timeout_ms")

    def __init__(self, replicas: int, durable: bool, timeout_ms: int) -> None:
        self.replicas = replicas
        self.durable = durable
        self.timeout_ms = timeout_ms
        self.command = (
            encode(b"WAITAOF", b"1", b"%d" % replicas, b"%d" % timeout_ms)
            if durable
            else encode(b"WAIT", b"%d" % replicas, b"%d" % timeout_ms)
        )

    def missing(self, reply: Any) -> Fault | None:
        """Why the write does not count, or None if it has its copies."""
        if type(reply) is Fault:
            return reply
        synced, copies = reply if self.durable else (1, reply)
        if synced < 1:
            return Fault("copies", f"not on disk within {self.timeout_ms} ms")
        if copies < self.replicas:
            return Fault("copies", f"{copies} of {self.replicas} replicas confirmed within {self.timeout_ms} ms")
        return None


class Want:
    """Names and an owner, and how to ask for them."""

    __slots__ = ("copies", "fences", "group", "keys", "owner", "plain", "shared")

    def __init__(
        self,
        group: Group,
        keys: tuple[bytes, ...],
        fences: tuple[bytes, ...],
        owner: bytes,
        *,
        shared: bool = False,
        copies: Copies | None = None,
    ) -> None:
        self.group = group
        self.keys = keys
        self.fences = fences
        """Empty when unfenced."""
        self.owner = owner
        self.shared = shared
        """An explicit owner: whoever presents it re-enters."""
        self.plain = len(keys) == 1 and not fences and not shared
        self.copies = copies

    def _guard_keys(self) -> tuple[bytes, ...]:
        return (self.group.mark_key,) if self.group.guard and self.fences else ()

    def acquire(self, node: Node, ttl_ms: int, proposal: bytes) -> bytes:
        group = self.group
        if self.plain:
            command = b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%d\r\n" % (
                len(self.keys[0]), self.keys[0], len(self.owner), self.owner, len(str(ttl_ms)), ttl_ms,
            )  # fmt: skip
            if group.guard:
                # Read behind the SET: had the node forgotten before it, the marker would be gone too.
                command += encode(b"GET", group.marker_key)
        else:
            command = script(
                "acquire",
                (*self.keys, *self.fences, group.marker_key, group.mark_key)
                if group.guard
                else (*self.keys, *self.fences),
                self.owner,
                b"%d" % ttl_ms,
                b"%d" % len(self.keys),
                proposal if self.fences else b"",
                node.marker if group.guard else b"",
                node.floor,
                b"%d" % group.max_ttl_ms,
            )
        return command if self.copies is None else command + self.copies.command

    def acquire_width(self) -> int:
        return 1 + (self.plain and self.group.guard) + (self.copies is not None)

    def judge(self, node: int, replies: list[Any]) -> Any:
        """The one answer in the several replies to `acquire`."""
        vote = replies[0]
        if type(vote) is Fault or vote is None or (type(vote) is list and len(vote) == 2):
            return vote
        if self.plain and self.group.guard and replies[1] != self.group.nodes[node].marker:
            return Fault("UNREADY", UNREADY)
        if self.copies is not None:
            return self.copies.missing(replies[-1]) or vote
        return vote

    def release(self, node: Node, token: int) -> bytes:
        """Delete what is ours. On a quorum the token goes along as a floor; on one node its counter has it already."""
        floor = b"%d" % token if self.fences and token and self.group.n > 1 else b""
        if len(self.keys) == 1 and not floor:
            if node.ladder == "delifeq":
                return encode(b"DELIFEQ", self.keys[0], self.owner)
            if node.ladder == "delex":
                return encode(b"DELEX", self.keys[0], b"IFEQ", self.owner)
        keys = (*self.keys, *self.fences, *self._guard_keys()) if floor else self.keys
        return script("release", keys, self.owner, b"%d" % len(self.keys), floor)

    def releases(self, token: int) -> list[bytes]:
        """`release` for every node; most groups speak one dialect, then it is made once."""
        nodes = self.group.nodes
        if self.group.uniform:
            return [self.release(nodes[0], token)] * len(nodes)
        return [self.release(node, token) for node in nodes]

    def extend(self, node: Node, ttl_ms: int) -> bytes:
        if len(self.keys) == 1 and node.ladder:
            return encode(b"SET", self.keys[0], self.owner, b"IFEQ", self.owner, b"PX", b"%d" % ttl_ms)
        return script("extend", self.keys, self.owner, b"%d" % ttl_ms)

    def raise_to(self, token: int) -> bytes:
        keys = (*self.keys, *self.fences, *self._guard_keys())
        return script("raise", keys, self.owner, b"%d" % len(self.keys), b"%d" % token)

    def heal(self, ttl_ms: int, token: int) -> bytes:
        keys = (*self.keys, *self.fences, *self._guard_keys())
        floor = b"%d" % token if self.fences else b""
        return script("heal", keys, self.owner, b"%d" % ttl_ms, b"%d" % len(self.keys), floor)

    def peek(self) -> bytes:
        """Who is there, and for how long: GET and PTTL of each name."""
        return b"".join(encode(b"GET", key) + encode(b"PTTL", key) for key in self.keys)
