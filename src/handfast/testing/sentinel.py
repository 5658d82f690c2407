"""A master with replicas under the eyes of sentinels.

A sentinel finds replicas in the master's INFO and other sentinels by messages through the master, every few seconds.
That is known here before they start, so it is written into their files; they still have to find it true, and `start`
waits until they did. From then on who is the master is theirs to say.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from ..embedded.resp import ReplyError
from .ports import LOOPBACK
from .replicated import READY_WITHIN, Configured, Replicated, cut_link
from .server_versions import any_binary, older_than_7
from .servers import Server
from .waiting import until_nothing_is_missing

__all__ = ["SentinelGroup"]

FAILOVER_WITHIN: Final = 30.0
"""With the default times it takes 1 to 3 s; after a split vote the sentinels try again, two failover_timeouts later."""
PEER: Final = "peer"
"""Sentinels and replicas log in under this name, if there are passwords: so they can be kept out, and clients not."""
NOT_NOW: Final = ("NOGOODSLAVE", "INPROG")
DOWN: Final = frozenset({"s_down", "o_down", "disconnected", "failover_in_progress", "reconf_inprog"})
DOWN_AFTER: Final = 0.75
DOWN_AFTER_OLDER: Final = 1.5
"""More than the time between two attempts to connect (see QUICK), or a new master is taken for dead when the sentinels,
who just failed to reach the old one, have not yet tried this one."""
QUICK: Final = {
    "ping-period": 400,  # and between two attempts to connect; five of these after the last INFO no replica is promoted
    "info-period": 500,
    "publish-period": 250,  # four of these after it was seen an old master is made a replica
    "tilt-period": 1000,  # so long does one nothing that was paused, or starved on a busy machine
}
"""Milliseconds instead of 1, 10, 2 and 30 seconds. A sentinel before Redis 7 keeps to these."""


class Sentinel(Configured):
    """One sentinel, from the binary of a server."""

    def __init__(self, binary: Path, password: str) -> None:
        super().__init__(binary, config={"requirepass": password} if password else {})
        self.id = secrets.token_hex(20)
        self.watches: list[list[str]] = []
        """Lines of its configuration: what it looks after."""

    def wait_ready(self) -> None:
        super().wait_ready()
        if not older_than_7(self.binary):
            self.command("SENTINEL", "DEBUG", *(word for setting in QUICK.items() for word in setting))

    def tells(self, what: str, name: str) -> list[dict[str, str]]:
        """SENTINEL MASTER, REPLICAS, SENTINELS."""
        said = self.command("SENTINEL", what, name)
        assert isinstance(said, list)
        return [_fields(each) for each in (said if what != "MASTER" else [said])]

    def _arguments(self) -> Sequence[str]:
        return [*super()._arguments(), "--sentinel"]

    def _settings(self) -> list[list[str]]:
        listening = [["bind", LOOPBACK], ["port", str(self.port)], ["dir", "."]]
        login = [["requirepass", password]] if (password := self.config.get("requirepass")) else []
        peers = [["sentinel", "sentinel-pass", password]] if password else []
        return [*listening, *login, ["sentinel", "myid", self.id], *peers, *self.watches]


class SentinelGroup(Replicated):
    """Sentinels (`sentinels`), a master and replicas. It is ready when all sentinels see all of that, and each other."""

    def __init__(
        self,
        sentinels: int = 3,
        replicas: int = 2,
        binary: Path | None = None,
        *,
        name: str = "mymaster",
        down_after: float | None = None,
        failover_timeout: float = 3.0,
        password: str = "",
        sentinel_password: str = "",
        config: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
    ) -> None:
        peers = {"user": _peer(password), "masteruser": PEER} if password else {}
        binary = binary or any_binary()
        super().__init__(replicas, binary, password=password, config={**peers, **config}, env=env)
        self.name = name
        self.sentinels = [Sentinel(binary, sentinel_password) for _ in range(sentinels)]
        self._sentinel_password = sentinel_password
        default = DOWN_AFTER_OLDER if older_than_7(binary) else DOWN_AFTER
        self._down_after = f"{(default if down_after is None else down_after) * 1000:.0f}"
        self._failover_timeout = f"{failover_timeout * 1000:.0f}"

    @property
    def url(self) -> str:
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        members = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        more = f"?sentinel_password={quote(self._sentinel_password, safe='')}" if self._sentinel_password else ""
        return f"redis+sentinel://{login}{members}/{self.name}/0{more}"

    @property
    def master(self) -> Server:
        """The one that most of the sentinels name. If none of them is awake: that which they named last."""
        for port, _ in Counter(self._named()).most_common(1):
            self._master = self._at(port)
        return self._master

    @property
    def replicas(self) -> list[Server]:
        master = self.master
        return [node for node in self.nodes if node is not master]

    # -- its life

    def start(self) -> Self:
        super().start()
        for sentinel in self.sentinels:
            sentinel.watches = list(self._watched_by(sentinel))
            sentinel.spawn()
        for sentinel in self.sentinels:
            sentinel.wait_ready()
        self.wait_ready()
        return self

    def wait_ready(self, within: float = READY_WITHIN) -> None:
        """Until all is as at the start, though perhaps with another master."""
        until_nothing_is_missing(self._missing, within, "the sentinel group is")

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        super().close()

    # -- what can happen to it

    def failover(self, within: float = FAILOVER_WITHIN) -> Server:
        """Have the sentinels change the master, which is alive and well; the new one, when they all name it."""
        old = self.master
        deadline = time.monotonic() + within
        until_nothing_is_missing(self._refusal, within, "the failover is")
        return self.wait_replaced(old, max(0.0, deadline - time.monotonic()))

    def kill_master(self) -> Server:
        """SIGKILL; the server that was the master. `wait_replaced(it)` is the next one."""
        old = self.master
        old.kill()
        return old

    def wait_replaced(self, old: Server, within: float = FAILOVER_WITHIN) -> Server:
        """Until all sentinels (but those dead or paused) name another master, and that one is a master; which it is."""
        until_nothing_is_missing(lambda: self._missing_successor(old), within, "the new master is")
        return self.master

    def promote(self, replica: Server) -> None:
        raise RuntimeError("here the sentinels promote: call failover(), or kill or pause the master")

    def isolate(self, server: Server) -> None:
        """A partition: from now on sentinels and other servers do not get at this one, until `heal`. Clients do."""
        if not self.password:
            raise RuntimeError("isolate() needs a group with a password: without one, whoever may not log in may stay")
        server.command("ACL", "SETUSER", PEER, "off")
        server.command("CLIENT", "KILL", "USER", PEER)
        if server.info("role") == "slave":
            cut_link(server)

    def heal(self, within: float = READY_WITHIN) -> None:
        """Undo `pause`, `cut` and `isolate`, until all is as at the start, but perhaps with another master.

        One that was killed, restart first. Redis 6.2 takes more than ten seconds to make an old master a replica.
        """
        for sentinel in self.sentinels:
            sentinel.resume()
        self._reconnect()
        if self.password:
            for node in self.nodes:
                node.command("ACL", "SETUSER", PEER, "on")
        self.wait_ready(within)

    # -- inside

    def _watched_by(self, sentinel: Sentinel) -> Iterator[list[str]]:
        quorum = str(len(self.sentinels) // 2 + 1)
        yield ["sentinel", "monitor", self.name, LOOPBACK, str(self._master.port), quorum]
        yield ["sentinel", "down-after-milliseconds", self.name, self._down_after]
        yield ["sentinel", "failover-timeout", self.name, self._failover_timeout]
        yield ["sentinel", "parallel-syncs", self.name, str(len(self.nodes))]
        if self.password:
            yield ["sentinel", "auth-user", self.name, PEER]
            yield ["sentinel", "auth-pass", self.name, self.password]
        for replica in self._replicas:
            yield ["sentinel", "known-replica", self.name, LOOPBACK, str(replica.port)]
        for other in self.sentinels:
            if other is not sentinel:
                yield ["sentinel", "known-sentinel", self.name, LOOPBACK, str(other.port), other.id]

    def _awake(self) -> list[Sentinel]:
        return [sentinel for sentinel in self.sentinels if sentinel.alive]

    def _named(self) -> list[int]:
        """The master's port, as each sentinel says it."""
        return [int(sentinel.tells("MASTER", self.name)[0]["port"]) for sentinel in self._awake()]

    def _at(self, port: int) -> Server:
        return next(node for node in self.nodes if node.port == port)

    def _refusal(self) -> str:
        try:
            self._awake()[0].command("SENTINEL", "FAILOVER", self.name)
        except ReplyError as error:
            if str(error).startswith(NOT_NOW):
                return str(error)
            raise
        return ""

    def _missing_successor(self, old: Server) -> str:
        ports = set(self._named())
        if len(ports) > 1 or old.port in ports:
            return f"the sentinels name {sorted(ports)}, it was {old.port}"
        role = self._at(ports.pop()).command("ROLE")
        assert isinstance(role, list)
        return "" if role[0] == b"master" else f"it says that it is a {role[0]!r}"

    def _missing(self) -> str:
        for server in [*self.nodes, *self.sentinels]:
            if not server.alive:
                return f"port {server.port} is dead or paused"
        if len(ports := set(self._named())) > 1:
            return f"the sentinels name different masters: {sorted(ports)}"
        return next(filter(None, map(self._unseen_by, self.sentinels)), "") or self._missing_copies()

    def _unseen_by(self, sentinel: Sentinel) -> str:
        expected = {"MASTER": 1, "REPLICAS": len(self.nodes) - 1, "SENTINELS": len(self.sentinels) - 1}
        for what, count in expected.items():
            seen = sentinel.tells(what, self.name)
            well = [each for each in seen if not DOWN & set(each["flags"].split(","))]
            if len(well) != count or any(each.get("master-link-status", "ok") != "ok" for each in well):
                flags = ", ".join(f"port {each['port']} {each['flags']}" for each in seen)
                return f"the sentinel at port {sentinel.port} does not see {count} {what.lower()} well: {flags or 'none'}"
        return ""


def _peer(password: str) -> str:
    return f"{PEER} on #{hashlib.sha256(password.encode()).hexdigest()} ~* &* +@all"


def _fields(said: object) -> dict[str, str]:
    assert isinstance(said, list)
    texts = [part.decode() for part in said]
    return dict(zip(texts[::2], texts[1::2], strict=True))
