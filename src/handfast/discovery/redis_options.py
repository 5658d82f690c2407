"""Options of redis-py's connections, turned into the fields of an Address. This does not import redis-py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from handfast.discovery.urls import tls_context

if TYPE_CHECKING:
    import ssl

__all__ = ["TLS_WORDS", "login_of", "tls_of"]

TLS_WORDS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")


def tls_of(options: Mapping[str, Any]) -> Callable[[], ssl.SSLContext]:
    """Return a function that makes the TLS context."""
    return tls_context(**{word: options[word] for word in TLS_WORDS if word in options})


def login_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The login fields of an Address: user name and password, or the function that returns them."""
    provider = options.get("credential_provider")
    return {
        "username": options.get("username") or "",
        "password": options.get("password") or "",
        "credentials": _credentials(provider) if provider is not None else None,
    }


def _credentials(provider: Any) -> Callable[[], tuple[str, str]]:
    def ask() -> tuple[str, str]:
        given = provider.get_credentials()
        return ("", given[0]) if len(given) == 1 else (given[0] or "", given[1])

    return ask
