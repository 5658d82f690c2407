"""Parses the URLs of servers.

    redis://[user[:password]@]host[:port][/db][?option=value]      also valkey://
    rediss://…                                                      with TLS; also valkeys://
    unix://[user[:password]@]/path/to/socket[?db=1]
    redis+sentinel://[user[:password]@]host[:26379][,host…]/master[/db][?option=value]
    redis+cluster://[user[:password]@]host[:6379][,host…][?option=value]
                                                                    both also with rediss, valkey, valkeys

Options: db, username, password, client_name; with TLS ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_cert_reqs (required,
optional or none), ssl_check_hostname; with Sentinel sentinel_username, sentinel_password and sentinel_ssl (true or false,
where it differs). Anything else is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.errors import ConfigError
from handfast.net.address import Address

if TYPE_CHECKING:
    import ssl
    from urllib.parse import SplitResult

__all__ = ["checking", "not_this", "parse", "tls_context", "unknown_option", "verifies", "without_secrets"]

HostPort = tuple[str, int]

_COMMON: Final = frozenset({"db", "username", "password", "client_name"})
_TLS: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"})
ENCODE: Final = "user name and password"
CERT_NONE: Final = 0
"""`ssl.CERT_NONE`. Programs without TLS should not pay for importing `ssl`."""
_SENTINEL: Final = frozenset({"sentinel_username", "sentinel_password", "sentinel_ssl"})
_FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_SCHEMES: Final = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}

# Errors show only text of these forms. Anything else may be a password, or a part of one that was not percent-encoded.
_SCHEME: Final = re.compile(r"[\w+.-]*")
_HOST: Final = re.compile(r"[\w.-]*|\[[\w:.%]*\]")
_PATH: Final = re.compile(r"[\w./-]*")
_OPTION: Final = re.compile(r"[A-Za-z_]+")
_VALUE: Final = re.compile(r"[\w./ -]*")


def parse(url: object) -> Address:
    """Parse the URL of one server, or raise a ConfigError that says what is wrong with it."""
    if not isinstance(url, str):
        raise ConfigError(f"a server is named by its URL, a string, not by an object of type {type(url).__name__}")
    parts, several, port = _split(url)
    if parts.scheme == "unix":
        return _unix(url, parts)
    if parts.scheme.partition("+")[0] not in _SCHEMES or ("+" in parts.scheme and not several):
        if "://" not in url:
            place = without_secrets(url)
            meant = "host:port" if place == _HIDDEN else place[1:-1] or "localhost"
            raise ConfigError(f"{place} is not a URL; did you mean redis://{meant}?")
        raise ConfigError(
            f"{without_secrets(url)}: unknown scheme {parts.scheme!r}; use redis://, rediss://, valkey://, valkeys://, "
            "unix://, embedded://, redis+sentinel:// or redis+cluster://"
        )
    if several:
        return _sentinel(url, parts) if parts.scheme.endswith("+sentinel") else _cluster(url, parts)
    tls = _SCHEMES[parts.scheme]
    options = _options(url, parts, _COMMON | _TLS if tls else _COMMON)
    host = parts.hostname or "localhost"
    if not _HOST.fullmatch(f"[{host}]" if ":" in host else host):
        raise ConfigError(f"{without_secrets(url)}: not a valid URL; look at the host, and at {ENCODE}")
    path = parts.path.strip("/")
    if path and "db" in options:
        raise ConfigError(f"{without_secrets(url)}: the database is given twice, in the path and as db=; leave one out")
    shown = f"[{host}]" if ":" in host else host
    db = _number(url, path or options.get("db", "0"))
    return Address(
        label=f"{parts.scheme}://{shown}:{port or 6379}" + (f"/{db}" if db else ""),
        host=host,
        port=port or 6379,
        db=db,
        tls=tls_context(**_ssl_words(options)) if tls else None,
        **_who(parts, options),
    )


def _split(url: str) -> tuple[SplitResult, bool, int | None]:
    """The parts of a URL, whether it names several servers, and the port if it names one."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url.strip())
        several = parts.scheme.partition("+")[2] in ("sentinel", "cluster")
        address = parts.netloc.rpartition("@")[2]
        if "://" in parts.netloc + parts.path or (not several and "," in address):
            raise ConfigError(f"{without_secrets(url)}: several servers are given as a list, with one URL for each")
        if "password=" in address + parts.path:
            raise ConfigError(f"{without_secrets(url)}: options begin with '?', as in redis://host?db=1&client_name=me")
        port = None if several else parts.port
    except ConfigError:
        raise
    except ValueError:
        # The text of this error may contain a password.
        raise ConfigError(f"{without_secrets(url)}: not a valid URL; look at the port, and at {ENCODE}") from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(f"{without_secrets(url)}: '#', '/', '?' and '@' must be percent-encoded in {ENCODE}")
    if port == 0:
        raise ConfigError(f"{without_secrets(url)}: no server listens on port 0; the usual port is 6379")
    return parts, several, port


def _unix(url: str, parts: SplitResult) -> Address:
    from urllib.parse import unquote

    options = _options(url, parts, _COMMON)
    if not parts.path:
        raise ConfigError(f"{without_secrets(url)}: a path is missing, as in unix:///run/redis.sock")
    db = _number(url, options.get("db", "0"))
    path = unquote(parts.path)
    return Address(label=f"unix://{path}" + (f"?db={db}" if db else ""), path=path, db=db, **_who(parts, options))


def _sentinel(url: str, parts: SplitResult) -> Address:
    from urllib.parse import unquote

    from handfast.discovery.sentinel import SentinelMaster

    tls = _SCHEMES[parts.scheme.partition("+")[0]]
    options = _options(url, parts, _COMMON | _SENTINEL | (_TLS if tls else frozenset()))
    hosts, _, rest = parts.path.strip("/").partition("/")
    name, db = unquote(hosts), rest or options.get("db", "0")
    if not name:
        raise ConfigError(
            f"{without_secrets(url)}: the master's name is missing, as in redis+sentinel://host:26379/mymaster"
        )
    if rest and "db" in options:
        raise ConfigError(f"{without_secrets(url)}: the database is given twice, in the path and as db=; leave one out")
    members = _members(url, parts, 26379)
    secured = _ssl_words(options)
    asked: dict[str, Any] = {
        "username": options.get("sentinel_username") or None,
        "password": options.get("sentinel_password") or None,
    }
    if _flag(url, "sentinel_ssl", options.get("sentinel_ssl", str(tls).lower())):
        asked |= _for_redis_py(url, secured)
    number = _number(url, db)
    return Address(
        label=_label(parts, members) + f"/{name}" + (f"/{number}" if number else ""),
        db=number,
        tls=tls_context(**secured) if tls else None,
        resolver=SentinelMaster(name, members, asked),
        **_who(parts, options),
    )


def _cluster(url: str, parts: SplitResult) -> Address:
    from handfast.discovery.cluster import Cluster

    tls = _SCHEMES[parts.scheme.partition("+")[0]]
    options = _options(url, parts, (_COMMON - {"db"}) | (_TLS if tls else frozenset()))
    if parts.path.strip("/") not in ("", "0"):
        raise ConfigError(f"{without_secrets(url)}: a cluster has only database 0, so leave the number out")
    members = _members(url, parts, 6379)
    who = _who(parts, options)
    asked: dict[str, Any] = {"username": who["username"] or None, "password": who["password"] or None}
    secured = _ssl_words(options)
    if tls:
        asked |= _for_redis_py(url, secured)
    return Address(
        label=_label(parts, members),
        tls=tls_context(**secured) if tls else None,
        cluster=Cluster(members, asked),
        **who,
    )


def _members(url: str, parts: SplitResult, usual: int) -> list[HostPort]:
    """Parse a list of servers, separated by commas: host, host:port, [IPv6] or [IPv6]:port."""
    found: list[HostPort] = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        host, port = text, ""
        if text.startswith("["):
            host, closed, port = text[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise ConfigError(f"{without_secrets(url)}: an IPv6 address is written [::1] or [::1]:{usual}")
            port = port[1:]
        elif ":" in text:
            host, _, port = text.partition(":")
        if not host:
            raise ConfigError(f"{without_secrets(url)}: a host is missing; members are written host:port,host:port")
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"{without_secrets(url)}: a port is a number from 1 to 65535; look at {ENCODE} too")
        if not _HOST.fullmatch(f"[{host}]" if ":" in host else host):
            raise ConfigError(f"{without_secrets(url)}: not a valid URL; look at the hosts, and at {ENCODE}")
        place = (host.lower(), int(port) if port else usual)
        if place in found:
            raise ConfigError(f"{without_secrets(url)}: {text} is listed twice; name it once")
        found.append(place)
    return found


def _label(parts: SplitResult, members: list[HostPort]) -> str:
    shown = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in members]
    return f"{parts.scheme}://{','.join(shown)}"


def _ssl_words(options: dict[str, str]) -> dict[str, str]:
    return {word: value for word, value in options.items() if word in _TLS}


def _for_redis_py(url: str, secured: dict[str, str]) -> dict[str, Any]:
    """The TLS options of the URL, for the connections that redis-py makes."""
    if "ssl_check_hostname" not in secured:
        return checking(secured)
    return checking({**secured, "ssl_check_hostname": _flag(url, "ssl_check_hostname", secured["ssl_check_hostname"])})


def checking(secured: dict[str, Any]) -> dict[str, Any]:
    """TLS options for redis-py that check host names unless they say otherwise, like `tls_context`."""
    return {"ssl_check_hostname": verifies(secured), **secured, "ssl": True}


def verifies(secured: dict[str, Any]) -> bool:
    """Whether these TLS options verify certificates."""
    return secured.get("ssl_cert_reqs", "required") not in ("none", None, CERT_NONE)


def _flag(url: str, word: str, text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ConfigError(f"{without_secrets(url)}: {word} must be true or false{not_this(text)}")
    return _FLAGS[text.lower()]


def _who(parts: SplitResult, options: dict[str, str]) -> dict[str, Any]:
    from urllib.parse import unquote

    return {
        "username": unquote(parts.username or "") or options.get("username", ""),
        "password": unquote(parts.password or "") or options.get("password", ""),
        "client_name": _client_name(options.get("client_name", "handfast")),
    }


def _client_name(name: str) -> str:
    if not all("!" <= c <= "~" for c in name):
        raise ConfigError(f"client_name must be printable ASCII without spaces{not_this(name)}")
    return name


def _options(url: str, parts: SplitResult, known: frozenset[str]) -> dict[str, str]:
    from urllib.parse import parse_qsl

    options: dict[str, str] = {}
    for word, value in parse_qsl(parts.query, keep_blank_values=True):
        if word not in known:
            said = unknown_option(word, value, after=options)
            raise ConfigError(f"{without_secrets(url)}: {said}; known are {', '.join(sorted(known))}")
        if word in options:
            raise ConfigError(f"{without_secrets(url)}: option {word!r} is given twice; leave one out")
        options[word] = value
    return options


def _number(url: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        said = "" if _may_be_login(url) or "password=" in url else not_this(text)
        raise ConfigError(f"{without_secrets(url)}: the database must be a number such as 0{said}")
    return int(text)


def not_this(text: str) -> str:
    """The end of an error that names a wrong value, unless a part of a password may be in it."""
    return f", not {text!r}" if _VALUE.fullmatch(text) else ""


def unknown_option(word: str, value: str, after: Sequence[str] | dict[str, str] = ()) -> str:
    """The start of an error about an unknown option, which comes after others. The rest of a password with '&' in it, or
    with ':' before it, looks like an option as well."""
    if _OPTION.fullmatch(word) and value and not any("password" in each for each in after):
        return f"unknown option {word!r}"
    return f"unknown option (options are written word=value, and '&' must be percent-encoded in {ENCODE})"


_HIDDEN: Final = "'…'"


def without_secrets(url: str) -> str:
    """The URL without the parts that are secret, or may be."""
    head, sep, rest = url.strip().partition("://")
    if not sep:
        place = head.rpartition("@")[2].partition("?")[0]
        server, _, db = place.partition("/")
        return repr(place) if _is_server(server) and (not db or db.isdigit()) else _HIDDEN
    head = head if _SCHEME.fullmatch(head) else "…"
    place = rest.partition("?")[0]
    if "@" in rest[len(place) :] or "#" in rest:
        return f"{head}://…"  # nothing shows where the password ends and the address begins
    address, slash, path = place.rpartition("@")[2].partition("/")
    login = _may_be_login(url)
    shown: list[str] = []
    for server in address.split(","):
        host, colon, _ = server.partition(":")
        if not _is_server(server) or (login and shown and not colon):
            # Perhaps a password with a space or a comma in it, whose rest is another word. So nothing behind it is shown.
            shown.append(f"{host}:…" if colon and _HOST.fullmatch(host) else "…")
            return f"{head}://{','.join(shown)}"
        shown.append(server)
    if not _PATH.fullmatch(path) or (login and path and not path.isdigit()):
        path = "…"
    return f"{head}://{address}{slash}{path}"


def _is_server(text: str) -> bool:
    """Whether the text has the form of a host, with or without a port."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return bool(_HOST.fullmatch(text))
    return bool(_HOST.fullmatch(host)) and port.isascii() and port.isdigit() and int(port) < 65536


def _may_be_login(url: str) -> bool:
    """Whether the host and port of a URL may be a user and a password, because no '@' follows them."""
    place = url.partition("://")[2].partition("?")[0]
    return "@" not in place and re.search(r":\d*(,|/|$)", place.partition("/")[0]) is not None


def tls_context(
    ssl_ca_certs: str | None = None,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    ssl_cert_reqs: Any = "required",
    ssl_check_hostname: Any = None,
) -> Callable[[], ssl.SSLContext]:
    """Return a function that makes the TLS context when it is first needed. The arguments have redis-py's names."""
    import ssl

    levels = {
        "required": ssl.CERT_REQUIRED,
        "optional": ssl.CERT_OPTIONAL,
        "none": ssl.CERT_NONE,
        None: ssl.CERT_NONE,
    }
    level = ssl_cert_reqs if isinstance(ssl_cert_reqs, ssl.VerifyMode) else levels.get(ssl_cert_reqs)
    if level is None:
        raise ConfigError(f"ssl_cert_reqs must be required, optional or none{not_this(str(ssl_cert_reqs))}")
    check = ssl_check_hostname
    if isinstance(check, str):
        if check.lower() not in _FLAGS:
            raise ConfigError(f"ssl_check_hostname must be true or false{not_this(check)}")
        check = _FLAGS[check.lower()]
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
    """Raise ConfigError if a server is listed twice: it would have two votes. Only addresses are compared here; run_ids
    are compared after connecting."""
    seen: set[tuple[str, int, str]] = set()
    for address in addresses:
        moving = address.resolver is not None or address.cluster is not None
        place = (address.host.lower(), address.port if not address.path else 0, address.label if moving else address.path)
        if place in seen:
            raise ConfigError(f"{address.label} is listed twice: each server has one vote, so name it once")
        seen.add(place)
