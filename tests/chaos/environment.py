"""The environment of a scenario: servers, workers, faults, and checks of what must hold."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import handfast
from handfast.testing import Proxy, Server, Servers, history
from handfast.testing.clock import Clock
from handfast.testing.history import History, Recorder, now
from tests.chaos.peers import KINDS
from tests.chaos.worker import Spec
from tests.chaos.workers import Member, WorkerError

__all__ = ["MAX_TTL", "MODES", "OURS", "TTL", "WAIT", "Q", "Environment"]

TTL: Final = 1.0
"""Seconds; python-redis-lock accepts whole seconds only."""
MAX_TTL: Final = 1.0
Q: Final = MAX_TTL * 1.02 + 0.1
"""The quarantine that follows from it."""
LASTING_TTL: Final = 3.0
WAIT: Final = 30.0
"""Seconds for which a single user waits for a lock: long enough for a busy machine."""
OURS: Final = "handfast"
MODES: Final = ("threads", "asyncio")
"""Modes of handfast's workers; a peer has one mode, and runs each scenario as often."""
SETTLED: Final = 8.0
"""Seconds after the last fault within which every lock must be acquired again; else it is stuck."""


class Environment:
    """What a scenario needs. `lock` is handfast, or a peer under the same faults."""

    def __init__(self, lock: str, registers: Server, seconds: float) -> None:
        self.lock = lock
        self.ours = lock == OURS
        self.seconds = seconds
        """Seconds of each phase of a scenario."""
        self.folder = Path(tempfile.mkdtemp(prefix="handfast-chaos-"))
        self.names = [f"{self.folder.name}-{letter}" for letter in "ab"]
        self.ttl = TTL
        self.options: dict[str, Any] = {"max_ttl": MAX_TTL}
        self.nodes: list[Server] = []
        self.urls: list[str] = []
        self.faults: Counter[str] = Counter()
        self.complaints: list[str] = []
        self.stuck: list[str] = []
        self.aborted = ""
        self.counts: Counter[str] = Counter()
        """Errors that users reported."""
        self.members: list[Member] = []
        self.began = self.ended = 0.0
        self._registers = registers
        self._recorder = Recorder(self.folder)
        self._things = contextlib.ExitStack()

    # -- the scene

    def servers(self, count: int, **options: Any) -> list[Server]:
        """New servers. The workers use them, unless others are named."""
        self.nodes = self.enter(Servers(count, **options)).nodes
        self.urls = [node.url for node in self.nodes]
        return self.nodes

    def clocked(self, count: int) -> list[Clock]:
        """New servers, each with its own clock."""
        clocks = [self.enter(Clock()) for _ in range(count)]
        self.nodes = [self.enter(Server(env=clock.environment)) for clock in clocks]
        self.urls = [node.url for node in self.nodes]
        return clocks

    def lasting(self) -> None:
        """For leases that renewals must keep alive: a ttl that a busy machine can renew in time."""
        self.ttl = self.options["max_ttl"] = LASTING_TTL

    def proxies(self) -> list[Proxy]:
        """Put a proxy in front of each node; workers connect through it from now on."""
        proxies = [self.enter(Proxy(node)) for node in self.nodes]
        self.urls = [proxy.url for proxy in proxies]
        return proxies

    def open(self, **options: Any) -> None:
        """Open a new deployment for votes, if it has a restart guard."""
        self.options |= options
        if self.ours and self.options.get("guard", len(self.urls) > 1):
            with handfast.connect(self._servers(self.urls), **self.options) as client:
                said = handfast.bootstrap(client)
            assert set(said.values()) <= {"opened", "open already"}, said

    def enter(self, thing: Any) -> Any:
        return self._things.enter_context(thing)

    @staticmethod
    def _servers(urls: list[str]) -> str | list[str]:
        return urls if len(urls) > 1 else urls[0]

    # -- processes that use locks

    def member(
        self, mode: str = "threads", *, urls: Sequence[str] = (), env: Mapping[str, str] = {}, **more: Any
    ) -> Member:
        """One worker process, of the lock under test."""
        spec = Spec(
            kind=mode if self.ours else self.lock,
            urls=list(urls or self.urls),
            ttl=self.ttl,
            options=self.options | more.pop("options", {}),
            folder=str(self.folder),
            registers=self._registers.port,
            names=more.pop("names", self.names[:1]),
            **more,
        )
        member = Member(spec, env)
        self.members.append(member)
        self._things.callback(member.kill)
        return member

    def start_workers(self, processes: int = 4, **more: Any) -> list[Member]:
        """Start workers that run until the end, threads and tasks by turns. Returns when each lock was held once."""
        more = {"names": self.names, **more}
        workers = [self.member(MODES[i % 2], **more) for i in range(processes)]
        for member in workers:
            member.ask("work")
        self.await_all(more["names"], now())
        self.began = self.began or now()
        return workers

    def dismiss(self) -> None:
        """End all work, and collect unexpected errors."""
        within = 10.0 if self.ours else 1.0  # a peer that hangs is killed
        living = [member for member in self.members if member.process.poll() is None]
        for member in living:
            member.tell("stop", within)
        for member in living:
            said = member.hear(within + 30)
            self.counts.update(said["counts"])
            if self.ours:
                self.complaints += said["errors"]
                if said["hang"]:
                    self.complaints.append(f"{said['hang']} users of {member.spec.kind} do not come to an end")

    # -- faults

    def fault(self, what: str, times: int = 1) -> None:
        self.faults[what] += times

    def kill(self, member: Member) -> None:
        member.kill()
        self._recorder.died(member.pid)
        self.fault("kill -9 of a client")

    @contextlib.contextmanager
    def paused(self, member: Member, seconds: float | None = None) -> Iterator[None]:
        member.pause()
        self.fault("SIGSTOP of a client")
        try:
            yield
            if seconds is not None:
                time.sleep(seconds)
        finally:
            member.resume()

    def step(self, clock: Clock, node: Server, seconds: float) -> None:
        """Set a server's clock. Returns when the server has noticed it."""
        clock.step(seconds)
        self.fault("step of a clock")

        def noticed() -> bool:
            said: Any = node.command("TIME")
            return abs(float(said[0]) + float(said[1]) / 1e6 - time.time() - clock.ahead) < 0.5

        self.until(noticed, "the server has the new time")

    # -- waiting and checks

    def lapse(self, seconds: float) -> None:
        """Let time pass: a ttl, or work under a fault."""
        time.sleep(seconds)

    def until(self, predicate: Callable[[], object], what: str, within: float = 15.0) -> None:
        end = now() + within
        while not predicate():
            if now() > end:
                raise TimeoutError(f"not so within {within:g} s: {what}")
            time.sleep(0.01)

    def history(self) -> History:
        return history.read(self.folder)

    def await_all(self, names: Sequence[str], since: float, within: float = 20.0) -> None:
        """Wait until each of the locks was acquired after that moment."""

        def taken() -> set[str]:
            return {each.name for each in self.history().holdings if each.since > since}

        self.until(lambda: set(names) <= taken(), "every lock is taken", within)

    def recovers(self, within: float = SETTLED) -> None:
        """All faults are over: each lock must be acquired again."""
        since = now()
        with contextlib.suppress(TimeoutError):
            self.await_all(self.names, since, within)
        self.ended = now()
        taken = {each.name for each in self.history().holdings if each.since > since}
        self.stuck = [name for name in self.names if name not in taken]
        self.dismiss()

    def takes_over(self, member: Member, within: float = SETTLED) -> bool:
        """A single process acquires the lock, uses it and releases it. A free lock that it cannot acquire is stuck."""
        try:
            member.ask("acquire", within, within=within + 5)
        except (WorkerError, TimeoutError) as error:
            self.expect(False, f"it was not to be had: {error}")
            if not any(each.until > now() for each in self.history().holdings if each.name == self.names[0]):
                self.stuck = self.names[:1]
            return False
        self.uses(member)
        return True

    def uses(self, member: Member) -> None:
        """The whole critical section."""
        member.ask("read")
        self.finishes(member)

    def finishes(self, member: Member) -> None:
        """The rest of the critical section: check, write, release."""
        try:
            if member.ask("check"):
                member.ask("write")
        except WorkerError as error:
            self.expect(False, f"a look at the lease raised {error}")
        self.tries_to_release(member)

    def tries_to_release(self, member: Member) -> None:
        """Release. Some libraries raise if the lock is not held any more; handfast does not."""
        try:
            member.ask("release")
        except WorkerError as error:
            self.expect(False, f"a release raised {error}")

    def writes_late(self, member: Member) -> None:
        """Write a value that it read before another holder, without a check: only a fenced register is safe from that."""
        self.expect(not member.ask("write").get("fenced"), "a fenced register refuses it")
        self.tries_to_release(member)

    def key(self, name: str) -> str:
        """The key of the lock under test."""
        return (f"handfast:{{{name}}}" if self.ours else KINDS[self.lock].key).replace("NAME", name)

    def free(self, node: Server) -> bool:
        return not self.held(node)

    def held(self, node: Server, name: str | None = None) -> bool:
        """Whether the server has the key of the lock."""
        return bool(node.command("EXISTS", self.key(name or self.names[0])))

    def expect(self, true: object, what: str) -> None:
        """Check a promise of handfast; a peer promises nothing."""
        if self.ours and not true:
            self.complaints.append(what)

    def certain(self, true: object, what: str) -> None:
        """Check that the fault had its effect: without it the scenario shows nothing."""
        if not true:
            raise AssertionError(f"the fault had no effect: {what}")

    def close(self) -> None:
        self._things.close()
        self._recorder.close()
