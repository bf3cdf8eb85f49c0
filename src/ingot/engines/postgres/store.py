"""The store on PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

import asyncpg

from ingot.blobs.servers import GONE_AFTER_MICROS
from ingot.engines.command_tenants import tenant_of
from ingot.engines.listeners import ObservableStore, notify_all
from ingot.engines.postgres import maintenance
from ingot.engines.postgres.blob_reads import COMMANDS_WITH_QUOTA, explain_quota
from ingot.engines.postgres.command_batches import CommandBatches
from ingot.engines.postgres.command_scope import run_in_scope
from ingot.engines.postgres.commands import COMMANDS
from ingot.engines.postgres.connection import (
    CONNECTIONS_MAX,
    SERVER_ROLE,
    Connection,
    Database,
    open_pool,
    opening,
)
from ingot.engines.postgres.context import BoundCommands, Context
from ingot.engines.postgres.dependents import DependentReleaser
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.engines.postgres.listener import DatabaseListener
from ingot.engines.postgres.metrics import Horizon
from ingot.engines.postgres.migrate import schema_version
from ingot.engines.postgres.pooler import reject_transaction_pooler
from ingot.engines.postgres.schema_check import SchemaWatch, check_schema
from ingot.engines.postgres.sql import SQL
from ingot.engines.postgres.transaction_watch import APP_TRANSACTION_SECONDS_MAX, TransactionRisks, TransactionWatch
from ingot.jobs.metrics import Load
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Command
from ingot.kernel.errors import StoreMisconfigured

A = TypeVar("A")


class PostgresStore(ObservableStore):
    """An open PostgreSQL database. Created by `open`, and used on one event loop."""

    engine: Literal["postgres"] = "postgres"
    is_exclusive = False

    def __init__(
        self, db: Database, lane_cache: LaneCache, dependents: DependentReleaser, listener: DatabaseListener
    ) -> None:
        super().__init__(lane_cache.listeners)
        context = Context(db, lane_cache)
        self.database = db
        self.lane_cache = lane_cache
        self.dependents = dependents
        self.listener = listener
        self.batches = CommandBatches(context, dependents)
        self.commands: BoundCommands = {
            **{
                kind: partial(run_in_scope, partial(_run_in_slot, partial(function, context), db))
                for kind, function in COMMANDS.items()
            },
            **self.batches.commands,
        }
        for kind in COMMANDS_WITH_QUOTA:
            self.commands[kind] = partial(explain_quota, context, self.commands[kind])
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
        app_transaction_seconds_max: float = APP_TRANSACTION_SECONDS_MAX,
        connection_class: type[Connection] = Connection,
        pool: asyncpg.Pool[asyncpg.Record] | None = None,
    ) -> PostgresStore:
        """Open the store in a migrated database.

        If a `pool` is passed, the store uses it, and `close` leaves it open.
        Raises `StoreTooNew`, `StoreMisconfigured`, or `StoreError` if the server cannot be reached.
        """
        owns_pool = pool is None
        if pool is None:
            pool = await open_pool(url, pooled=pooled, connections=connections, connection_class=connection_class)
        with opening(url, pool if owns_pool else None):
            db = Database(pool, pooled=pooled, owns_pool=owns_pool)
            if not pooled:
                await db.inspect(partial(reject_transaction_pooler, url=url), in_transaction=False)
            await db.inspect(_check_session)
            lane_cache = LaneCache(clock, lease=round(lease_seconds * MICROS))
            await maintenance.poll(db, lane_cache)
        lane_cache.sweep_guard.postpone(lane_cache.now())
        dependents = DependentReleaser(db, lane_cache)
        watch = SchemaWatch(db, SERVER_ROLE, on_mismatch=partial(notify_all, lane_cache.listeners.schema_mismatch))
        transactions = TransactionWatch(db, app_seconds_max=app_transaction_seconds_max)
        listener = DatabaseListener(url, db, lane_cache, dependents, watch, transactions, listens=not pooled)
        return cls(db, lane_cache, dependents, listener)

    def stop_retrying(self) -> None:
        """Fail calls, now and later, instead of retrying while the database is unreachable."""
        self.database.stop_retrying()

    def expect_fitting_schema(self) -> None:
        """Raise `SchemaMismatch` if this program does not fit the schema of the database any more."""
        self.database.expect_fitting_schema()

    async def register_secret_key(self, fingerprint: bytes, *, replace: bool) -> bool:
        """Return whether the database has this secret key. The first key is stored, a later one only with `replace`."""
        ((same,),) = await self.database.call(CALL.check_secret_key, fingerprint, replace)
        return bool(same)

    async def describe_transactions(self) -> TransactionRisks:
        """Return how transactions can hold back the events of all tenants."""
        ((roles, can_prepare, oldest_seconds),) = await self.database.call(CALL.describe_transactions)
        return TransactionRisks(list(roles), can_prepare, oldest_seconds or 0.0)

    async def object_store_conflict(self, store_id: str) -> str | None:
        """Return why a server with this object store could not start, see `ingot.object_store_conflict`, or `None`."""
        ((conflict,),) = await self.database.call(CALL.object_store_conflict, store_id, GONE_AFTER_MICROS)
        return None if conflict is None else str(conflict)

    async def close(self) -> None:
        """Finish the queued commands, then close the connections."""
        self.stop_retrying()
        await self.listener.stop()
        await self.batches.close()
        await self.dependents.wait_until_idle()
        await self.database.close()

    def run(self, command: Command[A]) -> Awaitable[A]:
        """Run a command. The result is durable when it is returned. Raises `TypeError` for an unknown command."""
        try:
            run = self.commands[type(command)]
        except KeyError:
            raise TypeError(f"The PostgreSQL engine has no command {type(command).__name__}.") from None
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
        due_at = self.lane_cache.next_maintenance_at()
        return None if due_at is None else max(0.0, (due_at - self.lane_cache.now()) / MICROS)

    def tick(self) -> None:
        """See `JobStore`."""
        self.lane_cache.sweep_guard.tick(self.lane_cache.now())

    def coalesce_commands(self) -> None:
        """See `JobStore`. This engine always batches commands that arrive while others are running."""


async def _run_in_slot(run: Callable[[Any], Awaitable[A]], db: Database, command: Any) -> A:
    """Run a command that is not batched. Its tenant leaves connections to others."""
    async with db.command_slot(tenant_of(command)):
        return await run(command)


async def _check_session(connection: Any) -> None:
    """Check the role, the schema and the settings of the database. Raises `StoreMisconfigured` or `StoreTooNew`."""
    user, synchronous_commit, encoding, bypasses_security = await connection.fetchrow(SQL.about_server)
    if user != SERVER_ROLE:
        raise StoreMisconfigured(
            f"The role in INGOT_DATABASE_URL must be {SERVER_ROLE}, got {user!r}.",
            hint=f"Use {SERVER_ROLE}. Reads with another role would not be restricted to one tenant.",
        )
    if bypasses_security:
        raise StoreMisconfigured(
            f"The role {SERVER_ROLE} bypasses row-level security.",
            hint=f"Run ALTER ROLE {SERVER_ROLE} NOSUPERUSER NOBYPASSRLS.",
        )
    if encoding != "UTF8":
        raise StoreMisconfigured(
            f"The encoding of the database must be UTF8, got {encoding}.",
            hint="Create a database with ENCODING 'UTF8' and TEMPLATE template0.",
        )
    if synchronous_commit == "off":
        raise StoreMisconfigured(
            "The database has synchronous_commit off.",
            hint="Turn it on. Otherwise acknowledged writes can be lost.",
        )
    await check_schema(connection, SERVER_ROLE, newest=await schema_version(connection))
    if not await connection.fetchval(CALL.at_home):
        raise StoreMisconfigured(
            "The database was restored on another server, whose transaction IDs do not continue its event log.",
            hint="Set INGOT_DATABASE_OWNER_URL, with a role that can create roles and schemas, to migrate it once.",
        )
