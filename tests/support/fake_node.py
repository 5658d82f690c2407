"""A node in memory: the transitions of the Lua files in Python, driven by the very bytes that a server would get; and a
driver over such nodes, for the algorithms of the core.

Time does not pass in a node: a key ends when a test says so, which is more than any clock could do. A node that is given
a clock forgets its keys by it, and like a server that is busy it tells nobody.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import nullcontext
from typing import Any

from handfast import lua
from handfast.core.commands import Request, owner_in
from handfast.core.effects import SILENT, Fault, Payloads, Poll, payload_for
from handfast.core.group import Group
from handfast.core.hold import Hold
from handfast.core.line import Lines
from handfast.core.lineup import line_up
from handfast.core.terms import Settings, Terms
from handfast.net.link import CONNECT_TIMEOUT
from handfast.net.push_router import PushRouter
from handfast.options import policy

__all__ = ["ModelBell", "ModelDriver", "ModelKeeper", "ModelNode", "commands_in", "lock_request"]

LIMIT = 2**53
LEFT = 1000
"""What PTTL says of every key of a node without a clock."""
Push = Callable[[list[Any]], None]
"""Where a connection hears what it has not asked for."""


def commands_in(payload: bytes) -> Iterator[list[bytes]]:
    """The commands of a payload, each as its words."""
    at = 0

    def line() -> bytes:
        nonlocal at
        end = payload.index(b"\r\n", at)
        found, at = payload[at:end], end + 2
        return found

    while at < len(payload):
        count = int(line()[1:])
        words = []
        for _ in range(count):
            size = int(line()[1:])
            words.append(payload[at : at + size])
            at += size + 2
        yield words


class ModelNode:
    """Keys and values, and the commands that handfast sends."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.data: dict[bytes, bytes] = {}
        self.queues: dict[bytes, list[bytes]] = {}
        """Lists."""
        self.clock = clock
        self.ends: dict[bytes, float] = {}
        """When a key ends by the clock."""
        self.time = 1_800_000_000_000_000
        """Server time in µs where there is no clock."""
        self.channels: dict[bytes, Push] = {}
        """Who has subscribed to what."""
        self.tracked: dict[bytes, list[Push]] = {}
        """By key: who has asked to be told of its next change."""

    def run(self, payload: bytes, push: Push | None = None) -> list[Any]:
        """What a connection is answered; `push` is where it hears the rest."""
        answers: list[Any] = []
        caching = False
        for words in commands_in(payload):
            self._expire()
            if caching and push is not None:
                for key in words[1:]:
                    self.tracked.setdefault(key, []).append(push)
            caching = words[:2] == [b"CLIENT", b"CACHING"]
            answers.append(self._call(words))
        return answers

    # -- what others do --------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, px: int | None = None) -> None:
        self.data[key] = value
        self.ends.pop(key, None)
        if px is not None and self.clock is not None:
            self.ends[key] = self.clock() + px / 1000
        self.touch(key)

    def drop(self, key: bytes) -> None:
        del self.data[key]
        self.ends.pop(key, None)
        self.touch(key)

    def touch(self, key: bytes) -> None:
        """It has changed, if only in its ttl: who wanted to know is told, once."""
        for push in self.tracked.pop(key, ()):
            push([b"invalidate", [key]])

    # -- commands --------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        if self.clock is not None:
            for key in [key for key, end in self.ends.items() if end <= self.clock()]:
                del self.data[key], self.ends[key]

    def _left(self, key: bytes) -> int:
        if key not in self.data:
            return -2
        if self.clock is None:
            return LEFT
        return round((self.ends[key] - self.clock()) * 1000) if key in self.ends else -1

    def _now(self) -> int:
        return self.time if self.clock is None else self.time + round(self.clock() * 1e6)

    def _call(self, words: list[bytes]) -> Any:
        name = words[0].decode()
        if name == "EVALSHA":
            script = next(each for each, sha in lua.SHA.items() if sha == words[1])
            count = int(words[2])
            call = getattr(self, f"_{script}")
            return call(words[3 : 3 + count], words[3 + count :])
        if name == "SET":
            return self._set(words)
        if name == "GET":
            return self.data.get(words[1])
        if name == "MGET":
            return [self.data.get(key) for key in words[1:]]
        if name == "DEL":
            found = [key for key in words[1:] if key in self.data]
            for key in found:
                self.drop(key)
            return len(found)
        if name == "PTTL":
            return self._left(words[1])
        if name == "LRANGE":
            return list(self.queues.get(words[1], []))
        if name in ("CLIENT", "PING"):
            return b"OK"
        raise AssertionError(f"the model knows no {name}")

    def _set(self, words: list[bytes]) -> Any:
        key, value, *options = words[1:]
        held = self.data.get(key)
        if (b"NX" in options and held is not None) or (b"IFEQ" in options and held != options[1]):
            return None
        self.put(key, value, int(options[options.index(b"PX") + 1]) if b"PX" in options else None)
        return b"OK"

    def _count(self, key: bytes) -> int:
        return int(self.data.get(key, b"0"))

    def _lift(self, keys: list[bytes], token: bytes) -> None:
        for key in keys:
            if self._count(key) < int(token):
                self.data[key] = token

    def _acquire(self, keys: list[bytes], args: list[bytes]) -> Any:
        owner, n, proposal, floor = args[0], int(args[2]), args[3], int(args[4])
        step = int(args[6]) if len(args) > 6 else 1
        locks, fences, marks = keys[:n], keys[n : 2 * n] if proposal else [], keys[2 * n :]
        for key in locks:
            held = self.data.get(key)
            if held is not None and held != owner:
                return [held, self._left(key)]
        if all(self.data.get(key) == owner for key in locks):
            return [max([1, *map(self._count, fences)])]
        token = 1
        if proposal:
            token = max(int(proposal), *[max(floor, self._count(key)) + step for key in fences])
            assert token < LIMIT
            for key in fences:
                self.data[key] = b"%d" % token
            self._lift(marks, b"%d" % token)
        for key in locks:
            self.put(key, owner, int(args[1]))
        return token

    def _raise(self, keys: list[bytes], args: list[bytes]) -> int:
        owner, n, token = args[0], int(args[1]), args[2]
        if any(self.data.get(key) != owner for key in keys[:n]):
            return 0
        self._lift(keys[n:], token)
        return 1

    def _extend(self, keys: list[bytes], args: list[bytes]) -> int:
        if any(self.data.get(key) != args[0] for key in keys):
            return 0
        for key in keys:
            self.put(key, args[0], max(int(args[1]), self._left(key)))
        return 1

    def _heal(self, keys: list[bytes], args: list[bytes]) -> int:
        owner, n, token = args[0], int(args[2]), args[3]
        if any(self.data.get(key, owner) != owner for key in keys[:n]):
            return 0
        for key in keys[:n]:
            self.put(key, owner, max(int(args[1]), self._left(key)))
        if token:
            self._lift(keys[n:], token)
        return 1

    def _release(self, keys: list[bytes], args: list[bytes]) -> int:
        owner, n, token = args[0], int(args[1]), args[2]
        released = 0
        for key in keys[:n]:
            if self.data.get(key) == owner:
                self.drop(key)
                released += 1
        if token:
            self._lift(keys[n:], token)
        return int(released == n)

    # -- fair locks ------------------------------------------------------------------------------------------------

    def _token_of(self, fence: bytes, step: int) -> bytes:
        if step == 0:
            return b"0"
        token = max(self._now(), self._count(fence) + step)
        assert token < LIMIT
        self.data[fence] = b"%d" % token
        return self.data[fence]

    def _hand_over(self, keys: list[bytes], me: bytes, voice: bytes = b"") -> tuple[bytes, int, bytes] | None:
        lock, queue, fence = keys
        seconds, micros = divmod(self._now(), 1_000_000)
        while self.queues.get(queue):
            claim = self.queues[queue].pop(0)
            expiry, ttl, step, width = int(claim[:10]), int(claim[10:23]), int(claim[23:39]), int(claim[39:43])
            channel, owner = claim[43 : 43 + width], owner_in(claim)
            if expiry < seconds:
                continue
            token = self._token_of(fence, step)
            if voice in self.channels:
                self.channels[voice]([b"message", voice, b""])
            voice = b""
            listener = self.channels.get(channel)
            if owner == me or listener is not None:
                self.put(lock, owner, ttl)
                if owner != me and listener is not None:
                    listener([b"message", channel, b"%b %d %d %b" % (token, seconds, micros, owner)])
                self._tell_next(queue, seconds, ttl)
                return owner, ttl, token
        return None

    def _tell_next(self, queue: bytes, seconds: int, ttl: int) -> None:
        """The next in the queue is told of a ttl that ends long before it would look in again."""
        for claim in list(self.queues.get(queue, [])):
            if int(claim[:10]) - seconds - 3 <= (int(claim[10:23]) + ttl) / 1000:
                return
            channel = claim[43 : 43 + int(claim[39:43])]
            listener = self.channels.get(channel)
            if listener is not None:
                listener([b"message", channel, b"- %d 0 %b" % (ttl, owner_in(claim))])
                return

    def _place(self, queue: bytes, claim: bytes, owner: bytes) -> int:
        """Where it stands in the queue, or would; `?` is whatever claim the owner has."""
        claims = self.queues.get(queue, [])
        found = [i for i, each in enumerate(claims) if each == claim or (claim == b"?" and owner_in(each) == owner)]
        return found[0] if found else len(claims)

    def _claim(self, keys: list[bytes], args: list[bytes]) -> Any:
        lock, queue, fence = keys
        owner, ttl, step, rest, before = args[0], int(args[1]), int(args[2]), args[3], args[4]
        holder = self.data.get(lock)
        seconds, micros = divmod(self._now(), 1_000_000)
        time = [b"%d" % seconds, b"%d" % micros]
        if holder == owner:
            return [1, self._left(lock), self.data.get(fence, b"0") if step else b"0", *time]
        if holder is not None and before == b"!":
            second = seconds + -(-ttl // 1000) + 2
            self.queues.setdefault(queue, []).append(b"%010d%b" % (second, rest))
            return second
        left = 0
        if holder is not None:
            left = self._left(lock)
        elif not self.queues.get(queue):
            self.put(lock, owner, ttl)
            return [1, ttl, self._token_of(fence, step), *time]
        claim = b""
        if rest:
            claim = b"%010d%b" % (seconds + -(-(max(left, 0) + ttl) // 1000) + 1, rest)
            claims = self.queues.setdefault(queue, [])
            place = self._place(queue, before, owner)
            claims[place : place + 1] = [claim]
        if holder is None:
            heir = self._hand_over(keys, owner)
            if heir is None:
                self.put(lock, owner, ttl)
                return [1, ttl, self._token_of(fence, step), *time]
            holder, left, token = heir
            if holder == owner:
                return [1, left, token, *time]
        return [0, left, holder, *time, claim]

    def _pass(self, keys: list[bytes], args: list[bytes]) -> int:
        lock, queue, _ = keys
        owner, claim, voice = args
        place = self._place(queue, claim, owner)
        del self.queues.get(queue, [])[place : place + 1]
        if self.data.get(lock) != owner:
            return 0
        if self._hand_over(keys, b"", voice) is None:
            self.drop(lock)
        return 1


def _what(words: list[bytes]) -> tuple[str, bytes]:
    """Name and owner of a command."""
    if words[0] == b"EVALSHA":
        name = next(each for each, sha in lua.SHA.items() if sha == words[1])
        return name, words[3 + int(words[2])]
    if words[0] == b"SET" and b"NX" in words:
        return "acquire", words[2]
    return words[0].decode().lower(), words[2] if len(words) > 2 else b""


class Lazily:
    """An awaitable that runs when it is awaited, as a coroutine would."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self.what = what

    def __await__(self) -> Generator[Any, None, Any]:
        return self.what()
        yield


class ModelBell:
    """Remembers that it has rung, and how often."""

    def __init__(self) -> None:
        self.is_set = False
        self.rings = 0

    def set(self) -> None:
        self.is_set = True
        self.rings += 1

    note = set  # noqa: A003


class ModelDriver(PushRouter):
    """Effects, and a lobby, over nodes in memory and in virtual time: one operation, which runs straight through.

    What others do meanwhile is said beforehand (`later`). Connections keep order; nodes run when drained.

    The k-th effect is interrupted (k = 0: none): before anything was sent; with all sent and nothing answered; with half
    of the answers in; or with all of them. One that parks is interrupted before, or when what it waited for is there.
    """

    tick = 0.0001
    """Seconds from one look at the clock to the next."""
    latency = 0.0
    """Seconds for a round trip."""
    most_effects = 2000
    _nonces = itertools.count(1)
    """Of all drivers: no two owners are the same."""
    settled = False
    channel = b""

    def __init__(
        self,
        nodes: list[ModelNode],
        at: int = 0,
        when: str = "all",
        error: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        super().__init__()
        self.nodes = nodes
        self.at, self.when, self.error = at, when, error
        self.count = 0
        self.struck = False
        self.time = 0.0
        self.queue: list[list[bytes]] = [[] for _ in nodes]
        self.log: list[list[tuple[str, bytes, Any]]] = [[] for _ in nodes]
        """By node: what it was sent, as (command, owner, its reply)."""
        self.silent: set[int] = set()
        """Nodes that are connected and answer nothing."""
        self.down: set[int] = set()
        """Nodes that cannot be connected, and take their time to say so."""
        self.events: list[tuple[float, int, Callable[[], Any]]] = []
        self._serial = itertools.count()
        self.visitors: list[Callable[[], Any]] = []
        """Called before the head of a line begins to wait for servers."""
        self.answered: list[Callable[[], Any]] = []
        """Called, the next one each time, when nodes have run and before anybody knows what they said."""

    # -- time ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        self.time += self.tick
        return self.time

    def wall(self) -> int:
        return 1000

    def random(self) -> float:
        return 0.5

    def nonce(self) -> bytes:
        return b"%032d" % next(self._nonces)

    def later(self, at: float, what: Callable[[], Any]) -> None:
        """At that time, or when time next passes after it, this happens."""
        heapq.heappush(self.events, (at, next(self._serial), what))

    def all_happens(self) -> None:
        """What was to happen later happens now."""
        while self.events:
            self._next()

    def _next(self) -> None:
        at, _, what = heapq.heappop(self.events)
        self.time = max(self.time, at)
        what()

    def _pass_time(self, until: float | None, bell: ModelBell | None = None) -> None:
        while bell is None or not bell.is_set:
            if self.events and (until is None or self.events[0][0] <= until):
                self._next()
            elif until is None:
                raise AssertionError("it would sleep for ever")
            else:
                self.time = max(self.time, until)
                return

    def _strikes(self) -> bool:
        self.count += 1
        if self.count > self.most_effects:
            raise AssertionError("more effects than this test has patience for: it runs in circles")
        if self.count == self.at:
            self.struck = True
        return self.count == self.at

    # -- waiting ---------------------------------------------------------------------------------------------------

    bell = staticmethod(ModelBell)

    @staticmethod
    def who() -> str:
        return "me"

    def visit(self, operation: Callable[..., Awaitable[Any]], *args: Any) -> Awaitable[Any]:
        for visitor in self.visitors:
            visitor()
        if self._strikes():
            raise self.error
        return operation(self, *args)

    async def settle(self, need: int, within: float) -> None:
        if self._strikes():
            raise self.error
        if len(self.nodes) - len(self.down) < need:
            self._pass_time(self.time + min(within, CONNECT_TIMEOUT))
        else:
            self.settled = True

    async def sleep(self, until: float) -> None:
        strikes = self._strikes()
        if strikes and self.when in ("before", "sent"):
            raise self.error
        self._pass_time(until)
        if strikes:
            raise self.error

    def park(self, bell: ModelBell, until: float | None) -> Awaitable[None]:
        return Lazily(lambda: self._park(bell, until))

    def _park(self, bell: ModelBell, until: float | None) -> None:
        strikes = self._strikes()
        if strikes and self.when in ("before", "sent"):
            raise self.error
        self._pass_time(until, bell)
        if strikes:
            raise self.error
        bell.is_set = False

    def subscribe(self, patience: float) -> Awaitable[bytes | Fault]:
        return Lazily(lambda: self._subscribe(patience))

    def _subscribe(self, patience: float) -> bytes | Fault:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        if self.silent or self.down:
            return self._fault(0, patience)
        self.channel = b"hand:me"
        self.nodes[0].channels[self.channel] = lambda push: self.pushed(0, push)
        if strikes:
            raise self.error
        return self.channel

    # -- talking ---------------------------------------------------------------------------------------------------

    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Awaitable[None]:
        return Lazily(lambda: self._exchange(payloads, poll, patience))

    def ask(self, payload: Payloads, patience: float) -> Awaitable[Any]:
        return Lazily(lambda: self._ask(payload, patience))

    def _ask(self, payload: Payloads, patience: float) -> Any:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        asked = self._send(payload)
        if not asked or 0 in self.silent:
            if strikes:
                raise self.error
            return self._fault(0, patience)
        if strikes and self.when == "sent":
            raise self.error
        answer = self._answers(0)[-1]
        self._have_answered()
        if strikes:
            raise self.error
        return answer

    def _exchange(self, payloads: Payloads, poll: Poll, patience: float) -> None:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        asked = self._send(payloads)
        answering = {"before": 0, "sent": 0, "half": len(asked) // 2, "all": len(asked)}[self.when]
        for node in sorted(self.down):
            if payload_for(payloads, node) is not None:
                poll.add(node, Fault("closed", "not connected"))
        for node in asked[:answering] if strikes else asked:
            if node not in self.silent:
                replies = self._answers(node)[-poll.width :]
                poll.add(node, replies[0] if poll.width == 1 else replies)
        self._have_answered()
        if strikes:
            raise self.error
        self._pass_time(self.time + (self.latency if poll.decided else patience))

    def _have_answered(self) -> None:
        if self.answered:
            self.answered.pop(0)()

    def _fault(self, node: int, patience: float) -> Fault:
        if node in self.down:
            return Fault("closed", "not connected")
        self._pass_time(self.time + patience)
        return SILENT

    def post(self, payloads: Payloads) -> bool:
        self._send(payloads)
        return not any(payload_for(payloads, node) for node in self.down)

    def _send(self, payloads: Payloads) -> list[int]:
        asked = []
        for node, queue in enumerate(self.queue):
            payload = payload_for(payloads, node)
            if payload is not None and node not in self.down:
                queue.append(payload)
                asked.append(node)
        return asked

    def _answers(self, node: int) -> list[Any]:
        """The node works through what it was sent."""
        replies: list[Any] = []
        queue, self.queue[node] = self.queue[node], []
        for payload in queue:
            answers = self.nodes[node].run(payload, lambda push: self.pushed(node, push))
            for words, answer in zip(commands_in(payload), answers, strict=True):
                self.log[node].append((*_what(words), answer))
            replies += answers
        return replies

    def drain(self) -> None:
        for node in range(len(self.nodes)):
            self._answers(node)


class ModelKeeper:
    """Keeps what it is given, as the client does with its watchdog and its lines; may be struck itself."""

    def __init__(self, io: ModelDriver | None = None, error: type[BaseException] | None = None) -> None:
        self.io = io
        self.error = error
        self.left: list[Hold] = []
        """What somebody else is to release."""
        self.watched: list[Hold] = []
        """What would be renewed for as long as it is HELD."""
        self.warnings: list[str] = []
        self.lines = Lines(nullcontext(), self.warnings.append, lambda place, seconds, outcome: None)

    def _granted(self, hold: Hold) -> Hold:
        self.keep(hold)
        if self.error is not None:
            raise self.error
        return hold

    def keep(self, hold: Hold) -> None:
        self.watched.append(hold)
        self.lines.took(hold)

    def _ending(self, hold: Hold) -> None:
        if hold in self.watched:
            self.watched.remove(hold)

    def _unfinished(self, hold: Hold) -> None:
        self.left.append(hold)

    def _letting_go(self, hold: Hold, now: float) -> None:
        self.lines.letting_go(hold, now)

    def _let_go(self, hold: Hold, others: bool) -> None:
        self.lines.let_go(hold, others)

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float) -> Awaitable[Any]:
        assert self.io is not None
        return line_up(self.io, self.lines, request, terms, wait, since, self)


def lock_request(nodes: int, name: str = "a", owner: bytes | None = None, **options: Any) -> Request:
    """What a lock of a client of `nodes` unguarded nodes asks for."""
    chosen = policy({"ttl": 1.0, **options})
    group = Group([f"node-{i}" for i in range(nodes)], chosen, guard=False)
    return Request(Settings(group, chosen, b"host:1::"), name, owner)
