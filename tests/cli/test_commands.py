"""ls, show, top, watch, break, doctor, bootstrap, serve-quorum: what people and programs get from them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import handfast
from handfast.cli.output import cells
from handfast.testing import Server, Servers
from tests.support.commands import HANDFAST, WITHIN, environment, handfast_command, started, terminal
from tests.support.eventually import eventually

EVIL = "evil\x1b[2J\nname\u202e"
LOOKS = [["ls"], ["show", "a"], ["top", "--count", "1"], ["watch", "--count", "1"], ["doctor"]]


@pytest.fixture
def leases(one: Server) -> Iterator[dict[str, handfast.Lease]]:
    with handfast.connect(one.url, label="tests") as client:
        yield {name: client.lock(name, ttl=20).acquire() for name in ("a", "b", EVIL)}


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# -- ls


def test_ls_shows_name_owner_and_token(one: Server, leases: dict[str, handfast.Lease]) -> None:
    ended = handfast_command("ls", "--url", one.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    header, *rows = ended.stdout.splitlines()
    assert header.split() == ["NAME", "OWNER", "TOKEN", "TTL", "HELD", "WAITING"]
    assert [row.split()[0] for row in rows] == ["a", "b", r"evil\x1b[2J\nname\u202e"]
    assert rows[0].split()[2] == str(leases["a"].token)
    assert rows[0].split()[1] == leases["a"].owner.rpartition(":")[0]


def test_ls_pattern_names_and_json(one: Server, leases: dict[str, handfast.Lease]) -> None:
    assert handfast_command("ls", "[ab]", "--names", "--url", one.url).stdout.split() in (["a", "b"], ["b", "a"])
    found = lines(handfast_command("ls", "--json", "--url", one.url).stdout)
    assert {each["name"]: each["token"] for each in found} == {name: lease.token for name, lease in leases.items()}
    assert {each["owner"]["text"] for each in found} == {lease.owner for lease in leases.values()}
    assert [vote["node"] for vote in found[0]["votes"]] == [one.url]


def test_ls_never_runs_keys_and_reads_in_small_steps(one: Server) -> None:
    with one.connect() as link:
        for i in range(3000):
            link.command("SET", f"handfast:{{n{i}}}", "somebody", "PX", 60_000)
        link.command("CONFIG", "RESETSTAT")
    ended = handfast_command("ls", "--url", one.url)
    assert len(ended.stdout.splitlines()) == 3001
    stats = one.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    assert b"cmdstat_keys" not in stats
    assert b"cmdstat_scan" in stats


def test_memory_of_ls_does_not_grow_with_the_locks(one: Server) -> None:
    def peak() -> int:
        source = "import resource, sys; from handfast.cli import main; main(sys.argv[1:]); "
        source += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        command = [HANDFAST[0], "-c", source, "ls", "--url", one.url]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=WITHIN)
        assert len(ended.stdout.splitlines()) == size + 1
        return int(ended.stderr)

    peaks = []
    for size in (4_000, 24_000):
        with one.connect() as link:
            link.command(
                "EVAL", "for i=1,ARGV[1] do redis.call('SET','handfast:{n'..i..'}','me','PX',600000) end", 0, size
            )
        peaks.append(peak())
    assert peaks[1] < peaks[0] + 4_000  # kB; the locks alone would be 20 MB


def test_quorum_has_a_strip_of_votes(quorum: handfast.Client, five: Servers) -> None:
    with quorum.lock("a"):
        five[4].kill()
        ended = handfast_command("ls", env=environment(HANDFAST_URL=" ".join(five.urls)))
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1].endswith("●●●●✗")
    assert ended.stderr == f"handfast: {five[4].url}: refused the connection\n"


def test_too_few_nodes_are_an_error_of_their_own(three: Servers) -> None:
    three[0].kill()
    three[1].kill()
    env = environment(HANDFAST_URL=" ".join(three.urls))
    for words in (["ls"], ["show", "a"]):
        ended = handfast_command(*words, env=env)
        assert ended.returncode == 69
        assert ended.stderr.endswith("see: handfast doctor\n")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_tables_fit_the_terminal(one: Server, columns: int) -> None:
    long = "a-long-name-" * 12
    with (
        handfast.connect(one.url, label="l" * 60) as client,
        client.lock(long),
        client.lock("日本語の鍵" * 12),
        terminal("ls", "--url", one.url, columns=columns) as screen,
    ):
        assert screen.wait() == 0
        shown = [line for line in screen.plain.splitlines() if line]
    assert len(shown) == 3
    assert all(cells(line) <= columns for line in shown)
    assert cells(shown[1]) > columns - 20
    assert sum("…" in line for line in shown) == 2
    titles = ["NAME", "OWNER", "TOKEN", "TTL", "HELD", "WAITING"]
    assert shown[0].split() == (["NAME", "OWNER", "WAITING"] if columns == 40 else titles)


def test_findings_of_the_doctor_fit_the_terminal(three: Servers) -> None:
    env = environment(HANDFAST_URL=" ".join(three.urls), TERM="xterm")
    with terminal("doctor", env=env, columns=50) as screen:
        screen.wait()
        shown = screen.plain.splitlines()
    assert max(map(cells, shown)) <= 50
    at = next(i for i, line in enumerate(shown) if "→" in line)
    assert shown[at + 1].startswith(" " * (shown[at].index("→") + 2))


def test_without_terminal_nothing_is_cut_off_or_coloured(one: Server) -> None:
    with handfast.connect(one.url) as client, client.lock("n" * 300):
        out = handfast_command("ls", "--url", one.url, env=environment(COLUMNS="40", TERM="xterm")).stdout
    assert "n" * 300 in out
    assert "\x1b" not in out


def test_colours_on_a_terminal_unless_unwanted(one: Server) -> None:
    with terminal("doctor", "--url", one.url) as screen:
        screen.wait()
        assert "\x1b[32m✓" in screen.text
    with terminal("doctor", "--url", one.url, env=environment(TERM="xterm", NO_COLOR="1")) as screen:
        screen.wait()
        assert "\x1b" not in screen.text


def test_hostile_names_cannot_move_the_cursor(one: Server, leases: dict[str, handfast.Lease]) -> None:
    for words in (["ls"], ["show", EVIL], ["watch", "--count", "1"], ["top", "--count", "1"]):
        ended = handfast_command(*words, "--url", one.url)
        assert "evil" in ended.stdout
        assert not re.search(r"\x1b|\u202e|evil\n", ended.stdout)


def test_hostile_owner_can_be_read_and_broken(one: Server) -> None:
    one.command("SET", "handfast:{a}", b"evil\x1b[2J\xff", "PX", 60_000)
    refused = handfast_command("exec", "a", "--wait", "0", "--url", one.url, "--", "true")
    assert (refused.returncode, refused.stderr.count("\n")) == (75, 1)
    assert r"held by evil\x1b[2J\ufffd" in refused.stderr.replace("\ufffd", r"\ufffd")
    assert "--wait" in refused.stderr
    broken = handfast_command("break", "a", "--yes", "--url", one.url)
    assert (broken.returncode, broken.stderr) == (0, "")
    assert one.command("EXISTS", "handfast:{a}") == 0


# -- show and break


def test_show(one: Server, leases: dict[str, handfast.Lease]) -> None:
    ended = handfast_command("show", "a", "--url", one.url)
    assert ended.returncode == 0
    assert leases["a"].owner in ended.stdout
    assert str(leases["a"].token) in ended.stdout
    (data,) = lines(handfast_command("show", "a", "--json", "--url", one.url).stdout)
    assert data["lock"]["token"] == leases["a"].token
    free = handfast_command("show", "free", "--url", one.url)
    assert (free.returncode, free.stdout) == (1, "free\n  free\n")


def test_break_cuts_the_holder_off_and_leaves_an_audit_line(one: Server, leases: dict[str, handfast.Lease]) -> None:
    ended = handfast_command("break", "a", "--yes", "--reason", "it hangs", "--url", one.url)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert leases["a"].owner.rpartition(":")[0] in ended.stdout
    assert leases["a"].lost.wait(WITHIN)
    shown = handfast_command("show", "a", "--url", one.url).stdout
    assert "it hangs" in shown
    assert f"token {leases['a'].token}" in shown
    assert not leases["b"].lost.is_set()


def test_break_asks_first(one: Server, leases: dict[str, handfast.Lease]) -> None:
    for answer, status in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        with terminal("break", "a", "--url", one.url) as screen:
            screen.expect("[y/N]")
            assert leases["a"].owner in screen.plain
            screen.type(answer)
            assert screen.wait() == status
    assert leases["a"].lost.wait(WITHIN)


def test_break_refuses_if_the_lock_changed_hands_meanwhile(one: Server) -> None:
    with handfast.connect(one.url) as client, terminal("break", "a", "--url", one.url) as screen:
        first = client.lock("a").acquire()
        screen.expect("[y/N]")
        first.release()
        second = client.lock("a").acquire()
        screen.type("y\n")
        assert screen.wait() == 75
        screen.expect("nothing was changed")
        second.extend()


def test_break_without_terminal_or_holder_or_with_another_token(one: Server, leases: dict[str, handfast.Lease]) -> None:
    for words, status in ((["a"], 2), (["free", "--yes"], 1), (["a", "--yes", "--token", "7"], 75)):
        ended = handfast_command("break", *words, "--url", one.url)
        assert (ended.returncode, ended.stderr.count("handfast:")) == (status, 1)
    leases["a"].extend()


def test_break_of_a_running_exec(one: Server) -> None:
    script = ["sh", "-c", "echo ready; exec sleep 600"]
    with started("exec", "a", "--ttl", "1s", "--url", one.url, "--", *script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert handfast_command("break", "a", "--yes", "--url", one.url).returncode == 0
        assert process.wait(WITHIN) == 76


# -- watch and top


def test_watch_prints_each_change(one: Server) -> None:
    with (
        handfast.connect(one.url) as client,
        client.lock("early"),
        started("watch", "--json", "--interval", "10ms", "--url", one.url) as process,
    ):
        assert process.stdout is not None

        def change() -> tuple[str, str, int | None]:
            assert process.stdout is not None
            data = json.loads(process.stdout.readline())
            return data["kind"], data["name"], data["token"]

        assert change()[:2] == ("held", "early")
        lease = client.lock("a").acquire()
        assert change() == ("acquired", "a", lease.token)
        lease.release()
        assert change() == ("released", "a", lease.token)
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_watch_tells_of_nodes_and_breaks(three: Servers) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
        lease = client.lock("a").acquire()
        env = environment(HANDFAST_URL=" ".join(three.urls))
        with started("watch", "--interval", "10ms", env=env) as process:
            assert process.stdout is not None
            assert "held" in process.stdout.readline()
            three[2].kill()
            assert f"node down    {three[2].url}" in process.stdout.readline()
            assert handfast_command("break", "a", "--yes", env=env).returncode == 0
            said = process.stdout.readline()
            while "broken" not in said:
                assert "minority" in said or "released" in said  # it was looking while the nodes were told
                said = process.stdout.readline()
            assert lease.lost.wait(WITHIN)


def test_top_shows_what_is_waited_for_first(one: Server, leases: dict[str, handfast.Lease]) -> None:
    one.command("ZADD", "handfast:{b}:q", 1, "x", 2, "y")
    (data,) = lines(handfast_command("top", "--json", "--count", "1", "--url", one.url).stdout)
    assert (data["locks"], data["waiters"], data["first"][0]["name"]) == (3, 2, "b")
    with terminal("top", "--interval", "20ms", "--url", one.url, columns=100, lines=10) as screen:
        screen.expect("3 locks", 2)
        screen.type("\x03")
        assert screen.wait() == 130
        assert screen.text.endswith("\x1b[?25h\x1b[?1049l")  # the cursor and the old screen are back
        assert "Traceback" not in screen.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_top_gives_the_screen_back_when_it_is_ended(one: Server, number: signal.Signals) -> None:
    with terminal("top", "--interval", "20ms", "--url", one.url) as screen:
        screen.expect("0 locks")
        os.kill(screen.pid, number)
        assert screen.wait() == 128 + number
        assert screen.text.endswith("\x1b[?25h\x1b[?1049l")


def test_top_gives_the_screen_back_while_it_is_stopped(one: Server) -> None:
    with terminal("top", "--interval", "20ms", "--url", one.url) as screen:
        screen.expect("0 locks")
        screen.type("\x1a")
        eventually(lambda: screen.text.endswith("\x1b[?25h\x1b[?1049l"), WITHIN)
        os.kill(screen.pid, signal.SIGCONT)
        screen.expect("0 locks", screen.plain.count("0 locks") + 1)
        screen.type("\x03")
        assert screen.wait() == 130


def test_watch_ends_when_its_reader_does(one: Server, leases: dict[str, handfast.Lease]) -> None:
    with started("watch", "--interval", "1h", "--url", one.url) as process:
        assert process.stdout is not None
        assert all("held" in process.stdout.readline() for _ in leases)
        process.stdout.close()
        assert process.wait(WITHIN) == 128 + signal.SIGPIPE
        process.stdout = None


@pytest.mark.parametrize(("sort", "first"), [("name", "a"), ("ttl", "b")])
def test_top_sorts(one: Server, leases: dict[str, handfast.Lease], sort: str, first: str) -> None:
    one.command("PEXPIRE", "handfast:{b}", 100_000 if sort == "name" else 10_000)
    (data,) = lines(handfast_command("top", "--json", "--count", "1", "--sort", sort, "--url", one.url).stdout)
    assert data["first"][0]["name"] == first


# -- doctor, bootstrap, serve-quorum


def test_doctor_tells_monitors_by_its_status(one: Server) -> None:
    ended = handfast_command("doctor", "--url", one.url)
    assert ended.returncode == 1
    assert "! persistence" in ended.stdout
    assert "→" in ended.stdout
    (data,) = lines(handfast_command("doctor", "--json", "--url", one.url).stdout)
    assert data["level"] == "warn"
    assert {"node", "name", "level", "found", "advice"} == set(data["checks"][0])
    dead = handfast_command("doctor", "--url", "redis://127.0.0.1:1")
    assert (dead.returncode, dead.stderr) == (2, "")
    assert "✗ reachable" in dead.stdout


def test_doctor_of_an_embedded_server_is_content(tmp_path: Path) -> None:
    ended = handfast_command("doctor", "--url", f"embedded://{tmp_path}/e")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_bootstrap_opens_a_new_quorum(three: Servers) -> None:
    env = environment(HANDFAST_URL=" ".join(three.urls))
    new = handfast_command("exec", "a", "--wait", "0", "--", "true", env=env)
    assert (new.returncode, new.stderr.count("\n")) == (69, 1)
    assert "handfast bootstrap opens them" in new.stderr
    assert handfast_command("bootstrap", env=env).returncode == 2  # there is nobody to ask
    ended = handfast_command("bootstrap", "--yes", env=env)
    assert (ended.returncode, ended.stdout.count("opened"), ended.stderr) == (0, 3, "")
    assert handfast_command("exec", "a", "--", "true", env=env).returncode == 0
    again = handfast_command("bootstrap", "--yes", "--json", env=env)
    assert set(json.loads(again.stdout).values()) == {"open already"}


def test_bootstrap_of_one_server_is_refused(one: Server) -> None:
    ended = handfast_command("bootstrap", "--yes", "--url", one.url)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_serve_quorum_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    env = environment(TMPDIR=str(tmp_path))
    with started("serve-quorum", "3", env=env) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline().strip() for _ in range(4)]
        word, value = shlex.split(printed[3])
        assert word == "export"
        name, _, urls = value.partition("=")
        assert (name, urls.split()) == ("HANDFAST_URL", printed[:3])
        checked = handfast_command("doctor", "--quiet", env={**env, "HANDFAST_URL": urls})
        assert checked.returncode == 0, checked.stdout
        process.send_signal(number)
        assert process.wait(WITHIN) == {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    eventually(lambda: not any(tmp_path.iterdir()), WITHIN, str(os.listdir(tmp_path)))


def test_serve_quorum_on_a_terminal_ends_by_ctrl_c() -> None:
    with terminal("serve-quorum", "1") as screen:
        screen.expect("Ctrl-C ends")
        screen.type("\x03")
        assert screen.wait() == 0


def test_signal_at_any_moment_ends_the_wait_of_serve_quorum() -> None:
    """Also one that comes just when the wait begins, as Ctrl-C does that is typed as soon as the command says it."""
    code = """
        import os, signal, threading
        from handfast.cli.serve_quorum import _ends

        begins, wait = threading.Semaphore(0), _ends()

        def interrupt():
            for _ in range(1000):
                begins.acquire()
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        for _ in range(1000):
            begins.release()
            assert wait() == signal.SIGINT
        print("never hung")
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=WITHIN)
    assert (ended.stdout, ended.stderr) == ("never hung\n", "")


# -- errors


@pytest.mark.parametrize("words", LOOKS[:4], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("redis://127.0.0.1:1", 69, "refused the connection; see: handfast doctor"),
        ("", 2, "--url is empty"),
        ("redis://nowhere.invalid", 69, "host name not found"),
        ("http://x", 2, "unknown scheme"),
        ("redis://:secret@127.0.0.1:1", 69, "refused"),
    ],
)
def test_error_is_one_line(words: list[str], url: str, status: int, said: str) -> None:
    ended = handfast_command(*words, "--url", url)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (status, "", 1)
    assert said in ended.stderr
    assert "secret" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", ""], "must not be empty"),
        (["show", os.fsdecode(b"\xff")], "not valid Unicode"),
        (["exec", "n" * 2000, "--", "true"], "1024 at most"),
        (["top", "--count", "many"], "not a whole number"),
        (["watch", "--interval", "0"], "must not be 0"),
        (["exec", "a", "--at-least", "9999d", "--", "true"], "longer than ten years"),
        (["serve-quorum", "0"], "not a number of servers"),
        (["completion", "tcsh"], "bash"),
        (["top", "--sort", "luck"], "waiting"),
        (["ls", "a", "b"], "unrecognized"),
    ],
)
def test_wrong_argument_is_one_line(words: list[str], said: str) -> None:
    ended = handfast_command(*words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert said in ended.stderr


def test_locale_without_the_signs(one: Server) -> None:
    ended = handfast_command("doctor", "--url", one.url, env=environment(PYTHONIOENCODING="latin-1"), encoding="latin-1")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "? reachable" in ended.stdout


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_closed_pipe_is_no_error(one: Server, leases: dict[str, handfast.Lease], words: list[str]) -> None:
    line = " ".join([*HANDFAST, *words, "--url", one.url])
    ended = subprocess.run(
        ["bash", "-c", f"{line} | true; {line} --json | head -c 1"],
        env=environment(), capture_output=True, text=True, timeout=WITHIN,
    )  # fmt: skip
    assert (ended.stdout, ended.stderr) == ("{", "")


@pytest.mark.parametrize(("words", "said", "status"), [(["doctor"], "connecting", 2), (["ls"], "asking the servers", 69)])
def test_server_that_hangs_shows_progress_on_a_terminal(one: Server, words: list[str], said: str, status: int) -> None:
    one.pause()
    try:
        with terminal(*words, "--url", one.url) as screen:
            assert screen.wait() == status
            assert screen.text.startswith(f"\r\x1b[K{said}")
            assert "did not answer" in screen.plain
        with terminal(command=["sh", "-c", f"{' '.join([*HANDFAST, *words, '--url', one.url])} 2>&1 | cat"]) as screen:
            screen.wait()
            assert said not in screen.text  # stderr is no terminal
    finally:
        one.resume()


def test_quick_command_shows_no_progress(one: Server) -> None:
    with terminal("show", "a", "--url", one.url) as screen:
        assert screen.wait() == 1
        assert "\x1b[K" not in screen.text
