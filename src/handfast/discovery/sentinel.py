"""The master of a group that Sentinel looks after: asked for before each connection, and told of when it changes.

Every sentinel is asked, and the answer with the latest configuration epoch counts: one that is cut off from the others
would go on naming the old master. A thread listens to all of them for a new master; connections to the old one are then
hung up, which otherwise might be noticed late or, where the old master is merely cut off from the others, not at all.

A client never goes back to an epoch below the highest that it knows. A majority of the sentinels may still name the old
master while one of them names the new one. Both masters then grant locks, and a client that went from one to the other
would be a second holder. So a client must be restarted if an operator sets a group up anew, with epochs from zero.

Nothing that a sentinel answers, and no answer at all, holds up a search for longer than `FIND_WITHIN`.
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

__all__ = ["SentinelMaster"]

SWITCH: Final = "+switch-master"
FIND_WITHIN: Final = 1.0
"""Seconds for a search. One sentinel has `asking.ANSWER` for each packet, but could send them without end."""
LISTEN_AGAIN: Final = 0.5
"""Seconds after which to listen again to a sentinel that was lost."""


class SentinelMaster:
    """A resolver: the master by this name."""

    def __init__(self, name: str, sentinels: Sequence[HostPort], options: dict[str, Any]) -> None:
        self.name = name
        self.sentinels = list(sentinels)
        self._options = options
        """For redis-py's connections to the sentinels."""
        self._connections = Connections()
        self._known: tuple[int, HostPort] | None = None
        """Configuration epoch and place: of the latest epoch that was heard of, and there as last heard."""
        self._lock = threading.Lock()
        self._listener: tuple[int, asyncio.AbstractEventLoop] | None = None
        """Of this process, by its id."""
        self._closed = False

    def find(self) -> HostPort:
        """See net.address.Resolver."""
        self._listen()
        said: queue.SimpleQueue[tuple[HostPort, tuple[int, HostPort] | str]] = queue.SimpleQueue()
        for sentinel in self.sentinels:
            # Daemons, and not joined: one that hangs is not waited for, also not by the end of the process.
            threading.Thread(
                target=lambda each: said.put((each, self._ask(each))), args=(sentinel,), daemon=True, name="handfast-find"
            ).start()
        answers: dict[HostPort, tuple[int, HostPort] | str] = {}
        found: list[tuple[int, HostPort]] = []
        end = time.monotonic() + FIND_WITHIN
        # A majority knows of every failover that has been decided.
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
        """What one sentinel says: epoch and place, or why it says nothing."""
        host, port = sentinel
        client: Any = redis.Redis(host=host, port=port, **once(), **self._options)
        # Ends the connection under the thread that reads from it, which would read for ever from a server that never
        # comes to an end.
        limit = threading.Timer(FIND_WITHIN, client.connection_pool.disconnect)
        limit.daemon = True
        limit.start()
        try:
            # The epoch first: a change between the two then belongs to a later epoch, not to an earlier one. The address
            # is asked for by itself: while replicas are being told, the leader of a failover still describes the old
            # master, under the new epoch.
            state = client.execute_command("SENTINEL MASTER", self.name)
            if isinstance(state, list):  # as RESP2 has it
                state = dict(zip(state[::2], state[1::2], strict=True))
            told = {_text(word): _text(value) for word, value in state.items()}
            address = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.name)
            if address is None:
                return _UNKNOWN
            return int(told["config-epoch"]), (_text(address[0]), int(address[1]))
        except redis.ResponseError as error:
            return _UNKNOWN if "No such master" in str(error) else f"says {error}"
        except (redis.RedisError, OSError) as error:
            return f"did not answer ({error})"
        except Exception as error:
            return f"does not answer as a sentinel does ({error!r})"
        finally:
            limit.cancel()
            client.close()

    def _now_at(self, epoch: int, host_port: HostPort) -> HostPort:
        """A sentinel has named this place. Returns the place of the latest epoch, and hangs up on all others."""
        with self._lock:
            if self._known is None or epoch >= self._known[0]:
                self._known = (epoch, host_port)
            place = self._known[1]
        self._connections.hang_up(lambda _, other: other != place)
        return place

    def opened(self, connection: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """See net.address.Resolver."""
        self._connections.opened(connection, self, host_port, hang_up)
        # Afterwards: the master may have become known to be elsewhere while the connection was made.
        known = self._known
        if known is not None and known[1] != host_port:
            self._connections.hang_up(lambda _, other: other != known[1])

    def on_redirect(self, host_port: HostPort, fault: Any) -> None:
        """See net.address.Resolver."""
        if fault.kind in ("READONLY", "MASTERDOWN", "replica"):
            self._connections.hang_up(lambda _, old: old == host_port)

    # -- being told ------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Begin to, if this process does not yet."""
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
            pass  # the client was closed
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
                        # The first says that we are subscribed: what came before that is asked for.
                        words = _text(message["data"]).split() if message["type"] == "message" else [self.name]
                        if words[0] == self.name:
                            answer = await loop.run_in_executor(None, self._ask, sentinel)
                            if isinstance(answer, tuple):
                                self._now_at(*answer)
            except Exception as error:
                # Whatever it says: the others are heard all the same, and find() tells what is wrong.
                log.debug("sentinel %s:%s tells nothing at present: %s", host, port, error)
            finally:
                await client.aclose()
            await asyncio.sleep(LISTEN_AGAIN)

    def forked(self) -> None:
        """In the child: what the parent's threads held is not ours."""
        self._lock = threading.Lock()
        self._connections = Connections()

    def close(self) -> None:
        """Listen no more."""
        with self._lock:
            self._closed = True
            listener, self._listener = self._listener, None
        if listener is not None and listener[0] == os.getpid():
            try:
                listener[1].call_soon_threadsafe(_cancel_all, listener[1])
            except RuntimeError:
                pass  # it has ended by itself


_UNKNOWN: Final = "does not know it"
_SILENT: Final = "did not answer in time"


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _endless() -> dict[str, Any]:
    """Who listens has all the time in the world; a peer that is gone without a word is found by the system."""
    return {**once(), "socket_timeout": None, "socket_keepalive": True, "health_check_interval": 0}
