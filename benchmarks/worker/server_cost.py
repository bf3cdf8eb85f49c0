"""The cost of idle workers and of running jobs for a server, measured on both engines at the same time."""

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
    """A number of workers, each with a number of running jobs. They are distributed over several processes."""

    title: str
    workers: int
    jobs_each: int = 0
    processes: int = 1


class ServerCost(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a server during a time. `transactions` are commits on SQLite and statements on PostgreSQL."""

    group: WorkerGroup
    engine: str
    seconds: float
    requests: float
    transactions: float
    kib_written: float
    server_seconds: float
    database_seconds: float

    def per(self, seconds: float, figure: Callable[[ServerCost], float]) -> float:
        """Return a figure, scaled to another length of time."""
        return figure(self) / self.seconds * seconds


NO_WORKERS: Final = WorkerGroup(title="no workers", workers=0)
IDLE_WORKERS: Final = WorkerGroup(title="200 idle workers", workers=200, processes=4)
ONE_WORKER: Final = WorkerGroup(title="1,000 running jobs, one worker", workers=1, jobs_each=1000)
TEN_WORKERS: Final = WorkerGroup(title="1,000 running jobs, 10 workers", workers=10, jobs_each=100, processes=2)


def statement_counting_settings() -> str:
    """Return the settings with which PostgreSQL counts statements, or no settings if the library is missing."""
    return PRELOADED if any(binaries().parent.rglob(f"{LIBRARY}.so")) else ""


def measure_costs(environment: RunEnvironment, groups: list[WorkerGroup], seconds: float) -> list[ServerCost]:
    """Measure each group on each engine with its own server. All run at the same time, since they use little CPU."""
    with ExitStack() as stack:
        meters = []
        for group in groups:
            for engine in ENGINES:
                folder = stack.enter_context(environment.folder())
                server, url = stack.enter_context(environment.ingot_server(folder, on_postgres=engine == "PostgreSQL"))
                meters.append(ServerMeter(group, engine, server, url))
                stack.enter_context(_running_workers(group, server, folder))
        for meter in meters:
            meter.await_workers_and_jobs()
        time.sleep(SETTLE_SECONDS)
        for meter in meters:
            meter.begin()
        time.sleep(seconds)
        return [meter.end() for meter in meters]


@contextmanager
def _running_workers(group: WorkerGroup, server: IngotServer, folder: Path) -> Iterator[None]:
    """Run the processes of a group until the end of the block. They are killed, since their jobs sleep."""
    if group.jobs_each:
        with Client(server.url, token=server.token) as client:
            client.submit_many(SLOW, range(group.workers * group.jobs_each))
    environment = {**os.environ, "INGOT_SERVER_URL": server.url, "INGOT_TOKEN": server.token}
    command = [sys.executable, "-m", "benchmarks.worker.sleeping_workers"]
    sizes = [group.workers // group.processes] * group.processes if group.workers else []
    processes = []
    with (folder / "workers.log").open("w") as output:
        for size in sizes:
            arguments = [*command, str(size), str(group.jobs_each or 1)]
            processes.append(subprocess.Popen(arguments, cwd=REPOSITORY, env=environment, stdout=output, stderr=output))
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


class ServerMeter:
    """Measures the work of one server between two readings of its counters."""

    def __init__(self, group: WorkerGroup, engine: str, server: IngotServer, url: str) -> None:
        self._group, self._engine, self._server, self._url = group, engine, server, url
        self._before: list[float] = []
        self._began = 0.0

    def await_workers_and_jobs(self) -> None:
        """Wait until all workers are registered and all jobs are running. Raises `TimeoutError`."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        jobs = self._group.workers * self._group.jobs_each
        with Client(self._server.url, token=self._server.token) as client:
            while (
                sum(1 for _ in client.workers()) < self._group.workers
                or client.summary().counts.get(JobStatus.RUNNING, 0) < jobs
            ):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{self._group.title} on {self._engine} are not ready after {READY_SECONDS_MAX:g} s"
                    )
                time.sleep(0.2)

    def begin(self) -> None:
        """Read the counters for the first time."""
        self._began, self._before = time.monotonic(), self._read_counters()

    def end(self) -> ServerCost:
        """Return the cost since `begin`."""
        requests, transactions, kib, server, database = (
            after - before for after, before in zip(self._read_counters(), self._before, strict=True)
        )
        return ServerCost(
            group=self._group, engine=self._engine, seconds=time.monotonic() - self._began,
            requests=requests - 1, transactions=transactions, kib_written=kib,
            server_seconds=server, database_seconds=database,
        )  # fmt: skip

    def _read_counters(self) -> list[float]:
        text = httpx.get(
            f"{self._server.url}/metrics", headers={"authorization": f"Bearer {self._server.token}"}, trust_env=False
        ).text
        requests = _sum(text, "ingot_http_requests_total")
        if self._url:
            statements, written, seconds = asyncio.run(_statements(self._url))
            return [requests, statements, written / 1024, self._server.cpu_seconds(), seconds]
        commits = _sum(text, "ingot_commit_commands_count")
        return [requests, commits, self._written_bytes() / 1024, self._server.cpu_seconds(), 0.0]

    def _written_bytes(self) -> int:
        text = Path(f"/proc/{self._server.process.pid}/io").read_text()
        return int(text.partition("write_bytes: ")[2].split()[0])


def _sum(text: str, name: str) -> float:
    """Return the sum of a counter over all labels."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


async def _statements(url: str) -> tuple[float, float, float]:
    connection: Any = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE EXTENSION IF NOT EXISTS {LIBRARY}")
        row = await connection.fetchrow(STATEMENTS)
        return float(row[0]), float(row[1]), float(row[2])
    except asyncpg.PostgresError:
        return 0.0, 0.0, 0.0  # The library that counts statements is missing.
    finally:
        await connection.close()
