"""The master of a group under Sentinel. A client asks for it before each connection, and listens for changes.

A client asks every sentinel and believes the reply with the latest configuration epoch: a sentinel that is cut off from
the others still names the old master. A majority of the sentinels is not enough: right after a failover, one sentinel may
name the new master while all others still name the old one, which may be alive. So a search waits for all sentinels, but
for those beyond a majority only `GRACE`. A thread listens to all sentinels for a new master, and closes the connections
to the old one. Without that a client might notice a failover late, or never, if the old master is only cut off.

A client never goes back to an epoch below the highest that it knows. At a time when both masters grant locks, a client
that went from one to the other would be a second holder. So a client must be restarted if an operator sets a group up
again, with epochs from zero.

One case remains. A client that can reach only lagging sentinels begins on the older master, and so does a client whose
other sentinels take longer than `GRACE`. When it hears of the later epoch, it renews its leases at once on the new
master, which does not know them: they are lost within the time of a search and a round trip. If the new master cannot be
reached, they end at their deadline, and so does a lease with `renew=False`.

A search takes no longer than `FIND_WITHIN`, whatever the sentinels reply, and also if they do not reply.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from handfast import log
from handfast.core.handshake import Rejected
from handfast.core.io import Fault
from handfast.discovery.connections import Connections, HostPort
from handfast.discovery.login import CHUNK
from handfast.discovery.redis_options import login_of, tls_of
from handfast.discovery.sentinel_question import UNKNOWN, Answer, Question, Subscription
from handfast.errors import ConfigError
from handfast.net.address import Address, dial
from handfast.net.faults import from_socket

__all__ = ["SentinelMaster"]

FIND_WITHIN: Final = 1.0
"""Seconds for a search."""
GRACE: Final = 0.4
"""Seconds for which a search waits for further sentinels when a majority has answered. A question takes two round trips,
one of them to connect, and a round trip to the far side of the Earth takes 0.2 s. A sentinel that is down costs a search
this time, unless its machine refuses the connection."""
LISTEN_WITHIN: Final = 5.0
"""Seconds that a sentinel has to answer the listener. It is long, because no caller waits for the listener."""
LISTEN_AGAIN: Final = 0.5
"""Seconds before the listener connects again to a sentinel that it has lost."""


class SentinelMaster:
    """The resolver of the master with this name."""

    def __init__(self, name: str, sentinels: Sequence[HostPort], options: dict[str, Any]) -> None:
        """`options`: how to log in to the sentinels, with redis-py's names."""
        self.name = name
        self.sentinels = list(sentinels)
        self._options = options
        self._sentinel = Address(label=name, tls=tls_of(options) if options.get("ssl") else None, **login_of(options))
        """The address of a sentinel, without host and port."""
        self._connections = Connections()
        self._known: Answer | None = None
        """The latest configuration epoch, and the master's address in it as last heard."""
        self._lock = threading.Lock()
        self._listener: tuple[int, asyncio.AbstractEventLoop] | None = None
        """The id of the listening process, and its event loop. A forked child has another id, so it starts its own."""
        self._closed = False
        self._on_move: Callable[[], None] = lambda: None

    def find(self) -> HostPort:
        """See net.address.Resolver."""
        self._listen()
        answers = self._answers()
        found = [answer for answer in answers.values() if not isinstance(answer, Fault)]
        if found:
            return self._now_at(*max(found))
        faults = {each: answer for each in self.sentinels if isinstance(answer := answers.get(each, _SILENT), Fault)}
        raise self._not_found(faults)

    def _answers(self) -> dict[HostPort, Answer | Fault]:
        """Ask all sentinels at the same time. The dict has the answers that came in time."""
        said: queue.SimpleQueue[tuple[HostPort, Answer | Fault]] = queue.SimpleQueue()
        for sentinel in self.sentinels:
            # Daemon threads that are never joined: a sentinel that hangs must not hold up the search or the exit.
            threading.Thread(
                target=lambda each: said.put((each, self._ask(each))), args=(sentinel,), daemon=True, name="handfast-find"
            ).start()
        answers: dict[HostPort, Answer | Fault] = {}
        majority, named = len(self.sentinels) // 2 + 1, 0
        end = time.monotonic() + FIND_WITHIN
        while len(answers) < len(self.sentinels):
            try:
                sentinel, answer = said.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            answers[sentinel] = answer
            named += not isinstance(answer, Fault)
            if named == majority:
                end = min(end, time.monotonic() + GRACE)
        return answers

    def _not_found(self, faults: dict[HostPort, Fault]) -> Exception:
        """The error if no sentinel names the master. If a retry does not help, callers do not wait."""
        said = "; ".join(f"{host}:{port} {fault.text}" for (host, port), fault in faults.items())
        message = f"no sentinel names a master {self.name!r}: {said}"
        if all(fault is UNKNOWN for fault in faults.values()):
            return ConfigError(message)
        if all(fault.lasting for fault in faults.values()):
            kind = next(fault.kind for fault in faults.values() if fault is not UNKNOWN)
            hint = "; check sentinel_username and sentinel_password in the URL" if kind in ("NOAUTH", "WRONGPASS") else ""
            return Rejected(Fault(kind, message + hint, lasting=True))
        return LookupError(message)

    def opinions(self) -> dict[HostPort, HostPort | str]:
        """By sentinel: where it sees the master, or why it says nothing. For people who ask."""
        said = {sentinel: self._ask(sentinel) for sentinel in self.sentinels}
        return {sentinel: each.text if isinstance(each, Fault) else each[1] for sentinel, each in said.items()}

    def _ask(self, sentinel: HostPort) -> Answer | Fault:
        """Ask one sentinel: epoch and address, or the reason why it names none."""
        end = time.monotonic() + FIND_WITHIN
        try:
            address = self._address(sentinel)
            question = Question(address, self.name)
            with dial(address, FIND_WITHIN) as sock:
                while question.answer is None:
                    sock.sendall(question.out)
                    # Each packet leaves less time for the next one, so a reply that never ends is not read for ever.
                    sock.settimeout(max(0.001, end - time.monotonic()))
                    question.feed(sock.recv(CHUNK))
            return question.answer
        except Exception as error:
            return _unanswered(error)

    def _address(self, sentinel: HostPort) -> Address:
        return self._sentinel._replace(host=sentinel[0], port=sentinel[1])

    def _now_at(self, epoch: int, host_port: HostPort) -> HostPort:
        """Note the address that a sentinel has named. Returns the address of the latest epoch, and closes the connections
        to all others."""
        with self._lock:
            before = self._known
            if before is None or epoch >= before[0]:
                self._known = (epoch, host_port)
            place = host_port if before is None or epoch >= before[0] else before[1]
        self._connections.hang_up(lambda _, other: other != place)
        if before is not None and before[1] != place:
            self._on_move()
        return place

    def when_moved(self, call: Callable[[], None]) -> None:
        """See net.address.Resolver."""
        self._on_move = call

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
            loop.run_until_complete(self._hear_all())
        except asyncio.CancelledError:
            pass  # the client is closed
        finally:
            loop.close()

    async def _hear_all(self) -> None:
        await asyncio.gather(*[self._hear(sentinel) for sentinel in self.sentinels])

    async def _hear(self, sentinel: HostPort) -> None:
        while True:
            try:
                await self._hear_once(sentinel)
            except Exception as error:
                # The client still listens to the other sentinels, and find() reports what is wrong with this one.
                log.debug("cannot listen to sentinel %s:%s at present: %s", *sentinel, _unanswered(error).text)
            await asyncio.sleep(LISTEN_AGAIN)

    async def _hear_once(self, sentinel: HostPort) -> None:
        """Listen on one connection, until it ends."""
        address = self._address(sentinel)
        subscription = Subscription(address, self.name)
        async with asyncio.timeout(LISTEN_WITHIN) as limit:
            reader, writer = await _connected(address)
            try:
                writer.write(subscription.out)
                while True:
                    # The start of the subscription counts as news: the master may have moved before.
                    if subscription.feed(await reader.read(CHUNK)):
                        limit.reschedule(None)
                        await self._learn_from(sentinel)
            finally:
                writer.transport.abort()

    async def _learn_from(self, sentinel: HostPort) -> None:
        """Ask a sentinel that may know a later epoch. Raises if it does not answer: listening then begins anew."""
        address = self._address(sentinel)
        question = Question(address, self.name)
        async with asyncio.timeout(LISTEN_WITHIN):
            reader, writer = await _connected(address)
            try:
                while question.answer is None:
                    writer.write(question.out)
                    question.feed(await reader.read(CHUNK))
            finally:
                writer.transport.abort()
        if not isinstance(question.answer, Fault):
            self._now_at(*question.answer)
        elif question.answer is not UNKNOWN:
            raise Rejected(question.answer)

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


_SILENT: Final = Fault("timeout", "did not answer in time")


def _unanswered(error: Exception) -> Fault:
    """The fault of a sentinel that cannot be asked."""
    if isinstance(error, TimeoutError):
        return _SILENT
    fault = from_socket(error)
    if isinstance(error, Rejected):
        return fault
    return Fault(fault.kind, f"did not answer ({fault.text})", lasting=fault.lasting)


async def _connected(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    secured: dict[str, Any] = {}
    if address.tls is not None:
        secured = {"ssl": address.tls(), "server_hostname": address.host}
    reader, writer = await asyncio.open_connection(address.host, address.port, **secured)
    # A listener only reads. TCP keep-alive finds a sentinel that has vanished.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
