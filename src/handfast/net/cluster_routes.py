"""Which connections a lock's operations use. Mostly there is one set of them; on a cluster each name has its own node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from handfast.discovery.cluster import Cluster, Shard, slot_of
from handfast.errors import ConfigError
from handfast.net.address import Address, HostPort

__all__ = ["MOST_KNOWN", "Route", "SlotRouter", "suspected"]

MOST_KNOWN = 10_000
"""Keys whose connections are remembered."""

Route = tuple[HostPort | None, ...]
"""Of each cluster among a client's servers: the node; None while that is not known."""


def suspected(addresses: Iterable[Address]) -> None:
    """A node has been silent: perhaps another serves its slots by now. Its connection is hung up when that is known."""
    for address in addresses:
        if address.cluster is not None:
            address.cluster.refresh_soon()


class SlotRouter:
    """The ways to the servers of a client, at least one of which is a cluster."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._clusters: list[Cluster] = [address.cluster for address in addresses if address.cluster is not None]

    def of(self, slot: int) -> Route:
        return tuple([cluster.host_ports[slot] for cluster in self._clusters])

    def forget_when_moved(self, known: dict[bytes, Any]) -> None:
        """Have it emptied whenever a slot is known to have moved."""
        for cluster in self._clusters:
            cluster.caches.append(known)

    def addresses(self, route: Route, slot: int) -> list[Address]:
        """For connections that take this route, made for this slot first of all."""
        preferred = iter(route)
        return [
            each if each.cluster is None else each._replace(resolver=Shard(each.cluster, next(preferred), slot))
            for each in self._addresses
        ]

    @staticmethod
    def taken(addresses: Sequence[Address]) -> Route:
        """The route of connections to these, which may have been sent on to other nodes."""
        return tuple([each.resolver.preferred for each in addresses if isinstance(each.resolver, Shard)])

    @staticmethod
    def check(names: Sequence[str], keys: Sequence[bytes]) -> None:
        """Several names of one lock must live on one node."""
        if len({slot_of(key) for key in keys}) > 1:
            shown = " and ".join(repr(f"{{t}}{name}") for name in names[:2])
            raise ConfigError(
                f"a cluster keeps {', '.join(map(repr, names))} in different slots, and no command takes both at once: "
                f"give the names a common hash tag, as in {shown}"
            )
