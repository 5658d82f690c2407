"""Reads the arguments of a check: a token, and the names that it is for."""

from __future__ import annotations

from typing import Final, Protocol, TypeGuard

from handfast._lease import BaseLease
from handfast.errors import ConfigError
from handfast.options import names_of

__all__ = ["MAX_TOKEN", "Tokened", "claims_of", "is_token", "token_of"]

MAX_TOKEN: Final = 2**53 - 1
"""Lua and JSON represent larger numbers inexactly."""


class Tokened(Protocol):
    """A lease of either facade. It need not be valid: the resource decides."""

    @property
    def name(self) -> str: ...
    @property
    def token(self) -> int | None: ...


def is_token(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_TOKEN


def token_of(lease: Tokened | int) -> int:
    """The token of a lease; a token is returned unchanged."""
    token = lease if isinstance(lease, int) else _attribute(lease)
    if not is_token(token):
        raise ConfigError(f"a token is a whole number from 1 to 2**53 - 1, not {token!r}")
    return token


def claims_of(lease: Tokened | str, token: int | None) -> tuple[tuple[str, ...], int]:
    """The names to check and the token. All callers check names in one order, so that they cannot deadlock."""
    if isinstance(lease, str):
        if token is None:
            raise ConfigError(f"{lease}: a name is checked together with a token: check(conn, name, token)")
        return names_of(lease), token_of(token)
    if token is not None:
        raise ConfigError("check takes a lease, or a name and a token; not a lease and a token")
    if isinstance(lease, int):
        raise ConfigError(f"check takes a lease, or a name and a token; not the token {lease!r} alone")
    found = token_of(lease)
    # A lease of several names has one token, larger than every earlier token of each name. Every name is checked.
    return lease._hold.names if isinstance(lease, BaseLease) else names_of(lease.name), found


def _attribute(lease: Tokened) -> int:
    try:
        name, token = lease.name, lease.token
    except AttributeError:
        raise ConfigError(f"a fence takes a lease or its token, not {lease!r}") from None
    if token is None:
        raise ConfigError(f"{name}: a lease with fence=False has no token to check")
    return token
