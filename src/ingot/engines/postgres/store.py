"""The store: what the rooms see of this engine."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any, Literal, TypeVar

import asyncpg

from ingot.engines.listeners import ObservableStore
from ingot.engines.postgres import maintenance
from ingot.engines.postgres.command_batches import CommandBatches
from ingot.engines.postgres.commands import COMMANDS
from ingot.engines.postgres.connection import (
    CONNECTIONS_MAX,
    SERVER_ROLE,
    Connection,
    Database,
    endpoint_of,
    open_pool,
    translate_error,
)
from ingot.engines.postgres.context import BoundCommands, Context
from ingot.engines.postgres.dependents import DependentReleaser
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.engines.postgres.listener import DatabaseListener
from ingot.engines.postgres.metrics import Horizon
from ingot.engines.postgres.migrate import expect_known, schema_version
from ingot.engines.postgres.sql import SQL
from ingot.jobs.metrics import Load
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Command
from ingot.kernel.errors import StoreMisconfigured

A = TypeVar("A")


class PostgresStore(ObservableStore):
    """Jobs, tenants and events in one PostgreSQL database. Made by `open`; used on one event loop."""

    engine: Literal["postgres"] = "postgres"
    is_exclusive = False

    def __init__(self, db: Database, memory: LaneCache, follow: DependentReleaser, watch: DatabaseListener) -> None:
        super().__init__(memory.listeners)
        context = Context(db, memory)
        self.database = db
        self.lane_cache = memory
        self.dependents = follow
        self.listener = watch
        self.batches = CommandBatches(context, follow)
        self.commands: BoundCommands = {
            **{kind: partial(function, context) for kind, function in COMMANDS.items()},
            **self.batches.commands,
        }
        self._horizon = Horizon()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock,
        lease_seconds: float,
        pooled: bool = False,
        connections: int = CONNECTIONS_MAX,
        connection_class: type[Connection] = Connection,
        pool: asyncpg.Pool[asyncpg.Record] | None = None,
    ) -> PostgresStore:
        """Open the store in a database that was migrated before.

        A pool that is passed in is used instead of a new one, and `close` leaves it open.
        Raises `StoreTooNew`, `StoreMisconfigured`, or `StoreError` when the server cannot be reached.
        """
        owns_pool = pool is None
        if pool is None:
            pool = await open_pool(url, pooled=pooled, connections=connections, connection_class=connection_class)
        try:
            async with pool.acquire() as connection, connection.transaction():
                await _check_session(connection)
            memory = LaneCache(clock, lease=round(lease_seconds * MICROS))
            db = Database(pool, pooled=pooled, owns_pool=owns_pool)
            await maintenance.poll(db, memory)
            memory.sweep_from = memory.now() + memory.lease
            follow = DependentReleaser(db, memory)
            return cls(db, memory, follow, DatabaseListener(url, db, memory, follow, listens=not pooled))
        except BaseException as error:
            if owns_pool:
                await pool.close()
            if isinstance(error, asyncpg.PostgresError):
                raise translate_error(error, action="used", endpoint=endpoint_of(url)) from error
            raise

    def stop_retrying(self) -> None:
        """Fail what waits for a server that is away, and what finds it away from now on."""
        self.database.stop_retrying()

    async def register_secret_key(self, fingerprint: bytes, *, replace: bool) -> bool:
        """Whether the servers of this database have the key with this fingerprint; who replaces it has them have it."""
        ((same,),) = await self.database.call(CALL.keep_secret_key, fingerprint, replace)
        return bool(same)

    async def close(self) -> None:
        """Finish what is queued, then let the connections go."""
        self.stop_retrying()
        await self.listener.stop()
        await self.batches.close()
        await self.dependents.wait_until_idle()
        await self.database.close()

    def run(self, command: Command[A]) -> Awaitable[A]:
        """Run a command, and answer when it is done and durable. `TypeError` for one that this engine does not have."""
        try:
            run = self.commands[type(command)]
        except KeyError:
            raise TypeError(f"The engine on PostgreSQL has no command {type(command).__name__}.") from None
        return run(command)

    async def measure_load(self) -> Load:
        """See `JobStore`."""
        return Load(
            waiting_commands=self.batches.waiting,
            horizon_seconds=await self._horizon.measure(self.database),
            connections=self.database.pool.get_size(),
            connections_used=self.database.pool.get_size() - self.database.pool.get_idle_size(),
            connections_max=self.database.pool.get_max_size(),
        )

    def seconds_to_maintenance(self) -> float | None:
        """See `JobStore`."""
        agenda = self.lane_cache.next_maintenance_at()
        return None if agenda is None else max(0.0, (agenda - self.lane_cache.now()) / MICROS)

    def coalesce_commands(self) -> None:
        """See `JobStore`. What comes while a batch is under way is gathered anyway."""


async def _check_session(connection: Any) -> None:
    """The right role, the right schema, and nothing switched off that we promise."""
    user, sync, encoding, above = await connection.fetchrow(SQL.about_server)
    if user != SERVER_ROLE:
        raise StoreMisconfigured(
            f"The database was opened as {user!r}; reads would not be bound to a tenant.",
            hint=f"Name the role {SERVER_ROLE} in INGOT_DATABASE_URL.",
        )
    if above:
        raise StoreMisconfigured(
            f"The role {SERVER_ROLE} is above row-level security.",
            hint=f"ALTER ROLE {SERVER_ROLE} NOSUPERUSER NOBYPASSRLS.",
        )
    if encoding != "UTF8":
        raise StoreMisconfigured(
            f"The database is encoded in {encoding}.", hint="Make one with ENCODING 'UTF8' and TEMPLATE template0."
        )
    if sync == "off":
        raise StoreMisconfigured(
            "The database has synchronous_commit off.", hint="Switch it on: an acknowledged write must be durable."
        )
    newest = await schema_version(connection)
    known = expect_known(newest)
    if newest < known:
        raise StoreMisconfigured(
            f"The database is at schema {newest}; this program needs {known}.",
            hint="Migrate it: set INGOT_DATABASE_OWNER_URL, a role that may make roles and schemas.",
        )
    if not await connection.fetchval(CALL.at_home):
        raise StoreMisconfigured(
            "The database was restored on another server, and the order of its events is that of the old one.",
            hint="Migrate it once: set INGOT_DATABASE_OWNER_URL, a role that may make roles and schemas.",
        )
