"""Turns the error replies of servers and the errors of sockets into faults that people can read."""

from __future__ import annotations

import errno
import socket
from typing import Final

from handfast.core.handshake import Rejected
from handfast.core.io import CLOSED, Fault
from handfast.errors import ConfigError

__all__ = ["from_reply", "from_socket", "wants_more", "without_arguments"]

_MEANING: Final = {
    "LOADING": "is still loading its data",
    "BUSY": "is busy running a script",
    "READONLY": "is a read-only replica",
    "MASTERDOWN": "is a replica whose master is down",
    "OOM": "is out of memory",
    "MISCONF": "refuses writes because it cannot save to disk",
    "NOREPLICAS": "refuses writes because too few replicas are in sync",
    "NOSCRIPT": "forgot its scripts",
    "NOPERM": "this user may not do that",
    "NOAUTH": "wants a password",
    "WRONGPASS": "wrong user name or password",
    "WRONGTYPE": "the key holds something that is not a lock",
    "MOVED": "is a cluster node and the key lives elsewhere",
    "ASK": "is a cluster node and the key is moving",
    "TRYAGAIN": "its cluster is just moving the keys of this name",
    "CLUSTERDOWN": "its cluster is down",
    "CROSSSLOT": "its cluster keeps these names in different slots",
    "EXHAUSTED": "its fence counter is used up",
}

# These do not pass with time: a person has to change something.
_LASTING: Final = frozenset({"NOPERM", "NOAUTH", "WRONGPASS", "WRONGTYPE", "MOVED", "CROSSSLOT", "EXHAUSTED"})

_NO_DATABASE: Final = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")


def from_reply(text: str) -> Fault:
    """
    >>> from_reply("LOADING Redis is loading the dataset in memory").text
    'LOADING: is still loading its data'
    >>> from_reply("ERR unknown command 'HELLO'").lasting
    True
    """
    text = without_arguments(text)
    code, _, rest = text.partition(" ")
    # Some servers wrap an error inside a script in another error. The code of the inner error counts.
    for word in (code, *rest.replace(":", " ").split()[:12]):
        if word.lstrip("-") in _MEANING:
            code = word.lstrip("-")
            break
    if "can't run this command" in text or "ACL failure in script" in text:
        code = "NOPERM"
    meaning = _MEANING.get(code)
    if meaning is not None:
        detail = f" ({rest})" if code in ("NOPERM", "MOVED", "ASK") and rest else ""
        return Fault(code, f"{code}: {meaning}{detail}", lasting=code in _LASTING, detail=rest)
    if "unknown command" in text.lower():
        hint = "; Redis 6.2 or Valkey is needed" if "hello" in text.lower() else ""
        return Fault("ERR", text + hint, lasting=True)
    if any(said in text for said in _NO_DATABASE):
        return Fault("database", text, lasting=True)
    if "max number of clients" in text:
        return Fault("maxclients", "has reached its maximum number of clients")
    return Fault(code, text)


def without_arguments(text: str) -> str:
    """The text of an error reply without the arguments of the command. Those of HELLO and AUTH are secret.

    >>> without_arguments("ERR unknown command 'AUTH', with args beginning with: 'secret' ")
    "ERR unknown command 'AUTH'"
    """
    return text.partition(", with args beginning with")[0]


def from_socket(error: BaseException) -> Fault:
    """The fault for a failed connection. If there is no better text, it has the system's."""
    if isinstance(error, ConfigError):
        return Fault("config", str(error), lasting=True)
    if isinstance(error, Rejected):
        return error.fault
    if isinstance(error, TimeoutError):
        return Fault("timeout", "did not answer the connection in time")
    # Programs without TLS should not pay for importing ssl, so its errors are recognised by their attributes.
    if (refused := getattr(error, "verify_message", None)) is not None:
        return Fault("tls", f"TLS certificate refused: {refused}", lasting=True)
    if type(error).__module__ == "ssl":
        reason = getattr(error, "reason", None) or error
        # OpenSSL reports the reply of a server without TLS as a wrong version.
        hint = "; if its port has no TLS, use redis:// and not rediss://" if reason == "WRONG_VERSION_NUMBER" else ""
        return Fault("tls", f"TLS failed: {reason}{hint}")
    if isinstance(error, socket.gaierror):
        return Fault("dns", f"host name not found ({error.strerror})")
    if isinstance(error, ConnectionRefusedError):
        return Fault("refused", "refused the connection")
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return CLOSED
    if isinstance(error, FileNotFoundError):
        return Fault("refused", "no such socket")
    if isinstance(error, OSError) and error.errno is not None:
        return Fault(errno.errorcode.get(error.errno, "OSError"), (error.strerror or str(error)).lower())
    return Fault("error", str(error) or type(error).__name__)


def wants_more(error: OSError) -> bool:
    """Whether a plain or TLS socket only waits for its peer: this is no failure."""
    return isinstance(error, BlockingIOError) or type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")
