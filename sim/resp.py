"""RESP as a server reads and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from handfast.protocol.commands import Identity

__all__ = ["commands_in", "encoded", "identity_in"]

_IDENTITY: Final = {"claim": 9, "pass": 3, "yield": 3}
"""By script about one name: where in its arguments id and generation are, if the id is not the owner."""


@lru_cache(maxsize=256)
def commands_in(payload: bytes) -> list[list[bytes]]:
    """The commands of a payload, each as its words. No word contains the protocol's line break.

    Cached, because the ledger reads what is sent, and the node what arrives.

    >>> commands_in(b"*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n*1\\r\\n$4\\r\\nPING\\r\\n")
    [[b'GET', b'k'], [b'PING']]
    """
    parts = payload.split(b"\r\n")
    at, last = 0, len(parts) - 1
    found: list[list[bytes]] = []
    while at < last:
        end = at + 1 + 2 * int(parts[at][1:])
        found.append(parts[at + 2 : end : 2])
        at = end
    return found


def identity_in(script: str, args: Sequence[bytes]) -> Identity | None:
    """The acquisition on whose behalf a script about one name runs; None for other scripts."""
    at = _IDENTITY.get(script)
    if at is None:
        return None
    return Identity(args[at], args[0], args[at + 1]) if len(args) > at else Identity(args[0], args[0])


def encoded(reply: Any) -> bytes:
    """A reply in RESP3."""
    kind = type(reply)
    if kind is int:
        return b":%d\r\n" % reply
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is None:
        return b"_\r\n"
    if kind is str:  # a status, or an error with its sign
        text: str = reply if reply.startswith("-") else "+" + reply
        return text.encode() + b"\r\n"
    if kind is float:
        return b",%.17g\r\n" % reply
    if kind is dict:
        return b"%%%d\r\n" % len(reply) + b"".join([encoded(each) for pair in reply.items() for each in pair])
    return b"*%d\r\n" % len(reply) + b"".join([encoded(each) for each in reply])
