"""Makes the picture of the dashboard: python -m tests.dashboard.screenshot docs/dashboard.png [light|dark] [width]"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import ExitStack
from unittest.mock import patch

from playwright.sync_api import expect

import handfast
from handfast.testing import Servers
from tests.dashboard.running import running
from tests.lab.browser import chromium, window

HOSTS = ("web-1", "web-2", "worker-1")
BUSY = ("stock:7", "stock:12", "cache:rebuild", "invoice:2024")
QUIET = ("report:daily", "import:products", "mail:digest", "search:reindex", "backup", "cleanup:sessions", "sync:crm")
SECONDS = 20.0


def client_of(servers: Servers, host: str, stack: ExitStack) -> handfast.Client:
    with patch("socket.gethostname", lambda: host):
        client = stack.enter_context(handfast.connect(servers.urls, max_ttl=15.0))
        client.lock("warm").acquire().release()
    return client


def work(client: handfast.Client, seed: int, ended: threading.Event) -> None:
    chance = random.Random(seed)
    while not ended.is_set():
        with client.lock(chance.choice(BUSY)):
            ended.wait(chance.uniform(0.05, 0.9))


def shoot(path: str, scheme: str = "light", width: str = "1440") -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(Servers(3))
        with handfast.connect(servers.urls, max_ttl=15.0) as first:
            handfast.bootstrap(first)
        clients = [client_of(servers, host, stack) for host in HOSTS]
        held = [clients[i % 3].lock(name).acquire() for i, name in enumerate(QUIET)]
        dashboard = stack.enter_context(running(servers.urls, interval=0.5))
        ended = threading.Event()
        threads = [threading.Thread(target=work, args=(clients[i % 3], i, ended)) for i in range(9)]
        for thread in threads:
            thread.start()
        try:
            browser = stack.enter_context(chromium())
            page = stack.enter_context(window(browser, int(width), 900, scheme))
            page.goto(dashboard.url)
            time.sleep(SECONDS)
            servers[2].restart()
            expect(page.locator('#tape [data-kind="quarantined"]')).to_have_count(1, timeout=30_000)
            time.sleep(3.0)
            page.screenshot(path=path, animations="disabled")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        for lease in held:
            lease.release()


if __name__ == "__main__":
    shoot(*sys.argv[1:4])
