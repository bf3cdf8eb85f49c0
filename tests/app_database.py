"""A shop: an application with a role and a table of its own, in the database in which Ingot lives."""

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
OPEN: Final = f"""
DO $$ BEGIN
    CREATE ROLE {ROLE} LOGIN;
EXCEPTION WHEN duplicate_object THEN NULL;
END $$;
CREATE TABLE orders (id serial PRIMARY KEY, job uuid);
ALTER TABLE orders OWNER TO {ROLE};
"""
CLOSE: Final = r"""
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
    """An open store, and connections of the application beside it."""

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
        """Where the application connects."""
        return self.url_of(ROLE)

    def url_of(self, role: str) -> str:
        """Where a role connects."""
        return with_database(self.owner_url, self.owner_url.partition("?")[0].rpartition("/")[2], role)

    async def connect(self, role: str = ROLE) -> Raw:
        """A plain connection, the application's unless told otherwise."""
        connection = await asyncpg.connect(self.url_of(role))
        self.open.callback(connection.terminate)  # Whatever it waits for.
        return connection

    async def begin(self) -> Raw:
        """A transaction of the application, which has written to its own table."""
        app = await self.connect()
        await app.execute("BEGIN")
        await app.execute("INSERT INTO orders DEFAULT VALUES")
        return app

    async def make_role(self, tenant: str, options: str = "") -> str:
        """Another application, let into another tenant."""
        role = f"a_{new_id().replace('-', '')}"
        admin = await self.connect("postgres")
        await admin.execute(f"CREATE ROLE {role} LOGIN {options}")
        await grant_app_role(self.owner_url, role, tenant)
        return role

    async def rows(self) -> dict[str, list[str]]:
        """Everything that is committed, in every table."""
        admin = await self.connect("postgres")
        names = await admin.fetch(
            "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'ingot'::regnamespace AND relkind = 'r'"
        )
        rows = {name: await admin.fetch(f"SELECT t::text FROM {name} AS t") for (name,) in names}
        await admin.close()
        return {name: sorted(text for (text,) in found) for name, found in rows.items()}

    async def all_events(self) -> list[Event]:
        """Everything a reader is shown."""
        events: list[Event] = []
        while more := await self.events.read(self.tenant, after=events[-1].id if events else None, limit=1000):
            events += more
        return events

    async def claim(self, *types: str) -> list[Claim]:
        """Claim what is there, also what this process was not told of."""
        await maintenance.poll(self.store.database, self.store.lane_cache)
        return await self.jobs.claim("w", types, limit=1000)

    async def wait_until_blocked(self, holder: Raw, waiting: asyncio.Future[Any]) -> None:
        """Wait until a call waits for a lock of this connection, or is done."""
        await until_blocked(await self.connect("postgres"), holder, waiting)


@asynccontextmanager
async def rolled_back(app: Raw) -> AsyncIterator[None]:
    """A part of a transaction that fails, and is taken back; or a whole one."""
    inside = app.is_in_transaction()
    await app.execute("SAVEPOINT undone" if inside else "BEGIN")
    try:
        yield
    finally:
        await app.execute("ROLLBACK TO undone" if inside else "ROLLBACK")


async def enqueue(app: Raw, *jobs: Any) -> list[Record]:
    """Enqueue jobs as an application does."""
    return await app.fetch("SELECT * FROM ingot.enqueue_json($1::text::json)", msgspec.json.encode(jobs).decode())


async def publish(app: Raw, name: str, data: object = None, key: str | None = None) -> Record:
    """Publish an event as an application does."""
    text = msgspec.json.encode(data).decode()
    (row,) = await app.fetch("SELECT * FROM ingot.publish_json($1, $2::text::json, $3)", name, text, key)
    return row


@asynccontextmanager
async def open_app_database() -> AsyncIterator[AppDatabase]:
    """A shop in a borrowed database."""
    async with borrowed_database() as database, AsyncExitStack() as opened:
        opened.push_async_callback(_close, database)
        await _execute(database.owner_url, CLOSE)  # What a failed cleanup has left behind.
        await _execute(database.owner_url, OPEN)
        database.clock = clock = SystemClock()
        store = await PostgresStore.open(
            database.server_url, clock=clock, lease_seconds=LEASE_SECONDS, pool=await database.pool()
        )
        opened.push_async_callback(store.close)
        app_db = AppDatabase(database.owner_url, store, (await Tenants(store).ensure_default()).id)
        opened.callback(app_db.open.close)
        await grant_app_role(database.owner_url, ROLE, app_db.tenant)
        yield app_db


async def _close(database: Database) -> None:
    """Remove the table and the roles of applications: roles belong to the whole cluster."""
    try:
        await database.empty()
        await _execute(database.owner_url, CLOSE)
    except BaseException:
        database.is_altered = True
        raise


async def _execute(url: str, statement: str) -> None:
    owner = await asyncpg.connect(url)
    try:
        await owner.execute(statement)
    finally:
        await owner.close()
