"""A fence in front of an ASGI application: a request with a stale token gets 412 and does not reach the application.

It promises this: after a request with a larger token for a resource, requests with smaller tokens are refused. It cannot
prevent that a newer request overtakes the handler between the check and the write. So the handler gets the token as
scope["handfast.token"], and the resource should check it again. A StaleToken of the handler becomes a 412 as well.
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
    """Keeps the largest tokens: a RedisFence with an asyncio client, a MemoryFence, or a class of the user's."""

    def check(self, key: str, lease: int, /) -> Awaitable[None]:
        """Raise StaleToken if a larger token was seen for this resource; otherwise record this one."""
        ...


class MemoryFence:
    """Keeps the largest tokens in memory, until a restart. It suits a server of one process."""

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
    """Refuses a stale token with 412, an invalid token with 400, and, if `required`, a missing token with 428.

    `store` is an object with `check`, or an async function of (resource, token) that raises StaleToken. `resource`
    returns the name of the resource of a request, by default its path; None lets the request pass unchecked.
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
    """Send a refusal in the format of RFC 9457."""
    body = json.dumps({"title": _TITLES[status], "status": status, "detail": detail, **members}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
