"""Where a run takes place: a fresh server or database for each, and what they all used of the machine."""

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
    """A PostgreSQL that runs, and a folder of the measured disk."""

    def __init__(self, postgres: PostgresServer, folder: Path) -> None:
        self._postgres, self._folder = postgres, folder
        self._installed: dict[str, str] = {}

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for one run."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def place(self, row: Row, folder: Path) -> Iterator[SystemAddress]:
        """What a system needs, for one run."""
        match row.store:
            case "redis" | "redis-durable":
                with redis.serving(folder, durable=row.store == "redis-durable") as url:
                    yield SystemAddress(store=row.store, url=url)
            case "database":
                with self._postgres.database(like=self._template(row.system)) as url:
                    yield SystemAddress(store=row.store, url=url)
            case _:
                with self.site(folder, on_postgres=row.store != "sqlite") as (server, url):
                    worker_url = _worker_url(url) if row.store == "direct" else ""
                    yield SystemAddress(store=row.store, url=server.url, token=server.token, worker_url=worker_url)

    @contextmanager
    def site(self, folder: Path, *, on_postgres: bool) -> Iterator[tuple[ingot_server.IngotServer, str]]:
        """A server of ours, and the address of its database, if it has one."""
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
        """What PostgreSQL used so far; all others are children that end with a run."""
        return self._postgres.cpu_seconds()

    def _template(self, name: str) -> str:
        """A database in which a system is installed, in a process of its own: peers change how theirs is set up."""
        if name not in self._installed:
            url = self._postgres.make()
            command = [sys.executable, "-m", "benchmarks.postgres.install", load(name).name, url]
            subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX)
            self._installed[name] = url
        return self._installed[name]


def _worker_url(url: str) -> str:
    """The database as a role that works for the default tenant, which is made."""

    async def make() -> None:
        connection = await asyncpg.connect(url)
        tenant = await connection.fetchval(TENANT)
        await connection.close()
        await make_worker_role(url, WORKER, tenant)

    asyncio.run(make())
    return as_role(url, WORKER)
