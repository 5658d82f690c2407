"""`make demo`: several processes share one counter, on five real servers, while things go wrong.

The counter is a file that is read, changed and written back, as a shop's stock would be. Four processes add to it: first
without a lock, then under a handfast lock while one of the five servers is killed, and last a holder is paused for longer
than its lease. The exit status is 1 if the lock or the token did not protect the counter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import handfast
from handfast.topology.resp import Connection

WORKERS = 4
EACH = 40
TTL = 1.0


class Register:
    """A counter in a file. It remembers the largest token it was written with, and refuses smaller ones."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[int, int]:
        count, token = json.loads(self.path.read_text())
        return count, token

    def write(self, count: int, token: int = 0) -> None:
        _, seen = self.read()
        if token < seen:
            raise handfast.StaleToken(self.path.name, token=token, seen=seen)
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps([count, token]))
        fresh.replace(self.path)


def worker(urls: str, register: Register, locked: bool) -> None:
    """Add EACH to the counter, one at a time."""
    if not locked:
        for _ in range(EACH):
            _add_one(register, 0)
        return
    with handfast.connect(urls.split(), ttl=TTL) as client:
        for _ in range(EACH):
            with client.lock("counter") as lease:
                _add_one(register, lease.token or 0)


def _add_one(register: Register, token: int) -> None:
    count, _ = register.read()
    time.sleep(0.001)  # what a database or an API call would take
    register.write(count + 1, token)


def sleeper(urls: str, register: Register) -> None:
    """Take the lock, get paused, wake up too late, try to write all the same."""
    with handfast.connect(urls.split(), ttl=TTL) as client:
        lease = client.lock("counter").acquire()
        count, _ = register.read()
        print("holding", lease.token, flush=True)
        sys.stdin.readline()
        print("valid" if lease.valid else "lost", flush=True)
        try:
            register.write(count + 1, lease.token or 0)
        except handfast.StaleToken as error:
            print(error, flush=True)


def _start(role: str, urls: str, register: Register, pipe: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "handfast.demo", role, urls, str(register.path)]
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe)


def _race(urls: str, register: Register, role: str) -> list[subprocess.Popen[str]]:
    register.path.write_text("[0, 0]")
    return [_start(role, urls, register) for _ in range(WORKERS)]


def _finish(workers: list[subprocess.Popen[str]]) -> bool:
    return not any([process.wait(timeout=60) for process in workers])  # noqa: C419 - wait for all of them


def without_lock(urls: str, register: Register) -> bool:
    _finish(_race(urls, register, "unlocked"))
    count, _ = register.read()
    print(f"  without a lock      {count:4} of {WORKERS * EACH}: {WORKERS * EACH - count} updates lost, as expected")
    return True


def with_lock(urls: str, register: Register, client: handfast.Client) -> bool:
    workers = _race(urls, register, "locked")
    while register.read()[0] < WORKERS * EACH // 3:
        time.sleep(0.01)
    _kill_a_server(client)
    fine = _finish(workers)
    count, token = register.read()
    print(
        f"  with handfast       {count:4} of {WORKERS * EACH}: none lost, though a server was killed; last token {token}"
    )
    return fine and count == WORKERS * EACH


def _kill_a_server(client: handfast.Client) -> None:
    with client.lock("which servers are there") as lease:
        path = lease.votes[0].removeprefix("embedded://")
    with Connection(Path(path), timeout=1.0) as link:
        info = link.command("INFO", "server")
    assert isinstance(info, bytes)
    os.kill(int(info.split(b"process_id:")[1].split()[0]), signal.SIGKILL)


def paused_holder(urls: str, register: Register, client: handfast.Client) -> bool:
    register.path.write_text("[0, 0]")
    process = _start("sleeper", urls, register, pipe=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    with client.lock("counter") as lease:  # waits until the paused holder's lease has run out
        _add_one(register, lease.token or 0)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        state, refusal = process.stdout.readline().strip(), process.stdout.readline().strip()
    process.wait(timeout=10)
    print(f"  a paused holder     wakes up to a lease that is {state}, and its late write is refused:")
    print(f"                      {refusal}")
    return state == "lost" and "stale" in refusal and register.read()[0] == 1


def main() -> int:
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="handfast-") as folder,
        handfast.connect("embedded://private?nodes=5", ttl=TTL, label="demo") as client,
    ):
        register = Register(Path(folder) / "counter")
        # The servers end with this process; the others reach them by their sockets.
        urls = " ".join(f"unix://{address.path}" for address in client._addresses)
        with client.lock("warm-up") as lease:
            print(f"five Valkey servers are up after {time.perf_counter() - began:.2f} s; a lease: {lease}")
        print(f"{WORKERS} processes add {EACH} each to one counter:")
        fine = without_lock(urls, register)
        fine &= with_lock(urls, register, client)
        fine &= paused_holder(urls, register, client)
    print("as it should be" if fine else "NOT as it should be")
    return 0 if fine else 1


if __name__ == "__main__":
    if len(sys.argv) == 4:
        _, role, where, path = sys.argv
        if role == "sleeper":
            sleeper(where, Register(Path(path)))
        else:
            worker(where, Register(Path(path)), locked=role == "locked")
    else:
        sys.exit(main())
