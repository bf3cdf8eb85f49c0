"""Tables that roles can read, and whose rows they see there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from asyncpg.pool import PoolConnectionProxy

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record

READABLE: Final = [
    "attempts",
    "batch_deltas",
    "batches",
    "blocked",
    "canceled",
    "count_deltas",
    "count_totals",
    "counts",
    "endings",
    "event_floors",
    "events",
    "history",
    "job_files",
    "job_rows",
    "jobs",
    "keys",
    "later",
    "leases",
    "logs",
    "outcomes",
    "ready",
    "records",
    "tags",
    "uploads",
    "usage",
    "waits",
]


async def rows_of(connection: Raw | PoolConnectionProxy[Record]) -> dict[str, set[str]]:
    """The tenants whose rows a connection can read, by table."""
    return {
        name: {row[0] for row in await connection.fetch(f"SELECT DISTINCT tenant::text FROM ingot.{name}")}
        for name in READABLE
    }


@asynccontextmanager
async def rolled_back(connection: Raw) -> AsyncIterator[None]:
    """Run the block in a transaction that is rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()
