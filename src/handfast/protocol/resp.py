"""Commands as bytes: the request half of RESP."""

from __future__ import annotations

__all__ = ["bulk", "encode"]


def bulk(word: bytes) -> bytes:
    """Encode one argument of a command.

    >>> bulk(b"GET")
    b'$3\\r\\nGET\\r\\n'
    """
    return b"$%d\r\n%b\r\n" % (len(word), word)


def encode(*words: bytes) -> bytes:
    """Encode one command.

    >>> encode(b"GET", b"k")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n'
    """
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
