"""The listener of a store: polls the database and exchanges notifications with other processes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import maintenance
from ingot.engines.postgres.connection import UNREACHABLE_ERRORS, Connection, Database, close_connection
from ingot.engines.postgres.dependents import DependentReleaser
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import COST_FACTOR, POLL_SECONDS, LaneCache
from ingot.engines.postgres.schema_check import SchemaWatch
from ingot.engines.postgres.transaction_watch import TransactionWatch
from ingot.kernel.errors import SchemaMismatch, StoreError
from ingot.kernel.ids import new_id
from ingot.kernel.logs import detached_context, report
from ingot.kernel.loops import Loop

CHANNEL: Final = "ingot_ready"
NOTIFY_SECONDS: Final = 0.02
FOLD_SECONDS: Final = 5.0
RECORD_REQUESTS_SECONDS: Final = 10.0
LISTEN_SECONDS_MAX: Final = 10.0  # For the connection, and for a statement on it.


class DatabaseListener(Loop):
    """Polls the database about once a second, folds counters, and exchanges notifications with other processes.

    It also checks whether this process still fits the schema, and does nothing else while it does not, and ends
    transactions of workers and applications that hold back events for too long. Notifications
    only make other processes poll earlier. They do not work behind a proxy that pools transactions; polling alone is
    sufficient.
    """

    name = "postgres.watch"
    pause_after_error_seconds_max = 2.0  # Work of other processes must be found soon after an outage.

    def __init__(
        self,
        url: str,
        db: Database,
        lane_cache: LaneCache,
        dependents: DependentReleaser,
        watch: SchemaWatch,
        transactions: TransactionWatch,
        *,
        listens: bool,
    ) -> None:
        super().__init__()
        self._watch = watch
        self._transactions = transactions
        self._dependents = dependents
        self._url, self._db, self._lane_cache, self.listens = url, db, lane_cache, listens
        self._process_id = new_id()
        self._listener: asyncpg.Connection[asyncpg.Record] | None = None
        self._notify_task: asyncio.Task[None] | None = None
        self._poll_task: asyncio.Task[None] | None = None
        self._folded_at = self._requests_recorded_at = time.monotonic()
        lane_cache.notify_callbacks.append(self._schedule_notify)

    async def run_once(self) -> None:
        """Poll, and do the periodic work that is due."""
        if self.listens and (self._listener is None or self._listener.is_closed()):
            await self._listen()
        if is_poll_due := self._lane_cache.is_poll_due():
            with suppress(SchemaMismatch):  # The check that follows reports it.
                await maintenance.poll(self._db, self._lane_cache)
        await self._watch.run_after_poll(self._lane_cache.applied_revision)
        if self._db.mismatch is not None:
            return
        if is_poll_due:
            await self._dependents.release_missed()
        if self._lane_cache.requested_at and time.monotonic() - self._requests_recorded_at > RECORD_REQUESTS_SECONDS:
            self._requests_recorded_at = time.monotonic()
            await maintenance.record_requests(self._db, self._lane_cache)
        if self._lane_cache.has_count_deltas and time.monotonic() - self._folded_at > FOLD_SECONDS:
            self._folded_at = time.monotonic()
            await maintenance.fold_counts(self._db)
            await self._dependents.fold_batches()
        await self._transactions.run_if_due()

    async def wait(self) -> None:
        """Wait until the next poll, with random jitter so that processes do not poll at the same time."""
        await asyncio.sleep(POLL_SECONDS * random.uniform(1.0, 1.2))

    async def stop(self) -> None:
        """Stop the loop and close its connection."""
        await super().stop()
        self.listens = False
        for task in (self._notify_task, self._poll_task):
            if task is not None:
                task.cancel()  # Both are only hints, and a poll may be far in the future.
                await asyncio.wait([task])
        if self._listener is not None:
            await close_connection(self._listener)

    # -- notifications --------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            self._listener = await connect_listener(self._url, self._on_notification)
        except UNREACHABLE_ERRORS as error:
            self._db.record_outage(error)
        except asyncpg.PostgresError as error:
            report("listening_failed", error)

    def _on_notification(self, _: Any, __: int, ___: str, payload: object) -> None:
        """Poll after a notification from another process, no more often than the cost of polls allows.

        Every role can listen, so a notification does not name the tenant.
        """
        if payload != self._process_id and (self._poll_task is None or self._poll_task.done()):
            self._poll_task = asyncio.create_task(self._poll(), context=detached_context())

    async def _poll(self) -> None:
        lane_cache = self._lane_cache
        interval = min(lane_cache.poll_cost_seconds * COST_FACTOR, lane_cache.poll_interval_seconds)
        await asyncio.sleep(max(0.0, interval - (time.monotonic() - lane_cache.polled_at)))
        with suppress(StoreError, asyncpg.PostgresError):
            try:
                await maintenance.poll(self._db, self._lane_cache)
            finally:
                await self._watch.run_after_poll(self._lane_cache.applied_revision)

    def _schedule_notify(self) -> None:
        if not self.listens or self._task is None:
            self._lane_cache.notify_pending = False
        elif self._notify_task is None or self._notify_task.done():
            self._notify_task = asyncio.create_task(self._notify(), context=detached_context())

    async def _notify(self) -> None:
        """Send one notification for all ready work of a short interval."""
        while self._lane_cache.notify_pending and self.listens:
            self._lane_cache.notify_pending = False
            with suppress(StoreError):
                await self._db.call(CALL.notify_ready, self._process_id)
            await asyncio.sleep(NOTIFY_SECONDS)


async def connect_listener(url: str, callback: Callable[..., None]) -> asyncpg.Connection[asyncpg.Record]:
    """Open a connection on which `callback` is called for each notification. Raises errors of the driver."""
    connection = await asyncpg.connect(
        url, connection_class=Connection, timeout=LISTEN_SECONDS_MAX, command_timeout=LISTEN_SECONDS_MAX
    )
    try:
        await connection.add_listener(CHANNEL, callback)
    except BaseException:
        connection.terminate()
        raise
    return connection
