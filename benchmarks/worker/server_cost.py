"""Many workers that wait, and many jobs that run: what they cost the server, on both engines at once."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx
import msgspec

from benchmarks.queue.folders import REPOSITORY
from benchmarks.worker.app import SLOW
from benchmarks.worker.ingot_server import IngotServer
from benchmarks.worker.run_environment import RunEnvironment
from ingot.client import Client
from ingot.jobs.model import JobStatus
from tests.postgres import binaries

ENGINES: Final = ("SQLite", "PostgreSQL")
READY_SECONDS_MAX: Final = 90.0
SETTLE_SECONDS: Final = 3.0
LIBRARY: Final = "pg_stat_statements"
PRELOADED: Final = f"shared_preload_libraries = '{LIBRARY}'\n"
STATEMENTS: Final = f"""
SELECT coalesce(sum(calls), 0)::float, coalesce(sum(wal_bytes), 0)::float, coalesce(sum(total_exec_time), 0) / 1000
FROM {LIBRARY} WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
AND query NOT LIKE '%{LIBRARY}%'
"""


class WorkerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """So many workers, each with so many jobs; the workers are spread over a few processes."""

    title: str
    workers: int
    jobs_each: int = 0
    processes: int = 1


class ServerCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a server did in a while: `transactions` are commits of SQLite and statements on PostgreSQL."""

    crowd: WorkerGroup
    engine: str
    seconds: float
    requests: float
    transactions: float
    kib_written: float
    server_seconds: float
    database_seconds: float

    def per(self, seconds: float, of: Callable[[ServerCost], float]) -> float:
        """A figure for another length of time."""
        return of(self) / self.seconds * seconds


NOBODY: Final = WorkerGroup(title="no workers", workers=0)
IDLE: Final = WorkerGroup(title="200 idle workers", workers=200, processes=4)
ONE: Final = WorkerGroup(title="1,000 running jobs, one worker", workers=1, jobs_each=1000)
TEN: Final = WorkerGroup(title="1,000 running jobs, 10 workers", workers=10, jobs_each=100, processes=2)


def preload() -> str:
    """Settings with which PostgreSQL counts statements; none where it cannot."""
    return PRELOADED if any(binaries().parent.rglob(f"{LIBRARY}.so")) else ""


def costs(grounds: RunEnvironment, crowds: list[WorkerGroup], seconds: float) -> list[ServerCost]:
    """Each crowd on each engine at a server of its own, all watched at the same time: they hardly do anything."""
    with ExitStack() as stack:
        meters = []
        for crowd in crowds:
            for engine in ENGINES:
                folder = stack.enter_context(grounds.folder())
                server, url = stack.enter_context(grounds.site(folder, on_postgres=engine == "PostgreSQL"))
                meters.append(ServerMeter(crowd, engine, server, url))
                stack.enter_context(_crowd(crowd, server, folder))
        for meter in meters:
            meter.await_all()
        time.sleep(SETTLE_SECONDS)
        for meter in meters:
            meter.begin()
        time.sleep(seconds)
        return [meter.end() for meter in meters]


@contextmanager
def _crowd(crowd: WorkerGroup, server: IngotServer, folder: Path) -> Iterator[None]:
    """Its processes, killed in the end: nobody waits for jobs that sleep."""
    if crowd.jobs_each:
        with Client(server.url, token=server.token) as client:
            client.submit_many(SLOW, range(crowd.workers * crowd.jobs_each))
    environment = {**os.environ, "INGOT_SERVER_URL": server.url, "INGOT_TOKEN": server.token}
    command = [sys.executable, "-m", "benchmarks.worker.sleeping_workers"]
    sizes = [crowd.workers // crowd.processes] * crowd.processes if crowd.workers else []
    running = []
    with (folder / "crowd.log").open("w") as output:
        for size in sizes:
            arguments = [*command, str(size), str(crowd.jobs_each or 1)]
            running.append(subprocess.Popen(arguments, cwd=REPOSITORY, env=environment, stdout=output, stderr=output))
    try:
        yield
    finally:
        for one in running:
            one.kill()
        for one in running:
            one.wait()


class ServerMeter:
    """What one server did, between two looks."""

    def __init__(self, crowd: WorkerGroup, engine: str, server: IngotServer, url: str) -> None:
        self._crowd, self._engine, self._server, self._url = crowd, engine, server, url
        self._before: list[float] = []
        self._began = 0.0

    def await_all(self) -> None:
        """Wait until all its workers are there, and all its jobs run. Raises `TimeoutError`."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        jobs = self._crowd.workers * self._crowd.jobs_each
        with Client(self._server.url, token=self._server.token) as client:
            while (
                sum(1 for _ in client.workers()) < self._crowd.workers
                or client.summary().counts.get(JobStatus.RUNNING, 0) < jobs
            ):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self._crowd.title} on {self._engine} do not come")
                time.sleep(0.2)

    def begin(self) -> None:
        """Look for the first time."""
        self._began, self._before = time.monotonic(), self._look()

    def end(self) -> ServerCost:
        """What happened since."""
        requests, transactions, kib, server, database = (
            after - before for after, before in zip(self._look(), self._before, strict=True)
        )
        return ServerCost(
            crowd=self._crowd, engine=self._engine, seconds=time.monotonic() - self._began,
            requests=requests - 1, transactions=transactions, kib_written=kib,
            server_seconds=server, database_seconds=database,
        )  # fmt: skip

    def _look(self) -> list[float]:
        text = httpx.get(
            f"{self._server.url}/metrics", headers={"authorization": f"Bearer {self._server.token}"}, trust_env=False
        ).text
        requests = _sum(text, "ingot_http_requests_total")
        if self._url:
            statements, written, seconds = asyncio.run(_statements(self._url))
            return [requests, statements, written / 1024, self._server.cpu_seconds(), seconds]
        commits = _sum(text, "ingot_commit_commands_count")
        return [requests, commits, self._written() / 1024, self._server.cpu_seconds(), 0.0]

    def _written(self) -> int:
        text = Path(f"/proc/{self._server.running.pid}/io").read_text()
        return int(text.partition("write_bytes: ")[2].split()[0])


def _sum(text: str, name: str) -> float:
    """A counter over all its labels."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


async def _statements(url: str) -> tuple[float, float, float]:
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE EXTENSION IF NOT EXISTS {LIBRARY}")
        row = await connection.fetchrow(STATEMENTS)
        return float(row[0]), float(row[1]), float(row[2])
    except asyncpg.PostgresError:
        return 0.0, 0.0, 0.0  # Nobody counts them here.
    finally:
        await connection.close()
