"""Options of the redis-py clients that ask Sentinel and Cluster for addresses: short timeouts, no retries."""

from __future__ import annotations

from typing import Any, Final

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["PATIENCE", "once"]

# redis-py imports some modules when it makes its first connection object. Make one here, because a fork during such an
# import is dangerous (see net/address.py). Nothing is sent.
ConnectionPool().make_connection()

ANSWER: Final = 0.4
"""Seconds that one server has to answer before another one is asked."""


PATIENCE: Final[dict[str, Any]] = {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
"""Timeouts for redis-py's clients."""


def once() -> dict[str, Any]:
    """Options with timeouts and without retries, for the clients of redis-py that retry by default."""
    return {**PATIENCE, "retry": Retry(NoBackoff(), 0)}
