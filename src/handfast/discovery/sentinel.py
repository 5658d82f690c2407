"""The master of a group under Sentinel. A client asks for it before each connection, and listens for changes.

A client asks every sentinel and believes the reply with the latest configuration epoch: a sentinel that is cut off from
the others still names the old master. A thread listens to all sentinels for a new master, and closes the connections to
the old one. Without that a client might notice a failover late, or never, if the old master is only cut off.

A client never goes back to an epoch below the highest that it knows. A majority of the sentinels may still name the old
master while one of them names the new one. At that time both masters grant locks, and a client that went from one to
the other would be a second holder. So a client must be restarted if an operator sets a group up again, with epochs from
zero.

A search takes no longer than `FIND_WITHIN`, whatever the sentinels reply, and also if they do not reply.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis.asyncio  # here, and not at the first connection: see net/address.py

from handfast import log
from handfast.discovery.asking import once
from handfast.discovery.connections import Connections, HostPort
from handfast.errors import ConfigError
from handfast.net.faults import without_arguments

__all__ = ["SentinelMaster"]

SWITCH: Final = "+switch-master"
FIND_WITHIN: Final = 1.0
"""Seconds for a search. A sentinel has `asking.ANSWER` seconds for each packet, but could send packets without end."""
MOST_CHANGES: Final = 3
"""How often a sentinel is asked again because its epoch has changed, at most."""
LISTEN_AGAIN: Final = 0.5
"""Seconds before the listener connects again to a sentinel that it has lost."""


class SentinelMaster:
    """The resolver of the master with this name."""

    def __init__(self, name: str, sentinels: Sequence[HostPort], options: dict[str, Any]) -> None:
        self.name = name
        self.sentinels = list(sentinels)
        self._options = options
        """Options of the redis-py connections to the sentinels."""
        self._connections = Connections()
        self._known: tuple[int, HostPort] | None = None
        """The latest configuration epoch, and the master's address in it as last heard."""
        self._lock = threading.Lock()
        self._listener: tuple[int, asyncio.AbstractEventLoop] | None = None
        """The id of the listening process, and its event loop. A forked child has another id, so it starts its own."""
        self._closed = False

    def find(self) -> HostPort:
        """See net.address.Resolver."""
        self._listen()
        said: queue.SimpleQueue[tuple[HostPort, tuple[int, HostPort] | str]] = queue.SimpleQueue()
        for sentinel in self.sentinels:
            # Daemon threads that are never joined: a sentinel that hangs must not hold up the search or the exit.
            threading.Thread(
                target=lambda each: said.put((each, self._ask(each))), args=(sentinel,), daemon=True, name="handfast-find"
            ).start()
        answers: dict[HostPort, tuple[int, HostPort] | str] = {}
        found: list[tuple[int, HostPort]] = []
        end = time.monotonic() + FIND_WITHIN
        # A majority of the sentinels knows of every failover, so a majority of replies is enough.
        while len(answers) < len(self.sentinels) and len(found) < len(self.sentinels) // 2 + 1:
            try:
                sentinel, answer = said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            answers[sentinel] = answer
            if isinstance(answer, tuple):
                found.append(answer)
        if found:
            return self._now_at(*max(found))
        message = "; ".join(f"{host}:{port} {answers.get((host, port), _SILENT)}" for host, port in self.sentinels)
        message = f"no sentinel names a master {self.name!r}: {message}"
        if all(answers.get(sentinel) == _UNKNOWN for sentinel in self.sentinels):
            raise ConfigError(message)
        raise LookupError(message)

    def opinions(self) -> dict[HostPort, HostPort | str]:
        """By sentinel: where it sees the master, or why it says nothing. For people who ask."""
        said = {sentinel: self._ask(sentinel) for sentinel in self.sentinels}
        return {sentinel: each if isinstance(each, str) else each[1] for sentinel, each in said.items()}

    def _ask(self, sentinel: HostPort) -> tuple[int, HostPort] | str:
        """Ask one sentinel: epoch and address, or the reason why it names none."""
        host, port = sentinel
        client: Any = redis.Redis(host=host, port=port, **once(), **self._options)
        # Without this timer the thread would read for ever from a server that never ends its reply.
        limit = threading.Timer(FIND_WITHIN, client.connection_pool.disconnect)
        limit.daemon = True
        limit.start()
        try:
            # Ask for the address in a second command: while a failover reconfigures the replicas, its leader describes
            # the old master under the new epoch. Ask for the epoch before and after it: if it has changed in between,
            # the new address would come with the old epoch, and the old address would be as good.
            before, epoch, address = -1, self._epoch(client), None
            for _ in range(MOST_CHANGES):
                address = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)
                before, epoch = epoch, self._epoch(client)
                if before == epoch:
                    break
            return _UNKNOWN if address is None else (before, (_text(address[0]), int(address[1])))
        except redis.ResponseError as error:
            return _UNKNOWN if "No such master" in str(error) else f"says {without_arguments(str(error))}"
        except redis.AuthenticationError as error:
            return f"says {without_arguments(str(error))}"
        except (redis.RedisError, OSError) as error:
            return f"did not answer ({without_arguments(str(error))})"
        except Exception as error:
            return f"does not answer as a sentinel does ({error!r})"
        finally:
            limit.cancel()
            client.close()

    def _epoch(self, client: Any) -> int:
        """The configuration epoch that a sentinel knows."""
        state = client.execute_command("SENTINEL MASTER", self.name)
        if isinstance(state, list):  # a RESP2 reply
            state = dict(zip(state[::2], state[1::2], strict=True))
        return int({_text(word): _text(value) for word, value in state.items()}["config-epoch"])

    def _now_at(self, epoch: int, host_port: HostPort) -> HostPort:
        """Note the address that a sentinel has named. Returns the address of the latest epoch, and closes the connections
        to all others."""
        with self._lock:
            if self._known is None or epoch >= self._known[0]:
                self._known = (epoch, host_port)
            place = self._known[1]
        self._connections.hang_up(lambda _, other: other != place)
        return place

    def opened(self, connection: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """See net.address.Resolver."""
        self._connections.opened(connection, self, host_port, hang_up)
        # Check after the registration: the master may have moved while the connection was made.
        known = self._known
        if known is not None and known[1] != host_port:
            self._connections.hang_up(lambda _, other: other != known[1])

    def on_redirect(self, host_port: HostPort, fault: Any) -> None:
        """See net.address.Resolver."""
        if fault.kind in ("READONLY", "MASTERDOWN", "replica"):
            self._connections.hang_up(lambda _, old: old == host_port)

    # -- listening -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Start the listening thread, unless this process has one."""
        with self._lock:
            if self._closed or (self._listener is not None and self._listener[0] == os.getpid()):
                return
            loop = asyncio.new_event_loop()
            self._listener = (os.getpid(), loop)
        threading.Thread(target=self._run, args=(loop,), name="handfast-sentinel", daemon=True).start()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(self._hear_all(loop))
        except asyncio.CancelledError:
            pass  # the client is closed
        finally:
            loop.close()

    async def _hear_all(self, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.gather(*[self._hear(sentinel, loop) for sentinel in self.sentinels])

    async def _hear(self, sentinel: HostPort, loop: asyncio.AbstractEventLoop) -> None:
        host, port = sentinel
        while True:
            client = redis.asyncio.Redis(host=host, port=port, **{**_endless(), **self._options})
            try:
                async with client.pubsub() as pubsub:
                    await pubsub.subscribe(SWITCH)
                    async for message in pubsub.listen():
                        # The first message confirms the subscription. Ask once at that time for earlier changes.
                        words = _text(message["data"]).split() if message["type"] == "message" else [self.name]
                        if words[0] == self.name:
                            answer = await loop.run_in_executor(None, self._ask, sentinel)
                            if isinstance(answer, tuple):
                                self._now_at(*answer)
            except Exception as error:
                # The client still listens to the other sentinels, and find() reports what is wrong with this one.
                log.debug("cannot listen to sentinel %s:%s at present: %s", host, port, without_arguments(str(error)))
            finally:
                await client.aclose()
            await asyncio.sleep(LISTEN_AGAIN)

    def forked(self) -> None:
        """Start anew in the child after a fork: the locks, threads and sockets belong to the parent."""
        self._lock = threading.Lock()
        self._connections = Connections()

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
            listener, self._listener = self._listener, None
        if listener is not None and listener[0] == os.getpid():
            try:
                listener[1].call_soon_threadsafe(_cancel_all, listener[1])
            except RuntimeError:
                pass  # the loop has ended already


_UNKNOWN: Final = "does not know it"
_SILENT: Final = "did not answer in time"


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _endless() -> dict[str, Any]:
    """Options for listening: no read timeout. TCP keep-alive finds a sentinel that has vanished."""
    return {**once(), "socket_timeout": None, "socket_keepalive": True, "health_check_interval": 0}
