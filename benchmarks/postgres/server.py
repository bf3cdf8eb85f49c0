"""The PostgreSQL server of the measured runs, with fsync on, and a fresh database for each run."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import asyncpg

from tests.postgres import Server, with_database

# All other settings have PostgreSQL's defaults.
SETTINGS: Final = """
listen_addresses = ''
fsync = on
synchronous_commit = on
shared_buffers = 512MB
max_wal_size = 4GB
max_connections = 100
"""
SHOWN: Final = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "max_connections")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def database_name(url: str) -> str:
    """Return the name of the database in a URL."""
    return url.partition("?")[0].rpartition("/")[2]


def as_role(url: str, role: str) -> str:
    """Return the URL of the same database for another role."""
    return with_database(url, database_name(url), role)


class PostgresServer:
    """A running server."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        self._numbers = count(1)

    def describe(self) -> str:
        """Return the version, and the settings that influence the results."""

        async def read_settings(connection: Any) -> str:
            version = await connection.fetchval("SHOW server_version")
            settings = [f"{name} {await connection.fetchval(f'SHOW {name}')}" for name in SHOWN]
            return f"PostgreSQL {version}: {', '.join(settings)}; Unix socket, no TLS"

        description: str = self._as_admin(read_settings)
        return description

    def make(self, *, like: str = "") -> str:
        """Create a database, empty or as a copy of another, and return its URL."""
        name = f"run_{next(self._numbers)}"
        template = f" TEMPLATE {database_name(like)} STRATEGY FILE_COPY" if like else ""

        async def create(connection: Any) -> None:
            await connection.execute(f"CREATE DATABASE {name}{template}")
            await connection.execute("CHECKPOINT")  # Otherwise pending writes of the previous run would slow this one.

        self._as_admin(create)
        return with_database(self.url, name)

    def drop(self, url: str) -> None:
        """Drop a database, even if it has connections."""
        self._as_admin(lambda connection: connection.execute(f"DROP DATABASE {database_name(url)} WITH (FORCE)"))

    @contextmanager
    def database(self, *, like: str = "") -> Iterator[str]:
        """Create a database for one run, and drop it at the end of the block."""
        url = self.make(like=like)
        try:
            yield url
        finally:
            self.drop(url)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server and all its processes. The server includes that of ended ones."""
        server_fields = _stat(self._pid)
        ticks = sum(int(field) for field in server_fields[11:15])
        for process in Path("/proc").glob("[0-9]*"):
            fields = _stat(int(process.name))
            if len(fields) > 13 and fields[1] == str(self._pid):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_SECOND

    def _as_admin(self, use: Callable[[Any], Awaitable[Any]]) -> Any:
        async def call() -> Any:
            connection = await asyncpg.connect(self.url)
            try:
                return await use(connection)
            finally:
                await connection.close()

        return asyncio.run(call())


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextmanager
def serving(folder: Path, *, more: str = "") -> Iterator[PostgresServer]:
    """Run a server in a new subfolder of `folder` until the end of the block. `more` are further settings."""
    server_folder = Path(tempfile.mkdtemp(dir=folder, prefix="pg-"))
    server_folder.chmod(0o755)
    server = Server(server_folder, settings=SETTINGS + more)
    try:
        server.create()
        server.start()
        try:
            yield PostgresServer(server)
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(server_folder, ignore_errors=True)
