"""The load balancer in front of the workers: nginx if it is installed, otherwise `lab.balancer`. Both are round robin.

nginx needs no privileges here: it has a high port, its files are in a temporary folder, and it runs as a single process.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from handfast.testing import reaper
from handfast.testing.servers import LOOPBACK, reserve_port
from lab import LabError

__all__ = ["Frontend", "Kind", "nginx_found"]

Kind = Literal["nginx", "built-in"]

TIMEOUT: Final = 1.25
"""Seconds for a worker to answer. Longer than an order waits for the lock, so only a hung process exceeds it."""
READY_WITHIN: Final = 10.0

NGINX: Final = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream shop {{
{workers}
  }}
  server {{
    listen {address};
    location / {{
      proxy_pass http://shop;
      proxy_read_timeout {timeout}ms;
      proxy_connect_timeout {timeout}ms;
    }}
  }}
}}
"""


def nginx_found() -> str | None:
    # Debian installs it in a folder that only root has on its path.
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Frontend:
    def __init__(self, kind: Kind, workers: Sequence[int], folder: Path) -> None:
        self.kind = kind
        self._workers = workers
        self._folder = folder
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        if sys.platform != "linux":
            self._reserved.close()  # only Linux allows a second bind to the port
        with (self._folder / "output.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        reaper.watch(self._process.pid, None)
        self._wait_ready()

    def _command(self) -> list[str]:
        if self.kind == "built-in":
            ports = [str(port) for port in self._workers]
            return [sys.executable, "-m", "lab.balancer", str(self.port), str(TIMEOUT), *ports]
        workers = "\n".join(f"    server {LOOPBACK}:{port} max_fails=1 fail_timeout=2s;" for port in self._workers)
        address = f"{LOOPBACK}:{self.port}"
        config = NGINX.format(folder=self._folder, workers=workers, address=address, timeout=int(TIMEOUT * 1000))
        (self._folder / "nginx.conf").write_text(config)
        return [nginx_found() or "nginx", "-p", str(self._folder), "-e", "error.log", "-c", "nginx.conf"]

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                socket.create_connection((LOOPBACK, self.port), timeout=1.0).close()
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = "\n".join(path.read_text(errors="replace") for path in self._folder.glob("*.log"))
                    raise LabError(f"the {self.kind} balancer did not start: {said.strip()}") from error
                time.sleep(0.01)

    def close(self) -> None:
        if self._process is not None:
            reaper.forget(self._process.pid)
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._reserved.close()
