"""Timeouts of the redis-py connections that read the slot map of a cluster."""

from __future__ import annotations

from typing import Any, Final

from redis import ConnectionPool

__all__ = ["PATIENCE"]

# redis-py imports some modules when it makes its first connection object. Make one here, because a fork during such an
# import is dangerous (see net/address.py). Nothing is sent.
ConnectionPool().make_connection()

ANSWER: Final = 0.4
"""Seconds that one server has to answer before another one is asked."""


PATIENCE: Final[dict[str, Any]] = {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
"""Timeouts for redis-py's clients."""
