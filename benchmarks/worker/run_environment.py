"""The environment of a run: a fresh server or database."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import asyncpg

from benchmarks.postgres.server import PostgresServer, as_role
from benchmarks.queue.folders import REPOSITORY
from benchmarks.worker import ingot_server, redis
from benchmarks.worker.adapter import Row, SystemAddress
from benchmarks.worker.systems import load
from ingot.engines.postgres import make_worker_role
from ingot.engines.postgres.connection import SERVER_ROLE

INSTALL_SECONDS_MAX: Final = 60
WORKER: Final = "bench_worker"
TENANT: Final = "SELECT id::text FROM ingot.tenants WHERE slug = 'default'"


class RunEnvironment:
    """A running PostgreSQL server, and a folder on the measured disk."""

    def __init__(self, postgres: PostgresServer, folder: Path) -> None:
        self._postgres, self._folder = postgres, folder
        self._installed: dict[str, str] = {}

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Create a folder for one run, and delete it at the end of the block."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def system_address(self, row: Row, folder: Path) -> Iterator[SystemAddress]:
        """Start what a system needs for one run, and yield its address."""
        match row.store:
            case "redis" | "redis-durable":
                with redis.serving(folder, durable=row.store == "redis-durable") as url:
                    yield SystemAddress(store=row.store, url=url)
            case "database":
                with self._postgres.database(like=self._template(row.system)) as url:
                    yield SystemAddress(store=row.store, url=url)
            case _:
                with self.ingot_server(folder, on_postgres=row.store != "sqlite") as (server, url):
                    worker_url = _worker_url(url) if row.store == "direct" else ""
                    yield SystemAddress(store=row.store, url=server.url, token=server.token, worker_url=worker_url)

    @contextmanager
    def ingot_server(self, folder: Path, *, on_postgres: bool) -> Iterator[tuple[ingot_server.IngotServer, str]]:
        """Run an Ingot server. Yield it with the URL of its database, which is empty on SQLite."""
        if not on_postgres:
            with ingot_server.serving(folder) as server:
                yield server, ""
            return
        with (
            self._postgres.database() as url,
            ingot_server.serving(folder, owner_url=url, server_url=as_role(url, SERVER_ROLE)) as server,
        ):
            yield server, url

    def cpu_seconds(self) -> float:
        """Return the CPU time that PostgreSQL has used. Other servers are children that end with the run."""
        return self._postgres.cpu_seconds()

    def _template(self, name: str) -> str:
        """Return a database with an installed system. A process installs it, since peers change their global state."""
        if name not in self._installed:
            url = self._postgres.make()
            command = [sys.executable, "-m", "benchmarks.postgres.install", load(name).name, url]
            subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX)
            self._installed[name] = url
        return self._installed[name]


def _worker_url(url: str) -> str:
    """Create a worker role for the default tenant, and return the URL of the database for it."""

    async def make() -> None:
        connection = await asyncpg.connect(url)
        tenant = await connection.fetchval(TENANT)
        await connection.close()
        await make_worker_role(url, WORKER, tenant)

    asyncio.run(make())
    return as_role(url, WORKER)
