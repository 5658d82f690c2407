"""Two counters on a server without faults: one accepts every write, the other checks tokens.

It would not be enough for read-modify-write if a fenced register compared tokens only at writes: a late write of an old
holder could come between the new holder's read and its write. So a read presents its token too, and the register refuses
smaller ones from that moment on. Every accepted write gets the next number, in the same step.
"""

from __future__ import annotations

from typing import Final

from handfast.embedded.resp import Connection

__all__ = ["Registers"]

# KEYS: value, number of writes, highest token. ARGV: token, or '' at a register that is not fenced; value.
READ: Final = """
if ARGV[1] ~= '' then
  if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[3]) or '0') then return false end
  redis.call('SET', KEYS[3], ARGV[1])
end
return tonumber(redis.call('GET', KEYS[1]) or '0')
"""
WRITE: Final = """
if ARGV[1] ~= '' then
  if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[3]) or '0') then return false end
  redis.call('SET', KEYS[3], ARGV[1])
end
redis.call('SET', KEYS[1], ARGV[2])
return redis.call('INCR', KEYS[2])
"""


class Registers:
    """A connection to both counters, one per thread. Without a token a register accepts everything."""

    def __init__(self, port: int) -> None:
        self._link = Connection(("127.0.0.1", port), timeout=30.0)

    def read(self, register: str, token: int | None = None) -> int | None:
        """The value; None if the token is stale."""
        return self._ask(READ, register, token)

    def write(self, register: str, value: int, token: int | None = None) -> int | None:
        """The number of this write; None if the token is stale."""
        return self._ask(WRITE, register, token, str(value))

    def close(self) -> None:
        self._link.close()

    def _ask(self, script: str, register: str, token: int | None, *more: str) -> int | None:
        keys = (f"{{{register}}}", f"{{{register}}}:writes", f"{{{register}}}:token")
        said = self._link.command("EVAL", script, 3, *keys, "" if token is None else str(token), *more)
        assert said is None or isinstance(said, int)
        return said
