"""A master with replicas for tests. A replica can fall behind, or be promoted.

The servers have configuration files, because a server keeps its role there: a promoted replica is still a master after a
restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from .ports import LOOPBACK
from .server_versions import any_binary, older_than_7
from .servers import Server, Servers
from .waiting import until_nothing_is_missing

__all__ = ["READY_WITHIN", "Configured", "Replicated", "cut_link", "settings"]

READY_WITHIN: Final = 20.0
"""Seconds. A replica is in sync after about 0.2 s, or after a second if it has just missed the moment to connect."""
CUT_OFF: Final = "cut off"
"""A wrong password: a master refuses a replica that has it."""


class Configured(Server):
    """A server with a configuration file. The server rewrites the file when its role changes."""

    def _arguments(self) -> Sequence[str]:
        path = self.folder / "server.conf"
        if not path.exists():
            path.write_text("".join(" ".join(map(_quoted, line)) + "\n" for line in self._settings()))
        return [str(path)]


class Replicated(Servers):
    """A master and replicas that are in sync after `start`. `config` applies to all of them."""

    def __init__(
        self,
        replicas: int = 2,
        binary: Path | None = None,
        *,
        password: str = "",
        config: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
    ) -> None:
        binary = binary or any_binary()
        every = {**settings(binary, password), **config}
        self.nodes = [Configured(binary, config=every, env=env) for _ in range(replicas + 1)]
        self.password = password
        self._master, *self._replicas = self.nodes

    @property
    def master(self) -> Server:
        return self._master

    @property
    def replicas(self) -> list[Server]:
        return self._replicas

    @property
    def url(self) -> str:
        """The master's URL."""
        return self.master.url

    def start(self) -> Self:
        super().start()
        for replica in self._replicas:
            _follow(replica, self._master)
        self.wait_synced()
        return self

    def wait_synced(self, within: float = READY_WITHIN) -> None:
        """Wait until all running replicas confirm everything that the master has written so far."""
        until_nothing_is_missing(self._missing_copies, within, "the replicas are")

    def promote(self, replica: Server) -> None:
        """Make this replica the master, and let the other replicas follow it.

        The former master is not told, as in a failover during a partition: if it lives, there are two masters now.
        `heal` makes it a replica.
        """
        replica.command("REPLICAOF", "NO", "ONE")
        _remember(replica)
        self._replicas = [other for other in self._replicas if other is not replica]
        self._master = replica
        for other in self._replicas:
            if other.alive:
                _follow(other, replica)

    def cut(self, *replicas: Server) -> None:
        """Cut the replication of these replicas, or of all, until `heal`. They still answer clients."""
        for replica in replicas or self.replicas:
            cut_link(replica)

    def heal(self, within: float = READY_WITHIN) -> None:
        """Undo `pause` and `cut`, and make all other servers replicas of the master. Restart killed servers first."""
        self._reconnect()
        self._replicas = [node for node in self.nodes if node is not self._master]
        for node in self._replicas:
            _follow(node, self._master)
        self.wait_synced(within)

    # -- inside

    def _reconnect(self) -> None:
        for node in self.nodes:
            node.resume()
            node.command("CONFIG", "SET", "masterauth", self.password)

    def _missing_copies(self) -> str:
        master = self.master
        replicas = [node for node in self.replicas if node.alive]
        for replica in replicas:
            if replica.info("master_port") != str(master.port):
                return f"port {replica.port} does not follow port {master.port}"
            if replica.info("master_link_status") != "up":
                return f"port {replica.port} has no link to its master"
        confirmed = _confirmations(master, len(replicas))
        return "" if confirmed >= len(replicas) else f"{confirmed} of {len(replicas)} replicas confirmed"


def settings(binary: Path, password: str) -> dict[str, str]:
    """The settings that all replicating servers share."""
    return {
        "repl-ping-replica-period": "1",
        **({} if older_than_7(binary) else {"enable-debug-command": "local"}),
        **({"requirepass": password, "masterauth": password} if password else {}),
    }


def _follow(replica: Server, master: Server) -> None:
    replica.command("REPLICAOF", LOOPBACK, master.port)
    _remember(replica)


def cut_link(replica: Server) -> None:
    """Stop the replication by a wrong masterauth, until it is set back. Data in transit is lost with the link."""
    replica.command("CONFIG", "SET", "masterauth", CUT_OFF)
    replica.command("CLIENT", "KILL", "TYPE", "master")
    replica.wait_for(lambda: replica.info("master_link_status") != "up")


def _remember(server: Server) -> None:
    server.command("CONFIG", "REWRITE")


def _confirmations(master: Server, wanted: int) -> int:
    """The number of replicas that have all present data of the master."""
    with master.connect() as link:
        link.command("PING")  # WAIT concerns the writes before this connection's last command
        said = link.command("WAIT", wanted, 200)
        assert isinstance(said, int)
        return said


def _quoted(word: str) -> str:
    """Quote a word for a configuration file."""
    plain = all("!" <= c <= "~" and c not in "\"'\\" for c in word)
    return word if word and plain else '"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"'
