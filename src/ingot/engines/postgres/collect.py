"""Removing finished jobs that have been kept long enough, and what is kept of them."""

from __future__ import annotations

from typing import Final

from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.rows import STATUSES
from ingot.engines.postgres.sql import SQL
from ingot.jobs.model import Collected, Doomed, HistoryEntry
from ingot.jobs.ports import Collect
from ingot.kernel.clock import to_datetime

PREVIEW_JOBS_MAX: Final = 10_000


async def collect(db: Database, command: Collect) -> Collected:
    """Remove a bounded number of jobs."""
    (row,) = await db.call("SELECT * FROM ingot.collect($1)", command.limit)
    return Collected(removed=row["removed"], kept=row["kept"], more=row["more"])


async def preview(db: Database, tenant: str) -> list[Doomed]:
    """What would be removed of a tenant's jobs, by type."""
    return [
        Doomed(
            type=row["type"],
            jobs=row["jobs"],
            oldest_finished_at=to_datetime(row["oldest"]),
            more=row["named"] > PREVIEW_JOBS_MAX,
        )
        for row in await db.read(tenant, SQL.preview_retention, tenant, PREVIEW_JOBS_MAX)
    ]


def entry_of(row: Record, tenant: str) -> HistoryEntry:
    """An entry of the history."""
    return HistoryEntry(
        id=row["id"],
        tenant=tenant,
        type=row["type"],
        status=STATUSES[row["status"]],
        attempts=row["attempts"],
        created_at=to_datetime(row["created_at"]),
        finished_at=to_datetime(row["finished_at"]),
        last_error=row["last_error"],
    )
