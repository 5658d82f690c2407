"""The first commands of a new connection.

The handshake is a generator without I/O. It yields batches of commands and receives their replies from the driver that
makes the connection. It ends when the connection may be used, or raises `Rejected` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from handfast.core import clocks, eviction, guard
from handfast.core.eviction import ABOUT, ABOUT_REPLIES
from handfast.core.io import Fault
from handfast.core.nodes import Node, NodeGroup
from handfast.protocol.commands import INFO_REPLICATION
from handfast.protocol.resp import encode
from handfast.protocol.scripts import LOAD_REPLIES, load_scripts

__all__ = ["Login", "Rejected", "Steps", "handshake", "is_old", "knows"]

NO_RESP3: Final = Fault("RESP2", "speaks RESP2 only, so it cannot push to waiters")
NO_TRACKING: Final = Fault("tracking", "refuses client tracking, so its pushes do not show whether it has lost its data")
Steps = Generator[tuple[bytes, int], list[Any], None]
"""Yields (commands, number of replies), and receives that many replies."""


class Rejected(Exception):
    """The node cannot be used; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class Login:
    """The user, the password, the database and the name with which a client logs in."""

    __slots__ = ("client_name", "db", "password", "username")

    def __init__(self, username: str, password: str, db: int, client_name: str) -> None:
        self.username = username
        self.password = password
        self.db = db
        self.client_name = client_name


def handshake(
    group: NodeGroup, node: Node, login: Login, now: Callable[[], float], warn: Callable[[str], None], moves: bool = False
) -> Steps:
    """Log in, learn what the server can do, and identify it. `moves`: a resolver found this server, so it must show that
    it is a master."""
    name, password = (login.username or "default").encode(), login.password.encode()
    hello = [b"HELLO", b"3"]
    if login.password or login.username:
        hello += [b"AUTH", name, password]
    if login.client_name:
        hello += [b"SETNAME", login.client_name.encode()]
    select = [encode(b"SELECT", b"%d" % login.db)] if login.db else []
    replies = yield encode(*hello), 1
    node.no_push = None
    if type(replies[0]) is Fault:
        if not is_old(replies[0]):
            _refuse(replies)
        # A proxy, or a server without RESP3: everything works but pushes.
        node.no_push = NO_RESP3
        if login.password or login.username:
            select.insert(0, encode(b"AUTH", name, password) if login.username else encode(b"AUTH", password))
        if login.client_name:
            select.append(encode(b"CLIENT", b"SETNAME", login.client_name.encode()))
    if select:
        replies = yield b"".join(select), len(select)
        _refuse(replies)
    probe = group.marker_key + b":probe"
    # Try the commands instead of guessing from a version. The key does not exist, so nothing is deleted.
    questions = encode(b"DELIFEQ", probe, b"-") + encode(b"DELEX", probe, b"IFEQ", b"-")
    # For waiters and for the guard. Tracking costs nothing until a read asks for it, or all data is deleted.
    questions += encode(b"CLIENT", b"TRACKING", b"ON", b"OPTIN")
    replies = yield questions + load_scripts() + ABOUT, 3 + LOAD_REPLIES + ABOUT_REPLIES
    about = replies[-ABOUT_REPLIES:]
    info = eviction.fields(about)
    eviction.note(node, info, warn)
    node.deletes_by = "delifeq" if knows(replies[0]) else "delex" if knows(replies[1]) else ""
    node.tracks = node.no_push is None and type(replies[2]) is not Fault
    if group.guard and not node.tracks and node.no_push is None:
        node.no_push = NO_TRACKING
    _refuse(replies[3:-ABOUT_REPLIES])
    if moves:
        (role,) = yield encode(b"ROLE"), 1
        if type(role) is list and role[0] != b"master":
            raise Rejected(guard.REPLICA)
        # A user without the right to ask gets the replica's errors later.
    if group.n > 1 or group.guard:
        _refuse(about)
        yield from _identify(group, node, info.get("run_id", ""), now)
    else:
        # A server that refuses INFO, or a proxy that does not know it, can still be used.
        node.run_id = info.get("run_id", "")


def _identify(group: NodeGroup, node: Node, run_id: str, now: Callable[[], float]) -> Steps:
    """Find out which incarnation of which server this is, and whether it may vote."""
    asked = INFO_REPLICATION
    if group.guard:
        asked += encode(b"TIME") + encode(b"GET", group.marker_key)
    sent = now()
    replies = yield asked, 1 + 2 * group.guard
    _refuse(replies)
    if eviction.fields(replies[:1]).get("role") != "master":
        raise Rejected(guard.REPLICA)
    # Store first and compare afterwards: of two connections at the same time, at least one sees the other.
    node.run_id = run_id
    for other in group.nodes:
        if other is not node and other.run_id == run_id:
            node.run_id = ""
            raise Rejected(
                Fault(
                    "config",
                    f"is the same server as {other.label}: each server has one vote, so name it once",
                    lasting=True,
                )
            )
    node.incarnation = guard.incarnation(run_id, replies[0])
    if not group.guard:
        return
    time, raw = replies[-2:]
    server_us = guard.server_time(time)
    clocks.read_clock(group, node.index, sent, now(), server_us)
    agreeing = sum(1 for other in group.nodes if other.marker)
    if not guard.adopt(group, node, raw, server_us, now()) and not guard.contradicted(group, agreeing):
        (raw,) = yield guard.quarantine(group, node, raw), 1
        _refuse([raw])
        guard.adopt(group, node, raw, server_us, now())


def knows(reply: Any) -> bool:
    """Whether the server has the command. A server of a cluster may reply that the probe's key is on another one."""
    return type(reply) is int or (type(reply) is Fault and reply.kind in ("MOVED", "ASK", "CLUSTERDOWN"))


def is_old(fault: Fault) -> bool:
    """Whether the server does not know HELLO, or not RESP3."""
    return fault.kind == "NOPROTO" or "unknown command" in fault.text.lower()


def _refuse(replies: Sequence[Any]) -> None:
    for reply in replies:
        if type(reply) is Fault:
            raise Rejected(reply)
