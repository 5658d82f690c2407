"""The checks that make fencing tokens useful: a resource refuses a token that is smaller than one it has seen.

`SqlFence` checks inside your own transaction, `RedisFence` in the same step as the write, `FencingMiddleware` at the door
of an ASGI application. A stale write raises StaleToken and changes nothing. Nothing here imports a database driver,
SQLAlchemy or redis-py: whoever passes a connection has done so.
"""

from __future__ import annotations

from handfast.fenced.asgi import FencingMiddleware, MemoryFence
from handfast.fenced.redis import RedisFence
from handfast.fenced.sql import SqlFence

__all__ = ["FencingMiddleware", "MemoryFence", "RedisFence", "SqlFence"]
