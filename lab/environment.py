"""The processes and servers that the lab runs, and what can happen to them: workers, balancer, Redis servers, database.

The reaper of `handfast.testing` knows every process and folder, and removes them even if the lab is killed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import sqlalchemy.exc

import handfast
from handfast.testing import Proxy, Server, Servers
from lab import LabError
from lab.database import Database, engine_for
from lab.frontend import Frontend, Kind
from lab.process import WorkerProcess
from lab.shop import Settings

__all__ = ["NODES", "Nodes", "Pair", "Plan", "Environment", "in_thread"]

READY_WITHIN: Final = 30.0
NODES: Final = ("n1", "n2", "n3", "n4", "n5")

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The settings that the user chose."""

    stock: int = 100
    buyers: int = 16
    workers: int = 4
    seconds: float = 4.0
    database: str = ""
    """A URL; empty means SQLite in a temporary folder."""
    frontend: Kind = "built-in"
    ab: bool = False


async def in_thread(what: Callable[..., T], *args: Any) -> T:
    """Run blocking code in a thread. A cancelled caller waits for its end: it must start nothing during the clean-up."""
    work = asyncio.get_running_loop().run_in_executor(None, what, *args)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class Nodes:
    """Five independent servers, each with a proxy that can cut it off."""

    def __init__(self) -> None:
        self.servers = Servers(len(NODES))
        self.proxies: list[Proxy] = []
        self.up = False
        self._down: set[str] = set()
        self._cut: set[str] = set()
        self._one_at_a_time = threading.Lock()

    def start(self) -> None:
        self.servers.start()
        for server in self.servers:
            self.proxies.append(Proxy(server))
            self.proxies[-1].start()
        with handfast.connect(self.servers.urls) as client:
            handfast.bootstrap(client)
        self.up = True

    def urls(self, cut: Collection[str]) -> list[str]:
        """The addresses of the nodes; those named in `cut` go through their proxies."""
        ways = zip(NODES, self.servers.nodes, self.proxies, strict=True)
        return [(proxy if name in cut else server).url for name, server, proxy in ways]

    def states(self) -> dict[str, Literal["up", "down", "partitioned"]]:
        return {name: "down" if name in self._down else "partitioned" if name in self._cut else "up" for name in NODES}

    def do(self, name: str, what: str) -> None:
        with self._one_at_a_time:
            if not self.up:
                raise LabError("the nodes are not up")
            self._do(name, what)

    def _do(self, name: str, what: str) -> None:
        server, proxy = self.servers[NODES.index(name)], self.proxies[NODES.index(name)]
        match what:
            case "kill":
                server.kill()
                self._down.add(name)
            case "start" | "restart_empty":
                server.restart(empty=True)
                self._down.discard(name)
            case "partition":
                proxy.drop()
                self._cut.add(name)
            case "heal":
                proxy.heal()
                self._cut.discard(name)
            case _:
                raise ValueError(
                    f"the actions on a node are kill, start, restart_empty, partition and heal, not {what!r}"
                )

    def close(self) -> None:
        with self._one_at_a_time:
            self.up = False
            for proxy in self.proxies:
                proxy.close()
            self.servers.close()


class Pair:
    """A master and its replica, with a proxy between them that can cut the replication."""

    def __init__(self) -> None:
        self.master = Server()
        self.link = Proxy(self.master)
        self.replica = Server(config={"replicaof": f"127.0.0.1 {self.link.port}"})

    def start(self) -> None:
        self.master.start()
        self.link.start()
        self.replica.start()
        self.replica.wait_for(lambda: self.replica.info("master_link_status") == "up")

    def promote(self) -> None:
        self.master.kill()
        self.replica.command("REPLICAOF", "NO", "ONE")

    def close(self) -> None:
        for each in (self.replica, self.link, self.master):
            each.close()


class Environment:
    """Workers behind a frontend, one Redis server, a database; and a pair or a quorum if the scenario needs one."""

    def __init__(self, plan: Plan, on_event: Callable[[str, dict[str, Any]], None], changed: Callable[[], None]) -> None:
        self.plan = plan
        self._on_event, self.changed = on_event, changed
        self.folder = Path(tempfile.mkdtemp(prefix="handfast-lab-"))
        # Two labs may share a database, so each has its own table names.
        self.prefix = "handfast_lab_" + self.folder.name.rpartition("-")[2].lower()
        self.database = plan.database or f"sqlite:///{self.folder}/shop.db"
        self.engine = engine_for(self.database)
        self._created = False
        self.one = Server(folder=self._new_folder("redis"))
        self.nodes: Nodes | None = None
        self.pair: Pair | None = None
        # More threads than buyers: an order that is held up must not block a buyer.
        self.workers = [
            WorkerProcess(f"w{number}", plan.buyers + 4, self.folder, self._received)
            for number in range(1, plan.workers + 1)
        ]
        self.frontend = Frontend(plan.frontend, [worker.port for worker in self.workers], self._new_folder("frontend"))
        self._settings: Settings | None = None
        self._expected: list[tuple[dict[str, Any], asyncio.Future[str]]] = []
        self._starting: set[asyncio.Task[None]] = set()

    def _new_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    # -- up and down

    async def start(self) -> None:
        await in_thread(self._create_tables)
        await in_thread(self.one.start)
        await asyncio.gather(*[self._start_worker(worker) for worker in self.workers])
        await in_thread(self.frontend.start)

    def _create_tables(self) -> None:
        try:
            Database(self.engine, self.prefix).create()
        except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            raise LabError(f"the database cannot be used: {_first_line(error)}") from error
        self._created = True

    async def _start_worker(self, worker: WorkerProcess) -> None:
        ready = self.expect("ready", worker.name)
        worker.start()
        try:
            await asyncio.wait_for(ready, READY_WITHIN)
        except TimeoutError:
            raise LabError(f"worker {worker.name} did not start: {worker.log_tail()}") from None
        if self._settings is not None:
            await self._open(worker, self._settings)
        worker.ready = True
        self.changed()

    def close(self) -> None:
        for task in self._starting:
            task.cancel()
        for worker in self.workers:
            worker.close()
        self.frontend.close()
        for servers in (self.nodes, self.pair, self.one):
            if servers is not None:
                servers.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            if self.plan.database and self._created:
                Database(self.engine, self.prefix).drop()
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise LabError(f"the tables {self.prefix}_… could not be removed: {_first_line(error)}") from error
        finally:
            self.engine.dispose()

    # -- a sale

    async def open(self, settings: Settings, servers: str, cut: Collection[str]) -> None:
        """Prepare fresh servers and tell every worker to open the sale. `settings` needs no addresses yet."""
        await self._all_started()
        await in_thread(self._fresh_servers, servers)
        facts = asdict(settings) | {
            "database": self.database,
            "prefix": self.prefix,
            "redis": (self.pair.master if self.pair else self.one).url,
            "nodes": self.nodes.urls(cut) if self.nodes else [],
        }
        self._settings = Settings(**facts)
        opened = [self._open(worker, self._settings) for worker in self.workers]
        try:
            async with asyncio.timeout(READY_WITHIN):
                await asyncio.gather(*opened)
        except TimeoutError:
            raise LabError(f"not all workers opened the sale within {READY_WITHIN:g} s") from None
        self.changed()

    async def _all_started(self) -> None:
        """Wait for workers that are starting. A cancelled caller leaves them running."""
        if self._starting:
            started, _ = await asyncio.wait(set(self._starting))
            for task in started:
                task.result()

    def _open(self, worker: WorkerProcess, settings: Settings) -> asyncio.Future[str]:
        opened = self.expect("open", worker.name, sale=settings.sale)
        worker.send(do="open", settings=asdict(settings))
        return opened

    def _fresh_servers(self, servers: str) -> None:
        self.one.command("FLUSHALL")
        for old in (self.pair, self.nodes):
            if old is not None:
                old.close()
        self.pair = Pair() if servers == "replicated" else None
        self.nodes = Nodes() if servers == "quorum" else None
        for new in (self.pair, self.nodes):
            if new is not None:
                new.start()

    def moved(self, url: str) -> None:
        for worker in self.workers:
            worker.send(do="moved", redis=url)

    async def rest(self, sale: int, within: float = 5.0) -> None:
        """Wait until no order is in progress. A worker that is still busy after `within` seconds is replaced."""
        waiting = {worker: self.expect("rested", worker.name, sale=sale) for worker in self.workers if worker.ready}
        for worker in waiting:
            worker.send(do="rest", sale=sale)
        if waiting:
            await asyncio.wait(waiting.values(), timeout=within)
        for worker in self.workers:
            if worker.state == "paused" or (worker in waiting and not waiting[worker].done()):
                self.kill(worker)

    # -- workers

    def worker(self, name: str) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.name == name)

    def kill(self, worker: WorkerProcess) -> None:
        """Kill it (SIGKILL) and start a new process in its place, as a supervisor would."""
        worker.kill()
        self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        task = asyncio.create_task(self._start_worker(worker))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)
        self.changed()

    # -- events of workers

    def expect(self, what: str, worker: str | None = None, **facts: Any) -> asyncio.Future[str]:
        """A future that gets the worker's name when an event with these facts arrives."""
        wanted = {"what": what, **facts} | ({"worker": worker} if worker else {})
        arrived: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._expected.append((wanted, arrived))
        return arrived

    def _received(self, name: str, event: dict[str, Any]) -> None:
        facts = event | {"worker": name}
        if event["what"] == "gone" and event["served"]:
            self._replace(self.worker(name))
        elif event["what"] == "gone":  # it failed to start, and so would a second one
            for wanted, arrived in self._expected:
                if wanted["what"] == "ready" and wanted["worker"] == name and not arrived.done():
                    arrived.set_exception(LabError(f"worker {name} did not start: {self.worker(name).log_tail()}"))
        for wanted, arrived in self._expected:
            if not arrived.done() and wanted.items() <= facts.items():
                arrived.set_result(name)
        self._expected = [each for each in self._expected if not each[1].done()]
        self._on_event(name, event)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
