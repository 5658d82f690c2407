"""A ttl and all that follows from it, worked out once per setting rather than once per acquisition."""

from __future__ import annotations

from typing import Any, Final

from handfast.core.effects import Fault
from handfast.core.group import Group
from handfast.core.resp import encode
from handfast.options import Policy

__all__ = ["Copies", "Settings", "Terms"]


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

    def judge(self, node: int, replies: list[Any]) -> Any:
        """A grant without its copies is none."""
        vote = replies[0]
        if vote is None or type(vote) is Fault or (type(vote) is list and len(vote) == 2):
            return vote
        return self.missing(replies[-1]) or vote

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


BRIEF: Final = 0.03
"""Seconds. Less than it may take to notice that a holder who knows of no queue has let go."""

_SET: Final = b"*6\r\n$3\r\nSET\r\n$%%d\r\n%%b\r\n$%%d\r\n%%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n"


class Terms:
    """How a ttl is written, how long a grant of it is believed and a node waited for, and the copies it must have."""

    __slots__ = ("brief", "claim_form", "copies", "patience", "px", "set_form", "ttl", "validity")

    def __init__(self, policy: Policy, ttl: float, nodes: int) -> None:
        self.ttl = ttl
        self.px = b"%d" % round(ttl * 1000)
        self.set_form = _SET % (len(self.px), self.px)
        """The published protocol's command, to be filled in with key and owner: making it from its words costs more than
        sending it."""
        self.claim_form: tuple[bytes, bytes, int, bytes, bytes, bytes] = (b"", b"", 0, b"", b"", b"")
        """Of the last fair lock that was claimed, its channel and the length of its owner: the parts of its command."""
        self.validity = policy.validity(ttl)
        """How long after the send a grant may be believed, if clock rates differ by less than `drift`."""
        patience = policy.node_timeout
        if patience is None:
            # With a quorum a slow node must not eat the lease's validity; one node has to be waited for.
            patience = min(0.05, ttl * 0.05) if nodes > 1 else min(1.0, ttl * 0.25)
        self.patience = patience
        """How long one round trip may take per node."""
        self.brief = min(BRIEF, ttl * 0.05)
        """For how long a fair lock is waited for before anything is asked about its holder."""
        self.copies: Copies | None = None
        if policy.replicas or policy.durable:
            self.copies = Copies(policy.replicas, policy.durable, max(1, round(patience * 1000)))
            # A server that has nothing else to do looks at its timeouts ten times a second.
            self.patience += 0.12


class Settings:
    """A policy on a group of nodes, with what follows from both: shared by all locks that are set alike."""

    __slots__ = (
        "brief",
        "cohort",
        "fair",
        "fence",
        "group",
        "key_end",
        "key_start",
        "owner_start",
        "pass_form",
        "policy",
        "single",
        "slowest",
        "special",
        "terms",
        "tries",
        "wait",
    )

    def __init__(self, group: Group, policy: Policy, owner_start: bytes) -> None:
        self.group = group
        self.policy = policy
        self.fence = policy.fence
        self.fair = policy.fair
        self.cohort = policy.cohort
        self.tries = policy.tries
        self.wait = policy.wait
        self.slowest = 1 - policy.drift
        """Seconds of ours in which a server may count one of its own, at least."""
        self.owner_start = owner_start
        """How the owners of its leases begin; a nonce follows."""
        self.terms = self.terms_for(policy.ttl)
        self.pass_form: tuple[bytes, int, bytes, bytes, bytes] = (b"", 0, b"", b"", b"")
        """Of the last fair lock that was left, the length of its owner and the channel: the parts of its command."""
        self.single = group.plain and self.terms.copies is None
        """One node and no conditions: its answer is the outcome, there is nothing to count."""
        braces = bool(policy.prefix or policy.fence)
        self.key_start = policy.prefix + "{" if braces else ""
        self.key_end = "}" if braces else ""
        self.brief = self.single and policy.tries is None and not policy.cohort and not group.clustered
        """Of a fair lock: who waits for it first does so briefly; see fair.py."""
        self.special = not policy.renew or policy.max_hold is not None or bool(policy.cohort)
        """Not renewed, or not for ever; or passed on."""

    def key(self, name: str) -> bytes:
        """`prefix{name}`; exactly the name where it is to be shared with other implementations.

        A name with a hash tag of its own keeps it, so that several names can live in one slot of a cluster:
        `prefix<a{tag}>`. One that begins with a brace would make an empty tag, which is none: `prefix[{_}}a]`. No name's
        key is like that of another, nor like a counter's, which ends differently.
        """
        if self.key_start:
            start = name.find("{")
            if start >= 0 and name.find("}", start) > start + 1:
                return f"{self.policy.prefix}<{name}>".encode()
            if name.startswith("}"):
                return f"{self.policy.prefix}[{{_}}{name}]".encode()
        return (self.key_start + name + self.key_end).encode()

    def terms_for(self, ttl: float) -> Terms:
        return Terms(self.policy, ttl, self.group.n)
