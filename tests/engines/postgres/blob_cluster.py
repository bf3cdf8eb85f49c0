"""Several servers on one database, and sessions that can pause in the middle of a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record
from ingot.identity import Tenants
from ingot.kernel.clock import ManualClock
from tests.conformance.blob_fixture import BlobFixture
from tests.factories import LEASE_SECONDS, Bench
from tests.postgres import Database, borrowed_database, clocked
from tests.waiting import eventually

COUNT_BLOCKED_SESSIONS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
WAIT_SECONDS: Final = 30.0
RECOUNTED_USAGE: Final = """
    SELECT r.tenant::text, o.owner, sum(bytes)::bigint, sum(reserved)::bigint, sum(keys)::bigint,
        sum(key_bytes)::bigint, sum(deleted)::bigint
    FROM (
        SELECT tenant, owner, size AS bytes, 0 AS reserved, 1 AS keys, size AS key_bytes, 0 AS deleted FROM ingot.keys
        UNION ALL
        SELECT tenant, owner, CASE
            WHEN state = 'done' AND key IS NULL AND coalesce(file, 'output') = 'output' THEN size ELSE 0
        END, reserved, 0, 0, 0
        FROM ingot.uploads
        UNION ALL
        SELECT tenant, owner, size, 0, 0, 0, 0 FROM ingot.job_files
        UNION ALL
        SELECT holder, owner, 0, 0, 0, 0, size FROM ingot.tombstones
        UNION ALL
        SELECT holder, owner, 0, 0, 0, 0, size FROM ingot.trash WHERE holder IS NOT NULL
    ) AS r CROSS JOIN LATERAL (VALUES (''), (r.owner)) AS o (owner) GROUP BY 1, 2
    HAVING sum(bytes) + sum(reserved) + sum(keys) + sum(deleted) > 0
"""
STORED_USAGE: Final = """
    SELECT tenant::text, owner, sum(bytes)::bigint, sum(reserved)::bigint, sum(keys)::bigint,
        sum(key_bytes)::bigint, sum(deleted)::bigint
    FROM (
        SELECT * FROM ingot.usage
        UNION ALL
        SELECT o.tenant, w.owner, o.bytes, 0, 0, 0, 0
        FROM ingot.usage_owed AS o CROSS JOIN LATERAL (VALUES (''), (o.owner)) AS w (owner)
    ) AS u
    GROUP BY 1, 2 HAVING sum(bytes + reserved + keys + key_bytes + deleted) > 0
"""


class BlobCluster:
    """A database with one server; more servers and sessions can be opened."""

    def __init__(self, database: Database, store: PostgresStore, bench: Bench) -> None:
        self._database = database
        self.bench = bench
        self.tenant = bench.tenant
        self.blobs = BlobFixture(bench)
        self.url = database.owner_url
        self._open: list[Any] = [store]

    async def server(self, connection_class: type[Any] | None = None) -> PostgresStore:
        """Open one more server."""
        store = await open_server(self._database, self.bench.clock, connection_class)
        self._open.append(store)
        return store

    async def session(self, *, server: bool = True) -> Raw:
        """Open a session that uses the clock of the bench, as the server role or as the owner."""
        return await self.session_of(self._database.server_url if server else self.url)

    async def session_of(self, url: str) -> Raw:
        """Open a session with the role in this URL."""
        connection = await asyncpg.connect(url)
        self._open.append(connection)
        await connection.execute(f"SET ingot.now = '{self.bench.clock.micros()}'")
        return connection

    async def is_usage_correct(self) -> bool:
        """Return True if stored usage equals a recount."""
        owner = await self.session(server=False)
        counted = {tuple(row) for row in await owner.fetch(STORED_USAGE)}
        return counted == {tuple(row) for row in await owner.fetch(RECOUNTED_USAGE)}

    async def wait_for_blocked_session(self) -> None:
        """Wait until a session waits for a lock."""
        owner = await self.session(server=False)
        await eventually(lambda: owner.fetchval(COUNT_BLOCKED_SESSIONS))

    async def close(self) -> None:
        """Close everything that is open, newest first, because servers may wait for sessions."""
        for one in reversed(self._open):
            if isinstance(one, PostgresStore):
                await one.close()
            else:
                one.terminate()


async def open_server(
    database: Database, clock: ManualClock, connection_class: type[Any] | None = None
) -> PostgresStore:
    """Open a server on this database, with its own connections if their class is given."""
    options: dict[str, Any] = {"connections": 4, "connection_class": connection_class}
    if connection_class is None:
        database.clock = clock
        options = {"pool": await database.pool()}
    return await PostgresStore.open(database.server_url, clock=clock, lease_seconds=LEASE_SECONDS, **options)


@asynccontextmanager
async def open_cluster(*, is_new: bool = False) -> AsyncIterator[BlobCluster]:
    """Open a database with one server and one tenant."""
    async with borrowed_database(is_new=is_new) as database:
        clock = ManualClock()
        store = await open_server(database, clock)
        clock.advance(seconds=LEASE_SECONDS)
        cluster = BlobCluster(database, store, Bench(store, clock, await Tenants(store).ensure_default()))
        try:
            yield cluster
        finally:
            await cluster.close()


class CommitRecorder:
    """Records how many commands were committed together, by kind."""

    def __init__(self) -> None:
        self.sizes: dict[str, list[int]] = {}

    def committed(self, _: str, kind: str, commands: int) -> None:
        """Record a commit."""
        self.sizes.setdefault(kind, []).append(commands)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def losing_first_response(clock: ManualClock, function: str) -> type[Any]:
    """A connection class that fails after the first call of a function was executed, before its result is returned."""
    plain: Any = clocked(clock)
    lost: list[str] = []

    class LosingConnection(plain):  # type: ignore[misc]
        async def fetch(self, query: str, *values: Any, **options: Any) -> list[Record]:
            answer: list[Record] = await super().fetch(query, *values, **options)
            if function in query and not lost:
                lost.append(query)
                raise ConnectionResetError("the response is lost")
            return answer

    return LosingConnection
