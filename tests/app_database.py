"""An application with its own role and table in the database of Ingot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec

from ingot.engines.postgres import PostgresStore, grant_app_role, maintenance
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record
from ingot.events import Event, Events
from ingot.identity import Tenants
from ingot.jobs import Claim, Jobs
from ingot.kernel.clock import SystemClock
from ingot.kernel.ids import new_id
from tests.postgres import Database, borrowed_database, until_blocked, with_database

LEASE_SECONDS: Final = 180.0
ROLE: Final = "shop"
# Roles belong to the cluster. One that owns a table in a database that could not be cleaned up cannot be dropped.
CREATE_APP: Final = f"""
DO $$ BEGIN
    CREATE ROLE {ROLE} LOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
CREATE TABLE orders (id serial PRIMARY KEY, job uuid);
ALTER TABLE orders OWNER TO {ROLE};
"""
REMOVE_APPS: Final = r"""
DO $$ DECLARE role text; BEGIN
    FOR role IN SELECT rolname FROM pg_roles WHERE rolname = 'shop' OR rolname LIKE 'a\_%' LOOP
        EXECUTE format('DROP OWNED BY %I CASCADE', role);
        BEGIN
            EXECUTE format('DROP ROLE %I', role);
        EXCEPTION WHEN dependent_objects_still_exist THEN NULL;
        END;
    END LOOP;
END $$
"""


class AppDatabase:
    """An open store, and connections of applications to its database."""

    def __init__(self, url: str, store: PostgresStore, tenant: str) -> None:
        self.owner_url = url
        self.store = store
        self.tenant = tenant
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.events = Events(store)
        self.tenants = Tenants(store)
        self.open = ExitStack()

    @property
    def app_url(self) -> str:
        """The database URL of the application."""
        return self.url_of(ROLE)

    def url_of(self, role: str) -> str:
        """Return the database URL of a role."""
        return with_database(self.owner_url, self.owner_url.partition("?")[0].rpartition("/")[2], role)

    async def connect(self, role: str = ROLE) -> Raw:
        """Open a plain connection, by default as the application."""
        connection = await asyncpg.connect(self.url_of(role))
        self.open.callback(connection.terminate)  # Closes it even while it waits for a lock.
        return connection

    async def begin(self) -> Raw:
        """Begin a transaction of the application, and write to its own table."""
        app = await self.connect()
        await app.execute("BEGIN")
        await app.execute("INSERT INTO orders DEFAULT VALUES")
        return app

    async def make_role(self, tenant: str, options: str = "") -> str:
        """Create the role of another application, with access to a tenant."""
        role = f"a_{new_id().replace('-', '')}"
        admin = await self.connect("postgres")
        await admin.execute(f"CREATE ROLE {role} LOGIN {options}")
        await grant_app_role(self.owner_url, role, tenant)
        return role

    async def rows(self) -> dict[str, list[str]]:
        """Return all committed rows of every table."""
        admin = await self.connect("postgres")
        names = await admin.fetch(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'ingot'::regnamespace AND relkind = 'r'"
        )
        rows = {name: await admin.fetch(f"SELECT t::text FROM {name} AS t") for (name,) in names}
        await admin.close()
        return {name: sorted(text for (text,) in rows_of_table) for name, rows_of_table in rows.items()}

    async def all_events(self) -> list[Event]:
        """Return all visible events."""
        events: list[Event] = []
        while more := await self.events.read(self.tenant, after=events[-1].id if events else None, limit=1000):
            events += more
        return events

    async def claim(self, *types: str) -> list[Claim]:
        """Poll for jobs of other processes, and claim all jobs of these types."""
        await maintenance.poll(self.store.database, self.store.lane_cache)
        return await self.jobs.claim("w", types, limit=1000)

    async def wait_until_blocked(self, holder: Raw, waiting: asyncio.Future[Any]) -> None:
        """Wait until the call is blocked by a lock of `holder`, or done."""
        await until_blocked(await self.connect("postgres"), holder, waiting)


@asynccontextmanager
async def rolled_back(app: Raw) -> AsyncIterator[None]:
    """Roll back the statements of the block: to a savepoint if a transaction is open."""
    is_nested = app.is_in_transaction()
    await app.execute("SAVEPOINT before_block" if is_nested else "BEGIN")
    try:
        yield
    finally:
        await app.execute("ROLLBACK TO before_block" if is_nested else "ROLLBACK")


async def enqueue(app: Raw, *jobs: Any) -> list[Record]:
    """Enqueue jobs with the SQL function for applications."""
    return await app.fetch("SELECT * FROM ingot.enqueue_json($1::text::json)", msgspec.json.encode(jobs).decode())


async def publish(app: Raw, name: str, data: object = None, key: str | None = None) -> Record:
    """Publish an event with the SQL function for applications."""
    text = msgspec.json.encode(data).decode()
    (row,) = await app.fetch("SELECT * FROM ingot.publish_json($1, $2::text::json, $3)", name, text, key)
    return row


@asynccontextmanager
async def open_app_database() -> AsyncIterator[AppDatabase]:
    """Open a store and an application in a borrowed database."""
    async with borrowed_database() as database, AsyncExitStack() as stack:
        stack.push_async_callback(_close, database)
        await _execute(database.owner_url, REMOVE_APPS)  # Removes what a failed cleanup has left.
        await _execute(database.owner_url, CREATE_APP)
        database.clock = clock = SystemClock()
        store = await PostgresStore.open(
            database.server_url, clock=clock, lease_seconds=LEASE_SECONDS, pool=await database.pool()
        )
        stack.push_async_callback(store.close)
        app_db = AppDatabase(database.owner_url, store, (await Tenants(store).ensure_default()).id)
        stack.callback(app_db.open.close)
        await grant_app_role(database.owner_url, ROLE, app_db.tenant)
        yield app_db


async def _close(database: Database) -> None:
    """Remove the rows, and the tables and roles of applications, which belong to the whole cluster."""
    try:
        await database.empty()
        await _execute(database.owner_url, REMOVE_APPS)
    except BaseException:
        database.is_altered = True
        raise


async def _execute(url: str, statement: str) -> None:
    owner = await asyncpg.connect(url)
    try:
        await owner.execute(statement)
    finally:
        await owner.close()
