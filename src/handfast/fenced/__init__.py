"""Checks of fencing tokens: a resource refuses a token that is smaller than one that it has seen.

`SqlFence` checks inside the caller's transaction, `RedisFence` in one step with the write, and `FencingMiddleware` before
a request reaches an ASGI application. A stale write raises StaleToken and changes nothing. Nothing here imports a
database driver, SQLAlchemy or redis-py: a caller that passes a connection has imported its library already.
"""

from __future__ import annotations

from handfast.fenced.asgi import FencingMiddleware, MemoryFence
from handfast.fenced.redis import RedisFence
from handfast.fenced.sql import SqlFence

__all__ = ["FencingMiddleware", "MemoryFence", "RedisFence", "SqlFence"]
