"""PostgreSQL clusters: one for each test process, and more for tests that stop or change theirs.

A cluster listens on a socket in its own folder only. As root it runs under an unprivileged user.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import asyncpg

from ingot.engines.postgres import migrate
from tests.components import POSTGRES_WHEEL
from tests.postgres.programs import binaries
from tests.processes import keep
from tests.time_report import record_postgres

FOLDER_VARIABLE: Final = "INGOT_TEST_POSTGRES_FOLDER"
PLAIN_TEMPLATE: Final = "ingot_plain"  # Only migrated.
TEMPLATE: Final = "ingot_template"  # Migrated, with the clock of the tests.
START_SECONDS: Final = "60"
USERS: Final = ("postgres", "nobody")
SETTINGS: Final = """
listen_addresses = ''
max_connections = 200
shared_buffers = 128MB
fsync = off                 # Processes are killed here, never the machine.
full_page_writes = off
synchronous_commit = on
autovacuum_naptime = 5s
"""
# The time that a connection has set, or else the real time.
TEST_CLOCK: Final = """
CREATE OR REPLACE FUNCTION ingot.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        nullif(current_setting('ingot.now', true), '')::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    )
$$;
CREATE OR REPLACE FUNCTION ingot.random_fraction() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(nullif(current_setting('ingot.chance', true), '')::double precision, random())
$$;
CREATE OR REPLACE FUNCTION ingot.server_started_at() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT 0::bigint $$;
"""


class Server:
    """A cluster in its own folder."""

    def __init__(self, folder: Path, *, settings: str = SETTINGS) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._settings = settings
        self._user = next((user for user in USERS if _is_user(user)), None) if os.geteuid() == 0 else None
        self._bin = self._reachable(binaries())

    @property
    def url(self) -> str:
        """The URL for the superuser."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def pid(self) -> int:
        """The process ID of the running server."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def is_running(self) -> bool:
        """Whether the server has been started and not stopped."""
        return (self._data / "postmaster.pid").exists()

    def _reachable(self, folder: Path) -> Path:
        """Return binaries that the user of the server can read, copied if need be."""
        if self._user is None or folder.is_relative_to("/usr"):
            return folder
        site, copy = folder.parents[2], self.folder / "site"
        for part in (folder.parent.relative_to(site), f"{POSTGRES_WHEEL}.libs"):
            if not (copy / part).exists():
                shutil.copytree(site / part, copy / part, symlinks=True)
        return copy / folder.relative_to(site)

    def create(self) -> None:
        """Create an empty cluster."""
        self._own_folder()
        self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._configure()

    def copy(self, source: Server) -> None:
        """Create the cluster as a copy of one that is stopped."""
        self._own_folder()
        subprocess.run(["cp", "-a", str(source.folder / "data"), str(self._data)], check=True)
        self._configure()

    def _own_folder(self) -> None:
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)

    def _configure(self) -> None:
        configuration = f"{self._settings}\nunix_socket_directories = '{self.folder}'\n"
        (self._data / "postgresql.auto.conf").write_text(configuration, encoding="utf-8")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        self._run("pg_ctl", "--wait", "--timeout", START_SECONDS, "--log", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server. The mode is `smart`, `fast` or `immediate`, which is a crash."""
        if self.is_running:
            record_postgres(self.pid)
        self._run("pg_ctl", "--wait", "--mode", mode, "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "-D", str(self._data), *arguments]
        result = subprocess.run(
            command, user=self._user, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        assert result.returncode == 0, f"{program} failed: {result.stderr.decode()[-500:]}"


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _new_folder(name: str) -> Path:
    """Create a folder that the user of a server can reach."""
    folder = Path(tempfile.mkdtemp(prefix=f"ingot-{name}-"))
    folder.chmod(0o755)
    return folder


@contextmanager
def shared_folder() -> Iterator[None]:
    """Provide the folder for the clusters of a test run, and stop them at its end."""
    folder = _new_folder("tests")
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        for cluster in folder.iterdir():
            if cluster.is_dir() and (server := Server(cluster)).is_running:
                server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


_own: Server | None = None


def server_url() -> str:
    """The superuser's URL of this process's cluster, which is started at the first call."""
    global _own  # noqa: PLW0603 - one for a process
    if _own is None:
        folder = Path(os.environ[FOLDER_VARIABLE]) / str(os.getpid())
        folder.mkdir(mode=0o755)
        server = Server(folder)
        server.copy(_template())
        server.start()
        keep(server.pid)
        _own = server
    return _own.url


def _template() -> Server:
    """The stopped cluster that others are copied from, created by the first process that asks."""
    folder = Path(os.environ[FOLDER_VARIABLE]) / "template"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = Server(folder) if folder.exists() else None
        if server is None:
            folder.mkdir(mode=0o755)
            server = Server(folder)
            server.create()
            server.start()
            with ThreadPoolExecutor(1) as thread:  # The caller may be inside an event loop.
                thread.submit(asyncio.run, _make_templates(server.url)).result()
            server.stop()
        return server


async def _make_templates(url: str) -> None:
    await _execute(url, f"CREATE DATABASE {PLAIN_TEMPLATE}")
    await migrate(with_database(url, PLAIN_TEMPLATE))
    await _execute(url, f"CREATE DATABASE {TEMPLATE} TEMPLATE {PLAIN_TEMPLATE}")
    await _execute(with_database(url, TEMPLATE), TEST_CLOCK)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def with_database(url: str, database: str, user: str | None = None) -> str:
    """Return the URL of another database on the same server, and of another role without a password if given."""
    scheme, after_scheme = url.split("://", 1)
    login_and_host, _, options = after_scheme.partition("?")
    login, _, host = login_and_host.rpartition("@")
    host = host.split("/", 1)[0]
    return f"{scheme}://{user or login}@{host}/{database}" + (f"?{options}" if options else "")


@contextmanager
def own_server(settings: str = "", *, fresh: bool = False) -> Iterator[Server]:
    """Start a cluster for one test or module, with the template databases unless it has to be fresh."""
    folder = _new_folder("own")
    server = Server(folder, settings=f"{SETTINGS}\n{settings}")
    try:
        if fresh:
            server.create()
        else:
            server.copy(_template())
        server.start()
        yield server
    finally:
        if server.is_running:
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
