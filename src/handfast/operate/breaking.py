"""Takes a lock from its holder: for operators, if a holder hangs while its watchdog keeps renewing.

Each node compares owner and token in the same step in which it takes the vote, so a lock that has changed hands since the
operator looked stays as it is. The vote goes to the next waiter, as with a release. The holder notices the loss at its
next renewal; its fencing token is smaller than the next one.

Each node writes the audit line first, and deletes it if nothing was broken: no lock is broken without one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from handfast.core.config import retention_of
from handfast.core.io import Fault
from handfast.operate.locks import AUDIT_LENGTH, LockInfo, look
from handfast.operate.servers import Deployment, Link, Node
from handfast.protocol import keys
from handfast.protocol.resp import encode
from handfast.protocol.scripts import BREAK, TEXT

__all__ = ["Broken", "break_lock", "break_terms"]

Outcome = Literal["broken", "changed", "unknown"]
BROKEN: Final = "broken"
HANDED_OVER: Final = "handed over"
ROUNDS: Final = 3
"""How often to take the votes: a renewal that runs at the same time may restore votes that were just taken."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The result of breaking a lock."""

    lock: LockInfo
    """The lock before the break."""
    outcome: Outcome
    """`broken`: the owner has no majority any more. `changed`: it was not the owner any more, or had another token, and
    nothing was changed. `unknown`: too few nodes could be asked, so it may still have a majority."""
    nodes: dict[str, str]
    """By address: `broken`, `handed over`, `changed`, `not held`, or why the node has kept the vote."""
    now: LockInfo | None
    """The present holder."""


def break_lock(deployment: Deployment, seen: LockInfo, *, by: str = "", reason: str = "") -> Broken:
    """Take the lock away from the owner that `seen` names, if its token is still the same."""
    line = _audit_line(deployment, seen, by or f"{_user()}@{socket.gethostname()}", reason)
    said: dict[str, str] = {}
    current: LockInfo | None = seen
    for _ in range(ROUNDS):
        if current is None or current.owner != seen.owner:
            break
        for node, vote in zip(deployment.nodes, current.votes, strict=True):
            if vote.error:
                said.setdefault(node.label, vote.error)
            elif vote.owner != seen.owner.text:
                said.setdefault(node.label, "not held")
            else:
                said[node.label] = _break_on(deployment, node, seen, vote.token, line)
        if "changed" in said.values():
            break
        (current,) = look(deployment, [seen.name])
    return Broken(seen, _outcome(deployment, said), said, current)


def _outcome(deployment: Deployment, said: dict[str, str]) -> Outcome:
    freed = sum(1 for text in said.values() if text in (BROKEN, HANDED_OVER))
    others = sum(1 for text in said.values() if text in ("changed", "not held"))
    if freed == 0 and "changed" in said.values():
        return "changed"
    return "broken" if freed + others > len(deployment.nodes) - deployment.need else "unknown"


def _break_on(deployment: Deployment, node: Node, seen: LockInfo, token: int | None, line: bytes) -> str:
    """Breaks the vote of one node; returns the result in words."""
    key = keys.key_of(deployment.prefix, seen.name, exact=False)
    log = keys.audit_key(deployment.prefix)
    link, scribe = node.link_for(key), node.link_for(log)
    if link is None or scribe is None:
        return node.fault.text if node.fault is not None else "cannot be reached"
    try:
        scribe.send(line)
        (entry,) = scribe.receive(1)
        if type(entry) is Fault:
            return f"not broken, because the audit line could not be written: {entry.text}"
        shown = b"%d" % token if token is not None else b""
        retention = retention_of(deployment.settings.token_memory)
        terms = break_terms(key, _guard_keys(deployment, node), _owner(link, key, seen), shown, retention)
        reply: Any = link.run_script(TEXT[BREAK], *terms)
        if reply in (1, 2):
            return HANDED_OVER if reply == 2 else BROKEN
        scribe.call(b"XDEL", log, entry)
        return reply.text if type(reply) is Fault else "changed"
    except OSError as error:
        return node.drop(error).text


def break_terms(
    key: bytes, guard_keys: Sequence[bytes], owner: bytes, token: bytes, retention: int
) -> tuple[list[bytes], bytes, bytes, bytes]:
    """The keys and arguments of break.lua."""
    suffixes = (keys.QUEUE, keys.CLAIMS, keys.FENCE, keys.GENERATIONS)
    return [key, *keys.with_suffix([key], *suffixes), *guard_keys], owner, token, b"%d" % retention


def _owner(link: Link, key: bytes, seen: LockInfo) -> bytes:
    """The owner as the node stores it. The text that was shown may have replaced bytes that are not UTF-8."""
    present = link.call(b"GET", key)
    same = type(present) is bytes and present.decode(errors="replace") == seen.owner.text
    return present if same else seen.owner.text.encode()


def _guard_keys(deployment: Deployment, node: Node) -> list[bytes]:
    """Marker and high-water mark, on a node that has a marker: a waiter trusts no vote that comes without it."""
    if node.clustered:
        return []
    marker, mark = keys.guard_key(deployment.prefix), keys.mark_key(deployment.prefix)
    link = node.link_for(marker)
    return [marker, mark] if link is not None and link.call(b"EXISTS", marker) == 1 else []


def _audit_line(deployment: Deployment, seen: LockInfo, by: str, reason: str) -> bytes:
    fields = {
        "id": os.urandom(8).hex(),
        "name": seen.name,
        "owner": seen.owner.text,
        "token": "" if seen.token is None else str(seen.token),
        "by": by,
        "reason": reason,
    }
    words = [word.encode() for pair in fields.items() for word in pair]
    bound = b"%d" % AUDIT_LENGTH
    return encode(b"XADD", keys.audit_key(deployment.prefix), b"MAXLEN", bound, b"*", *words)


def _user() -> str:
    """The user name from the system; an environment variable could contain anything."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
