"""The slot map of a Redis or Valkey Cluster. redis-py reads it, and the redirects of the nodes correct it.

The keys of a name share a hash tag, so each lock is on one node. A client has connections of its own to each shard, and
talks to it as to a single server. The `Shard` of a connection finds the node: after a failover, the promoted one.
"""

from __future__ import annotations

import re
import threading
import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.cluster import ClusterNode, NodesManager  # here, and not at the first connection: see net/address.py
from redis.exceptions import AuthenticationError, RedisClusterException, RedisError, ResponseError

from handfast import log
from handfast.core.handshake import Rejected
from handfast.core.io import Fault
from handfast.discovery.asking import ANSWER, PATIENCE
from handfast.discovery.connections import Connections, HostPort
from handfast.discovery.login import login_fault
from handfast.discovery.redis_options import login_of, tls_of
from handfast.errors import ConfigError
from handfast.net.address import Address
from handfast.net.faults import without_arguments

__all__ = ["Cluster", "Shard", "slot_of"]

SLOTS: Final = 16384
FRESH: Final = 0.1
"""Seconds during which a slot map that was just read is not read again."""
_REDIRECT: Final = re.compile(r"(\d+) (\S*):(\d+)")


def slot_of(key: bytes) -> int:
    """
    >>> slot_of(b"123456789"), slot_of(b"a{123456789}b") == slot_of(b"123456789"), slot_of(b"{}x") == slot_of(b"x")
    (12739, True, False)
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class Cluster:
    """The slot map that one client has of one cluster."""

    def __init__(self, members: Sequence[HostPort], options: dict[str, Any]) -> None:
        self._members = members
        self._options = options
        """Options of the redis-py connections that read the map; see asking.py."""
        self._manager: NodesManager | None = None
        self._reading = threading.Lock()
        self._read_at = float("-inf")
        self._refreshing = False
        self.host_ports: list[HostPort | None] = [None] * SLOTS
        """The master of each slot."""
        self.masters: frozenset[HostPort] = frozenset()
        self.connections = Connections()
        self.caches: list[dict[bytes, Any]] = []
        """Caches that depend on this map. They are cleared when it changes."""

    def refresh(self) -> None:
        """Read the slot map, unless another thread has just done so."""
        node: Any = ClusterNode
        with self._reading:
            if time.monotonic() - self._read_at < FRESH:
                return
            try:
                if self._manager is None:
                    nodes = [node(host, port) for host, port in self._members]
                    self._manager = NodesManager(nodes, require_full_coverage=False, **PATIENCE, **self._options)
                else:
                    self._manager.initialize()
            except (RedisError, RedisClusterException, IndexError) as error:
                if _cause(error, AuthenticationError) is not None and (fault := self._login_refused()) is not None:
                    raise Rejected(fault) from error
                raise _in_words(error) from error
            host_ports: list[HostPort | None] = [None] * SLOTS
            for slot, nodes in self._manager.slots_cache.items():
                host_ports[slot] = (str(nodes[0].host), int(nodes[0].port))
            self._read_at = time.monotonic()
            self._install(host_ports)

    def _login_refused(self) -> Fault | None:
        """The fault, if every member refuses the login: callers do not wait for that to change. Of the members' errors,
        redis-py keeps only the last one, and drops its code."""
        options, fault = self._options, None
        member = Address(label="", tls=tls_of(options) if options.get("ssl") else None, **login_of(options))
        for host, port in self._members:
            fault = login_fault(member._replace(host=host, port=port), ANSWER)
            if fault is None or fault.kind not in ("NOAUTH", "WRONGPASS"):
                return None
        return fault

    def _install(self, host_ports: list[HostPort | None]) -> None:
        changed, self.host_ports = host_ports != self.host_ports, host_ports
        if changed:
            self._forget()
        self.masters = frozenset(host_port for host_port in host_ports if host_port is not None)
        self.connections.hang_up(lambda shard, host_port: host_port != self.home(shard))

    def _forget(self) -> None:
        for cache in self.caches:
            cache.clear()

    def home(self, shard: Shard) -> HostPort | None:
        """The address for a shard's connections: its preferred node while that is a master, else the slot's master."""
        return shard.preferred if shard.preferred in self.masters else self.host_ports[shard.slot]

    def moved(self, slot: int, host_port: HostPort) -> None:
        """Note a redirect. A thread reads the rest of the map in the background."""
        self.host_ports[slot] = host_port
        self._forget()
        self.masters |= {host_port}
        self.refresh_soon()

    def refresh_soon(self) -> None:
        if not self._refreshing:
            self._refreshing = True
            threading.Thread(target=self._refresh_aside, name="handfast-slots", daemon=True).start()

    def _refresh_aside(self) -> None:
        try:
            self.refresh()
        except Exception as error:
            # No caller waits for this. A new connection reads the map itself, and reports its error.
            log.debug("the cluster's slot map could not be read: %s", error)
        finally:
            self._refreshing = False

    def forked(self) -> None:
        """Start anew in the child after a fork: the locks, threads and sockets belong to the parent."""
        self._reading = threading.Lock()
        self._manager, self._refreshing = None, False
        self.connections = Connections()

    def close(self) -> None:
        with self._reading:
            if self._manager is not None:
                self._manager.close()
                self._manager = None


def _in_words(error: Exception) -> Exception:
    """The error for a slot map that could not be read. redis-py wraps a server's error in one text for all refusals."""
    if isinstance(error, IndexError):
        return LookupError("no node of the cluster serves any slot")  # redis-py takes the first of no nodes
    cause = _cause(error, ResponseError)
    if "cluster support disabled" in str(cause):
        return ConfigError("is a server without cluster mode: use redis:// and not redis+cluster://")
    if cause is None:
        return error
    return LookupError(f"the cluster's slot map could not be read: {without_arguments(str(cause))}")


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error of this kind in the chain of causes, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause


class Shard:
    """The resolver of one node of a cluster, known by one of the slots that it serves."""

    def __init__(self, cluster: Cluster, preferred: HostPort | None, slot: int) -> None:
        self.cluster = cluster
        self.preferred = preferred
        """The node that it was made for. None: the node that has the slot."""
        self.slot = slot
        self.reached: HostPort | None = None
        """The node of the latest connection."""

    def find(self) -> HostPort:
        """See net.address.Resolver."""
        self.cluster.refresh()
        host_port = self.cluster.home(self)
        if host_port is None:
            raise LookupError(f"no node of the cluster serves slot {self.slot}")
        return host_port

    def opened(self, connection: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """See net.address.Resolver."""
        self.reached = host_port
        self.cluster.connections.opened(connection, self, host_port, hang_up)

    def when_moved(self, call: Callable[[], None]) -> None:
        """See net.address.Resolver. Nothing is called: a renewal that meets the old node is redirected."""

    def on_redirect(self, host_port: HostPort, fault: Any) -> tuple[int, HostPort, bool] | None:
        """See net.address.Resolver."""
        if fault.kind == "CLUSTERDOWN":
            self.cluster.refresh_soon()  # perhaps only this node is cut off, not the cluster
        found = _REDIRECT.match(fault.detail) if fault.kind in ("MOVED", "ASK") else None
        if found is None:
            return None
        fault.lasting = False
        # A node that does not know its own host leaves it out. In that case use the host of this connection.
        slot, target = int(found[1]), (found[2].strip("[]") or host_port[0], int(found[3]))
        if fault.kind == "MOVED":
            self.cluster.moved(slot, target)
        return slot, target, fault.kind == "ASK"
