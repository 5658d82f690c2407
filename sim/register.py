"""Two resources that a lock protects: one checks tokens, one does not."""

from __future__ import annotations

__all__ = ["Register"]


class Register:
    """Both resources, for one name."""

    def __init__(self) -> None:
        self._seen = 0
        self._value = 0
        self._plain = 0
        self.stale = 0
        """Writes that were refused because of their tokens."""
        self.lost = 0
        """Lost updates of the unchecked resource. Tokens prevent these."""

    def read(self, token: int) -> tuple[int, int] | None:
        """Both values; None if a larger token was seen."""
        if token < self._seen:
            self.stale += 1
            return None
        # Reading records the token too: otherwise an earlier holder could still write after this read.
        self._seen = token
        return self._value, self._plain

    def write(self, token: int, value: int) -> bool:
        """True if this write has lost an update."""
        if token < self._seen:
            self.stale += 1
            return False
        lost = self._value + 1 != value
        self._seen = token
        self._value = value
        return lost

    def write_plain(self, value: int) -> bool:
        lost = self._plain + 1 != value
        self.lost += lost
        self._plain = value
        return lost
