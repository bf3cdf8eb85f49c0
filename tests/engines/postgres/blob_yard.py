"""Several servers on a PostgreSQL of their own, and sessions beside them that may stand still in the middle of a call.

On a server that other tests use a transaction that stays open would hide their events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.identity import Tenants
from ingot.kernel.clock import ManualClock
from ingot.kernel.ids import new_id
from tests.conformance.depot import Depot
from tests.factories import LEASE_SECONDS, Bench
from tests.postgres import TEST_CLOCK, clocked, own_server, with_database

TEMPLATE: Final = "template_of_ingot"
WAITING: Final = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
WAIT_SECONDS: Final = 10.0
RECOUNT: Final = """
    SELECT r.tenant::text, o.owner, sum(bytes)::bigint, sum(reserved)::bigint, sum(keys)::bigint, sum(key_bytes)::bigint
    FROM (
        SELECT tenant, owner, size AS bytes, 0 AS reserved, 1 AS keys, size AS key_bytes FROM ingot.keys
        UNION ALL
        SELECT tenant, owner, CASE
            WHEN state = 'done' AND key IS NULL AND coalesce(file, 'output') = 'output' THEN size ELSE 0
        END, reserved, 0, 0
        FROM ingot.uploads
        UNION ALL
        SELECT tenant, owner, size, 0, 0, 0 FROM ingot.job_files
    ) AS r CROSS JOIN LATERAL (VALUES (''), (r.owner)) AS o (owner) GROUP BY 1, 2
    HAVING sum(bytes) + sum(reserved) + sum(keys) > 0
"""
COUNTED: Final = """
    SELECT tenant::text, owner, sum(bytes)::bigint, sum(reserved)::bigint, sum(keys)::bigint, sum(key_bytes)::bigint
    FROM (
        SELECT * FROM ingot.usage
        UNION ALL
        SELECT o.tenant, w.owner, o.bytes, 0, 0, 0
        FROM ingot.usage_owed AS o CROSS JOIN LATERAL (VALUES (''), (o.owner)) AS w (owner)
    ) AS u
    GROUP BY 1, 2 HAVING sum(bytes + reserved + keys + key_bytes) > 0
"""


class Yard:
    """A database with one server, and ways to get more."""

    def __init__(self, url: str, store: PostgresStore, bench: Bench) -> None:
        self.bench = bench
        self.tenant = bench.tenant
        self.depot = Depot(bench)
        self.url = url
        self._open: list[Any] = [store]

    async def server(self, connection_class: type[Any] | None = None) -> PostgresStore:
        """One more server."""
        store = await open_server(self.url, self.bench.clock, connection_class)
        self._open.append(store)
        return store

    async def session(self, *, server: bool = True) -> Raw:
        """A plain session in the time of the bench, of the server's role or of one that may do everything."""
        return await self.session_of(as_server(self.url) if server else self.url)

    async def session_of(self, url: str) -> Raw:
        """One of whoever this address names."""
        connection = await asyncpg.connect(url)
        self._open.append(connection)
        await connection.execute(f"SET ingot.now = '{self.bench.clock.micros()}'")
        return connection

    async def is_counted(self) -> bool:
        """Whether what is counted is what a recount finds."""
        owner = await self.session(server=False)
        counted = {tuple(row) for row in await owner.fetch(COUNTED)}
        return counted == {tuple(row) for row in await owner.fetch(RECOUNT)}

    async def somebody_waits(self) -> None:
        """Return when a session waits for another."""
        owner = await self.session(server=False)
        async with asyncio.timeout(WAIT_SECONDS):
            while not await owner.fetchval(WAITING):
                pass

    async def close(self) -> None:
        """Close all that is open, sessions first: servers may wait for them."""
        for one in reversed(self._open):
            if isinstance(one, PostgresStore):
                await one.close()
            else:
                one.terminate()


def as_server(url: str) -> str:
    """The same database for our server."""
    return with_database(url, url.partition("?")[0].rsplit("/", 1)[1], "ingot_server")


async def open_server(url: str, clock: ManualClock, connection_class: type[Any] | None = None) -> PostgresStore:
    """A server in this database."""
    return await PostgresStore.open(
        as_server(url),
        clock=clock,
        lease_seconds=LEASE_SECONDS,
        connections=4,
        connection_class=connection_class or clocked(clock),
    )


@contextmanager
def open_cluster() -> Iterator[str]:
    """The address of a server of our own with a migrated database that has the tests' clock."""
    with own_server() as server:
        asyncio.run(_make_template(server.url))
        yield server.url


async def _make_template(url: str) -> None:
    admin = await asyncpg.connect(url)
    await admin.execute(f"CREATE DATABASE {TEMPLATE}")
    await admin.close()
    await migrate(with_database(url, TEMPLATE))
    owner = await asyncpg.connect(with_database(url, TEMPLATE))
    await owner.execute(TEST_CLOCK)
    await owner.close()


@asynccontextmanager
async def open_yard(cluster: str) -> AsyncIterator[Yard]:
    """A new database there, with one server and one tenant."""
    name = f"ingot_{new_id().replace('-', '')}"
    admin = await asyncpg.connect(cluster)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    await admin.close()
    url, clock = with_database(cluster, name), ManualClock()
    store = await open_server(url, clock)
    clock.advance(seconds=LEASE_SECONDS)
    yard = Yard(url, store, Bench(store, clock, await Tenants(store).ensure_default()))
    try:
        yield yard
    finally:
        await yard.close()
