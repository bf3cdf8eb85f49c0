"""The PostgreSQL that is measured on: one server with fsync on, and a fresh database for every run."""

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

# PostgreSQL's own settings otherwise.
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


def name_in(url: str) -> str:
    """The name of the database that an address leads to."""
    return url.partition("?")[0].rpartition("/")[2]


def as_role(url: str, role: str) -> str:
    """The same database as another role."""
    return with_database(url, name_in(url), role)


class PostgresServer:
    """A running server."""

    def __init__(self, server: Server) -> None:
        self.url = server.url
        self._pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        self._numbers = count(1)

    def describe(self) -> str:
        """Its version, and the settings that decide what is measured."""

        async def ask(connection: Any) -> str:
            version = await connection.fetchval("SHOW server_version")
            shown = [f"{name} {await connection.fetchval(f'SHOW {name}')}" for name in SHOWN]
            return f"PostgreSQL {version}: {', '.join(shown)}; a socket, no TLS"

        found: str = self._as_admin(ask)
        return found

    def make(self, *, like: str = "") -> str:
        """Make a database, empty or a copy of another; its address."""
        name = f"run_{next(self._numbers)}"
        copied = f" TEMPLATE {name_in(like)} STRATEGY FILE_COPY" if like else ""

        async def ask(connection: Any) -> None:
            await connection.execute(f"CREATE DATABASE {name}{copied}")
            await connection.execute("CHECKPOINT")  # What the run before left to write would slow this one.

        self._as_admin(ask)
        return with_database(self.url, name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still in it."""
        self._as_admin(lambda connection: connection.execute(f"DROP DATABASE {name_in(url)} WITH (FORCE)"))

    @contextmanager
    def database(self, *, like: str = "") -> Iterator[str]:
        """A database for one run."""
        url = self.make(like=like)
        try:
            yield url
        finally:
            self.drop(url)

    def cpu_seconds(self) -> float:
        """What the server and all its processes have used so far; the ended ones are counted in the first."""
        own = _stat(self._pid)
        found = sum(int(field) for field in own[11:15])
        for place in Path("/proc").glob("[0-9]*"):
            fields = _stat(int(place.name))
            if len(fields) > 13 and fields[1] == str(self._pid):
                found += int(fields[11]) + int(fields[12])
        return found / TICKS_PER_SECOND

    def _as_admin(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        async def call() -> Any:
            connection = await asyncpg.connect(self.url)
            try:
                return await ask(connection)
            finally:
                await connection.close()

        return asyncio.run(call())


def _stat(pid: int) -> list[str]:
    """The fields of a process after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


@contextmanager
def serving(folder: Path, *, more: str = "") -> Iterator[PostgresServer]:
    """A server in a new folder below this one, stopped and removed at the end; `more` are settings beside ours."""
    place = Path(tempfile.mkdtemp(dir=folder, prefix="pg-"))
    place.chmod(0o755)
    server = Server(place, settings=SETTINGS + more)
    try:
        server.create()
        server.start()
        try:
            yield PostgresServer(server)
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(place, ignore_errors=True)
