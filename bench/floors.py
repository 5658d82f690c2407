"""The blocking floors: raw sockets, hiredis' parser, and nothing that a lock could do without.

F1 writes and waits on one socket. F5 writes to all five and takes the replies in the order of epoll. It has
two variants: one waits for every reply, the other returns at the majority and reads the late replies during
the next operation. Which one is faster depends on the machine's cores; the case takes the faster one as its
floor.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from functools import partial

import hiredis

from bench.candidate import Candidate, Pair, PairFailed, Session, Urls, address
from bench.commands import Commands, commands_for, encode, owners, sha1


class Wire:
    """One connection: replies come back in the order of the requests."""

    def __init__(self, url: str) -> None:
        self.sock = socket.create_connection(address(url))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()
        self.owed = 0
        """Requests sent whose replies have not been read (kept by Broadcast)."""

    def ask(self, request: bytes) -> object:
        self.sock.sendall(request)
        while (reply := self.reader.gets()) is False:
            self.reader.feed(self.sock.recv(65536))
        return reply

    def load(self, scripts: tuple[bytes, ...]) -> None:
        for script in scripts:
            reply = self.ask(encode(b"SCRIPT", b"LOAD", script))
            if reply != sha1(script):
                raise RuntimeError(f"the server did not load a floor's script: {reply!r}")


@contextlib.contextmanager
def connected(urls: Urls, commands: Commands) -> Iterator[list[Wire]]:
    with contextlib.ExitStack() as stack:
        wires = []
        for url in urls:
            wire = Wire(url)
            stack.enter_context(contextlib.closing(wire.sock))
            wire.load(commands.scripts)
            wires.append(wire)
        yield wires


@contextlib.contextmanager
def one_node(urls: Urls, with_fence: bool) -> Iterator[Session]:
    commands, next_owner = commands_for(1, with_fence), owners()
    with connected(urls, commands) as [wire]:

        def session(name: str) -> Pair:
            acquire, release = commands.acquire(name), commands.release(name)

            def pair() -> None:
                owner = next_owner()
                for make in (acquire, release):
                    request, yes = make(owner)
                    reply = wire.ask(request)
                    if reply != yes:
                        raise PairFailed(repr(reply))

            return pair

        yield session


class Broadcast:
    """One request to every node, decided as soon as `enough` of them said yes."""

    def __init__(self, wires: list[Wire], enough: int) -> None:
        self.wires = {wire.sock.fileno(): wire for wire in wires}
        self.enough = enough
        self.epoll = select.epoll()
        for fd in self.wires:
            self.epoll.register(fd, select.EPOLLIN)

    def ask(self, request: bytes, yes: object) -> None:
        for wire in self.wires.values():
            wire.sock.sendall(request)
            wire.owed += 1
        granted = refused = 0
        while granted < self.enough:
            for fd, _ in self.epoll.poll():
                wire = self.wires[fd]
                wire.reader.feed(wire.sock.recv(65536))
                while (reply := wire.reader.gets()) is not False:
                    wire.owed -= 1
                    # Replies keep the order of requests: only the last outstanding reply can belong to this operation.
                    if wire.owed:
                        continue
                    if reply == yes:
                        granted += 1
                    else:
                        refused += 1
            if refused > len(self.wires) - self.enough:
                raise PairFailed(f"{refused} of {len(self.wires)} nodes refused")


@contextlib.contextmanager
def quorum(urls: Urls, with_fence: bool, wait_for_all: bool) -> Iterator[Session]:
    commands, next_owner = commands_for(len(urls), with_fence), owners()
    with connected(urls, commands) as wires:
        nodes = Broadcast(wires, len(wires) if wait_for_all else len(wires) // 2 + 1)

        def session(name: str) -> Pair:
            acquire, release = commands.acquire(name), commands.release(name)

            def pair() -> None:
                owner = next_owner()
                nodes.ask(*acquire(owner))
                nodes.ask(*release(owner))

            return pair

        with contextlib.closing(nodes.epoll):
            yield session


def floors(nodes: int, with_fence: bool) -> list[Candidate]:
    if nodes == 1:
        return [Candidate("floor", partial(one_node, with_fence=with_fence))]
    return [
        Candidate("floor, all replies", partial(quorum, with_fence=with_fence, wait_for_all=True)),
        Candidate("floor, majority", partial(quorum, with_fence=with_fence, wait_for_all=False)),
    ]
