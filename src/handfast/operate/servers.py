"""Connections to all servers of a deployment, for reading and not for votes.

They take no part in the voting: they set no marker, start no quarantine and load no scripts. If a server does not answer,
a `Fault` takes the place of its replies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import hiredis

from handfast.core.io import CLOSED, Fault
from handfast.core.votes import majority
from handfast.discovery.endpoints import locate
from handfast.net.address import Address, HostPort, dial
from handfast.net.faults import from_reply, from_socket
from handfast.option_types import Servers
from handfast.options import Policy, policy
from handfast.protocol.resp import encode

__all__ = ["Deployment", "Link", "Node", "first_fault"]

TIMEOUT: Final = 2.0
"""Seconds that a server has to be connected, or to answer."""
RETRY: Final = 1.0
"""Seconds until a server that failed is tried again."""
CHUNK: Final = 1 << 16
SCAN_COUNT: Final = b"1000"
"""Buckets for each SCAN: less than a millisecond of the server's time."""
_WAITING: Final = object()
_MOVED: Final = Fault("moved", "another server has taken its place; looking for it")
_TOO_SLOW: Final = Fault("timeout", "did not answer in time")


class Link:
    """One connection to one server: batches of commands out, replies back in order. An error is a reply: a Fault."""

    def __init__(self, address: Address, timeout: float = TIMEOUT) -> None:
        self.address = address.located()
        self._socket = dial(self.address, timeout)
        self._reader = hiredis.Reader(notEnoughData=_WAITING)
        try:
            self._log_in()
        except BaseException:
            self.close()
            raise

    def _log_in(self) -> None:
        login = self.address.login()
        if login.password or login.username:
            words = [login.username.encode()] if login.username else []
            _raise(self.call(b"AUTH", *words, login.password.encode()))
        if login.db:
            _raise(self.call(b"SELECT", b"%d" % login.db))
        reply = self.call(b"PING")  # a server that needs a password, or is not ready, refuses here
        if type(reply) is Fault and reply.kind != "NOPERM":
            raise Refusal(reply)

    def call(self, *words: bytes) -> Any:
        """One command and its reply."""
        self.send(encode(*words))
        return self.receive(1)[0]

    def run_script(self, text: bytes, keys: Sequence[bytes], *args: bytes) -> Any:
        """Load a script and run it, with the rights that clients need, which do not include EVAL."""
        sha = self.call(b"SCRIPT", b"LOAD", text)
        return sha if type(sha) is Fault else self.call(b"EVALSHA", sha, b"%d" % len(keys), *keys, *args)

    def send(self, payload: bytes) -> None:
        self._socket.sendall(payload)

    def receive(self, count: int) -> list[Any]:
        """The next replies, without pushes."""
        replies: list[Any] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is _WAITING:
                data = self._socket.recv(CHUNK)
                if not data:
                    raise ConnectionResetError
                self._reader.feed(data)
            elif type(reply) is not hiredis.PushNotification:
                replies.append(from_reply(str(reply)) if type(reply) is hiredis.ReplyError else reply)
        return replies

    def close(self) -> None:
        self._socket.close()


class Refusal(Exception):
    """The server answers, but refuses this user."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


def _raise(reply: Any) -> None:
    if type(reply) is Fault:
        raise Refusal(reply)


def first_fault(replies: Sequence[Any]) -> Fault | None:
    return next((reply for reply in replies if type(reply) is Fault), None)


class Node:
    """One vote of a deployment: a server, or a cluster of them."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.label = address.label
        self.address = address
        self.fault: Fault | None = None
        """Why it cannot be asked at present."""
        self._timeout = timeout
        self._links: dict[HostPort | None, Link] = {}
        self._retry_at = 0.0
        self._asked: list[tuple[Link, list[bytes]]] = []

    @property
    def clustered(self) -> bool:
        return self.address.cluster is not None

    def connect(self) -> None:
        """Connect all its servers, unless that has just failed."""
        if self._links or time.monotonic() < self._retry_at:
            return
        try:
            if self.clustered:
                self.address.cluster.refresh()
                for place in sorted(self.address.cluster.masters):
                    self._link(place)
            else:
                self._link(None)
            self.fault = None
        except Exception as error:  # any error: DNS, TLS, Sentinel, a server that does not start
            self.drop(error)

    def _link(self, place: HostPort | None) -> Link:
        link = self._links.get(place)
        if link is None:
            address = self.address
            if place is not None:
                address = address._replace(cluster=None, host=place[0], port=place[1])
            link = self._links[place] = Link(address, self._timeout)
        return link

    def drop(self, error: Exception) -> Fault:
        """A connection has failed: close all of them. The next use makes them again, after a while."""
        self.close()
        self._retry_at = time.monotonic() + RETRY
        if isinstance(error, Refusal):
            self.fault = error.fault
        elif isinstance(error, hiredis.ProtocolError):
            self.fault = Fault("protocol", f"does not speak Redis' protocol ({error})", lasting=True)
        elif isinstance(error, TimeoutError) and self._asked:
            self.fault = _TOO_SLOW
        else:
            self.fault = self.address.says(from_socket(error))
        self._asked = []
        return self.fault

    def links(self) -> list[Link]:
        """One connection to each of its servers; none if the node cannot be reached."""
        self.connect()
        return list(self._links.values())

    def link_for(self, key: bytes) -> Link | None:
        """The connection to the server that has this key; None if it cannot be reached."""
        self.connect()
        if not self._links:
            return None
        try:
            return self._link(self._place(key))
        except Exception as error:  # a new master
            self.drop(error)
            return None

    def _place(self, key: bytes) -> HostPort | None:
        if not self.clustered:
            return None
        from handfast.discovery.cluster import slot_of  # imported already; without a cluster, this would import redis-py

        place: HostPort | None = self.address.cluster.host_ports[slot_of(key)]
        if place is None:
            raise LookupError("no node of the cluster serves a part of the names")
        return place

    # -- one question about many keys

    def ask(self, questions: dict[bytes, bytes]) -> None:
        """Send the commands for each key without waiting for the replies. Each server is also asked for its time."""
        by_link: dict[Link, list[bytes]] = {}
        self._asked = []
        for key in questions:
            link = self.link_for(key)
            if link is None:
                return
            by_link.setdefault(link, []).append(key)
        self._asked = list(by_link.items())
        try:
            for link, keys in self._asked:
                link.send(encode(b"TIME") + encode(b"ROLE") + b"".join([questions[key] for key in keys]))
        except OSError as error:
            self.drop(error)

    def answers(self, width: int) -> dict[bytes, list[Any]] | Fault:
        """The `width` replies for each key, and the server's time."""
        found: dict[bytes, list[Any]] = {}
        asked = self._asked
        try:
            for link, keys in asked:
                clock, role, *replies = link.receive(2 + width * len(keys))
                if self._moved(role, replies):
                    raise Refusal(_MOVED)
                for i, key in enumerate(keys):
                    found[key] = [*replies[i * width : (i + 1) * width], clock]
        except (OSError, Refusal, hiredis.ProtocolError) as error:
            self.drop(error)
        self._asked = []
        return self.fault or (found if asked else CLOSED)

    def _moved(self, role: Any, replies: Sequence[Any]) -> bool:
        """Whether the server may be outdated: after a failover it is a replica, or it has no such slot."""
        if self.address.resolver is None and not self.clustered:
            return False
        replica = type(role) is list and role[0] != b"master"  # without the right to ask, errors show it later
        return replica or any(type(reply) is Fault and reply.kind in ("MOVED", "CLUSTERDOWN") for reply in replies)

    def having(self, keys: Sequence[bytes]) -> Iterator[bytes]:
        """The keys that the node has; none if it cannot be reached."""
        self.ask({key: encode(b"EXISTS", key) for key in keys})
        said = self.answers(1)
        if not isinstance(said, Fault):
            yield from (key for key in keys if said[key][0] == 1)

    def scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        """The matching keys of the node, in the servers' batches. Ends early if a server fails: see `fault`."""
        for link in self.links():
            cursor = b"0"
            while True:
                try:
                    reply = link.call(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_COUNT)
                    _raise(reply)
                except (OSError, Refusal, hiredis.ProtocolError) as error:
                    self.drop(error)
                    return
                cursor, keys = reply
                if keys:
                    yield keys
                if cursor == b"0":
                    break

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links = {}


class Deployment:
    """All servers of a client: one, a quorum, Sentinel, a cluster, embedded. For one thread at a time."""

    def __init__(self, servers: Servers = None, *, prefix: str = "handfast:", timeout: float = TIMEOUT) -> None:
        self.settings: Policy = policy({"prefix": prefix})
        self.prefix = prefix
        self._where = locate(servers)
        self.nodes = [Node(address, timeout) for address in self._where.addresses]
        self.need = majority(len(self.nodes))

    def connect(self) -> None:
        """Connect all nodes at the same time. A node that cannot be reached has a `fault`."""
        if len(self.nodes) == 1:
            self.nodes[0].connect()
            return
        threads = [threading.Thread(target=node.connect, daemon=True) for node in self.nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def faults(self) -> dict[str, str]:
        """The nodes that cannot be reached at present, by label, with the reason."""
        return {node.label: node.fault.text for node in self.nodes if node.fault is not None}

    @property
    def sees_all(self) -> bool:
        """Whether enough nodes answer that each majority contains one of them, so that no held lock is missed."""
        return len(self.nodes) - len(self.faults) > len(self.nodes) - self.need

    def check(self) -> None:
        """Connect. Raises ConnectionError if no node can be reached."""
        self.connect()
        self.check_faults()

    def check_faults(self) -> None:
        """Raise ConnectionError if no node could be reached."""
        faults = self.faults
        if len(faults) == len(self.nodes):
            raise ConnectionError("; ".join(f"{label}: {text}" for label, text in faults.items()))

    def ask(self, questions: dict[bytes, bytes], width: int) -> list[dict[bytes, list[Any]] | Fault]:
        """Ask all nodes about these keys at the same time, and return their answers. `width`: replies for each key."""
        self.connect()
        for node in self.nodes:
            node.ask(questions)
        return [node.answers(width) for node in self.nodes]

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._where.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
