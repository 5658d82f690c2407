"""Server addresses from URLs.

    redis://[user[:password]@]host[:port][/db][?option=value]      valkey:// is the same
    rediss://…                                                      with TLS; valkeys:// is the same
    unix://[user[:password]@]/path/to/socket[?db=1]

Options: db, username, password, client_name; with TLS ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_cert_reqs (required,
optional or none), ssl_check_hostname. Anything else is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.errors import ConfigError
from handfast.wire.dial import Address

if TYPE_CHECKING:
    import ssl
    from urllib.parse import SplitResult

__all__ = ["parse", "tls_context"]

_COMMON: Final = frozenset({"db", "username", "password", "client_name"})
_TLS: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})
ENCODE: Final = "user name and password"
_SCHEMES: Final = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}


def parse(url: object) -> Address:
    """One server's address, or a ConfigError that says what is wrong with it."""
    from urllib.parse import urlsplit

    if not isinstance(url, str):
        raise ConfigError(f"a server is given by its URL, a string, not by a {type(url).__name__}")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        # Its own text may contain what is not to be shown.
        raise ConfigError(f"{_shown(url)}: not a valid URL; look at the port, and at {ENCODE}") from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(f"{_shown(url)}: '#', '/', '?' and '@' must be percent-encoded in {ENCODE}")
    if port == 0:
        raise ConfigError(f"{_shown(url)}: port 0 cannot be connected to")
    if parts.scheme == "unix":
        return _unix(url, parts)
    if parts.scheme not in _SCHEMES:
        raise ConfigError(
            f"{_shown(url)}: unknown scheme {parts.scheme!r}; use redis://, rediss://, valkey://, valkeys://, unix:// "
            "or embedded://"
        )
    tls = _SCHEMES[parts.scheme]
    options = _options(url, parts, _COMMON | _TLS if tls else _COMMON)
    host = parts.hostname or "localhost"
    path = parts.path.strip("/")
    if path and "db" in options:
        raise ConfigError(f"{_shown(url)}: the database is given twice")
    shown = f"[{host}]" if ":" in host else host
    db = _number(url, path or options.get("db", "0"))
    return Address(
        label=f"{parts.scheme}://{shown}:{port or 6379}" + (f"/{db}" if db else ""),
        host=host,
        port=port or 6379,
        db=db,
        tls=tls_context(**{word: value for word, value in options.items() if word in _TLS}) if tls else None,
        **_who(parts, options),
    )


def _unix(url: str, parts: SplitResult) -> Address:
    from urllib.parse import unquote

    options = _options(url, parts, _COMMON)
    if not parts.path:
        raise ConfigError(f"{_shown(url)}: a path is missing, as in unix:///run/redis.sock")
    db = _number(url, options.get("db", "0"))
    path = unquote(parts.path)
    return Address(label=f"unix://{path}" + (f"?db={db}" if db else ""), path=path, db=db, **_who(parts, options))


def _who(parts: SplitResult, options: dict[str, str]) -> dict[str, Any]:
    from urllib.parse import unquote

    return {
        "username": unquote(parts.username or "") or options.get("username", ""),
        "password": unquote(parts.password or "") or options.get("password", ""),
        "client_name": _client_name(options.get("client_name", "handfast")),
    }


def _client_name(name: str) -> str:
    if not all("!" <= c <= "~" for c in name):
        raise ConfigError(f"client_name must be printable ASCII without spaces, not {name!r}")
    return name


def _options(url: str, parts: SplitResult, known: frozenset[str]) -> dict[str, str]:
    from urllib.parse import parse_qsl

    options: dict[str, str] = {}
    for word, value in parse_qsl(parts.query, keep_blank_values=True):
        if word not in known:
            raise ConfigError(f"{_shown(url)}: unknown option {word!r}; known are {', '.join(sorted(known))}")
        if word in options:
            raise ConfigError(f"{_shown(url)}: option {word!r} is given twice")
        options[word] = value
    return options


def _number(url: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{_shown(url)}: the database must be a number, not {text!r}")
    return int(text)


def _shown(url: str) -> str:
    """The URL without what is or may be secret in it."""
    head, sep, rest = url.strip().partition("://")
    if not sep:
        return repr(head.rpartition("@")[2][:40])
    place = rest.partition("?")[0]
    if "@" in rest[len(place) :] or "#" in rest:
        return f"{head}://…"  # what of it is the address cannot be told
    return f"{head}://{place.rpartition('@')[2]}"


def tls_context(
    ssl_ca_certs: str | None = None,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    ssl_cert_reqs: Any = "required",
    ssl_check_hostname: Any = None,
) -> Callable[[], ssl.SSLContext]:
    """Makes the TLS context when it is first needed, with redis-py's words for what goes into it."""
    import ssl

    levels = {
        "required": ssl.CERT_REQUIRED,
        "optional": ssl.CERT_OPTIONAL,
        "none": ssl.CERT_NONE,
        None: ssl.CERT_NONE,
    }
    level = ssl_cert_reqs if isinstance(ssl_cert_reqs, ssl.VerifyMode) else levels.get(ssl_cert_reqs)
    if level is None:
        raise ConfigError(f"ssl_cert_reqs must be required, optional or none, not {ssl_cert_reqs!r}")
    flags = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    check = ssl_check_hostname
    if isinstance(check, str):
        if check.lower() not in flags:
            raise ConfigError(f"ssl_check_hostname must be true or false, not {check!r}")
        check = flags[check.lower()]
    if check is None:
        check = level != ssl.CERT_NONE

    @functools.cache
    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ssl_ca_certs)
        context.check_hostname = bool(check)
        context.verify_mode = level
        if ssl_certfile:
            context.load_cert_chain(ssl_certfile, ssl_keyfile)
        return context

    return make


def distinct(addresses: Sequence[Address]) -> None:
    """A server that is listed twice would have two votes. By address here; by run_id once it is connected."""
    seen: set[tuple[str, int, str]] = set()
    for address in addresses:
        place = (address.host.lower(), address.port if not address.path else 0, address.path)
        if place in seen:
            raise ConfigError(f"{address.label} is listed twice: each server has one vote")
        seen.add(place)
