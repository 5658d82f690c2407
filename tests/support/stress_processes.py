"""Processes that take part in a test: an `Agent` follows commands, a `StressProcess` looks for lost wake-ups on its own.

An agent acquires and releases one lock, step by step, and can be stopped or killed at any step. A stress process acquires
and releases locks as fast as it can, gives up and is cancelled at random, and logs when it held what. A `Holding` is one
entry of that log. `faults_in` reads the entries of all processes: they come from one machine, so they have one clock.

A stress process works until its standard input ends, so it does not outlive the test.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, NamedTuple, cast

import handfast
import handfast.aio

__all__ = ["Agent", "Holding", "StressProcess", "faults_in", "holdings_in", "in_thread"]

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 10.0
"""Seconds for which a test waits for a line of a process."""


def _start(role: str, *args: object, errors: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.support.stress_processes", role, *map(str, args)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )


def in_thread(what: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run a call in a thread of its own. The pool of asyncio.to_thread has too few threads."""
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def call() -> None:
        outcome.set_running_or_notify_cancel()  # there is no way to stop it
        try:
            outcome.set_result(what())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return asyncio.wrap_future(outcome)


# -- a process that follows commands -----------------------------------------------------------------------------


class Held(NamedTuple):
    """What an agent reports about its lease."""

    owner: str
    token: int
    remaining: float


class Agent:
    """One process with one client and one lock. Ends with its block."""

    def __init__(self, mode: str, urls: str | Sequence[str], name: str | Sequence[str], **options: Any) -> None:
        client = {"urls": urls, "name": name, "guard": options.pop("guard", None)}
        self.process = _start("agent", mode, json.dumps(client), json.dumps(options))
        self._said = b""
        assert self.hear() == ["ready"]

    @property
    def pid(self) -> int:
        return self.process.pid

    @classmethod
    @contextmanager
    def several(
        cls, count: int, mode: str, urls: str | Sequence[str], name: str | Sequence[str], **options: Any
    ) -> Iterator[list[Agent]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(cls(mode, urls, name, **options)) for _ in range(count)]

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, within: float = PATIENCE) -> list[str]:
        """The next line of its output, split into words."""
        assert self.process.stdout is not None
        end = time.monotonic() + within
        while b"\n" not in self._said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            assert data, f"process {self.pid} said nothing within {within:g} s"
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line.decode().split()

    @property
    def silent(self) -> bool:
        """Whether it has written nothing yet."""
        assert self.process.stdout is not None
        return not self._said and not select.select([self.process.stdout], [], [], 0)[0]

    def acquire(self, wait: float | None = None) -> None:
        """Start an acquisition in the process. `held` returns its result."""
        self.tell("acquire", "-" if wait is None else wait)

    def held(self, within: float = PATIENCE) -> Held:
        word, *rest = self.hear(within)
        assert word == "held", [word, *rest]
        return Held(rest[0], int(rest[1]), float(rest[2]))

    def release(self) -> bool:
        self.tell("release")
        word, answer = self.hear()
        assert word == "released"
        return answer == "True"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP. Returns when the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def interrupt(self) -> None:
        os.kill(self.pid, signal.SIGINT)


def _agent(mode: str, connection: str, options: str) -> None:
    """The main function of an agent."""
    settings = json.loads(connection)
    with asyncio.Runner() as runner:

        def done(what: Any) -> Any:
            return runner.run(_await(what)) if mode == "asyncio" else what

        client: Any = (handfast.aio if mode == "asyncio" else handfast).connect(settings["urls"], guard=settings["guard"])
        lock = client.lock(settings["name"], **json.loads(options))
        lease: Any = None
        print("ready", flush=True)
        for line in sys.stdin:
            word, *rest = line.split()
            try:
                if word == "acquire":
                    lease = done(lock.acquire(wait=None if rest == ["-"] else float(rest[0])))
                    print("held", lease.owner, lease.token or 0, lease.remaining(), flush=True)
                elif word == "release":
                    print("released", done(lease.release()), flush=True)
                elif word == "valid":
                    print("valid", lease.valid, flush=True)
            except (handfast.HandfastError, KeyboardInterrupt) as error:
                print("failed", type(error).__name__, flush=True)
        done(client.close())


async def _await(what: Any) -> Any:
    return await what


# -- processes that stress a lock -----------------------------------------------------------------------------------


class Holding(NamedTuple):
    """A worker considered a lock held, from one moment of CLOCK_MONOTONIC to another."""

    name: str
    token: int
    since: float
    until: float
    who: str


class HoldingLog:
    """The log of one process: a line at the start of each holding and one at its end, each in one write."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(Path(folder, f"{os.getpid()}.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def took(self, lease: Any, who: str) -> None:
        now = time.monotonic()
        left = lease.remaining()  # later: what is left now was also left at the end
        if left:
            os.write(self._file, f"+ {lease.name} {lease.token} {now!r} {now + left!r} {who}\n".encode())

    def ends(self, lease: Any) -> None:
        """Call this before the release."""
        now = time.monotonic()
        if lease.valid:
            os.write(self._file, f"- {lease.name} {lease.token} {now!r}\n".encode())

    def died(self, pid: int) -> None:
        """The process was killed: from now on it holds nothing."""
        os.write(self._file, f"x {pid} {time.monotonic()!r}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def holdings_in(folder: Path) -> list[Holding]:
    """All holdings, as the holders saw them."""
    found: list[Holding] = []
    deaths: dict[str, float] = {}
    open_ended: list[tuple[str, Holding]] = []
    for path in folder.glob("*.log"):
        held: dict[tuple[str, int], Holding] = {}
        for line in path.read_text().splitlines():
            kind, *words = line.split()
            if kind == "x":
                deaths[words[0]] = float(words[1])
                continue
            key = (words[0], int(words[1]))
            if kind == "+":
                held[key] = Holding(*key, float(words[2]), float(words[3]), f"{path.stem}:{words[4]}")
            else:
                # Renewed or not: just now it was still valid.
                found.append(held.pop(key)._replace(until=float(words[2])))
        open_ended += [(path.stem, holding) for holding in held.values()]
    for pid, holding in open_ended:
        # Killed, cancelled during the release, or lost: the holder believed in it until its deadline without a renewal.
        end = min(holding.until, deaths.get(pid, float("inf")))
        found.append(holding._replace(until=max(holding.since, end)))
    return sorted(found, key=lambda holding: holding.since)


def faults_in(holdings: Iterable[Holding], began: float, ended: float, stall: float) -> list[str]:
    """Faults of a lock: two holders at once, tokens out of order, or no holder while workers wait."""
    faults: list[str] = []
    by_name: dict[str, list[Holding]] = {}
    for holding in sorted(holdings, key=lambda each: each.since):
        by_name.setdefault(holding.name, []).append(holding)
    for name, held in by_name.items():
        last = Holding(name, 0, began, began, "the beginning")
        for each in [*held, Holding(name, 0, max(ended, held[-1].until), ended, "the end")]:
            if each.since < last.until:
                faults.append(f"{name}: held by {each.who} {last.until - each.since:.6f} s before {last.who} had ended")
            if each.token and each.token <= last.token:
                faults.append(f"{name}: token {each.token} of {each.who} after {last.token} of {last.who}")
            if each.since - last.until > stall:
                faults.append(
                    f"{name}: nobody held it for {each.since - last.until:.3f} s, "
                    f"after {last.who} ({last.token}) and before {each.who} ({each.token})"
                )
            if each.until > last.until:
                last = each
    return faults


class StressProcess:
    """A process whose threads or tasks acquire and release locks. A `mortal` one has a child that does so, and stops,
    kills and replaces it again and again."""

    def __init__(self, mode: str, folder: Path, *, mortal: bool, **settings: Any) -> None:
        settings |= {"folder": str(folder), "mortal": mortal}
        self.complaints = Path(folder, f"{mode}{mortal}.errors")
        with self.complaints.open("wb") as errors:
            self.process = _start("stress", mode, json.dumps(settings), errors=errors)
        self.mortal = mortal

    def end(self, within: float) -> dict[str, Any]:
        """Let it end. Returns its report."""
        out, _ = self.process.communicate(timeout=within)
        said = self.complaints.read_text()
        assert self.process.returncode == 0, f"a stress process ended with {self.process.returncode}: {said}"
        report = cast(dict[str, Any], json.loads(out))
        if not self.mortal and said:
            # Nothing goes wrong in the background either.
            report["errors"].append(said[-3000:])
        return report

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class StressRun:
    """What the threads or tasks of one process share."""

    def __init__(self, mode: str, settings: dict[str, Any]) -> None:
        self.mode = mode
        self.locks: dict[str, dict[str, Any]] = settings["locks"]
        self.urls: str | list[str] = settings["urls"]
        self.ttl: float = settings["ttl"]
        self.workers: int = settings["workers"]
        self.long: float = settings["long"]
        self.log = HoldingLog(settings["folder"])
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.ended = threading.Event()

    def choice(self, number: int) -> tuple[str, dict[str, Any]]:
        """The lock of a worker. It never changes, so that a stalled lock does not delay the workers of another."""
        return list(self.locks.items())[number % len(self.locks)]

    def await_end(self) -> None:
        """Wait until standard input ends. Nothing is written to it, because several processes may share it."""
        os.read(0, 1)
        self.ended.set()

    def failed(self, what: str) -> None:
        if len(self.errors) < 20:
            self.errors.append(f"{time.monotonic():.3f} {os.getpid()} ({self.mode}): {what}")

    def patience(self, chance: random.Random) -> float:
        """How long to wait. Mostly long: a long wait that fails means a stalled lock."""
        if chance.random() < 0.7:
            return self.long
        return chance.choice([0, 1e-4, 1e-3, chance.uniform(0, 0.03)])

    def gave_up(self, name: str, wait: float, error: Exception) -> None:
        self.counts["gave up"] += 1
        if wait == self.long and not self.ended.is_set():
            self.failed(f"waited {wait:g} s for {name} in vain: {error}")

    def released(self, lease: Any, was_ours: bool) -> None:
        self.counts["released"] += 1
        if not was_ours:
            self.failed(f"{lease.name}: the lock was gone before its release, of which {self.ttl:g} s are the ttl")

    def report(self) -> dict[str, Any]:
        return {"counts": self.counts, "errors": self.errors}


def _stress_with_threads(run: StressRun) -> None:
    with handfast.connect(run.urls, ttl=run.ttl) as client:

        def worker(number: int) -> None:
            chance, (name, options) = random.Random(), run.choice(number)
            lock = client.lock(name, **options)
            while not run.ended.is_set():
                wait = run.patience(chance)
                try:
                    lease = lock.acquire(wait=wait)
                    run.log.took(lease, f"thread-{number}")
                    if chance.random() < 0.3:
                        time.sleep(chance.uniform(0, 0.002))
                    run.log.ends(lease)
                    run.released(lease, lease.release())
                except handfast.NotAcquired as error:
                    run.gave_up(name, wait, error)
                except Exception as error:
                    run.failed(repr(error))

        threads = [threading.Thread(target=worker, args=(i,)) for i in range(run.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def _stress_with_tasks(run: StressRun) -> None:
    async with handfast.aio.connect(run.urls, ttl=run.ttl) as client:

        async def one_attempt(lock: handfast.aio.Lock, wait: float, chance: random.Random, who: str) -> None:
            lease = await lock.acquire(wait=wait)
            try:
                run.log.took(lease, who)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.uniform(0, 0.002))
            finally:
                run.log.ends(lease)
                run.released(lease, await lease.release())

        async def worker(number: int) -> None:
            chance, (name, options) = random.Random(), run.choice(number)
            loop, lock = asyncio.get_running_loop(), client.lock(name, **options)
            while not run.ended.is_set():
                wait = run.patience(chance)
                task = asyncio.create_task(one_attempt(lock, wait, chance, f"task-{number}"))
                if chance.random() < 0.3:
                    moment = chance.choice([0, chance.uniform(0, 2e-3), chance.uniform(0, 0.03)])
                    loop.call_later(moment, task.cancel)
                try:
                    await task
                except handfast.NotAcquired as error:
                    run.gave_up(name, wait, error)
                except asyncio.CancelledError:
                    run.counts["cancelled"] += 1
                except Exception as error:
                    run.failed(repr(error))

        await asyncio.gather(*[worker(i) for i in range(run.workers)])
        leftover = [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    leftover += [task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}]
    if leftover:
        run.failed(f"tasks left: {leftover}")


def _stress(mode: str, run: StressRun) -> None:
    if mode == "asyncio":
        asyncio.run(_stress_with_tasks(run))
    else:
        _stress_with_threads(run)


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _run_to_the_end(mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Work until the end, and report what is left behind."""
    run = StressRun(mode, settings)
    threading.Thread(target=run.await_end, daemon=True).start()
    threads, descriptors = set(threading.enumerate()), _descriptors()
    _stress(mode, run)
    # Threads that were connecting when their client was closed end by themselves.
    end = time.monotonic() + 3
    while time.monotonic() < end and (set(threading.enumerate()) - threads or _descriptors() - descriptors):
        time.sleep(0.01)
    if left := set(threading.enumerate()) - threads:
        run.failed(f"threads left: {left}")
    if fds := _descriptors() - descriptors:
        run.failed(f"descriptors left: {[_target(fd) for fd in fds]}")
    return run.report()


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "gone"


def _run_and_kill(mode: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Start a child, stop it for a while or not, kill it at a random moment, and start the next."""
    log, chance, counts = HoldingLog(settings["folder"]), random.Random(), Counter[str]()

    def ended_within(seconds: float) -> bool:
        return bool(select.select([0], [], [], seconds)[0])

    ended = False
    while not ended:
        child = os.fork()
        if child == 0:
            _run_until_killed(mode, settings)
        if chance.random() < 0.5:
            # Only after the votes of the last killed child have expired: two faults in a row cost more.
            ended = ended_within(chance.uniform(0.05, 0.3) + (settings["ttl"] if counts["killed"] else 0.0))
            os.kill(child, signal.SIGSTOP)
            counts["stopped"] += 1
            ended = ended or ended_within(chance.uniform(0.2, 1.8) * settings["ttl"])
            os.kill(child, signal.SIGCONT)
        ended = ended or ended_within(chance.uniform(0.05, 0.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        log.died(child)
        counts["killed"] += 1
    return {"counts": counts, "errors": []}


def _run_until_killed(mode: str, settings: dict[str, Any]) -> None:
    """The main function of a child that will be killed."""
    status = 1
    try:
        run = StressRun(mode, settings)
        # It ends with its parent, if the parent is killed first.
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
        _stress(mode, run)
        status = 0
    finally:
        os._exit(status)


def _stress_process(mode: str, settings: str) -> None:
    settings = json.loads(settings)
    signal.signal(signal.SIGTERM, _leave)
    report = (_run_and_kill if settings["mortal"] else _run_to_the_end)(mode, settings)
    print(json.dumps(report), flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(1)


if __name__ == "__main__":
    ROLES: dict[str, Callable[..., None]] = {"agent": _agent, "stress": _stress_process}
    ROLES[sys.argv[1]](*sys.argv[2:])
