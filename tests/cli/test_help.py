"""Help, docs/cli.md, completion, and what works without any extra."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import handfast
from handfast.cli import reference
from handfast.cli.commands import MODULES, command_named
from handfast.cli.completion import candidates, complete_line
from handfast.cli.help import of_command
from handfast.testing import Server
from tests.support.commands import HANDFAST, WITHIN, environment, handfast_command, terminal
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
BARE = """
import sys
for name in ("click", "rich", "starlette", "uvicorn"):
    sys.modules[name] = None
sys.argv[0] = "handfast"
from handfast.cli import command
command()
"""


def bare(*words: str) -> subprocess.CompletedProcess[str]:
    """The command as the base install has it."""
    command = [sys.executable, "-c", BARE, *words]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=WITHIN, stdin=subprocess.DEVNULL
    )


def test_page_is_what_the_help_says() -> None:
    made = reference.page()
    assert (ROOT / "docs" / "cli.md").read_text() == made, "run: python -m handfast.cli.reference > docs/cli.md"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(words: list[str]) -> None:
    ended = bare(*words)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(f"  {name} " in ended.stdout for name in MODULES)
    assert "Examples:" in ended.stdout


@pytest.mark.parametrize("name", MODULES)
def test_each_command_explains_itself_with_an_example(name: str) -> None:
    ended = bare(name, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == of_command(command_named(name), 80)
    assert f"Usage: handfast {name}" in ended.stdout
    assert f"handfast {name}" in ended.stdout.partition("Examples:")[2]
    prose = ended.stdout.partition("Examples:")[0]
    assert max(map(len, prose.splitlines())) <= 80


def test_help_behind_the_dashes_is_the_commands(one: Server) -> None:
    ended = bare("exec", "a", "--url", one.url, "--", "sh", "-c", "echo $0", "--help")
    assert ended.stdout == "--help\n"


def test_version() -> None:
    assert bare("--version").stdout == f"handfast, version {version('handfast')}\n"


def test_module_is_the_command() -> None:
    assert handfast_command("--help").stdout == bare("--help").stdout


@pytest.mark.parametrize(("words", "said"), [(["lss"], "did you mean ls?"), (["--url", "x", "ls"], "behind the command")])
def test_wrong_word_is_one_line_with_the_next_step(words: list[str], said: str) -> None:
    ended = bare(*words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert said in ended.stderr


def test_base_install_does_everything_but_live_views(one: Server) -> None:
    with handfast.connect(one.url) as client:
        lease = client.lock("a").acquire()
        for words, status in (
            (["exec", "b", "--", "true"], 0), (["ls"], 0), (["show", "a"], 0), (["doctor"], 1),
            (["watch", "--count", "1"], 0), (["top", "--count", "1"], 0), (["break", "a", "--yes"], 0),
        ):  # fmt: skip
            at = words.index("--") if "--" in words else len(words)
            ended = bare(*words[:at], "--url", one.url, *words[at:])
            assert (ended.returncode, ended.stderr) == (status, ""), words
        assert lease.lost.wait(WITHIN)


def test_top_on_a_terminal_without_rich_says_what_to_install(one: Server) -> None:
    with terminal(command=[sys.executable, "-c", BARE, "top", "--url", one.url]) as screen:
        assert screen.wait() == 1
        assert "pip install 'handfast[cli]'" in screen.plain


def test_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from handfast.cli import commands, main

    def fail(words: object) -> int:
        raise KeyError("boom")

    monkeypatch.setattr(commands, "run", fail)
    monkeypatch.delenv("HANDFAST_DEBUG", raising=False)
    assert main(["ls"]) == 70
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("HANDFAST_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["ls"])


@pytest.mark.parametrize("module", ["handfast.core.inspect", "handfast.cli.commands", "handfast.operate.locks"])
def test_ctrl_c_during_imports_is_silent(module: str, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    source = f"""
import builtins, sys, time
real = builtins.__import__
def slow(name, *args, **kwargs):
    if name == {module!r}:
        open({str(reached)!r}, "w").close()
        time.sleep(60)
    return real(name, *args, **kwargs)
builtins.__import__ = slow
sys.argv = ["/usr/bin/handfast", "ls", "--url", "redis://127.0.0.1:1"]
from handfast.cli import main
sys.exit(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", source], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    eventually(reached.exists, WITHIN)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WITHIN)
    assert (out, err) == ("", "")
    assert process.returncode in (-signal.SIGINT, 130)


def test_importing_the_library_leaves_ctrl_c_alone() -> None:
    source = "import handfast, signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=WITHIN)
    assert ended.stdout == "True\n"


# -- completion


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ex", ["exec"]),
        ("exec a --on", ["--on-lost"]),
        ("exec a --on-lost ", ["term", "warn"]),
        ("exec a --no", ["--no-fair"]),
        ("exec a -- --o", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("nonsense ", []),
        ("ls --u", ["--url"]),
    ],
)
def test_candidates(line: str, found: list[str]) -> None:
    assert list(candidates(line.split(" "))) == found


def test_names_of_locks_are_candidates(one: Server) -> None:
    with handfast.connect(one.url) as client, client.lock("nightly"), client.lock("my lock"):
        assert list(candidates(["show", "--url", one.url, "ni"])) == ["nightly"]
        assert list(candidates(["break", "--url", one.url, ""])) in (["nightly", "my lock"], ["my lock", "nightly"])
        assert list(candidates(["show", "--url", one.url, "nightly", ""])) == []
    assert list(candidates(["show", "--url", "redis://127.0.0.1:1", ""])) == []


SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(handfast completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -D; eval "$(handfast completion zsh)"'),
    "fish": (["fish", "--no-config"], "handfast completion fish | source"),
}
TYPED = {
    "handfast exe\ta\t": "<exec><a>",
    "handfast exec a --on-l\tw\t": "<exec><a><--on-lost><warn>",
    "handfast show ord\t": "<show><orders:42>",
    "handfast break jobs:\t": "<break><jobs:7>",
    "handfast show my\t": "<show><my lock>",
    "handfast break --prefix other: oth\t": "<break><--prefix><other:><other>",
    "handfast exec a -- only-o\tx": "<exec><a><--><only-one><x>",
}


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes(shell: str, one: Server, tmp_path: Path) -> None:
    command, setup = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{shell} is not installed")
    shown = "printf '<%s>' \"$@\"; echo"
    program(tmp_path / "handfast", f'case $1 in -*|completion) exec {" ".join(HANDFAST)} "$@";; esac; {shown}')
    program(tmp_path / "only-one", "true")
    env = environment(PATH=f"{tmp_path}:{os.environ['PATH']}", HOME=str(tmp_path), HANDFAST_URL=one.url, TERM="xterm")
    with (
        handfast.connect(one.url) as client,
        handfast.connect(one.url, prefix="other:") as other,
        client.lock("orders:42"),
        client.lock("jobs:7"),
        client.lock("my lock"),
        other.lock("other"),
        terminal(command=command, env=env, columns=200) as screen,
    ):
        screen.type(f"{setup}; echo set''up done\n")
        screen.expect("setup done")
        for typed, given in TYPED.items():
            screen.type(f"{typed}\n")
            screen.expect(given)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("handfast exec a --on-lost=w", ["--on-lost=", "--on-lost=warn"]),
        ("handfast completion 'z", ["", "zsh"]),
        ('handfast completion "z', ["", "zsh"]),
        ("handfast completion ", ["", "bash", "zsh", "fish"]),
        ("handfast show --url= ", [""]),
    ],
)
def test_line_of_bash(line: str, printed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert complete_line(line) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == printed


def test_examples_in_docstrings_are_true() -> None:
    for name in ("handfast.cli.durations", "handfast.cli.output", "handfast.operate.locks"):
        result = doctest.testmod(importlib.import_module(name))
        assert result.attempted
        assert not result.failed


def test_page_names_no_option_that_is_not_there() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    known = {
        flag for name in MODULES for option in command_named(name).options for flag in (option.flag, option.negative)
    }
    used = {flag for line in re.findall(r"handfast (?:\w|-)+ .*", text) for flag in re.findall(r"(?<!\S)--[a-z-]+", line)}
    assert used - known - {"--help", "--all", "--version"} == set()
