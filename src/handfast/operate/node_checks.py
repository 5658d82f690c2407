"""The doctor's checks of one server."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal

from handfast.core import guard
from handfast.core.eviction import fields
from handfast.core.handshake import is_old, knows
from handfast.core.io import Fault
from handfast.operate.servers import Deployment, Link, Node
from handfast.options import Policy
from handfast.protocol import keys
from handfast.protocol.resp import encode

__all__ = ["Check", "Facts", "Level", "gather", "server_checks"]

Level = Literal["ok", "warn", "bad"]
PINGS: Final = 5
OLDEST: Final = (6, 2)
"""The oldest server that has all commands."""
SLOW_NODE: Final = 0.25
SLOW_QUORUM: Final = 0.025
"""Seconds: half of the time that a client waits for a node of a quorum by default."""
CLOCK_OFF: Final = 1.0
NEARLY_FULL: Final = 0.9


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    node: str
    """The server's address; empty for the deployment as a whole."""
    name: str
    """The subject of the check, in one word."""
    level: Level
    found: str
    advice: str = ""
    """What to do; empty if there is nothing to do."""


@dataclass(slots=True)
class Facts:
    """The answers of one server."""

    label: str
    prefix: str
    info: dict[str, str]
    config: dict[str, str]
    """Settings, as far as the user may read them."""
    round_trips: list[float]
    offset: float
    """Seconds by which its clock is ahead of this machine's."""
    uncertainty: float
    marker: bytes | None
    now_us: int
    """Its time."""
    resp3: bool = True
    push_fault: str = ""
    """Why it cannot push to waiters."""
    tracking: bool = True
    compares: str = ""
    """The command by which it compares and deletes in one step, if it has one."""
    refused: dict[str, str] = field(default_factory=dict)
    """By command: why the probe failed."""

    @property
    def version(self) -> tuple[int, ...]:
        digits = re.findall(r"\d+", self.info.get("redis_version", ""))[:2]
        return tuple(int(each) for each in digits)

    @property
    def product(self) -> str:
        if "valkey_version" in self.info:
            return f"Valkey {self.info['valkey_version']}"
        return f"Redis {self.info['redis_version']}" if "redis_version" in self.info else "unknown version"

    @property
    def incarnation(self) -> bytes:
        text = "\r\n".join(f"{word}:{value}" for word, value in self.info.items())
        return guard.incarnation(self.info.get("run_id", ""), text.encode())


# -- asking ------------------------------------------------------------------------------------------------------------


def gather(deployment: Deployment, node: Node, link: Link, *, probe: bool) -> Facts:
    """Ask one server. Raises OSError if it stops answering. `probe`: check the user's rights by writing a key."""
    round_trips = []
    for _ in range(PINGS):
        began = time.perf_counter()
        link.call(b"PING")
        round_trips.append(time.perf_counter() - began)
    before = time.time()
    clock = link.call(b"TIME")
    after = time.time()
    now_us = guard.server_time(clock) if type(clock) is list else round(after * 1e6)
    marker = link.call(b"GET", keys.guard_key(deployment.prefix)) if not node.clustered else None
    sections = (b"server", b"memory", b"replication", b"persistence", b"cluster", b"clients")
    info = fields([link.call(b"INFO", section) for section in sections])
    facts = Facts(
        label=node.label if not node.clustered else f"{link.address.host}:{link.address.port}",
        prefix=deployment.prefix,
        info=info,
        config=_settings(link),
        round_trips=round_trips,
        offset=now_us / 1e6 - (before + after) / 2,
        uncertainty=(after - before) / 2,
        marker=marker if type(marker) is bytes else None,
        now_us=now_us,
    )
    _capabilities(deployment, link, facts, probe=probe)
    if probe:
        facts.refused |= _probe(deployment, node, link)
    return facts


def _settings(link: Link) -> dict[str, str]:
    found = {}
    for word in (b"appendfsync", b"save", b"min-replicas-to-write", b"min-slaves-to-write"):
        reply = link.call(b"CONFIG", b"GET", word)
        if type(reply) is list and len(reply) == 2:
            found[word.decode()] = reply[1].decode(errors="replace")
    return found


def _capabilities(deployment: Deployment, link: Link, facts: Facts, *, probe: bool) -> None:
    """The server's optional abilities, found on a connection that is set up like the library's."""
    if probe:
        key = keys.guard_key(deployment.prefix) + b":probe"
        if knows(link.call(b"DELIFEQ", key, b"-")):
            facts.compares = "DELIFEQ"
        elif knows(link.call(b"DELEX", key, b"IFEQ", b"-")):
            facts.compares = "DELEX"
    other = Link(link.address)
    try:
        hello = other.call(b"HELLO", b"3")
        facts.resp3 = type(hello) is not Fault
        if not facts.resp3:
            facts.push_fault, facts.tracking = "speaks RESP2 only", False
            if not is_old(hello):
                facts.refused["HELLO"] = hello.text
            return
        facts.tracking = type(other.call(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")) is not Fault
        channel = keys.channel_prefix(deployment.prefix) + b"doctor-" + os.urandom(6).hex().encode()
        other.send(encode(b"SUBSCRIBE", channel) + encode(b"PING"))
        # A push confirms a subscription. A refusal is a reply, and comes before the reply to PING.
        (first,) = other.receive(1)
        if type(first) is Fault:
            facts.push_fault = first.text
    finally:
        other.close()


PROBE: Final = b"""
local refused = {}
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  if type(reply) == 'table' and reply.err then refused[#refused + 1] = {name, reply.err} end
end
try('TIME') try('INFO', 'replication')
try('SET', KEYS[1], 'probe', 'PX', 5000) try('GET', KEYS[1]) try('EXISTS', KEYS[1]) try('PTTL', KEYS[1])
try('PEXPIRE', KEYS[1], 5000)
try('ZADD', KEYS[2], 1, 'probe') try('ZRANGE', KEYS[2], 0, 0) try('ZREM', KEYS[2], 'none') try('ZPOPMIN', KEYS[2])
try('HSET', KEYS[3], 'probe', 1) try('HGET', KEYS[3], 'probe') try('HGETALL', KEYS[3]) try('HEXISTS', KEYS[3], 'probe')
try('HDEL', KEYS[3], 'probe')
try('PUBLISH', ARGV[1], 'probe')
try('DEL', KEYS[1], KEYS[2], KEYS[3])
return refused
"""
"""Every command that the scripts of the library need."""


def _probe(deployment: Deployment, node: Node, link: Link) -> dict[str, str]:
    """What this user may not do here, and what the server refuses at present, tried on keys of the probe's own."""
    key = _probe_key(deployment, node, link)
    channel = keys.channel_prefix(deployment.prefix) + b"doctor"
    tried: dict[str, Any] = {
        "PING": link.call(b"PING"),
        "SCRIPT LOAD": link.call(b"SCRIPT", b"LOAD", PROBE),
        "SCAN": link.call(b"SCAN", b"0", b"COUNT", b"1"),
        "XADD": link.call(b"XADD", key + b":audit", b"NOMKSTREAM", b"MAXLEN", b"1", b"*", b"probe", b"1"),
        "EVALSHA": link.run_script(PROBE, [key, key + keys.QUEUE, key + keys.CLAIMS], channel),
    }
    refused = {name: reply.text for name, reply in tried.items() if type(reply) is Fault}
    said = tried["EVALSHA"]
    if type(said) is list:
        refused |= {name.decode(): error.decode(errors="replace") for name, error in said}
    return refused


def _probe_key(deployment: Deployment, node: Node, link: Link) -> bytes:
    """An unused key; in a cluster, one that belongs to this server."""
    while True:
        key = keys.key_of(deployment.prefix, f"doctor-{os.urandom(6).hex()}", exact=False)
        if not node.clustered or node.link_for(key) in (link, None):
            return key


# -- judging -----------------------------------------------------------------------------------------------------------


def server_checks(facts: Facts, settings: Policy, *, nodes: int, moves: bool) -> Iterator[Check]:
    """All checks of one server. `moves`: Sentinel or a cluster replaces the server if it fails."""
    for check in (_latency, _version, _role, _eviction, _memory, _clock, _permissions, _pushes, _tracking):
        yield check(facts, nodes)
    yield _persistence(facts, settings, nodes)
    yield _replicas(facts, nodes, moves)


def _latency(facts: Facts, nodes: int) -> Check:
    middle, most = median(facts.round_trips), max(facts.round_trips)
    found = f"{middle * 1000:.2f} ms (most {most * 1000:.2f} ms of {len(facts.round_trips)})"
    if middle > (SLOW_QUORUM if nodes > 1 else SLOW_NODE):
        return Check(facts.label, "latency", "warn", found, "clients may give up on it: set node_timeout= above this")
    return Check(facts.label, "latency", "ok", found)


def _version(facts: Facts, nodes: int) -> Check:
    able = ", ".join(["RESP3" if facts.resp3 else "RESP2 only", *([facts.compares] if facts.compares else [])])
    if not facts.version:
        return Check(facts.label, "version", "warn", f"not told; {able}", "let the user run INFO: +info in its ACL")
    if facts.version < OLDEST:
        return Check(facts.label, "version", "bad", facts.product, "Redis 6.2 or any Valkey is needed")
    return Check(facts.label, "version", "ok", f"{facts.product}, {able}")


def _role(facts: Facts, nodes: int) -> Check:
    role = facts.info.get("role", "")
    if role == "master":
        return Check(facts.label, "role", "ok", "master")
    if not role:
        return Check(facts.label, "role", "warn", "not told", "let the user run INFO: +info in its ACL")
    master = f"{facts.info.get('master_host', '?')}:{facts.info.get('master_port', '?')}"
    return Check(facts.label, "role", "bad", f"replica of {master}", "name the master, or use redis+sentinel://")


def _eviction(facts: Facts, nodes: int) -> Check:
    limit, policy = facts.info.get("maxmemory", ""), facts.info.get("maxmemory_policy", "")
    if not limit:
        return Check(facts.label, "eviction", "warn", "not told", "let the user run INFO: +info in its ACL")
    if limit == "0":
        return Check(facts.label, "eviction", "ok", "never: no memory limit")
    if policy == "noeviction":
        return Check(facts.label, "eviction", "ok", "never: noeviction")
    advice = "CONFIG SET maxmemory-policy noeviction, or a server of its own for locks"
    return Check(facts.label, "eviction", "bad", f"may evict locks that are held ({policy})", advice)


def _memory(facts: Facts, nodes: int) -> Check:
    used, limit = int(facts.info.get("used_memory", "0")), int(facts.info.get("maxmemory", "0"))
    if limit and used > NEARLY_FULL * limit:
        found = f"{used / limit:.0%} of maxmemory is used"
        return Check(facts.label, "memory", "warn", found, "raise maxmemory: a full server grants nothing")
    return Check(facts.label, "memory", "ok", f"{used / 1e6:.1f} MB" + (f" of {limit / 1e6:.1f} MB" if limit else ""))


def _clock(facts: Facts, nodes: int) -> Check:
    found = f"{facts.offset * 1000:+.1f} ms against this machine (± {facts.uncertainty * 1000:.1f} ms)"
    if abs(facts.offset) - facts.uncertainty > CLOCK_OFF:
        found = f"{facts.offset:+.1f} s against this machine"
        advice = "set the clocks by NTP; tokens follow the servers' clocks, and a step forward ends leases early"
        return Check(facts.label, "clock", "warn", found, advice)
    return Check(facts.label, "clock", "ok", found)


OPTIONAL: Final = {"PUBLISH": "wake-ups", "SCAN": "ls, top and watch", "XADD": "break"}
"""Commands that locks can do without, and what needs them."""
STATES: Final[tuple[tuple[str, str], ...]] = (
    ("READONLY", "it is a replica: name the master"),
    ("OOM", "it is out of memory: raise maxmemory"),
    ("MISCONF", "it cannot save to its disk: look at its log"),
    ("NOREPLICAS", "too few replicas are in sync: look at INFO replication"),
    ("LOADING", "it loads its data: wait"),
    ("CLUSTERDOWN", "the cluster is down: look at CLUSTER INFO"),
    ("MOVED", "it is a node of a cluster: use redis+cluster://"),
)


def _permissions(facts: Facts, nodes: int) -> Check:
    # The restart guard of a quorum needs INFO. Without a quorum, the checks that need INFO report it themselves.
    refused = {name: text for name, text in facts.refused.items() if name != "INFO" or nodes > 1}
    needed = {name: text for name, text in refused.items() if name not in OPTIONAL}
    for code, advice in STATES:
        said = next((text for text in needed.values() if code in text), None)
        if said is not None:
            return Check(facts.label, "permissions", "bad", f"refuses writes ({code})", advice)
    if needed:
        words = " ".join(f"+{name.lower().replace(' ', '|')}" for name in needed)
        found = f"this user may not run {', '.join(needed)}"
        return Check(facts.label, "permissions", "bad", found, f"ACL SETUSER … {words} ~{facts.prefix}* &{facts.prefix}*")
    if refused:
        lost = sorted({OPTIONAL[name] for name in refused})
        found = f"this user may not run {', '.join(refused)}: no {', no '.join(lost)}"
        words = " ".join(f"+{name.lower()}" for name in refused)
        return Check(facts.label, "permissions", "warn", found, f"ACL SETUSER … {words} &{facts.prefix}*")
    return Check(facts.label, "permissions", "ok", "all commands that are needed")


def _pushes(facts: Facts, nodes: int) -> Check:
    if not facts.push_fault:
        return Check(facts.label, "wake-ups", "ok", "waiters are woken up")
    found = f"waiters are not woken up, they try again and again: {facts.push_fault}"
    advice = f"ACL SETUSER … +subscribe &{facts.prefix}*" if facts.resp3 else "use a server or proxy with RESP3"
    return Check(facts.label, "wake-ups", "warn", found, advice)


def _tracking(facts: Facts, nodes: int) -> Check:
    if facts.tracking:
        return Check(facts.label, "tracking", "ok", "available, for keys that other programs share")
    advice = "needed only with prefix='' and fence=False: let the user run +client|tracking"
    return Check(facts.label, "tracking", "ok", f"not available; {advice}")


def _persistence(facts: Facts, settings: Policy, nodes: int) -> Check:
    label, info = facts.label, facts.info
    if "aof_enabled" not in info:
        return Check(label, "persistence", "warn", "not told", "let the user run INFO: +info in its ACL")
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("rdb_last_bgsave_status", "ok") != "ok":
        return Check(label, "persistence", "bad", "the last write to its disk failed", "look at its log and its disk")
    appends, snapshots = info["aof_enabled"] == "1", facts.config.get("save", "?") != ""
    how = f"append-only file ({facts.config.get('appendfsync', 'fsync not told')})" if appends else ""
    how = how or ("snapshots" if snapshots else "none")
    if nodes > 1:
        pause = settings.max_ttl * (1 + 2 * settings.drift) + guard.MARGIN
        return Check(label, "persistence", "ok", f"{how}; after a restart it has no vote for {pause:.0f} s")
    if label.startswith("embedded:"):
        return Check(label, "persistence", "ok", "kept when it stops; a crash of this server forgets all locks")
    if appends and facts.config.get("appendfsync") == "always":
        return Check(label, "persistence", "ok", f"{how}: a restart forgets nothing")
    if appends:
        return Check(label, "persistence", "ok", f"{how}: a crash may forget the last second; fence what matters")
    forgets = "what came after the last snapshot" if snapshots else "all locks"
    advice = "CONFIG SET appendonly yes, or use a quorum, or fence what the locks protect"
    return Check(label, "persistence", "warn", f"{how}: a restart forgets {forgets}", advice)


def _replicas(facts: Facts, nodes: int, moves: bool) -> Check:
    label = facts.label
    count = int(facts.info.get("connected_slaves", "0"))
    least = int(facts.config.get("min-replicas-to-write") or facts.config.get("min-slaves-to-write") or 0)
    found = f"{count} connected, min-replicas-to-write {least}"
    if count < least:
        return Check(label, "replicas", "bad", f"{found}: it refuses writes", "bring its replicas back")
    if count == 0 and moves:
        return Check(label, "replicas", "warn", "none: nothing can take its place", "add a replica")
    if count == 0:
        return Check(label, "replicas", "ok", "none")
    if nodes == 1 and not least:
        advice = "set min-replicas-to-write 1, and replicas=1 on the clients (WAIT); or use a quorum"
        return Check(label, "replicas", "warn", f"{found}: a failover may forget the latest locks", advice)
    return Check(label, "replicas", "ok", found)
