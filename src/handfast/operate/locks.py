"""Which locks the servers hold; one lock in detail, with its waiters.

`held` is an iterator. It finds the names by SCAN, asks all nodes about a batch of them in one round trip, and keeps
nothing: its memory does not grow with the number of locks. No command takes a server more than about a millisecond.
As with SCAN, a lock that changes meanwhile may be missed, or be listed twice if a server resizes its table or fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from re import compile as regex
from typing import Any, Final, Literal

from handfast.core import inspect
from handfast.core.guard import server_time
from handfast.core.io import Fault
from handfast.operate.servers import Deployment, Node, first_fault
from handfast.protocol import commands, keys
from handfast.protocol.claims import QueuedClaim, decode_claim
from handfast.protocol.resp import encode

__all__ = ["Audit", "LockDetail", "LockInfo", "NodeVote", "Owner", "WaiterInfo", "detail", "held", "look", "parse_owner"]

BATCH: Final = 250
"""Names for each round trip: about a millisecond of a server's time."""
ROW: Final = inspect.PEEK_REPLIES + 2
"""Replies for each name: to `commands.peek`, the length of the queue, the token of an explicit owner."""
AUDIT_LENGTH: Final = 1000
"""Audit lines that a server keeps."""
NONCE: Final = 32
"""Hexadecimal digits at the end of an owner that handfast has made."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The parts of an owner's text."""

    text: str
    host: str = ""
    """Empty for an explicit owner, like the next two."""
    pid: int = 0
    label: str = ""

    @property
    def short(self) -> str:
        """host:pid:label without the random part."""
        return f"{self.host}:{self.pid}" + (f":{self.label}" if self.label else "") if self.host else self.text


def parse_owner(text: str) -> Owner:
    """
    >>> parse_owner("web-1:4711:nightly:" + 32 * "a").short
    'web-1:4711:nightly'
    >>> parse_owner("somebody").short
    'somebody'
    """
    parts = text.rsplit(":", 3)
    if len(parts) != 4:
        return Owner(text)
    host, pid, label, nonce = parts
    made_here = pid.isdecimal() and len(nonce) == NONCE and all(letter in "0123456789abcdef" for letter in nonce)
    return Owner(text, host, int(pid), label) if made_here else Owner(text)


@dataclass(frozen=True, slots=True)
class NodeVote:
    """The answer of one node about one lock."""

    node: str
    """Its address."""
    owner: str | None
    """The owner that has its vote; None if the vote is free, or the node did not answer."""
    ttl: float | None
    """Seconds until the vote ends unless renewed; None without a vote, and for a key without an end."""
    token: int | None
    """The last token that the node has given for this name."""
    waiters: int
    """How many waiters are in its queue."""
    error: str = ""
    """Why it did not answer."""


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock that is held, or for which an owner has votes."""

    name: str
    kind: Literal["lock", "explicit owner"]
    """`explicit owner`: several acquisitions may hold it together, under an owner that the caller chose."""
    state: Literal["held", "minority"]
    """`minority`: nobody has the votes of a majority; the owner is that of most votes."""
    owner: Owner
    token: int | None
    """None for a lock without a fence, or if the nodes do not agree."""
    ttl: float | None
    """Seconds for which the votes last unless renewed; None: without end."""
    since: float | None
    """Seconds for which it has been held, if the servers know it."""
    waiters: int
    votes: tuple[NodeVote, ...]
    """One for each node, in the order of the URLs."""


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """A waiter. The servers know only the first waiter of each process."""

    owner: Owner
    since: float
    """Seconds for which it has waited."""
    nodes: int
    """The number of nodes in whose queues it is."""


@dataclass(frozen=True, slots=True)
class Audit:
    """A lock that an operator has broken."""

    id: str
    at: float
    """Seconds since the epoch, by the server's clock."""
    name: str
    owner: Owner
    token: int | None
    by: str
    """The operator: user@host."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LockDetail:
    """Everything that the servers know of one name."""

    name: str
    lock: LockInfo | None
    """None if the lock is free."""
    last_token: int | None
    """The largest token given for this name, while the servers keep it."""
    waiters: tuple[WaiterInfo, ...]
    """The next one first."""
    audit: tuple[Audit, ...]
    """The latest first."""
    faults: dict[str, str]
    """The nodes that did not answer, and why."""


def held(deployment: Deployment, pattern: str = "*") -> Iterator[LockInfo]:
    """All locks that are held, in no order, whose name matches: `*`, `?` and `[...]` as in a shell.

    Raises ConnectionError if no node answers at the beginning or at the end. A node that fails meanwhile is left out: see
    `deployment.faults`.
    """
    deployment.check()
    matches = regex(translate(pattern)).match
    glob = _escaped(deployment.prefix.encode()) + rb"*[}>\]]"
    for index, node in enumerate(deployment.nodes):
        for found in node.scan(glob):
            names = {name: None for key in found if (name := keys.name_of(deployment.prefix, key)) and matches(name)}
            wanted = list(names)
            for start in range(0, len(wanted), BATCH):
                yield from _batch(deployment, wanted[start : start + BATCH], deployment.nodes[:index])
    deployment.check_faults()


def _batch(deployment: Deployment, names: Sequence[str], scanned: Sequence[Node]) -> Iterator[LockInfo]:
    """The locks of a batch. Names for which an earlier node has a vote were listed when that node was scanned."""
    by_key = {keys.key_of(deployment.prefix, name, exact=False): name for name in names}
    listed = {key for node in scanned for key in node.having(list(by_key))}
    new = [name for key, name in by_key.items() if key not in listed]
    for info in look(deployment, new) if new else ():
        if info is not None:
            yield info


def _escaped(prefix: bytes) -> bytes:
    return b"".join(b"\\%c" % letter if letter in b"*?[]^\\" else b"%c" % letter for letter in prefix)


def look(deployment: Deployment, names: Sequence[str]) -> list[LockInfo | None]:
    """The holders of these locks, in one round trip; None for a lock that is free."""
    by_key = {keys.key_of(deployment.prefix, name, exact=False): name for name in names}
    questions = {
        key: commands.peek([key]) + encode(b"ZCARD", key + keys.QUEUE) + encode(b"HGET", key + keys.GENERATIONS, b"t")
        for key in by_key
    }
    said = deployment.ask(questions, ROW)
    return [_info(deployment, name, [_row(answers, key) for answers in said]) for key, name in by_key.items()]


def _row(answers: dict[bytes, list[Any]] | Fault, key: bytes) -> list[Any] | Fault:
    if type(answers) is Fault:
        return answers
    row: list[Any] = answers[key]  # type: ignore[index]
    return first_fault(row) or row


def _info(deployment: Deployment, name: str, rows: Sequence[list[Any] | Fault]) -> LockInfo | None:
    labels = [node.label for node in deployment.nodes]
    votes = tuple(_vote(label, row) for label, row in zip(labels, rows, strict=True))
    by_owner: dict[bytes, list[list[Any]]] = {}
    for row in rows:
        if type(row) is list and row[0] is not None:
            by_owner.setdefault(row[0], []).append(row)
    if not by_owner:
        return None
    owner, its = max(by_owner.items(), key=lambda item: len(item[1]))
    need = min(deployment.need, len(its))
    explicit = [int(row[5]) for row in its if row[5] is not None]
    token = (max(explicit) if max(explicit) > 1 else None) if explicit else inspect.counter(its, 1, need)
    return LockInfo(
        name=name,
        kind="explicit owner" if explicit else "lock",
        state="held" if len(its) >= deployment.need else "minority",
        owner=parse_owner(owner.decode(errors="replace")),
        token=token,
        ttl=inspect.remaining(its, 1, need),
        since=inspect.age(its, token),
        waiters=max(vote.waiters for vote in votes),
        votes=votes,
    )


def _vote(label: str, row: list[Any] | Fault) -> NodeVote:
    if isinstance(row, Fault):
        return NodeVote(label, None, None, None, 0, row.text)
    owner, left, count, _, waiters, explicit, _ = row
    token = int(explicit or count or 0) or None
    ttl = None if owner is None or left < 0 else left / 1000
    return NodeVote(label, None if owner is None else owner.decode(errors="replace"), ttl, token, waiters)


# -- one lock ----------------------------------------------------------------------------------------------------------


def detail(deployment: Deployment, name: str) -> LockDetail:
    """Everything about one name. Raises ConnectionError if no node answers."""
    deployment.check()
    (info,) = look(deployment, [name])
    key = keys.key_of(deployment.prefix, name, exact=False)
    said = deployment.ask({key: commands.queue(key) + encode(b"GET", key + keys.FENCE)}, 3)
    deployment.check_faults()
    rows = [row for answers in said if type(row := _row(answers, key)) is list]
    tokens = [int(row[2]) for row in rows if row[2] is not None]
    return LockDetail(
        name=name,
        lock=info,
        last_token=max(tokens, default=None),
        waiters=_waiters(rows),
        audit=tuple(line for line in audit(deployment) if line.name == name),
        faults=deployment.faults,
    )


def _waiters(rows: Sequence[list[Any]]) -> tuple[WaiterInfo, ...]:
    claims: dict[bytes, list[QueuedClaim]] = {}
    now = 0
    for ids, texts, _, clock in rows:
        now = max(now, server_time(clock))
        known = inspect.pairs(texts)
        for waiter, ticket in inspect.pairs(ids).items():
            claim = decode_claim(waiter, ticket, known.get(waiter))
            if claim is not None:
                claims.setdefault(waiter, []).append(claim)
    first = sorted(claims.values())
    return tuple(
        WaiterInfo(parse_owner(each[0].owner.decode(errors="replace")), max(0.0, (now - each[0].ticket) / 1e6), len(each))
        for each in first
    )


def audit(deployment: Deployment) -> list[Audit]:
    """The breaks by operators, the latest first: one entry for each, however many nodes have its line."""
    key = keys.audit_key(deployment.prefix)
    said = deployment.ask({key: encode(b"XREVRANGE", key, b"+", b"-", b"COUNT", b"%d" % AUDIT_LENGTH)}, 1)
    lines: dict[str, Audit] = {}
    for answers in said:
        row = _row(answers, key)
        for entry in row[0] if type(row) is list else ():
            line = _audit(*entry)
            lines.setdefault(line.id, line)
    return sorted(lines.values(), key=lambda line: line.at, reverse=True)


def _audit(at: bytes, flat: Any) -> Audit:
    words = {word.decode(): value.decode(errors="replace") for word, value in inspect.pairs(flat).items()}
    token = words.get("token", "")
    return Audit(
        id=words.get("id", at.decode()),
        at=int(at.partition(b"-")[0]) / 1000,
        name=words.get("name", ""),
        owner=parse_owner(words.get("owner", "")),
        token=int(token) if token.isdecimal() else None,
        by=words.get("by", ""),
        reason=words.get("reason", ""),
    )
