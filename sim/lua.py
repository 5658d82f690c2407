"""Runs the production scripts in a Lua interpreter, as a server does: same text, same conversions.

A script sees its server as `KEYS`, `ARGV` and `redis`. Each process compiles a script once; each run names the store that
it works on.

Values are bytes. Conversions follow the documentation of EVAL: a nil reply is false in Lua. A number that a script passes
to a command is written with 17 digits, and a number that it returns loses its fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from lupa.lua51 import LuaError, LuaRuntime  # pyright: ignore[reportMissingModuleSource]

from handfast.protocol import scripts

__all__ = ["NAMES", "Commands", "ReplyError", "replace", "run"]

NAMES: Final[dict[bytes, str]] = {sha: name for name, sha in scripts.SHA.items()}
"""By digest: the names of the scripts."""

# The time is an argument, and Lua code builds and reads arrays, because each call between Lua and Python takes as long as
# a command. An array reply arrives as several values.
_WRAPPER: Final = b"""
local redis, KEYS, ARGV = {}, nil, nil
local call, try, is_array, seconds, micros = ...
local function array(first, ...)
  if type(first) == 'table' then return first end -- an error
  return {first, ...}
end
function redis.call(command, ...)
  if command == 'TIME' then return {seconds, micros} end
  if is_array[command] then return {call(command, ...)} end
  return call(command, ...)
end
function redis.pcall(command, ...)
  if is_array[command] then return array(try(command, ...)) end
  return try(command, ...)
end
function redis.error_reply(text) return {err = text} end
local function script()
%b
end
return function(n, s, us, ...)
  seconds, micros = s, us
  KEYS, ARGV = {unpack({...}, 1, n)}, {select(n + 1, ...)}
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

    def execute(self, words: Sequence[bytes]) -> Any: ...
    def micros(self) -> int: ...


_runtime: Final = cast(Any, LuaRuntime)(encoding=None, unpack_returned_tuples=True)
_table: Final = _runtime.table_from
_OK: Final = _table({b"ok": b"OK"})
_IS_ARRAY: Final = _table(dict.fromkeys((b"MGET", b"HGETALL", b"ZRANGE", b"ZPOPMIN", b"PUBSUB"), True))
"""The commands whose replies are arrays."""
_compiled: dict[str, Any] = {}
_replaced: dict[str, bytes] = {}
_store: Commands | None = None
_join: Final = b"".join


def _number(value: Any) -> bytes:
    """A number in the form in which a command gets it."""
    return b"%d" % value if type(value) is int else b"%.17g" % value


def _flat(reply: Any) -> list[Any]:
    """The elements of an array. Maps and pairs become flat, and doubles become strings."""
    if isinstance(reply, dict):
        return [word for pair in reply.items() for word in pair]
    flat: list[Any] = []
    for each in reply:
        if type(each) is list:
            flat += _flat(each)
        else:
            flat.append(_number(each) if type(each) is float else False if each is None else each)
    return flat


def _call(*words: Any) -> Any:
    assert _store is not None
    try:
        _join(words)
    except TypeError:  # numbers among them
        words = tuple([word if type(word) is bytes else _number(word) for word in words])
    reply = _store.execute(words)
    if reply is None:
        return False
    kind = type(reply)
    if kind is bytes or kind is int:
        return reply
    return _OK if kind is str else tuple(_flat(reply))


def _pcall(*words: Any) -> Any:
    try:
        return _call(*words)
    except ReplyError as error:
        return _table({b"err": str(error).encode()})


def _function(name: str) -> Any:
    function = _compiled.get(name)
    if function is None:
        text = _WRAPPER % _replaced.get(name, scripts.TEXT[name])
        function = _compiled[name] = _runtime.compile(text)(_call, _pcall, _IS_ARRAY)
    return function


def replace(name: str, text: bytes | None) -> None:
    """Runs another text in place of a script; None restores its own."""
    _compiled.pop(name, None)
    if text is None:
        _replaced.pop(name, None)
    else:
        _replaced[name] = text


def run(store: Commands, name: str, keys: int, words: Sequence[bytes]) -> Any:
    """The reply of a script. `words`: the number of keys, the keys, the arguments."""
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
