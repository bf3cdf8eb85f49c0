"""Databases that tests borrow: emptied between tests, with connections that stay open.

Opening a connection costs PostgreSQL more than most tests do: a new backend compiles every function it calls. So each
database keeps one pool for as long as the tests share an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import CONNECTIONS_MAX, Connection, Record, open_pool
from ingot.kernel.clock import Clock, ManualClock
from ingot.kernel.ids import new_id
from tests import event_loop
from tests.postgres.server import TEMPLATE, server_url, with_database

ACT_SQL = "json_build_object('id', gen_random_uuid(), 'who', 'a test')::text"  # In the text of a statement.
TRUNCATE_BYTES_MIN: Final = 1_000_000
CONNECTION_NAME: Final = "lasting test connection"  # The application name of connections that outlive a test.
# End the sessions that a test has left, then remove all rows. TRUNCATE makes PostgreSQL plan every cached statement
# again, so only large tables are truncated. A replica deletes without triggers and foreign keys.
EMPTY: Final = f"""
DO $$ DECLARE name text; bytes bigint; BEGIN
    LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name <> '{CONNECTION_NAME}' AND pid <> pg_backend_pid()
        AND backend_type = 'client backend';
        EXIT WHEN NOT FOUND;
        PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();
    END LOOP;
    SET LOCAL session_replication_role = replica;
    FOR name, bytes IN
        SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relnamespace = 'ingot'::regnamespace AND relkind = 'r'
        AND relname NOT IN ('migrations', 'home', 'record_changes') AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE format(
            CASE WHEN bytes > {TRUNCATE_BYTES_MIN} THEN 'TRUNCATE ingot.%I CASCADE' ELSE 'DELETE FROM ingot.%I' END,
            name
        );
    END LOOP;
END $$
"""


class Database:
    """A database of this process, borrowed by one test at a time."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.owner_url = with_database(url, name)
        self.server_url = with_database(url, name, "ingot_server")
        self.folder: Path | None = None
        self.stores = 0  # No other test gets the database while a store uses it or while it is reserved.
        self.is_reserved = False
        self.clock: Clock | None = None
        self.is_altered = False  # Set by a test that changes the schema. No other test gets the database.
        self._pool: asyncpg.Pool[Record] | None = None
        self._owner: asyncpg.Connection[Record] | None = None

    async def pool(self) -> asyncpg.Pool[Record]:
        """Return the pool that stays open between tests. Its connections use the time of the database's clock."""
        assert event_loop.is_shared(asyncio.get_running_loop())
        if self._pool is None:
            self._pool = await open_pool(
                f"{self.server_url}&application_name={CONNECTION_NAME.replace(' ', '%20')}",
                pooled=False,
                connections=CONNECTIONS_MAX,
                connection_class=_clocked_by(lambda: self.clock),
            )
        return self._pool

    async def empty(self) -> None:
        """End all sessions of the last test, and remove all rows."""
        if not event_loop.is_shared(asyncio.get_running_loop()):
            owner = await asyncpg.connect(self.owner_url)
            try:
                await owner.execute(EMPTY)
            finally:
                await owner.close()
            return
        if self._owner is None or self._owner.is_closed():
            self._owner = await asyncpg.connect(self.owner_url, server_settings={"application_name": CONNECTION_NAME})
        await self._owner.execute(EMPTY)

    async def close(self) -> None:
        """Close the connections that stay open between tests."""
        if self._pool is not None:
            await self._pool.close()
        if self._owner is not None:
            await self._owner.close()


_databases: list[Database] = []


async def close_pools() -> None:
    """Close all connections that outlived a test."""
    for database in _databases:
        await database.close()


async def database_for(folder: Path) -> Database:
    """Return the database of this folder, or an empty one, and reserve it for the current test."""
    database = await _use(folder)
    database.is_reserved = True
    database.stores -= 1
    return database


def release_databases() -> None:
    """Release the databases that the ended test has reserved."""
    for database in _databases:
        database.is_reserved = False


async def _use(folder: Path) -> Database:
    """Return the database of a folder, and count one more store on it."""
    database = next((candidate for candidate in _databases if candidate.folder == folder), None)
    if database is not None:
        database.stores += 1
        return database
    database = next(
        (candidate for candidate in _databases if candidate.stores == 0 and not candidate.is_reserved), None
    )
    if database is None:
        return await _create_for(folder)
    database.stores += 1
    database.folder, database.clock = folder, None
    await database.empty()
    return database


async def _create_for(folder: Path) -> Database:
    database = await _create(f"ingot_{new_id().replace('-', '')}", TEMPLATE)
    database.folder = folder
    database.stores = 1
    _databases.append(database)
    return database


@asynccontextmanager
async def borrowed_database(*, is_new: bool = False) -> AsyncIterator[Database]:
    """Borrow a database with an empty schema. With `is_new` it has no statistics of earlier tests."""
    database = await (_create_for if is_new else _use)(Path(new_id()))
    try:
        yield database
    finally:
        database.stores -= 1
        if database.is_altered:
            _databases.remove(database)
            await database.close()


async def empty_database() -> Database:
    """Create a database without our schema, which exists as long as the cluster."""
    return await _create(f"empty_{new_id().replace('-', '')}", "template1")


async def _create(name: str, template: str) -> Database:
    return await create_database(server_url(), name, template)


async def create_database(url: str, name: str, template: str) -> Database:
    """Create a database on a server as a copy of another one."""
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    finally:
        await admin.close()
    return Database(url, name)


async def open_postgres(folder: Path, clock: Clock, *, lease_seconds: float) -> PostgresStore:
    """Open a store in the database of a folder."""
    database = await _use(folder)

    class Store(PostgresStore):
        closed = False

        async def close(self) -> None:
            await super().close()
            database.stores -= not self.closed
            self.closed = True

    database.clock = clock
    try:
        pool = await database.pool()
        return await Store.open(database.server_url, clock=clock, lease_seconds=lease_seconds, pool=pool)
    except BaseException:
        database.stores -= 1
        raise


class ChanceClock(ManualClock):
    """A clock for tests that repeat a sequence exactly: random numbers are fixed, also in PostgreSQL."""

    chance = 0.5


def clocked(clock: Clock) -> type[Connection]:
    """Return a connection class on which PostgreSQL has the time of this clock."""
    return _clocked_by(lambda: clock) if isinstance(clock, ManualClock) else Connection


def _clocked_by(read_clock: Callable[[], Clock | None]) -> type[Connection]:
    """Return a connection class on which PostgreSQL has the time of the clock that is read before each statement."""

    class Clocked(Connection):
        last_settings: tuple[str, str] | None = ("", "")

        async def fetch(self, *args: Any, **options: Any) -> list[Record]:  # type: ignore[override]
            clock = read_clock()
            now = str(clock.micros()) if isinstance(clock, ManualClock) else ""
            chance = str(clock.chance) if isinstance(clock, ChanceClock) else ""
            if self.last_settings != (now, chance):
                await super().execute(f"SET ingot.now = '{now}'; SET ingot.chance = '{chance}'")
                self.last_settings = (
                    None if self.is_in_transaction() else (now, chance)
                )  # A rollback would undo the settings.
            return await super().fetch(*args, **options)

    return Clocked
