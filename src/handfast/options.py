"""The options of clients and locks, and their checks. Bad input raises ConfigError before anything is sent."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union

from handfast.backoff import Backoff, exponential
from handfast.errors import ConfigError, LeaseLost

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "MADE_HERE",
    "OnLost",
    "Policy",
    "Seconds",
    "duration",
    "names_of",
    "owner_of",
    "policy",
    "refused_words",
]

Seconds = Union[float, "timedelta"]
"""Seconds, or a timedelta."""
OnLost = Literal["cancel", "event", "interrupt"] | Callable[[LeaseLost], object]
"""What happens to a body whose lease is lost."""

DRIFT_MARGIN: Final = 0.002
"""Seconds. Servers and clients may round to whole milliseconds, and 2 ms cover both roundings."""
TTL: Final = 10.0
MAX_TTL: Final = 30.0
BACKOFF: Final = exponential(0.01, factor=1.6).capped(0.2).jittered(0.6)
MAX_NAME: Final = 1024
"""Bytes of UTF-8. Names are keys: each command sends them, and people read them."""
MAX_LABEL: Final = 64
MADE_HERE: Final = re.compile(rb"[^:]*:[^:]*:.*:[0-9a-f]{32}", re.DOTALL)
"""An owner that handfast has made (host:pid:label:nonce). Such a holder hands over."""
TOKEN_MEMORY: Final = 7 * 24 * 3600.0
"""Seconds for which a name's fence counter outlives the time of its last token."""
MOST_MEMORY: Final = 100 * 366 * 24 * 3600.0
"""A server refuses an expiry that is too far away to be counted in ms."""
_MEANT: Final = {
    "auto_release_time": "did you mean ttl=, the seconds that the lock lasts unless renewed?",
    "auto_renewal": "did you mean renew=? It is on by default",
    "blocking": "did you mean wait=0 (do not wait) or wait=None (wait without end)?",
    "blocking_timeout": "did you mean wait=, the seconds to wait for the lock?",
    "expire": "did you mean ttl=, the seconds that the lock lasts unless renewed?",
    "guard": "it is the same for all locks of a client, so set it on connect()",
    "retry_count": "did you mean tries=? Without it a caller waits in a queue, for wait= seconds",
    "retry_times": "did you mean tries=? Without it a caller waits in a queue, for wait= seconds",
    "sleep": "nothing sleeps between attempts here, because a release wakes the next waiter; leave it out",
    "timeout": "did you mean wait=, the seconds to wait for the lock? redis-py's timeout= is ttl= here",
}
"""Options of other libraries, and options in the wrong place, each with a hint."""


def duration(value: Any, what: str, *, zero: bool = False) -> float:
    """Return seconds as a float, or raise a ConfigError that names the parameter."""
    # No import: a caller that passes a timedelta has imported datetime. getattr, because another thread may be importing
    # it right now.
    timedelta = getattr(sys.modules.get("datetime"), "timedelta", None)
    if timedelta is not None and isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{what} must be seconds or a timedelta, not {value!r}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        raise ConfigError(f"{what} must be a {'non-negative' if zero else 'positive'} number of seconds, not {value!r}")
    return seconds


class Policy(NamedTuple):
    """All settings of an acquisition. A lock inherits its client's policy, and may override parts of it."""

    ttl: float = TTL
    wait: float | None = None
    renew: bool = True
    fence: bool = True
    tries: int | None = None
    # Well above a round trip, so that clients with split votes do not try again at the same time.
    backoff: Backoff = BACKOFF
    drift: float = 0.01
    node_timeout: float | None = None
    max_ttl: float = MAX_TTL
    max_hold: float | None = None
    prefix: str = "handfast:"
    label: str = ""
    on_lost: OnLost = "cancel"
    replicas: int = 0
    durable: bool = False
    fair: bool = True
    cohort: int = 0
    token_memory: float = TOKEN_MEMORY

    def validity(self, ttl: float) -> float:
        """How long after the send a grant of `ttl` may be believed, if clock rates differ by less than `drift`."""
        return ttl - ttl * self.drift - DRIFT_MARGIN

    def checked_ttl(self, value: object) -> float:
        ttl = duration(value, "ttl")
        if ttl > self.max_ttl:
            raise ConfigError(
                f"ttl of {ttl:g} s is longer than max_ttl of {self.max_ttl:g} s: a lease is renewed while it is held, so "
                "use a shorter ttl, or set the same max_ttl= on every client of this prefix"
            )
        if self.validity(ttl) <= 0:
            raise ConfigError(f"ttl of {ttl:g} s is too short: drift and a margin of 2 ms leave nothing of it")
        return ttl


def _whole(value: object, what: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{what} must be a whole number of at least {least}, not {value!r}")


def _check(policy: Policy) -> Policy:
    changes: dict[str, Any] = {
        "max_ttl": duration(policy.max_ttl, "max_ttl"),
        "token_memory": duration(policy.token_memory, "token_memory"),
    }
    if changes["token_memory"] > MOST_MEMORY:
        raise ConfigError(f"token_memory must be at most 100 years, not {changes['token_memory']:g} s")
    if isinstance(policy.drift, bool) or not isinstance(policy.drift, (int, float)) or not 0 <= policy.drift < 0.5:
        raise ConfigError(f"drift must be a share such as 0.01, at least 0 and less than 0.5, not {policy.drift!r}")
    for what in ("node_timeout", "max_hold"):
        if getattr(policy, what) is not None:
            changes[what] = duration(getattr(policy, what), what)
    if policy.wait is not None:
        changes["wait"] = duration(policy.wait, "wait", zero=True)
    if policy.tries is not None:
        _whole(policy.tries, "tries", 1)
    _whole(policy.replicas, "replicas", 0)
    _whole(policy.cohort, "cohort", 0)
    for what in ("renew", "fence", "durable", "fair"):
        if not isinstance(getattr(policy, what), bool):
            raise ConfigError(f"{what} must be True or False, not {getattr(policy, what)!r}")
    if not isinstance(policy.backoff, Backoff):
        raise ConfigError(f"backoff must be a handfast.backoff.Backoff, not {policy.backoff!r}")
    if policy.on_lost not in ("cancel", "event", "interrupt") and not callable(policy.on_lost):
        raise ConfigError(f"on_lost must be 'cancel', 'event', 'interrupt' or a callable, not {policy.on_lost!r}")
    _text(policy.prefix, "prefix", least=0, most=MAX_NAME)
    if "{}" in policy.prefix:
        raise ConfigError(
            "prefix must not contain {}, because a cluster would keep the keys of a name in different slots: "
            f"{policy.prefix!r}"
        )
    _text(policy.label, "label", least=0, most=MAX_LABEL)
    if any(c in ": \r\n" for c in policy.label):
        raise ConfigError(f"label must not contain a colon, a space or a line break: {policy.label!r}")
    checked = policy._replace(**changes)
    return checked._replace(ttl=checked.checked_ttl(policy.ttl))


def _similar(word: str) -> str:
    """A hint to the option that was probably meant, or else to all of them."""
    from difflib import get_close_matches

    near = get_close_matches(word, Policy._fields, 1, 0.7)
    return f": did you mean {near[0]}=?" if near else f"; known are {', '.join(sorted(Policy._fields))}"


def policy(given: dict[str, Any], base: Policy | None = None) -> Policy:
    """Make a checked policy from keyword arguments, on top of `base`."""
    for word in given:
        if word in _MEANT:
            raise ConfigError(f"unknown option {word!r}: {_MEANT[word]}")
        if word not in Policy._fields:
            raise ConfigError(f"unknown option {word!r}{_similar(word)}")
    if base is not None:
        return _check(base._replace(**given)) if given else base
    if "max_ttl" in given and "ttl" not in given:
        # A max_ttl below the default ttl lowers the ttl. An explicit ttl above max_ttl is an error.
        given = {**given, "ttl": min(TTL, duration(given["max_ttl"], "max_ttl"))}
    return _check(Policy(**given))


def refused_words(args: tuple[object, ...], words: dict[str, Any]) -> ConfigError:
    """The error for arguments that acquire() does not take."""
    if args:
        return ConfigError(f"acquire() takes no positional arguments such as {args[0]!r}: did you mean wait=?")
    word = next(iter(words))
    if word in _MEANT:
        return ConfigError(f"unknown option {word!r}: {_MEANT[word]}")
    known = "; set it on lock()" if word in Policy._fields else ""
    return ConfigError(f"acquire() takes wait= and ttl=, not {word!r}{known}")


def _text(value: object, what: str, *, least: int, most: int) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a string, not {value!r}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{what} is not valid Unicode: {value!r}") from None
    if size < least:
        raise ConfigError(f"{what} must not be empty")
    if size > most:
        raise ConfigError(f"{what} is {size} bytes long, {most} at most: {value[:40]!r}…")


def owner_of(value: object) -> str:
    """Check an explicit owner."""
    _text(value, "owner", least=1, most=MAX_NAME)
    assert isinstance(value, str)
    if MADE_HERE.fullmatch(value.encode()):
        raise ConfigError(
            f"owner={value!r} looks like the owner of a lease that was made without owner= (host:pid:label:32 hex "
            "digits), which shares its lock with no other lease: give both locks the same owner= of your own"
        )
    return value


def names_of(name: object) -> tuple[str, ...]:
    """Check one name, or several names of one lock. Repeats are removed, and the order is the same in all clients."""
    if isinstance(name, str):
        _text(name, "name", least=1, most=MAX_NAME)
        return (name,)
    if not isinstance(name, (list, tuple, set, frozenset)):
        raise ConfigError(f"name must be a string or a list of strings, not {name!r}")
    if not name:
        raise ConfigError("name must not be an empty list")
    for each in name:
        _text(each, "name", least=1, most=MAX_NAME)
    return tuple(sorted(set(name)))
