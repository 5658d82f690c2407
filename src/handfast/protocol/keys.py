"""Every key that handfast keeps on a server.

| key              | type       | content                                       | lifetime                        |
|------------------|------------|-----------------------------------------------|---------------------------------|
| `<prefix>{name}` | string     | the owner that holds this node's vote         | the lease's ttl, renewed        |
| `...:f`          | string     | the fence counter: the last token             | the token's time + token_memory |
| `...:q`          | sorted set | waiting acquisitions by ticket                | minutes after the last claim    |
| `...:c`          | hash       | their claims; field `*`: record of the vote   | minutes after the last claim    |
| `...:g`          | hash       | acquisitions of an explicit owner             | as the lock                     |
| `<prefix>guard`  | string     | the restart guard's marker                    | for ever; one per namespace     |
| `<prefix>mark`   | string     | no less than any token that it has voted for  | for ever; one per namespace     |
| `<prefix>audit`  | stream     | the last locks that operators have broken     | for ever; bounded               |
| `<prefix>wake:…` | channel    | pushes to one connection                      | as the connection               |

A name with a hash tag of its own keeps it, so that several names can be in one slot of a cluster: with the prefix `p:`,
the key of `a{tag}` is `p:<a{tag}>`. A name that begins with a closing brace would make an empty tag, so the key of `}a`
is `p:[{_}}a]`. No two names share a key.
With `prefix=""` and without a fence the key is exactly the name, as other programs expect it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from handfast.protocol.resp import bulk

__all__ = [
    "CLAIMS",
    "FENCE",
    "GENERATIONS",
    "QUEUE",
    "audit_key",
    "channel_prefix",
    "guard_key",
    "key_of",
    "mark_key",
    "name_of",
    "queue_keys",
]

FENCE: Final = b":f"
QUEUE: Final = b":q"
CLAIMS: Final = b":c"
GENERATIONS: Final = b":g"
NAMESPACE: Final = "handfast:"
"""The namespace of guard and channels for clients with an empty prefix."""


def key_of(prefix: str, name: str, *, exact: bool) -> bytes:
    """The lock key of a name. `exact`: the name itself.

    >>> key_of("handfast:", "orders", exact=False), key_of("", "orders", exact=True)
    (b'handfast:{orders}', b'orders')
    >>> key_of("p:", "a{tag}b", exact=False), key_of("p:", "}a", exact=False)
    (b'p:<a{tag}b>', b'p:[{_}}a]')
    """
    if exact:
        return name.encode()
    start = name.find("{")
    if start >= 0 and name.find("}", start) > start + 1:
        return f"{prefix}<{name}>".encode()
    if name.startswith("}"):
        return f"{prefix}[{{_}}{name}]".encode()
    return f"{prefix}{{{name}}}".encode()


def name_of(prefix: str, key: bytes) -> str | None:
    """The name whose lock key this is; None for every other key.

    >>> name_of("handfast:", b"handfast:{orders}"), name_of("handfast:", b"handfast:{orders}:f")
    ('orders', None)
    >>> name_of("p:", b"p:<a{tag}b>"), name_of("p:", b"p:[{_}}a]")
    ('a{tag}b', '}a')
    """
    start = len(prefix.encode())
    try:
        body = key[start:].decode()
    except UnicodeDecodeError:
        return None
    name = body[4:-1] if body.startswith("[") else body[1:-1]
    return name if name and key_of(prefix, name, exact=False) == key else None


def queue_keys(key: bytes) -> bytes:
    """The five keys of one name, as arguments of a command."""
    other = b"$%d\r\n%b" % (len(key) + 2, key)
    return b"$%d\r\n%b\r\n%b:q\r\n%b:c\r\n%b:f\r\n%b:g\r\n" % (len(key), key, other, other, other, other)


def with_suffix(keys: Sequence[bytes], *suffixes: bytes) -> list[bytes]:
    """All keys with the first suffix, then all with the second, and so on."""
    return [key + suffix for suffix in suffixes for key in keys]


def guard_key(prefix: str) -> bytes:
    return (prefix or NAMESPACE).encode() + b"guard"


def mark_key(prefix: str) -> bytes:
    return (prefix or NAMESPACE).encode() + b"mark"


def audit_key(prefix: str) -> bytes:
    return (prefix or NAMESPACE).encode() + b"audit"


def guard_keys(prefix: str) -> bytes:
    """The keys of marker and high-water mark, as arguments of a command."""
    return bulk(guard_key(prefix)) + bulk(mark_key(prefix))


def channel_prefix(prefix: str) -> bytes:
    """The beginning of the namespace's channel names. It has no spaces, because spaces separate the fields of a claim."""
    usable = prefix and not any(letter.isspace() for letter in prefix)
    return (prefix if usable else NAMESPACE).encode() + b"wake:"
