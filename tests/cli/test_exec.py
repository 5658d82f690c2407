"""`handfast exec`: the command's status, streams, signals and environment are its own, and the lock is held meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import handfast
from handfast.testing import Server, Servers
from tests.support.commands import HANDFAST, WITHIN, environment, handfast_command, started, terminal
from tests.support.eventually import eventually

KEY = "handfast:{job}"

COUNTER = """
import os, signal, sys, time
counts = {}
def count(number, frame):
    counts[number] = counts.get(number, 0) + 1
    print("got", signal.Signals(number).name, counts[number], flush=True)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH, signal.SIGQUIT):
    signal.signal(number, count)
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("counts", sorted(counts.values()), flush=True)
"""


def holder(server: Server) -> Any:
    return server.command("GET", KEY)


def leftovers(server: Server) -> list[bytes]:
    """Keys of the lock, without its fence counter."""
    keys: Any = server.command("KEYS", "*")
    return [key for key in keys if not key.endswith(b":f")]


@contextmanager
def held(server: Server, **options: Any) -> Iterator[handfast.Lease]:
    with handfast.connect(server.url) as client, client.lock("job", **options).acquire() as lease:
        yield lease


def python(source: str, *args: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(source), *args]


# -- status, streams, environment


@pytest.mark.parametrize(
    ("command", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_status_is_that_of_the_command(one: Server, command: str, status: int) -> None:
    ended = handfast_command("exec", "job", "--url", one.url, "--", "sh", "-c", command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, "", "")
    assert leftovers(one) == []


def test_command_that_is_not_there(one: Server, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("echo no")
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter")
    broken.chmod(0o755)
    for command, status in (
        ("nosuch-command", 127),
        (str(tmp_path / "none"), 127),
        (str(plain), 126),
        (str(broken), 126),
    ):
        ended = handfast_command("exec", "job", "--url", one.url, "--", command)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (status, "", 1)
    assert leftovers(one) == []


def test_script_without_interpreter_is_run_by_sh(one: Server, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$1"; exit 4')
    script.chmod(0o755)
    ended = handfast_command("exec", "job", "--url", one.url, "--", str(script), "said")
    assert (ended.returncode, ended.stdout, ended.stderr) == (4, "said\n", "")


def test_closed_streams(one: Server) -> None:
    line = " ".join([*HANDFAST, "exec", "job", "--url", one.url, "--", "sh", "-c", "'exit 3'"])
    ended = subprocess.run(["sh", "-c", f"{line} <&- >&- 2>&-"], env=environment(), timeout=WITHIN)
    assert ended.returncode == 3


def test_contended_is_75(one: Server) -> None:
    with held(one) as lease:
        for wait in ("0", "200ms"):
            ended = handfast_command("exec", "job", "--url", one.url, "--wait", wait, "--", "echo", "ran")
            assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (75, "", 1)
            assert lease.owner in ended.stderr


def test_no_server_is_69() -> None:
    ended = handfast_command("exec", "job", "--url", "redis://127.0.0.1:1", "--", "echo", "ran")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (69, "", 1)
    assert "refused the connection" in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec"], "put -- before the command"),
        (["exec", "job"], "put -- before the command"),
        (["exec", "job", "--"], "a command is missing"),
        (["exec", "--", "ls"], "NAME"),
        (["exec", "job", "--ttl", "soon", "--", "ls"], "is not a duration"),
        (["exec", "job", "--ttl", "90s", "--", "ls"], "max_ttl"),
        (["exec", "job", "--on-lost", "cry", "--", "ls"], "term"),
        (["exec", "job", "--wat", "1", "--", "ls"], "--wat"),
        (["exec", "job", "--url", "http://x", "--", "ls"], "unknown scheme"),
    ],
)
def test_wrong_command_line_is_one_line_and_2(words: list[str], said: str) -> None:
    ended = handfast_command(*words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert said in ended.stderr


def test_streams_are_the_commands_own(one: Server) -> None:
    data = bytes(range(256)) * 5000
    ended = handfast_command("exec", "job", "--url", one.url, "--", "cat", stdin=None, input=data, text=False)
    assert ended.stdout == data
    assert ended.stderr == b""


def test_command_ends_by_sigpipe_as_without_us(one: Server) -> None:
    words = " ".join([*HANDFAST, "exec", "job", "--url", one.url, "--", "yes"])
    ended = subprocess.run(
        ["bash", "-c", f"{words} | head -1; echo ${{PIPESTATUS[0]}}"], env=environment(), capture_output=True, text=True,
        timeout=WITHIN,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("y\n141\n", "")


def test_environment_has_name_and_token_and_nothing_else(one: Server) -> None:
    env = environment(HANDFAST_URL=one.url)
    ended = handfast_command("exec", "job", "--", "env", "-0", env=env)
    found = dict(line.partition("=")[::2] for line in ended.stdout.split("\0") if line)
    token = found.pop("HANDFAST_TOKEN")
    assert found.pop("HANDFAST_NAME") == "job"
    assert found == env
    assert one.command("GET", f"{KEY}:f") == token.encode()


def test_command_inherits_no_descriptors(one: Server) -> None:
    ended = handfast_command("exec", "job", "--url", one.url, "--", "ls", "/proc/self/fd")
    assert ended.stdout.split() == ["0", "1", "2", "3"]  # the last is that of ls


def test_signals_are_neither_blocked_nor_ignored_in_the_command(one: Server) -> None:
    ended = handfast_command("exec", "job", "--url", one.url, "--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    # Two signals that belong to the C library are ignored in every program that posix_spawn() starts.
    assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in ended.stdout.splitlines()] == [0, 0]


def test_label_is_the_commands_name(one: Server) -> None:
    with started("exec", "job", "--url", one.url, "--", "/bin/sleep", "60"):
        eventually(lambda: holder(one), WITHIN)
        assert holder(one).split(b":")[2] == b"sleep"
    with started("exec", "job2", "--url", one.url, "--label", "mine", "--", "sleep", "60"):
        eventually(lambda: one.command("GET", "handfast:{job2}"), WITHIN)
        owner: Any = one.command("GET", "handfast:{job2}")
        assert owner.split(b":")[2] == b"mine"


def test_one_after_another(one: Server, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"echo begin >> {log}; sleep 0.05; echo end >> {log}"
    processes = [
        subprocess.Popen([*HANDFAST, "exec", "job", "--url", one.url, "--", "sh", "-c", script], env=environment())
        for _ in range(4)
    ]
    assert [process.wait(WITHIN) for process in processes] == [0] * 4
    assert log.read_text().split() == ["begin", "end"] * 4


# -- renewal and loss


def test_lock_is_renewed_and_released(one: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.02; done"
    with started("exec", "job", "--url", one.url, "--ttl", "3s", "--", "sh", "-c", script) as process:
        eventually(lambda: holder(one), WITHIN)
        owner = holder(one)
        eventually(renewal(one), WITHIN)
        assert holder(one) == owner
        go.touch()
        assert process.wait(WITHIN) == 0
    assert leftovers(one) == []


def renewal(server: Server) -> Callable[[], bool]:
    """Whether the lock's ttl has become longer since the last look."""
    last = [1 << 30]

    def renewed() -> bool:
        left = server.command("PTTL", KEY)
        assert isinstance(left, int)
        longer, last[0] = left > last[0], left
        return longer

    return renewed


def lose(server: Server) -> None:
    """Another owner has it now."""
    server.command("SET", KEY, "somebody", "PX", 60_000)


def test_lost_lock_ends_the_command_with_76(one: Server) -> None:
    script = "trap 'echo terminated; exit 5' TERM; echo ready; while :; do sleep 0.02; done"
    with started("exec", "job", "--url", one.url, "--ttl", "1s", "--", "bash", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lose(one)
        out, err = process.communicate(timeout=WITHIN)
    assert (process.returncode, out) == (76, "terminated\n")
    assert "lease lost" in err
    assert err.count("handfast:") == 1
    assert holder(one) == b"somebody"


def test_command_that_ignores_sigterm_is_killed_after_the_grace_time(one: Server) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
    words = ["exec", "job", "--url", one.url, "--ttl", "1s", "--grace", "300ms", "--", "bash", "-c", script]
    with started(*words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lose(one)
        assert process.wait(WITHIN) == 76


def test_loss_ends_everything_that_the_command_has_started(one: Server) -> None:
    script = "sleep 600 & echo $!; wait"
    with started("exec", "job", "--url", one.url, "--ttl", "1s", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        lose(one)
        assert process.wait(WITHIN) == 76
        eventually(lambda: not _runs(pid), WITHIN)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_on_lost_warn_lets_the_command_go_on(one: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo ready; while [ ! -e {go} ]; do sleep 0.02; done; exit 4"
    words = ["exec", "job", "--url", one.url, "--ttl", "1s", "--on-lost", "warn", "--", "sh", "-c", script]
    with started(*words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        lose(one)
        assert "lease lost" in process.stderr.readline()
        go.touch()
        assert process.wait(WITHIN) == 4


def test_max_hold_ends_a_command_that_hangs(one: Server) -> None:
    ended = handfast_command("exec", "job", "--url", one.url, "--ttl", "2s", "--max-hold", "1s", "--", "sleep", "600")
    assert ended.returncode == 76
    assert "max_hold" in ended.stderr


def test_server_that_dies_is_a_loss() -> None:
    with Server() as server:
        words = ["exec", "job", "--url", server.url, "--ttl", "1s", "--", "sh", "-c", "echo ready; exec sleep 600"]
        with started(*words) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            server.kill()
            _, err = process.communicate(timeout=WITHIN)
        assert process.returncode == 76
        assert err.count("\n") == 1


def test_quorum_survives_the_loss_of_a_node(quorum: handfast.Client, five: Servers, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo ready; while [ ! -e {go} ]; do sleep 0.02; done"
    env = environment(HANDFAST_URL=" ".join(five.urls))
    with started("exec", "job", "--ttl", "5s", "--", "sh", "-c", script, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        five[0].kill()
        five[1].kill()
        owner = holder(five[2])
        eventually(renewal(five[2]), WITHIN)
        assert holder(five[2]) == owner
        go.touch()
        assert process.wait(WITHIN) == 0
    assert holder(five[2]) is None


# -- at least


def test_at_least_keeps_the_lock(one: Server, tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = f"touch {done}; exit 7"
    with started("exec", "job", "--url", one.url, "--at-least", "1h", "--", "sh", "-c", script) as process:
        eventually(done.exists, WITHIN)
        owner = holder(one)
        assert owner is not None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert holder(one) == owner
        process.terminate()
        assert process.wait(WITHIN) == 7
    assert leftovers(one) == []


def test_loss_after_the_commands_end_does_not_change_its_status(one: Server, tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = f"touch {done}; exit 7"
    words = ["exec", "job", "--url", one.url, "--ttl", "1s", "--at-least", "1h", "--", "sh", "-c", script]
    with started(*words) as process:
        eventually(done.exists, WITHIN)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        lose(one)
        assert process.stderr is not None
        assert "the command has ended before" in process.stderr.readline()
        process.send_signal(signal.SIGUSR1)  # does not end the wait
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 7


def test_loss_that_only_the_release_notices_is_reported(one: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo ready; while [ ! -e {go} ]; do sleep 0.02; done; exit 7"
    with started("exec", "job", "--url", one.url, "--ttl", "30s", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        lose(one)
        go.touch()
        _, err = process.communicate(timeout=WITHIN)
    assert process.returncode == 7
    assert err.count("\n") == 1
    assert "it had ended before it was released" in err


def test_at_least_that_is_over_changes_nothing(one: Server) -> None:
    assert handfast_command("exec", "job", "--url", one.url, "--at-least", "1ms", "--", "true").returncode == 0


# -- signals


@pytest.mark.parametrize("number", ["INT", "TERM", "HUP", "USR1", "WINCH", "QUIT"])
def test_signal_is_passed_on_once(one: Server, tmp_path: Path, number: str) -> None:
    go = tmp_path / "go"
    with started("exec", "job", "--url", one.url, "--", *python(COUNTER, str(go))) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[f"SIG{number}"])
        assert process.stdout.readline() == f"got SIG{number} 1\n"
        go.touch()
        assert process.stdout.readline() == "counts [1]\n"
        assert process.wait(WITHIN) == 0


def test_ctrl_c_reaches_the_command_once(one: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with terminal("exec", "job", "--url", one.url, "--", *python(COUNTER, str(go))) as screen:
        screen.expect("ready")
        screen.type("\x03")
        screen.expect("got SIGINT 1")
        screen.resize(100, 30)
        screen.expect("got SIGWINCH 1")
        os.kill(screen.pid, signal.SIGTERM)
        screen.expect("got SIGTERM 1")
        go.touch()
        screen.expect("counts [1, 1, 1]")
        assert screen.wait() == 0


TELLS = """
import signal, threading, time
from handfast.cli.signals import Signals
signals = Signals(lambda number, shared: print("got", signal.Signals(number).name, shared, flush=True))
signals.starting()
signals.running()
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_signals_of_terminal_and_of_processes_are_distinguished() -> None:
    """The kernel merges a signal with the same one that is not delivered yet, so a second Ctrl-C would seldom show."""
    with terminal(command=python(TELLS)) as screen:
        screen.expect("ready")
        screen.type("\x03")
        screen.expect("got SIGINT True")
        screen.resize(99, 20)
        screen.expect("got SIGWINCH True")
        os.kill(screen.pid, signal.SIGINT)
        screen.expect("got SIGINT False")


@pytest.mark.parametrize(
    ("on_terminal", "shared", "killed"), [(True, True, 0), (True, False, 1), (False, True, 1), (False, False, 1)]
)
def test_command_gets_what_the_terminal_has_not_sent_it(
    monkeypatch: pytest.MonkeyPatch, on_terminal: bool, shared: bool, killed: int
) -> None:
    from handfast.cli import exec as module

    monkeypatch.setattr(module, "has_terminal", lambda: on_terminal)
    child = module.Child("job", 1.0)
    child.start("/bin/sleep", ["sleep", "600"], dict(os.environ), [])
    try:
        child.forward(signal.SIGTERM, shared)
    finally:
        if not killed:
            child.kill(signal.SIGKILL)
    assert child.wait() == (143 if killed else 137)


def test_command_of_another_user_cannot_be_signalled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from handfast.cli import exec as module

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    child = module.Child("job", 1.0)
    child.start("/bin/sleep", ["sleep", "0"], dict(os.environ), [])
    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)
    child.forward(signal.SIGTERM, False)
    assert child.wait() == 0
    assert "SIGTERM: it runs as another user" in capsys.readouterr().err


def test_ctrl_c_ends_a_command_that_does_not_care(one: Server) -> None:
    with terminal("exec", "job", "--url", one.url, "--", "sh", "-c", "echo ready; exec sleep 600") as screen:
        screen.expect("ready")
        screen.type("\x03")
        assert screen.wait() == 130
        assert screen.plain.replace("^C", "").split() == ["ready"]
    assert leftovers(one) == []


def test_command_reads_from_the_terminal(one: Server) -> None:
    script = 'test -t 0 && test -t 1 && echo ready; read word; echo "said $word"'
    with terminal("exec", "job", "--url", one.url, "--", "sh", "-c", script) as screen:
        screen.expect("ready")
        screen.type("hello\n")
        screen.expect("said hello")
        assert screen.wait() == 0


@pytest.mark.parametrize(("number", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_signal_while_waiting_leaves_nothing_behind(one: Server, number: str, status: int) -> None:
    with held(one) as lease:
        before = set(leftovers(one))
        with started("exec", "job", "--url", one.url, "--", "echo", "ran") as process:
            eventually(lambda: one.command("ZCARD", f"{KEY}:q") == 1, WITHIN)
            process.send_signal(signal.Signals[f"SIG{number}"])
            out, err = process.communicate(timeout=WITHIN)
        assert (process.returncode, out, err) == (status, "", "")
        assert one.command("ZCARD", f"{KEY}:q") == 0
        assert set(leftovers(one)) - {f"{KEY}:c".encode()} == before
        assert holder(one) == lease.owner.encode()
    assert leftovers(one) == []


def test_ctrl_c_while_waiting_on_a_terminal(one: Server) -> None:
    with held(one) as lease, terminal("exec", "job", "--url", one.url, "--", "echo", "ran") as screen:
        screen.expect(f"handfast: job: waiting, held by {lease.owner.rpartition(':')[0]}")
        screen.type("\x03")
        assert screen.wait() == 130
        assert one.command("ZCARD", f"{KEY}:q") == 0
        assert "Traceback" not in screen.text
        assert "ran" not in screen.text.replace("Traceback", "")


def test_waiting_on_a_quorum_leaves_nothing_behind(quorum: handfast.Client, five: Servers) -> None:
    env = environment(HANDFAST_URL=" ".join(five.urls))
    with quorum.lock("job").acquire(), started("exec", "job", "--", "echo", "ran", env=env) as process:
        eventually(lambda: sum(int(node.command("ZCARD", f"{KEY}:q") or 0) for node in five) >= 3, WITHIN)  # type: ignore[call-overload]
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 130
        assert [node.command("ZCARD", f"{KEY}:q") for node in five] == [0] * 5


def test_nohup_is_respected(one: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo ready; while [ ! -e {go} ]; do sleep 0.02; done"
    command = ["nohup", *HANDFAST, "exec", "job", "--url", one.url, "--", "sh", "-c", script]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        go.touch()
        assert process.wait(WITHIN) == 0


def test_parent_that_ignores_its_children(one: Server) -> None:
    command = [*HANDFAST, "exec", "job", "--url", one.url, "--", "sh", "-c", "exit 3"]
    source = f"import signal, os; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({command[0]!r}, {command!r})"
    assert subprocess.run(python(source), env=environment(), timeout=WITHIN).returncode == 3


def test_stopped_command_is_ended_when_the_lock_is_lost(one: Server) -> None:
    with started("exec", "job", "--url", one.url, "--ttl", "1s", "--", "sh", "-c", "echo $$; exec sleep 600") as process:
        assert process.stdout is not None
        os.kill(int(process.stdout.readline()), signal.SIGSTOP)
        lose(one)
        assert process.wait(WITHIN) == 76


def test_closed_stderr_does_not_keep_the_command_alive(one: Server) -> None:
    words = ["exec", "job", "--url", one.url, "--ttl", "1s", "--", "sh", "-c", "echo ready; exec sleep 600"]
    with started(*words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.stderr.close()
        lose(one)
        assert process.wait(WITHIN) == 76
        process.stderr = None


# -- Ctrl-Z, in a shell with job control


@contextmanager
def shell(url: str) -> Iterator[Any]:
    env = environment(TERM="dumb", PS1="$ ", HANDFAST_URL=url)
    with terminal(command=["bash", "--norc", "--noprofile", "-i"], env=env, columns=200) as screen:
        screen.expect("$ ")
        yield screen
        screen.type("exit 0\n")
        screen.wait()


def test_ctrl_z_within_the_ttl_keeps_the_lock(one: Server, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo rea''dy; while [ ! -e {go} ]; do sleep 0.02; done; echo do''ne"
    with shell(one.url) as screen:
        screen.type(f'{" ".join(HANDFAST)} exec job --ttl 30s -- sh -c "{script}"; echo status $?x\n')
        screen.expect("ready")
        owner = holder(one)
        screen.type("\x1a")
        screen.expect("not renewed")
        screen.expect("Stopped")
        screen.expect("$ ", 2)  # bash drops what is typed before
        assert holder(one) == owner
        screen.type("fg\n")
        go.touch()
        screen.expect("done")
        eventually(lambda: holder(one) is None, WITHIN)


def test_ctrl_z_beyond_the_ttl_is_reported_and_ends_the_command(one: Server) -> None:
    with shell(one.url) as screen:
        screen.type(f"{' '.join(HANDFAST)} exec job --ttl 1s -- sh -c \"echo rea''dy; sleep 600\"\n")
        screen.expect("ready")
        screen.type("\x1a")
        screen.expect("Stopped")
        screen.expect("$ ", 2)
        eventually(lambda: holder(one) is None, WITHIN)
        screen.type("fg; echo status $?x\n")
        screen.expect("lease lost")
        screen.expect("status 76x")


# -- other systems


def test_system_that_does_not_tell_where_signals_come_from(one: Server, tmp_path: Path) -> None:
    """macOS has no sigwaitinfo(), and no waitid() before Python 3.13."""
    go = tmp_path / "go"
    source = """
        import os, signal, sys
        del os.waitid, signal.sigwaitinfo
        from handfast.cli import main
        sys.exit(main(sys.argv[1:]))
    """
    words = ["exec", "job", "--url", one.url, "--", *python(COUNTER, str(go))]
    with terminal(command=python(source, *words)) as screen:
        screen.expect("ready")
        screen.type("\x03")
        screen.expect("got SIGINT 1")
        os.kill(screen.pid, signal.SIGTERM)
        screen.expect("got SIGTERM 1")
        go.touch()
        screen.expect("counts [1, 1]")
        assert screen.wait() == 0


# -- cost


def test_imports_are_few(one: Server) -> None:
    """The time that exec takes is mostly that of imports."""
    source = """
        import sys
        from handfast.cli import main
        main(["exec", "job", "--url", sys.argv[1], "--", "true"])
        print(*sys.modules)
    """
    ended = subprocess.run(python(source, one.url), env=environment(), capture_output=True, text=True, timeout=WITHIN)
    modules = set(ended.stdout.split())
    assert "handfast.watchdog" in modules
    assert modules & {"click", "rich", "redis", "json", "dataclasses", "handfast.operate", "datetime"} == set()
