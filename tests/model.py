"""A node in memory: the transitions of the Lua files in Python, driven by the very bytes that a server would get.

Time does not pass in it: a key ends when a test says so, which is more than any clock could do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handfast import lua
from handfast.core.commands import Request
from handfast.core.group import Group
from handfast.core.terms import Settings
from handfast.options import policy

__all__ = ["ModelNode", "commands_in", "lock_request"]

LIMIT = 2**53


def commands_in(payload: bytes) -> Iterator[list[bytes]]:
    """The commands of a payload, each as its words."""
    at = 0

    def line() -> bytes:
        nonlocal at
        end = payload.index(b"\r\n", at)
        found, at = payload[at:end], end + 2
        return found

    while at < len(payload):
        count = int(line()[1:])
        words = []
        for _ in range(count):
            size = int(line()[1:])
            words.append(payload[at : at + size])
            at += size + 2
        yield words


class ModelNode:
    """Keys and values, and the commands that handfast sends."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def run(self, payload: bytes) -> list[Any]:
        return [self._call(words) for words in commands_in(payload)]

    def _call(self, words: list[bytes]) -> Any:
        name = words[0].decode()
        if name == "EVALSHA":
            script = next(each for each, sha in lua.SHA.items() if sha == words[1])
            count = int(words[2])
            call = getattr(self, f"_{script}")
            return call(words[3 : 3 + count], words[3 + count :])
        if name == "SET":
            return self._set(words)
        if name == "GET":
            return self.data.get(words[1])
        if name == "PTTL":
            return 1000 if words[1] in self.data else -2
        raise AssertionError(f"the model knows no {name}")

    def _set(self, words: list[bytes]) -> Any:
        key, value, condition = words[1:4]
        held = self.data.get(key)
        if (held is not None) if condition == b"NX" else (held != words[4]):
            return None
        self.data[key] = value
        return b"OK"

    def _count(self, key: bytes) -> int:
        return int(self.data.get(key, b"0"))

    def _lift(self, keys: list[bytes], token: bytes) -> None:
        for key in keys:
            if self._count(key) < int(token):
                self.data[key] = token

    def _acquire(self, keys: list[bytes], args: list[bytes]) -> Any:
        owner, n, proposal, floor = args[0], int(args[2]), args[3], int(args[4])
        locks, fences, marks = keys[:n], keys[n : 2 * n] if proposal else [], keys[2 * n :]
        for key in locks:
            held = self.data.get(key)
            if held is not None and held != owner:
                return [held, 1000]
        if all(self.data.get(key) == owner for key in locks):
            return [max([1, *map(self._count, fences)])]
        token = 1
        if proposal:
            token = max(int(proposal), *[max(floor, self._count(key)) + 1 for key in fences])
            assert token < LIMIT
            for key in fences:
                self.data[key] = b"%d" % token
            self._lift(marks, b"%d" % token)
        for key in locks:
            self.data[key] = owner
        return token

    def _raise(self, keys: list[bytes], args: list[bytes]) -> int:
        owner, n, token = args[0], int(args[1]), args[2]
        if any(self.data.get(key) != owner for key in keys[:n]):
            return 0
        self._lift(keys[n:], token)
        return 1

    def _extend(self, keys: list[bytes], args: list[bytes]) -> int:
        return int(all(self.data.get(key) == args[0] for key in keys))

    def _heal(self, keys: list[bytes], args: list[bytes]) -> int:
        owner, n, token = args[0], int(args[2]), args[3]
        if any(self.data.get(key, owner) != owner for key in keys[:n]):
            return 0
        for key in keys[:n]:
            self.data[key] = owner
        if token:
            self._lift(keys[n:], token)
        return 1

    def _release(self, keys: list[bytes], args: list[bytes]) -> int:
        owner, n, token = args[0], int(args[1]), args[2]
        released = 0
        for key in keys[:n]:
            if self.data.get(key) == owner:
                del self.data[key]
                released += 1
        if token:
            self._lift(keys[n:], token)
        return int(released == n)


def lock_request(nodes: int, name: str = "a", owner: bytes | None = None, **options: Any) -> Request:
    """What a lock of a client of `nodes` unguarded nodes asks for."""
    chosen = policy({"ttl": 1.0, **options})
    group = Group([f"node-{i}" for i in range(nodes)], chosen, guard=False)
    return Request(Settings(group, chosen, b"host:1::"), (name,), owner)
