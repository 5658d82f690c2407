"""Runs the production scripts in a Lua interpreter, as a server does: same text, same conversions.

`KEYS`, `ARGV` and `redis` are what a script sees of its server. A script is compiled once for each process; which store
it works on is said with each run.

Values are bytes. A nil reply is false in Lua, and so on, as the documentation of EVAL says. A number that a script hands
to a command is written with 17 digits, and a number that it returns loses its fraction.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, cast

from lupa.lua51 import LuaError, LuaRuntime  # pyright: ignore[reportMissingModuleSource]

from handfast.protocol import scripts

__all__ = ["NAMES", "Commands", "ReplyError", "replace", "run"]

NAMES: Final[dict[bytes, str]] = {sha: name for name, sha in scripts.SHA.items()}
"""By digest: the names of the scripts."""

# The time is handed in and the result is taken apart in Lua: each step across the border takes as long as a command.
_WRAPPER: Final = b"""
local redis, KEYS, ARGV = {}, {}, {}
local host, seconds, micros = ...
function redis.call(command, ...)
  if command == 'TIME' then return {seconds, micros} end
  return host.call(command, ...)
end
function redis.pcall(...) return host.pcall(...) end
function redis.error_reply(text) return {err = text} end
local function script()
%b
end
return function(n, s, us, ...)
  local words = {...}
  seconds, micros = s, us
  for i = #KEYS, 1, -1 do KEYS[i] = nil end
  for i = #ARGV, 1, -1 do ARGV[i] = nil end
  for i = 1, n do KEYS[i] = words[i] end
  for i = n + 1, #words do ARGV[i - n] = words[i] end
  local reply = script()
  if type(reply) ~= 'table' then return 'one', reply end
  if reply.err then return 'error', reply.err end
  if reply.ok then return 'status', reply.ok end
  return 'many', unpack(reply)
end
"""


class ReplyError(Exception):
    """An error reply of a command."""


class Commands(Protocol):
    """A store, as scripts see it."""

    def execute(self, words: list[bytes]) -> Any: ...
    def micros(self) -> int: ...


_runtime: Final = cast(Any, LuaRuntime)(encoding=None)
_table: Final = _runtime.table_from
_OK: Final = _table({b"ok": b"OK"})
_compiled: dict[str, Any] = {}
_replaced: dict[str, bytes] = {}
_store: Commands | None = None


def _number(value: Any) -> bytes:
    """A number as a command gets it."""
    return b"%d" % value if type(value) is int else b"%.17g" % value


def _lua(reply: Any) -> Any:
    """A reply as Lua gets it, unless it is bytes or a number, which are the same there."""
    if reply is None:
        return False
    if type(reply) is str:
        return _OK
    return _table(_flat(reply))


def _flat(reply: Any) -> list[Any]:
    """The elements of an array; maps and pairs are flat, and doubles are strings."""
    if isinstance(reply, dict):
        return [word for pair in reply.items() for word in pair]
    flat: list[Any] = []
    for each in reply:
        if type(each) is list:
            flat += _flat(each)
        else:
            flat.append(_number(each) if type(each) is float else each)
    return flat


def _call(*words: Any) -> Any:
    assert _store is not None
    reply = _store.execute([word if type(word) is bytes else _number(word) for word in words])
    return reply if type(reply) is bytes or type(reply) is int else _lua(reply)


def _pcall(*words: Any) -> Any:
    try:
        return _call(*words)
    except ReplyError as error:
        return _table({b"err": str(error).encode()})


_host: Final = _table({b"call": _call, b"pcall": _pcall})


def _function(name: str) -> Any:
    function = _compiled.get(name)
    if function is None:
        text = _WRAPPER % _replaced.get(name, scripts.TEXT[name])
        function = _compiled[name] = _runtime.compile(text)(_host)
    return function


def replace(name: str, text: bytes | None) -> None:
    """Run another text in place of a script; None: its own again."""
    _compiled.pop(name, None)
    if text is None:
        _replaced.pop(name, None)
    else:
        _replaced[name] = text


def run(store: Commands, name: str, keys: int, words: list[bytes]) -> Any:
    """The reply of a script. `words`: so many keys, then the arguments."""
    global _store
    _store = store
    try:
        seconds, micros = divmod(store.micros(), 1_000_000)
        kind, *values = _function(name)(keys, b"%d" % seconds, b"%d" % micros, *words)
    except ReplyError as error:
        return f"-{error}"
    except LuaError as error:
        return f"-ERR {str(error).partition(chr(10))[0]}"
    finally:
        _store = None
    if kind == b"many":
        return [_reply(value) for value in values]
    if kind == b"one":
        return _reply(values[0]) if values else None
    text = values[0].decode()
    return text if kind == b"status" else f"-{text}"


def _reply(value: Any) -> Any:
    """A value of Lua's as a reply."""
    if type(value) is float:
        return int(value)
    if value is True:
        return 1
    return None if value is False else value
