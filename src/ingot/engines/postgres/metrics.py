"""Metrics of the database."""

from __future__ import annotations

import time

import msgspec

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.sql import SQL
from ingot.engines.queue_depth import depth_of
from ingot.jobs.metrics import Depth, StoreDescription
from ingot.jobs.model import JobStatus
from ingot.jobs.ports import DescribeStore, ListQueueDepths


async def list_queue_depths(context: Context, command: ListQueueDepths) -> list[Depth]:
    """Return the jobs of each tenant by status, and how long the oldest ready one has waited."""
    depths = []
    limits = command.tenants_max, command.lanes_max
    for row in await context.database.call(CALL.queue_depths, *limits, read_only=True):
        counts = msgspec.json.decode(row["counts"] or "{}", type=dict[JobStatus, int])
        depths.append(depth_of(row["slug"], counts, row["oldest"], row["now"]))
    return depths


async def describe_store(context: Context, _: DescribeStore) -> StoreDescription:
    """Return the version, the schema and the size of the database."""
    (row,) = await context.database.call(SQL.about_database, read_only=True)
    return StoreDescription(
        database_version=f"PostgreSQL {row['version']}", schema_version=row["schema"], database_bytes=row["size"]
    )


class Horizon:
    """Measures how long the oldest running transaction has held back events.

    The age is read from the database if it is visible there. Otherwise it counts from the first measurement that found
    this transaction.
    """

    def __init__(self) -> None:
        self.oldest = ""  # The ID of the oldest transaction at the last measurement.
        self._seen_at = 0.0

    async def measure(self, db: Database) -> float:
        """Return the seconds, 0 if no transaction holds back events."""
        ((oldest, holds_back_events, seconds),) = await db.call(SQL.horizon, read_only=True)
        if oldest != self.oldest:
            self.oldest, self._seen_at = oldest, time.monotonic()
        if not holds_back_events:
            return 0.0
        return max(0.0, time.monotonic() - self._seen_at if seconds is None else seconds)
