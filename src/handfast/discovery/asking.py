"""How servers are asked where others are: by redis-py, with short patience and no retries of its own."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["PATIENCE", "once"]

ANSWER: Final = 0.4
"""Seconds that one server has to answer; then another is asked."""


PATIENCE: Final[dict[str, Any]] = {"socket_timeout": ANSWER, "socket_connect_timeout": ANSWER}
"""Options for redis-py's clients."""


def once() -> dict[str, Any]:
    """And no retries, where redis-py does not see to that itself."""
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return {**PATIENCE, "retry": Retry(NoBackoff(), 0)}
