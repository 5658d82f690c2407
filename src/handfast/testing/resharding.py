"""Moves one slot from one master to another, step by step.

While the slot moves, the source answers for the keys that it still has, and redirects all other requests (ASK). A command
with keys on both sides gets TRYAGAIN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..embedded.resp import ReplyError
from .cluster_node import ClusterNode
from .ports import LOOPBACK

__all__ = ["SlotMove"]

PATIENCE_MS: Final = 5000


class SlotMove:
    """The move of one slot. `cluster.moving(slot, to)` begins it, and finishes it at the end of its block."""

    def __init__(
        self, slot: int, source: ClusterNode, target: ClusterNode, masters: Sequence[ClusterNode], keys_per_step: int
    ) -> None:
        self.slot = slot
        self.source = source
        self.target = target
        self._masters = masters
        self._keys_per_step = keys_per_step

    def begin(self) -> None:
        self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.id)

    def step(self, keys: int = 1) -> int:
        """Move up to so many keys, and return how many were moved."""
        found = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, keys)
        assert isinstance(found, list)
        names = [key for key in found if isinstance(key, bytes)]
        if names:
            self._migrate(names)
        return len(names)

    def finish(self) -> None:
        """Move the remaining keys, and tell all masters the slot's new owner. The new owner comes first, so that the slot
        always has an owner."""
        while self.step(self._keys_per_step):
            pass
        others = [master for master in self._masters if master not in (self.source, self.target) and master.alive]
        for master in (self.target, self.source, *others):
            try:
                master.command("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)
            except ReplyError as error:
                # This master has lost its last slot, and has already become a replica of the new owner.
                if "only with masters" not in str(error) or master is self.target:
                    raise

    def _migrate(self, keys: Sequence[bytes]) -> None:
        password = self.target.config.get("requirepass")
        login = ("AUTH", password) if password else ()
        place = (LOOPBACK, self.target.port, "", 0, PATIENCE_MS)
        self.source.command("MIGRATE", *place, "REPLACE", *login, "KEYS", *keys, timeout=2 * PATIENCE_MS / 1000)
