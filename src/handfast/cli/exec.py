"""`handfast exec`: run a command while holding a lock.

The command inherits the standard streams and the terminal. On a terminal it also stays in this process group, because
only the foreground group may read from a terminal and gets Ctrl-C. Without a terminal it gets its own process group, so
that a signal reaches all processes that it has started, once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from typing import Any, Final

from handfast.cli import CONTENDED, LOST, UNAVAILABLE, CommandError, one_line
from handfast.cli.clients import quiet_client
from handfast.cli.declare import SERVER_OPTIONS, Argument, Command, Option, lock_name
from handfast.cli.durations import duration
from handfast.cli.signals import ENDS, STOPS, Signals, Stopped, has_terminal
from handfast.errors import LeaseLost
from handfast.options import MAX_LABEL, MAX_TTL
from handfast.sync import Lease, Lock

__all__ = ["COMMAND"]

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
POLL: Final = 0.02
NOTICE_AFTER: Final = 1.0
"""Seconds of waiting after which a person at a terminal reads who holds the lock."""


class Child:
    """The running command. Several threads send it signals; it gets none after its end."""

    def __init__(self, name: str, grace: float) -> None:
        self._name = name
        self._grace = grace
        self._pid = 0
        self._ended = False
        self._lock = threading.Lock()
        self._own_group = not has_terminal()
        self.unwanted = threading.Event()
        """A signal has ended the time for which the lock is kept after the command."""
        self.was_lost = False
        """Before the command ended."""
        self._told = False

    def start(self, path: str, words: list[str], environment: dict[str, str], mask: Any) -> None:
        options: dict[str, Any] = {"setpgroup": 0} if self._own_group else {}
        # Python ignores these two signals; the command must not inherit that.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        with self._lock:
            self._pid = os.posix_spawn(path, words, environment, setsigmask=mask, setsigdef=defaults, **options)

    def forward(self, number: int, shared: bool) -> None:
        """Pass a signal on, unless the terminal has sent it to the command as well."""
        if not self._pid and number in ENDS:
            self.unwanted.set()
        elif not shared or self._own_group:
            self.kill(number)
        if number in STOPS:
            note(f"{self._name}: stopped, so the lock is not renewed; it is lost if that lasts longer than its ttl")

    def kill(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        send = os.killpg if self._own_group else os.kill
        try:
            with self._lock:
                if self._pid:
                    send(self._pid, number)
        except PermissionError:  # it runs as another user, by sudo for example
            note(f"{self._name}: the command may not be sent {signal.Signals(number).name}: it runs as another user")

    def wait(self) -> int:
        """Its exit status; 128 plus the signal, if a signal has ended it."""
        status = self._collect()
        while status is None:
            _wait_for_end(self._pid)
            status = self._collect()
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _collect(self) -> int | None:
        """The status, if the command has ended. Under the lock: no signal may reach another process with its id."""
        with self._lock:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._pid, self._ended = 0, True
        return status if pid else None

    def lost(self, error: LeaseLost, reaction: str) -> None:
        """The lock is lost: end the command, or warn. Reported once, by the watchdog or at the release."""
        with self._lock:
            told, self._told = self._told, True
        if told:
            return
        if self._ended:
            note(f"{error}; the command has ended before")
            return
        self.was_lost = True
        # Print first, because this process ends with the command.
        note(f"{error}; {'the command goes on' if reaction == 'warn' else 'the command is ended'}")
        if reaction == "term":
            self.end()

    def end(self) -> None:
        """Send SIGTERM, and SIGKILL if the command still runs after the grace time."""
        self.kill(signal.SIGTERM)
        self.kill(signal.SIGCONT)  # a command that is stopped cannot end
        killer = threading.Timer(self._grace, self.kill, (signal.SIGKILL,))
        killer.daemon = True
        killer.start()


def _wait_for_end(pid: int) -> None:
    """Wait for the end of the process without collecting it; without waitid(), wait for a moment."""
    wait: Any = getattr(os, "waitid", None)
    if wait is None:  # macOS before Python 3.13
        time.sleep(POLL)
    else:
        wait(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _execute(options: Any) -> int:
    path = _find(options.program[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the parent ignores SIGCHLD, there would be no exit status
    child = Child(options.name, options.grace)
    signals = Signals(child.forward)
    try:
        return _hold_and_run(path, child, signals, options)
    except Stopped as stop:  # while it waited for the lock
        return 128 + stop.number


def _hold_and_run(path: str, child: Child, signals: Signals, options: Any) -> int:
    label = options.label if options.label is not None else _label(options.program[0])
    with quiet_client(options, label=label, max_ttl=options.max_ttl) as client:
        lock = client.lock(
            options.name,
            ttl=options.ttl,
            wait=options.wait,
            fair=options.fair,
            max_hold=options.max_hold,
            on_lost=lambda error: child.lost(error, options.on_lost),
        )
        lease = _acquire(lock)
        began = time.monotonic()
        with _Kept(lease, child):
            signals.starting()
            status = _run(child, signals, lease, path, options)
            left = options.at_least - (time.monotonic() - began)
            if left > 0 and not child.was_lost:
                child.unwanted.wait(left)
        return LOST if child.was_lost and options.on_lost == "term" else status


class _Kept:
    """Releases the lease at the end of a block. A loss raises nothing; it is reported, at the latest at the release."""

    def __init__(self, lease: Lease, child: Child) -> None:
        self._lease = lease
        self._child = child

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if not self._lease.release():
            try:
                self._lease.check()
            except LeaseLost as error:
                self._child.lost(error, "warn")


def _acquire(lock: Lock) -> Lease:
    """Acquire the lease. A person at a terminal reads who holds it, if the wait is long."""
    if not sys.stderr.isatty():
        return lock.acquire()
    notice = threading.Timer(NOTICE_AFTER, _notice, (lock,))
    notice.daemon = True
    notice.start()
    try:
        return lock.acquire()
    finally:
        notice.cancel()


def _notice(lock: Lock) -> None:
    from handfast.errors import HandfastError

    try:
        holder = lock.holder()
    except HandfastError as error:
        note(f"{lock.name}: waiting; {error}")
        return
    note(f"{lock.name}: waiting" + (f", held by {holder.owner.rpartition(':')[0]}" if holder else ""))


def _run(child: Child, signals: Signals, lease: Lease, path: str, options: Any) -> int:
    environment = {**os.environ, "HANDFAST_NAME": options.name, "HANDFAST_TOKEN": str(lease.token)}
    try:
        _start(child, path, options.program, environment, signals.old_mask)
    except OSError as error:
        raise CommandError(f"{options.program[0]}: {error.strerror}", NOT_EXECUTABLE) from error
    signals.running()
    if child.was_lost and options.on_lost == "term":
        child.end()  # it was lost before there was a command to end
    return child.wait()


def _start(child: Child, path: str, words: list[str], environment: dict[str, str], mask: Any) -> None:
    try:
        child.start(path, words, environment, mask)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script whose first line names no interpreter: shells run it too.
        child.start("/bin/sh", ["sh", path, *words[1:]], environment, mask)


def _find(program: str) -> str:
    """The file to run. This comes before the lock: a misspelt command must not wait for an hour."""
    folders = [""] if "/" in program else os.get_exec_path()
    found = ""
    for folder in folders:
        path = os.path.join(folder, program)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            found = path
    if found or os.path.isdir(program):
        raise CommandError(f"{found or program}: not executable; chmod +x it, or name its interpreter", NOT_EXECUTABLE)
    where = "no such file" if "/" in program else "no such command on the PATH"
    raise CommandError(f"{program}: {where}", NOT_FOUND)


def _label(program: str) -> str:
    """The command's name, as far as a label may contain it."""
    name = os.path.basename(program)
    kept = "".join(letter if letter.isascii() and letter.isprintable() and letter not in ": " else "_" for letter in name)
    return kept[:MAX_LABEL]


def note(text: str) -> None:
    """Print a line on stderr. Several threads may call this, and the reader may be gone."""
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except OSError:
        pass  # the reader is gone; the command still runs


COMMAND: Final = Command(
    name="exec",
    summary="Run a command while holding a lock.",
    description="""
Acquires the lock NAME, runs the command, renews the lock while it runs, and releases the lock when it has ended.
Standard input and output are the command's own. It finds HANDFAST_NAME and HANDFAST_TOKEN in its environment; the
token is larger than that of every earlier holder, so a resource can refuse a late writer.

Signals are passed on to the command. If the lock is lost, because no majority of the servers could be reached in
time, or because an operator broke it, the command gets SIGTERM, and SIGKILL after the grace time. On a terminal only the
command itself gets them; elsewhere, as under cron, all processes of its process group do.

If this process is killed by SIGKILL, the command goes on without the lock, which ends with its ttl.

Ctrl-Z stops the command and the renewal. The lock is lost if that lasts longer than its ttl; the command is ended
when it is continued.
""",
    run=_execute,
    arguments=(Argument("NAME", "The lock.", convert=lock_name),),
    options=(
        Option("--wait", "How long to wait for the lock; 0: not at all. Without it: without end.", "DURATION", duration),
        Option("--ttl", "How long the lock outlives a crash of its holder, 10s by default.", "DURATION", duration, 10.0),
        Option("--at-least", "Keep the lock for that long, also if the command ends earlier.", "DURATION", duration, 0.0),
        Option("--max-hold", "End the renewal after that long: for commands that hang.", "DURATION", duration),
        Option("--fair", "Wait in line, or take the lock whenever it is free.", default=True, negative="--no-fair"),
        Option("--on-lost", "End the command, or only warn.", "WHAT", default="term", choices=("term", "warn")),
        Option("--grace", "Between SIGTERM and SIGKILL, 10s by default.", "DURATION", duration, 10.0),
        Option("--max-ttl", "As all clients of a quorum have it, 30s by default.", "DURATION", duration, MAX_TTL),
        Option("--label", "Shown with the owner; the command's name by default.", "TEXT"),
        *SERVER_OPTIONS,
    ),
    examples=(
        ("A cron job that runs on one of ten machines; the others give up at once. It holds the lock for a minute, so "
         "that a machine whose clock is late does not run it again.",
         "handfast exec nightly --wait 0 --at-least 60s -- /usr/local/bin/backup --all"),
        ("Deploy one after another, but wait no longer than ten minutes.",
         "handfast exec deploy --wait 10m -- ./deploy.sh production"),
        ("A migration whose database refuses old tokens.",
         """handfast exec migrate -- sh -c 'psql -v token="$HANDFAST_TOKEN" -f migrate.sql'"""),
    ),
    statuses=(
        ("*", "That of the command; 128 and the number of the signal that ended it."),
        (str(CONTENDED), "Another client holds the lock (with --wait)."),
        (str(UNAVAILABLE), "Too few servers could be reached."),
        (str(LOST), "The lock was lost and the command was ended."),
        (str(NOT_EXECUTABLE), "The command cannot be executed."),
        (str(NOT_FOUND), "The command was not found."),
        ("2", "The command line is wrong; nothing was run."),
    ),
    program="COMMAND [ARGS]...",
)  # fmt: skip
