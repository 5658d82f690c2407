"""Warns about servers that may evict keys, and with them locks: when they are connected, and while a lock is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from handfast.core.io import IO
from handfast.core.nodes import Node, NodeGroup
from handfast.core.votes import AllReplies
from handfast.protocol.resp import encode

__all__ = ["ABOUT", "ABOUT_REPLIES", "fields", "look", "note"]

ABOUT: Final = encode(b"INFO", b"server") + encode(b"INFO", b"memory")
"""The commands that ask a server for its run_id and its maxmemory-policy."""
ABOUT_REPLIES: Final = 2
TIMEOUT: Final = 0.5


def fields(replies: Sequence[Any]) -> dict[str, str]:
    """The fields in the replies to INFO; empty for a server that refuses INFO."""
    lines = [line for text in replies if type(text) is bytes for line in text.decode(errors="replace").splitlines()]
    return dict(line.split(":", 1) for line in lines if ":" in line)


def note(node: Node, info: dict[str, str], warn: Callable[[str], None]) -> None:
    """Warn if the server may evict keys, once for each policy and process."""
    policy = info.get("maxmemory_policy", "noeviction") if info.get("maxmemory", "0") != "0" else "noeviction"
    run_id = info.get("run_id", "")
    if node.eviction.get(run_id, "noeviction") == policy:
        return
    node.eviction = {**node.eviction, run_id: policy}
    if policy != "noeviction":
        warn(f"{node.label} may evict locks (maxmemory-policy {policy}): set it to noeviction")


async def look(io: IO, group: NodeGroup, warn: Callable[[str], None]) -> None:
    """Ask the nodes again: their policy may have changed."""

    def read(node: int, replies: list[Any]) -> int:
        note(group.nodes[node], fields(replies), warn)
        return 1

    await io.broadcast(ABOUT, AllReplies(group.n, ABOUT_REPLIES, read), TIMEOUT)
