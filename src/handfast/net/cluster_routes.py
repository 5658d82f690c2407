"""Which nodes an operation talks to, if some of a client's servers are clusters: each name has its own node there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from handfast.discovery.cluster import Cluster, Shard, slot_of
from handfast.errors import ConfigError
from handfast.net.address import Address, HostPort

__all__ = ["MOST_KNOWN", "Route", "SlotRouter", "suspected"]

MOST_KNOWN = 10_000
"""How many keys a client remembers the connections of."""

Route = tuple[HostPort | None, ...]
"""The node of each cluster of a client; None while it is not known."""


def suspected(addresses: Iterable[Address]) -> None:
    """Read the slot maps again after a node was silent: another node may serve its slots by now. If so, reading the map
    closes the old connection."""
    for address in addresses:
        if address.cluster is not None:
            address.cluster.refresh_soon()


class SlotRouter:
    """Finds the nodes for a slot. At least one of the client's servers is a cluster."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._clusters: list[Cluster] = [address.cluster for address in addresses if address.cluster is not None]

    def of(self, slot: int) -> Route:
        return tuple([cluster.host_ports[slot] for cluster in self._clusters])

    def forget_when_moved(self, known: dict[bytes, Any]) -> None:
        """Clear `known` whenever a slot moves."""
        for cluster in self._clusters:
            cluster.caches.append(known)

    def addresses(self, route: Route, slot: int) -> list[Address]:
        """The addresses of a route. `slot` finds the node again if the route's own node is gone."""
        preferred = iter(route)
        return [
            each if each.cluster is None else each._replace(resolver=Shard(each.cluster, next(preferred), slot))
            for each in self._addresses
        ]

    @staticmethod
    def taken(addresses: Sequence[Address]) -> Route:
        """The present route of connections, which redirects may have changed."""
        return tuple([each.resolver.preferred for each in addresses if isinstance(each.resolver, Shard)])

    @staticmethod
    def check(names: Sequence[str], keys: Sequence[bytes]) -> None:
        """Raise ConfigError unless all names of one lock are in one slot."""
        if len({slot_of(key) for key in keys}) > 1:
            shown = " and ".join(repr(f"{{t}}{name}") for name in names[:2])
            raise ConfigError(
                f"a cluster keeps {', '.join(map(repr, names))} in different slots, and no command takes both at once: "
                f"give the names a common hash tag, as in {shown}"
            )
