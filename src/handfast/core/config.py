"""The settings, the timing and the keys of an acquisition. They are computed once and shared by many acquisitions."""

from __future__ import annotations

from typing import Any, Final

from handfast.core.io import Fault
from handfast.core.nodes import NodeGroup
from handfast.options import Policy
from handfast.protocol import commands, keys
from handfast.protocol.resp import bulk, encode

__all__ = ["Copies", "LockConfig", "LockKeys", "LockRequest", "Timing", "retention_of"]


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


SERVER_TIMER: Final = 0.12
"""Seconds. An idle server checks the timeouts of WAIT ten times a second."""


def retention_of(token_memory: float) -> int:
    """The seconds for which a counter outlives its token. One more than asked for: a token has fractions of a second."""
    return round(token_memory) + 1


class Timing:
    """The values that follow from a ttl: how long a grant is valid, how long to wait for a node, which copies to need."""

    __slots__ = ("claim_terms", "copies", "one_claim", "timeout", "ttl", "ttl_ms", "validity")

    def __init__(self, policy: Policy, ttl: float, nodes: int, *, guard: bool) -> None:
        self.ttl = ttl
        self.ttl_ms = b"%d" % round(ttl * 1000)
        self.claim_terms = commands.claim_terms(
            self.ttl_ms, 1 + policy.cohort if policy.fence else 0, retention_of(policy.token_memory)
        )
        """The ttl, the number of tokens and the retention of counters, as arguments of a claim."""
        self.validity = policy.validity(ttl)
        """How long after the send a grant may be believed, if clock rates differ by less than `drift`."""
        timeout = policy.node_timeout
        if timeout is None:
            # On a quorum a slow node must not use up the lease's validity. A single node gets more time.
            timeout = min(0.05, ttl * 0.05) if nodes > 1 else min(1.0, ttl * 0.25)
        self.timeout = timeout
        """How long one round trip may take."""
        self.copies: Copies | None = None
        if policy.replicas or policy.durable:
            self.copies = Copies(policy.replicas, policy.durable, max(1, round(timeout * 1000)))
            self.timeout += SERVER_TIMER
        self.one_claim = nodes == 1 and not guard and self.copies is None
        """The reply to one claim decides: there is a single node, without a guard and without copies."""


class LockConfig:
    """A policy on a group of nodes, and the values that follow from both. All locks with the same options share it."""

    __slots__ = (
        "_key_start",
        "alone",
        "claim_rules",
        "cohort",
        "exact",
        "fence",
        "group",
        "guard_key_list",
        "guard_keys",
        "longest_ms",
        "mark_keys",
        "owner_start",
        "policy",
        "queues_on_arrival",
        "renewed_for_ever",
        "retention",
        "retention_arg",
        "slowest",
        "step",
        "timing",
        "tries",
        "wait",
    )

    def __init__(self, group: NodeGroup, policy: Policy, owner_start: bytes) -> None:
        self.group = group
        self.policy = policy
        self.fence = policy.fence
        self.cohort = policy.cohort
        self.tries = policy.tries
        self.wait = policy.wait
        self.step = 1 + policy.cohort if policy.fence else 0
        """The number of tokens that each acquisition takes."""
        self.exact = not policy.prefix and not policy.fence
        """The key is exactly the name, and the published protocol is used. Other programs may share the key. They neither
        queue nor hand over."""
        self.slowest = 1 - policy.drift
        """A second of a server's clock takes at least so many seconds of this machine's."""
        self.owner_start = owner_start
        """The beginning of the owners of its leases. A nonce follows it."""
        self.renewed_for_ever = policy.renew and policy.max_hold is None
        self.guard_key_list = (group.marker_key, group.mark_key) if group.guard else ()
        self.guard_keys = b"".join(map(bulk, self.guard_key_list))
        """Marker and high-water mark, as arguments of a command."""
        self.mark_keys = (group.mark_key,) if group.guard and policy.fence else ()
        # Only the guard makes sure that all clients of a namespace have the same max_ttl. Without it, and for keys that
        # other programs share, any ttl is allowed.
        self.longest_ms = group.max_ttl_ms if group.guard and policy.prefix else commands.UNLIMITED
        self.retention = retention_of(policy.token_memory)
        self.retention_arg = bulk(b"%d" % self.retention)
        self.claim_rules = commands.claim_rules(self.longest_ms, overtakes=not policy.fair)
        self.timing = self.timing_for(policy.ttl)
        self.queues_on_arrival = group.n == 1 and not self.exact and policy.tries is None and self.timing.copies is None
        """An attempt is a claim as well: there is a single node, and the ticket is the time of arrival there."""
        self.alone = group.n == 1 and not group.guard
        """One reply decides: there is a single node without a guard."""
        self._key_start = policy.prefix.encode() + b"{"

    def key_of(self, name: str) -> bytes:
        if self.exact:
            return name.encode()
        if "{" in name or name[0] == "}":
            return keys.key_of(self.policy.prefix, name, exact=False)
        return self._key_start + name.encode() + b"}"

    def timing_for(self, ttl: float) -> Timing:
        return Timing(self.policy, ttl, self.group.n, guard=self.group.guard)


class LockKeys:
    """One name or several, with the settings that apply to them."""

    __slots__ = ("config", "group", "key", "keys", "names", "queue_keys")

    def __init__(self, config: LockConfig, names: tuple[str, ...]) -> None:
        self.config = config
        self.group = config.group
        self.names = names
        self.key = config.key_of(names[0])
        """The key of the first name. It decides which node of a cluster has the lock."""
        self.keys = (self.key,) if len(names) == 1 else tuple([config.key_of(name) for name in names])
        self.queue_keys = keys.queue_keys(self.key)
        """The five keys of the first name, as arguments of a command. A lock that uses the published protocol, which has
        no queue, may leave this empty."""

    @property
    def name(self) -> str:
        """The name. Several names are joined by commas."""
        return self.names[0] if len(self.names) == 1 else ", ".join(self.names)


class LockRequest(LockKeys):
    """The keys and the owner of a lock. `owner` is None if each acquisition makes its own."""

    __slots__ = ("owner",)

    def __init__(self, config: LockConfig, names: tuple[str, ...], owner: bytes | None = None) -> None:
        super().__init__(config, names)
        self.owner = owner
