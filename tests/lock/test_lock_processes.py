"""What a process leaves behind when it ends: by Ctrl-C, at the end of its program, by SIGKILL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import handfast
from handfast.testing import Server
from tests.support.eventually import eventually

LONG = 25.0
"""A ttl beyond every deadline in here: a key that is gone was released, not expired."""

HOLD = """
import sys, handfast
client = handfast.connect(sys.argv[1], ttl=float(sys.argv[2]))
lease = client.lock("a").acquire()
print(lease.token, flush=True)
"""
HOLD_ON = HOLD + "sys.stdin.readline()"
LOOP = """
import sys, handfast
client = handfast.connect(sys.argv[1], ttl=float(sys.argv[2]))
lock = client.lock("a")
with lock:
    print("ready", flush=True)
while True:
    with lock:
        pass
"""
WAIT = """
import sys, handfast
client = handfast.connect(sys.argv[1], ttl=float(sys.argv[2]))
print("ready", flush=True)
with client.lock("a", wait=60):
    print("never", flush=True)
"""
# Signals at times spread over connecting, sending, receiving, releasing: far more signals than processes could be
# started for. The handler raises what Ctrl-C raises. One interrupt_now per round, as one person has one keyboard.
INTERRUPTS = """
import random, signal, sys, time
import handfast
from handfast.embedded.resp import Connection

url, ttl, fresh, rounds = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "fresh", int(sys.argv[4])
port = int(url.rpartition(":")[2])
interrupts = 0

def interrupted_before_first_step_of_exit(interrupt):
    # The one moment that no Python code can cover: the interrupt comes after the call of __exit__, before its first step.
    # The lease then ends with its Lock object.
    last = interrupt.__traceback__
    while last.tb_next.tb_frame.f_code is not interrupt_now.__code__:
        last = last.tb_next
    code = last.tb_frame.f_code
    return code.co_name == "__exit__" and last.tb_lineno == code.co_firstlineno and "sync.py" in code.co_filename

def interrupt_now(*_):
    global interrupts
    interrupts += 1
    raise KeyboardInterrupt

def acquire_until_interrupted(lock, i, reach):
    # A function of its own: inside the `try` a loop may have bytecode that the `try` does not cover.
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, reach))
    while interrupts == i:
        with lock as lease:
            pass

signal.signal(signal.SIGALRM, interrupt_now)
random.seed(int(sys.argv[5]))
client, left, raised = handfast.connect(url, ttl=ttl), [], 0
with Connection(("127.0.0.1", port), timeout=5) as link:
    for i in range(rounds):
        if len(left) == 3:
            break
        if fresh:
            client.close()
            client = handfast.connect(url, ttl=ttl)
        lock = client.lock("a", wait=0) if sys.argv[6] == "plain" else client.lock("a", fair=True, wait=2)
        reach = 3e-3 if fresh else 4e-4
        try:
            acquire_until_interrupted(lock, i, reach)
        except KeyboardInterrupt as interrupt:
            raised += 1
            if interrupted_before_first_step_of_exit(interrupt):
                lock = None
        except handfast.NotAcquired as error:
            left.append((i, str(error)))
        if client._queues.by_key:
            left.append((i, "a place in line"))
        end = time.monotonic() + 1
        while (holder := link.command("GET", "handfast:{a}")) is not None and time.monotonic() < end:
            time.sleep(0.001)
        if holder is not None:
            left.append((i, holder))
            link.command("DEL", "handfast:{a}")
print("left behind:", left)
print("interrupts:", interrupts, "raised:", raised, flush=True)
client.close()
"""


@contextmanager
def process(program: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process with standard output and error to read; it does not outlive the block."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def first_line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def interrupt(started: subprocess.Popen[str]) -> str:
    """Ctrl-C until it ends; its standard error."""
    for _ in range(5):
        started.send_signal(signal.SIGINT)
        try:
            return started.communicate(timeout=2)[1]
        except subprocess.TimeoutExpired:
            # Python drops what is raised inside a finalizer, Ctrl-C too; a person presses it again.
            continue
    raise AssertionError("Ctrl-C had no effect")


@pytest.mark.parametrize("moment", range(6))
def test_ctrl_c_in_tight_loop_ends_process_and_leaves_no_key(one: Server, moment: int) -> None:
    with process(LOOP, one.url, LONG) as looping:
        assert first_line(looping) == "ready"
        time.sleep(random.uniform(0, 0.02))  # no synchronisation: the time is arbitrary
        said = interrupt(looping)
    assert looping.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert one.command("EXISTS", "handfast:{a}") == 0


def test_ctrl_c_while_waiting_ends_process_and_leaves_holder_alone(client: handfast.Client, one: Server) -> None:
    with client.lock("a", ttl=LONG) as lease, process(WAIT, one.url, LONG) as waiting:
        assert first_line(waiting) == "ready"
        # Its refused attempts show that it waits.
        eventually(lambda: one.info("cmdstat_evalsha") and _attempts(one) >= 3, within=5)
        said = interrupt(waiting)
        assert waiting.returncode == -signal.SIGINT
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert one.command("GET", "handfast:{a}") == lease.owner.encode()
    assert one.command("EXISTS", "handfast:{a}") == 0


def _attempts(server: Server) -> int:
    return int(server.info("cmdstat_evalsha").split("calls=")[1].split(",")[0])


@pytest.mark.skipif("COVERAGE_RUN" in os.environ, reason="an interrupt inside coverage's tracer breaks that")
@pytest.mark.parametrize("kind", ["plain", "fair"])
@pytest.mark.parametrize(("connection", "rounds"), [("warm", 400), ("fresh", 80)])
def test_interrupt_at_any_moment_leaves_no_key(one: Server, connection: str, rounds: int, kind: str) -> None:
    seed = random.randrange(10**6)
    with process(INTERRUPTS, one.url, LONG, connection, rounds, seed, kind) as interrupts:
        out, err = interrupts.communicate(timeout=50)
    assert "left behind: []" in out, f"seed {seed}: {out}{err[-2000:]}"
    # Python drops an interrupt inside a finalizer. Only these few may get lost.
    raised = int(out.split("raised:")[1])
    assert raised > rounds * 0.9, f"seed {seed}: {rounds - raised} were swallowed: {err[-2000:]}"


# A timer that interrupts every system call, as profilers have one.
TICKING = """
import signal, sys, time
import handfast

signal.signal(signal.SIGALRM, lambda *_: None)
with handfast.connect(sys.argv[1], ttl=2.0) as client:
    with client.lock("warm", fair=sys.argv[2] == "fair"):
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        print("ready", flush=True)
        sys.stdin.readline()
    began = time.monotonic()
    try:
        client.lock("a", fair=sys.argv[2] == "fair").acquire(wait=0.7)
    except handfast.NotAcquired:
        print(time.monotonic() - began, flush=True)
"""


@pytest.mark.parametrize("server", ["answers", "hangs"])
@pytest.mark.parametrize("kind", ["plain", "fair"])
def test_signals_do_not_prolong_wait(one: Server, kind: str, server: str) -> None:
    one.command("SET", "handfast:{a}", "a stranger", "PX", 60_000)
    with process(TICKING, one.url, kind) as ticking:
        assert first_line(ticking) == "ready"
        assert ticking.stdin is not None
        try:
            if server == "hangs":
                one.pause()
            ticking.stdin.write("\n")
            ticking.stdin.flush()
            # The program first asks the hung server to release its locks, with a timeout for that.
            assert 0.65 < float(first_line(ticking)) < 1.2
        finally:
            one.resume()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_program_that_ends_releases_its_locks(one: Server, host: str) -> None:
    with process(HOLD, one.url.replace("127.0.0.1", host), LONG) as holding:
        _, said = holding.communicate(timeout=10)
    assert (holding.returncode, said) == (0, "")
    assert one.command("EXISTS", "handfast:{a}") == 0


LEFT_TO_THE_WATCHDOG = {
    "dropped": """
import sys, handfast
client = handfast.connect(sys.argv[1], ttl=float(sys.argv[2]))
client.lock("a").acquire()
""",
    "asyncio": """
import asyncio, sys, handfast.aio

async def main():
    client = handfast.aio.connect(sys.argv[1], ttl=float(sys.argv[2]))
    return client, await client.lock("a").acquire()

kept = asyncio.new_event_loop().run_until_complete(main())
""",
}


@pytest.mark.parametrize("left", LEFT_TO_THE_WATCHDOG)
@pytest.mark.parametrize("how", ["host name", "embedded"])
def test_watchdog_that_connects_at_program_end_releases_locks(left: str, how: str, one: Server, tmp_path: Path) -> None:
    """It needs a thread to look up a name or to find an embedded server, and Python starts none any more."""
    url = one.url.replace("127.0.0.1", "localhost") if how == "host name" else f"embedded://{tmp_path}"
    with handfast.connect(url) as client:
        assert client.lock("a").holder() is None  # the embedded server is up
        with process(LEFT_TO_THE_WATCHDOG[left], url, LONG) as ended:
            _, said = ended.communicate(timeout=10)
        assert client.lock("a").holder() is None
    assert "is down" not in said


def test_watchdog_started_at_program_end_releases_locks(one: Server) -> None:
    """Python 3.12 starts no thread after the main thread has ended. This program ends before its watchdog has begun."""
    program = """
import _thread, asyncio, atexit, sys, threading
from handfast import aio

start, ending = _thread.start_new_thread, threading.Event()

def start_late(function, args):
    def run():
        ending.wait()
        function(*args)
    return start(run, ())

async def main():
    _thread.start_new_thread = start_late
    client = aio.connect(sys.argv[1], ttl=float(sys.argv[2]))
    return client, await client.lock("a").acquire()

kept = asyncio.new_event_loop().run_until_complete(main())
atexit.register(ending.set)
"""
    with process(program, one.url, LONG) as ended:
        assert ended.communicate(timeout=10) == ("", "")
    assert one.command("EXISTS", "handfast:{a}") == 0


@pytest.mark.parametrize("options", ["", "fair=True", "cohort=8"], ids=["plain", "fair", "cohort"])
def test_program_that_ends_hands_nothing_to_its_own_waiting_threads(one: Server, options: str) -> None:
    """The threads end with the program, and would keep the lock for a ttl. There are many, so that one may get it."""
    program = f"""
import sys, threading, handfast
client = handfast.connect(sys.argv[1], ttl={LONG})
waiting = threading.Semaphore(0)
client.listen(lambda event: event.kind == "waiting_began" and waiting.release())
locks = [client.lock(f"a{{i}}", {options}) for i in range(20)]
leases = [lock.acquire() for lock in locks]
for lock in locks:
    threading.Thread(target=lock.acquire, daemon=True).start()
for _ in locks:
    waiting.acquire()
"""
    with process(program, one.url) as ended:
        assert ended.communicate(timeout=10)[1] == "", "and without a word"
    assert one.command("KEYS", "handfast:{a*}") == []


def test_program_end_is_not_disturbed_by_tasks_of_closed_loop(one: Server) -> None:
    program = f"""
import asyncio, sys, handfast
from handfast import aio

async def main():
    client = aio.connect(sys.argv[1], ttl={LONG})
    began = asyncio.Event()
    client.listen(lambda event: event.kind == "waiting_began" and began.set())
    lease = await client.lock("a").acquire()
    waiting = asyncio.ensure_future(client.lock("a").acquire())
    await began.wait()
    return client, lease, waiting

loop = asyncio.new_event_loop()
kept = loop.run_until_complete(main())
loop.close()
lease = handfast.connect(sys.argv[1], ttl={LONG}).lock("b").acquire()
"""
    with process(program, one.url) as ended:
        assert "Traceback" not in ended.communicate(timeout=10)[1]
    assert one.command("EXISTS", "handfast:{a}", "handfast:{b}") == 0


@pytest.mark.parametrize("delay", [0.0002, 0.0005, 0.001, 0.003, 0.008, 0.02])
def test_child_forked_during_first_acquisition_of_a_thread_can_acquire(one: Server, delay: float) -> None:
    # Python 3.12 and later warn of a fork beside threads. This test shows that it works here.
    program = """
import os, signal, sys, threading, time, warnings, handfast
warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
client = handfast.connect(sys.argv[1])
first = threading.Thread(target=lambda: client.lock("a").acquire().release())
first.start()
time.sleep(float(sys.argv[2]))
child = os.fork()
if child == 0:
    signal.alarm(5)
    client.lock("b").acquire().release()
    os._exit(0)
print(os.waitpid(child, 0)[1])
first.join()
"""
    with process(program, one.url, delay) as forking:
        assert forking.communicate(timeout=10) == ("0\n", "")


def test_program_that_ends_with_exception_releases_its_locks(one: Server) -> None:
    with process(HOLD + "raise SystemExit(3)", one.url, LONG) as holding:
        holding.communicate(timeout=10)
    assert holding.returncode == 3
    assert one.command("EXISTS", "handfast:{a}") == 0


def test_program_end_is_not_delayed_by_hung_server() -> None:
    with Server() as own, process(HOLD_ON, own.url, LONG) as holding:
        assert first_line(holding)
        own.pause()
        began = time.monotonic()
        holding.send_signal(signal.SIGINT)
        holding.communicate(timeout=10)
        assert time.monotonic() - began < 2
        own.resume()
