"""A master with replicas for tests, watched by sentinels.

Every few seconds a sentinel finds replicas in the master's INFO, and other sentinels by messages through the master. To
save that time, the sentinels' files already name them all. `start` waits until the sentinels have confirmed it. After
`start` the sentinels decide which server is the master.
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
"""Seconds. With the default settings a failover takes 1 to 3 s. After a split vote the sentinels try again after two
failover_timeouts."""
PEER: Final = "peer"
"""The user name of sentinels and replicas, if there are passwords. So `isolate` can refuse them, but not clients."""
NOT_NOW: Final = ("NOGOODSLAVE", "INPROG")
DOWN: Final = frozenset({"s_down", "o_down", "disconnected", "failover_in_progress", "reconf_inprog"})
DOWN_AFTER: Final = 0.75
DOWN_AFTER_OLDER: Final = 1.5
"""Seconds for sentinels before Redis 7. This must be longer than the time between two tries to connect (see QUICK):
otherwise the sentinels, which have just failed to reach the old master, take the new one for dead before they try it."""
QUICK: Final = {
    "ping-period": 400,  # also between two tries to connect; a replica without INFO for five periods is not promoted
    "info-period": 500,
    "publish-period": 250,  # four periods after an old master is seen, it is made a replica
    "tilt-period": 1000,  # a sentinel that was paused, or starved on a busy machine, does nothing for so long
}
"""Periods of the sentinels in milliseconds, instead of 1, 10, 2 and 30 s. Before Redis 7 they cannot be changed."""


class Sentinel(Configured):
    """One sentinel, from the binary of a server."""

    def __init__(self, binary: Path, password: str) -> None:
        super().__init__(binary, config={"requirepass": password} if password else {})
        self.id = secrets.token_hex(20)
        self.watches: list[list[str]] = []
        """The lines of its configuration that name the servers to watch."""

    def wait_ready(self) -> None:
        super().wait_ready()
        if not older_than_7(self.binary):
            self.command("SENTINEL", "DEBUG", *(word for setting in QUICK.items() for word in setting))

    def tells(self, what: str, name: str) -> list[dict[str, str]]:
        """The reply to SENTINEL MASTER, REPLICAS or SENTINELS, as dicts."""
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
    """Sentinels (`sentinels`), a master and replicas. The group is ready when each sentinel sees all servers and all
    other sentinels."""

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
        """The master that most of the sentinels name. If no sentinel is running, the last known master."""
        for port, _ in Counter(self._named()).most_common(1):
            self._master = self._at(port)
        return self._master

    @property
    def replicas(self) -> list[Server]:
        master = self.master
        return [node for node in self.nodes if node is not master]

    # -- start and end

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
        """Wait until the group is as after `start`, but perhaps with another master."""
        until_nothing_is_missing(self._missing, within, "the sentinel group is")

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        super().close()

    # -- faults

    def failover(self, within: float = FAILOVER_WITHIN) -> Server:
        """Have the sentinels replace a living master. Returns the new master when all sentinels name it."""
        old = self.master
        deadline = time.monotonic() + within
        until_nothing_is_missing(self._refusal, within, "the failover is")
        return self.wait_replaced(old, max(0.0, deadline - time.monotonic()))

    def kill_master(self) -> Server:
        """Kill the master (SIGKILL) and return it. `wait_replaced(old)` returns the next master."""
        old = self.master
        old.kill()
        return old

    def wait_replaced(self, old: Server, within: float = FAILOVER_WITHIN) -> Server:
        """Wait until all running sentinels name a new master, and it has that role. Returns the new master."""
        until_nothing_is_missing(lambda: self._missing_successor(old), within, "the new master is")
        return self.master

    def promote(self, replica: Server) -> None:
        raise RuntimeError("here the sentinels promote: call failover(), or kill or pause the master")

    def isolate(self, server: Server) -> None:
        """Imitate a partition until `heal`: sentinels and other servers cannot reach this server, but clients can."""
        if not self.password:
            raise RuntimeError("isolate() needs a group with a password: without one, no server can be kept out")
        server.command("ACL", "SETUSER", PEER, "off")
        server.command("CLIENT", "KILL", "USER", PEER)
        if server.info("role") == "slave":
            cut_link(server)

    def heal(self, within: float = READY_WITHIN) -> None:
        """Undo `pause`, `cut` and `isolate`, and wait until the group is ready, perhaps with another master.

        Restart killed servers first. Redis 6.2 takes more than ten seconds to make an old master a replica.
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
        """The master's port, as each running sentinel names it."""
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
