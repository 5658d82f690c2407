"""How servers are asked where others are: by redis-py, with short patience and no retries of its own."""

from __future__ import annotations

from typing import Any, Final

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["PATIENCE", "once"]

# redis-py imports some modules when it makes its first connection object. Do that here, for the reason in net/address.py;
# nothing is sent.
ConnectionPool().make_connection()

ANSWER: Final = 0.4
"""Seconds that one server has to answer; then another is asked."""


PATIENCE: Final[dict[str, Any]] = {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
"""Options for redis-py's clients."""


def once() -> dict[str, Any]:
    """And no retries, where redis-py does not see to that itself."""
    return {**PATIENCE, "retry": Retry(NoBackoff(), 0)}
