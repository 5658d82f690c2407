"""Access control of the dashboard.

On loopback every user of this machine has access. On any other address every request needs a token. The announced
address contains it; the browser keeps a proof of it in a cookie, because a stream of events cannot have its own headers.

The Host header must be one of the page's names. Otherwise a web page could point its own name at this address and read
the data (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Access", "is_loopback"]

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Access:
    """Wraps the application: adds the headers to every answer, and refuses requests without access."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str | None, names: Sequence[str]) -> None:
        self._app = app
        self._loopback = is_loopback(host)
        self._names = {"localhost", host.lower(), *(name.lower() for name in names)}
        self.token = token or (None if self._loopback else secrets.token_urlsafe(24))
        """None: no token is needed."""
        # Cookies are the same for all ports of a host: another service may see this one, and must not learn the token.
        self._cookie = f"handfast_dashboard_{port}"
        self._proof = hmac.digest((self.token or "").encode(), b"handfast dashboard cookie", hashlib.sha256).hex()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        is_open = False

        async def send_with_headers(message: Message) -> None:
            nonlocal is_open
            is_open = message["type"] == "http.response.start" or message.get("more_body", False)
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refuses(Request(scope))
        await (self._app if refused is None else refused)(scope, receive, send_with_headers)
        if is_open:
            # The server is ending and has cut off this stream. Without a last message it would complain on stderr.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _refuses(self, request: Request) -> Response | None:
        """The answer to a request without access; None if it has access."""
        if not self._is_our_name(request.headers.get("host", "")):
            return PlainTextResponse("this page is not served under that name: use --allow-host\n", 421)
        if self.token is None:
            return None
        given = request.query_params.get("token")
        if given is not None and _equal(given, self.token):
            # Once in the address is enough: from here on the cookie proves it, and the token is not left in the history.
            answer: Response = RedirectResponse(request.url.path, 303)
            answer.set_cookie(self._cookie, self._proof, httponly=True, samesite="strict")
            return answer
        if self._has_proof(request):
            return None
        return PlainTextResponse("this page needs the token: use the address that `handfast dashboard` printed\n", 401)

    def _has_proof(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return _equal(given, self.token or "")
        return _equal(request.cookies.get(self._cookie, ""), self._proof)

    def _is_our_name(self, header: str) -> bool:
        """Whether this is one of the page's names. An IP address always is, because it cannot be pointed elsewhere."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(), expected.encode())
