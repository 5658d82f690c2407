"""A real PostgreSQL for tests: a new cluster in a temporary folder, on a unix socket and a port of the loopback.

PostgreSQL does not run as root, so there it runs as the user `postgres`, or `nobody`. It is started once per process,
when first used, and ends with it.
"""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import pytest

from handfast.testing import reaper
from handfast.testing.servers import LOOPBACK, reserve_port

__all__ = ["Postgres", "ask", "database", "postgres"]

# The folders of the programs on Debian, Fedora and Homebrew, the newest last.
FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
# A crash of the machine may destroy the cluster. A test that waits for itself must fail, not hang.
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "lock_timeout": "20s"}


def programs() -> Path | None:
    """The folder of initdb and postgres, if there is one."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = [folder for pattern in FOLDERS for folder in sorted(Path("/").glob(pattern[1:]))]
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def account() -> str | None:
    """The account that runs the server; None for this process' own."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


class Postgres:
    """One cluster. Its superuser `postgres` needs no password."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder
        self._user = account()
        self.folder = Path(tempfile.mkdtemp(prefix="handfast-postgres-"))
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"
        self.socket_url = f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    def start(self) -> None:
        data = str(self.folder / "data")
        with (self.folder / "log").open("wb") as log:
            made = self._spawn(log, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
            if made.wait(timeout=120) != 0:
                raise RuntimeError(f"initdb failed:\n{self.log}")
            listen = ("-h", LOOPBACK, "-p", str(self.port), "-k", str(self.folder))
            settings = (word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}"))
            self._process = self._spawn(log, "postgres", "-D", data, *listen, *settings)
            reaper.watch(self._process.pid, self.folder)
        self._wait_ready()

    def _spawn(self, log: IO[bytes], program: str, *args: str) -> subprocess.Popen[bytes]:
        command = [str(self.programs / program), *args]
        account = {} if self._user is None else {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid}
        # A separate session: Ctrl-C is for the tests, which stop the server. LC_ALL: its locale may not exist here.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, start_new_session=True,
            extra_groups=None if self._user is None else [], **account,
        )  # fmt: skip

    def _wait_ready(self) -> None:
        assert self._process is not None
        probe = [str(self.programs / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        deadline = time.monotonic() + 60
        while subprocess.run(probe, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"postgres did not start:\n{self.log}")
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty schema, for the time of its use. A schema is made and dropped faster than a database."""
        import psycopg

        name = f"test_{uuid4().hex[:12]}"
        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(f"CREATE SCHEMA {name}".encode())
        try:
            yield f"{self.url}?options=-csearch_path%3D{name}"
        finally:
            with psycopg.connect(self.url, autocommit=True) as conn:
                conn.execute(f"DROP SCHEMA {name} CASCADE".encode())

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast": sessions are ended, and no shared memory is left
            reaper.forget(self._process.pid)
            self._process.wait(timeout=30)
        self._reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def ask(url: str, question: str) -> list[Any]:
    """The first column of the answer."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as conn:
        return [row[0] for row in conn.execute(question.encode())]


@functools.cache
def _cluster() -> Postgres | None:
    folder = programs()
    if folder is None:
        return None
    cluster = Postgres(folder)
    atexit.register(cluster.close)
    cluster.start()
    return cluster


@pytest.fixture(scope="session")
def postgres() -> Postgres:
    """The cluster of this process. Without PostgreSQL, the tests that need it are skipped."""
    pytest.importorskip("psycopg")
    cluster = _cluster()
    if cluster is None:
        pytest.skip("no PostgreSQL on this machine: initdb is neither on the PATH nor where Debian puts it")
    return cluster


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The URL of an empty schema of its own."""
    with postgres.database() as url:
        yield url
