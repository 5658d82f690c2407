"""A fence for Redis keys: beside each key, another one keeps the largest token that was seen.

Check and write are one script (fence.lua), so no other write can come in between. The token's key is in the slot of the
key that it protects. It stays when that key is deleted, and is as durable as the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, overload

from handfast.errors import ConfigError, StaleToken
from handfast.fenced.claims import Tokened, token_of

__all__ = ["PREFIX", "RedisFence", "fence_key"]

PREFIX: Final = "handfast-fence"
"""The default prefix. It is not "handfast:", which is the prefix of the locks' keys."""

_CHECK: Final = "return nil"
_SET: Final = "redis.call('SET', KEYS[1], ARGV[1])"
_DELETE: Final = "return redis.call('DEL', KEYS[1])"
_INCRBY: Final = "return redis.call('INCRBY', KEYS[1], ARGV[1])"

Key: TypeAlias = str | bytes
Value: TypeAlias = str | bytes | int | float

# The return types of the methods: a result with a blocking client, a coroutine with an asyncio client.
Nothing = TypeVar("Nothing")
Number = TypeVar("Number")
Reply = TypeVar("Reply")


class Client(Protocol):
    """A blocking client: Redis or RedisCluster of redis-py, Valkey or ValkeyCluster of valkey-py."""

    def register_script(self, script: Any) -> Any: ...


class AsyncClient(Client, Protocol):
    """The asyncio clients of these libraries."""

    async def aclose(self) -> None: ...


class RedisFence(Generic[Nothing, Number, Reply]):
    """Checks a token and writes to Redis keys, in one step. With an asyncio client, every method returns a coroutine.

    `lease` is a lease or a token. A stale one raises StaleToken, and nothing is changed.
    """

    @overload
    def __init__(
        self: RedisFence[Coroutine[Any, Any, None], Coroutine[Any, Any, int], Coroutine[Any, Any, Any]],
        client: AsyncClient,
        prefix: str = ...,
    ) -> None: ...
    @overload
    def __init__(self: RedisFence[None, int, Any], client: Client, prefix: str = ...) -> None: ...
    def __init__(self, client: Client | AsyncClient, prefix: str = PREFIX) -> None:
        if not isinstance(prefix, str) or not prefix or {"{", "}"} & {*prefix}:
            raise ConfigError(f"prefix must be a string without braces, and not empty: {prefix!r}")
        if not hasattr(client, "register_script") or hasattr(client, "execute"):
            kind = type(client).__qualname__
            raise ConfigError(
                f"RedisFence takes a client of redis-py or valkey-py, and no pipeline, not an object of type {kind}"
            )
        self._client = client
        self._prefix = prefix.encode()
        self._scripts: dict[str, Callable[..., Any]] = {}

    def set(self, key: Key, value: Value, lease: Tokened | int) -> Nothing:
        """Set the key (SET)."""
        answer: Nothing = self._do(_SET, [key], [value], lease)
        return answer

    def delete(self, key: Key, lease: Tokened | int) -> Number:
        """Delete the key (DEL): 1 if it existed, else 0. Its largest token is kept."""
        answer: Number = self._do(_DELETE, [key], [], lease)
        return answer

    def incrby(self, key: Key, amount: int, lease: Tokened | int) -> Number:
        """Add to the key (INCRBY), and return the new value."""
        answer: Number = self._do(_INCRBY, [key], [amount], lease)
        return answer

    def check(self, key: Key, lease: Tokened | int) -> Nothing:
        """Only record the token, or refuse it, for a write elsewhere. A larger token may come before that write."""
        answer: Nothing = self._do(_CHECK, [key], [], lease)
        return answer

    def run(self, script: str, keys: Sequence[Key], args: Sequence[Value], lease: Tokened | int) -> Reply:
        """Check the token for all keys, run a Lua script in the same step, and return its reply.

        The script has KEYS and ARGV as usual. In a cluster its keys must be in one slot, as usual.
        """
        if not keys or isinstance(keys, (str, bytes)):
            raise ConfigError(f"keys must be a list of at least one key, not {keys!r}")
        if script.startswith("#!"):
            raise ConfigError("a script that is run behind a check has no #! line of its own")
        answer: Reply = self._do(script, keys, args, lease)
        return answer

    def _do(self, body: str, keys: Sequence[Key], args: Sequence[Value], lease: Tokened | int) -> Any:
        token = token_of(lease)
        if strange := [key for key in keys if not isinstance(key, (str, bytes))]:
            raise ConfigError(f"a key is a string or bytes, not {strange[0]!r}")
        resources = [key.encode() if isinstance(key, str) else key for key in keys]
        script = self._scripts.get(body)
        if script is None:
            script = self._scripts[body] = self._client.register_script(_FENCE.replace("BODY", body))
        answer = script([*resources, *(fence_key(self._prefix, key) for key in resources)], [token, *args])

        async def later() -> Any:
            return _judged(await answer, resources, token)

        return later() if hasattr(answer, "__await__") else _judged(answer, resources, token)


def fence_key(prefix: bytes, key: bytes) -> bytes:
    """The key of the largest token of a key. It is unique, and in the slot of that key.

    A key with a hash tag keeps its tag. Any other key becomes a tag as a whole. (A key with a stray brace cannot: in a
    cluster this is an error, CROSSSLOT.)
    """
    tag = key.partition(b"{")[2]
    tagged = b"}" in tag and not tag.startswith(b"}")
    return prefix + b":" + key if tagged else prefix + b"{" + key + b"}"


def _judged(answer: Any, resources: Sequence[bytes], token: int) -> Any:
    if answer[0] == 0:
        resource = resources[answer[1] - 1].decode(errors="replace")
        raise StaleToken(resource, token=token, seen=int(answer[2]))
    return answer[1]


def _text() -> str:
    with open(os.path.join(os.path.dirname(__file__), "fence.lua"), encoding="utf-8") as file:
        return "".join(line for line in file if not line.startswith("--"))


_FENCE: Final = _text()
