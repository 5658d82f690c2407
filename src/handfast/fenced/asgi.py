"""A fence at the door of an ASGI application: a request with a stale token is answered 412 and does not come in.

What it promises: a request that comes in after a larger token came in for the same resource is refused. What it
cannot: the handler runs after the check, and may be overtaken before it writes. So the token goes on to the handler, as
scope["handfast.token"], and the resource that is written to has the last word; its StaleToken becomes a 412 here too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol, TypeAlias, cast

from handfast.errors import ConfigError, StaleToken
from handfast.fenced.claims import is_token, token_of

__all__ = ["FencingMiddleware", "MemoryFence"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

Check: TypeAlias = Callable[[str, int], Awaitable[None]]


class Store(Protocol):
    """What keeps the newest tokens: a RedisFence with an asyncio client, a MemoryFence, or your own."""

    def check(self, key: str, lease: int, /) -> Awaitable[None]:
        """Raise StaleToken if a larger token was seen for this resource, else note this one."""
        ...


class MemoryFence:
    """The newest tokens in this process' memory: for a server of one process, and until it restarts."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    async def check(self, resource: str, token: int) -> None:
        newest = self._seen.get(resource, 0)
        if token_of(token) < newest:
            raise StaleToken(resource, token=token, seen=newest)
        self._seen[resource] = token


def path_of(scope: Scope) -> str:
    return str(scope["path"])


class FencingMiddleware:
    """Refuses a stale token with 412, one that is no token with 400, and, if `required`, a missing one with 428.

    `store` is an object with `check`, or an async function of (resource, token) that raises StaleToken. `resource` names
    what a request is about, by default its path; None lets the request pass unchecked.
    """

    def __init__(
        self,
        app: App,
        store: Store | Check,
        resource: Callable[[Scope], str | None] = path_of,
        header: str = "Fencing-Token",
        methods: Iterable[str] = ("POST", "PUT", "PATCH", "DELETE"),
        required: bool = True,
    ) -> None:
        self._check = cast(Check, getattr(store, "check", store))
        if not callable(self._check):
            raise ConfigError(f"store must have check(resource, token) or be such a function, not {store!r}")
        if isinstance(methods, str):
            raise ConfigError(f"methods must be a list of methods, not {methods!r}")
        self.app = app
        self.header = header
        self.required = required
        self._resource = resource
        self._field = header.lower().encode("latin-1")
        self._methods = frozenset(method.upper() for method in methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            return await self.app(scope, receive, send)
        resource = self._resource(scope)
        if resource is None:
            return await self.app(scope, receive, send)
        given = [value for name, value in scope["headers"] if name.lower() == self._field]
        if not given and not self.required:
            return await self.app(scope, receive, send)
        if not given:
            return await _refuse(send, 428, f"{resource}: a {self.header} header is required here")
        token = _parsed(given)
        if token is None:
            return await _refuse(send, 400, f"{self.header} must be one whole number from 1 to 2**53 - 1")
        return await self._fenced(resource, token, scope, receive, send)

    async def _fenced(self, resource: str, token: int, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            answer = self._check(resource, token)
            if not hasattr(answer, "__await__"):
                raise ConfigError("the store of FencingMiddleware must be async: RedisFence needs an asyncio client here")
            await answer
            scope["handfast.token"] = token
            await self.app(scope, receive, noting)
        except StaleToken as stale:
            if started:
                raise
            await _refuse(send, 412, str(stale), resource=stale.resource, token=stale.token, newest=stale.seen)


def _parsed(given: list[bytes]) -> int | None:
    if len(given) != 1 or not given[0].isdigit() or len(given[0]) > 16:
        return None
    token = int(given[0])
    return token if is_token(token) else None


_TITLES = {400: "Bad Request", 412: "Precondition Failed", 428: "Precondition Required"}


async def _refuse(send: Send, status: int, detail: str, **members: str | int) -> None:
    """An answer as RFC 9457 has it."""
    body = json.dumps({"title": _TITLES[status], "status": status, "detail": detail, **members}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
