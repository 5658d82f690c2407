"""redis-py as it was before 6.0, in one respect: it compares host names only on request.

A program imports this before handfast.
"""

from __future__ import annotations

import inspect
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.connection import SSLConnection as AsyncSSLConnection
from redis.connection import SSLConnection

for _kind in (redis.Redis, redis.asyncio.Redis, SSLConnection, AsyncSSLConnection):
    _function: Any = inspect.unwrap(_kind.__init__)
    _words = [each for each in inspect.signature(_function).parameters.values() if each.default is not each.empty]
    _function.__defaults__ = tuple(
        False if each.name == "ssl_check_hostname" else each.default
        for each in _words
        if each.kind is each.POSITIONAL_OR_KEYWORD
    )
