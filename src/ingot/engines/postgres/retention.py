"""Retention: remove old finished jobs, preview what will be removed, and list the history."""

from __future__ import annotations

from typing import Final

from ingot.engines.history_positions import page_of, parse_position
from ingot.engines.json_rows import decode
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import ABOVE_ALL_IDS
from ingot.engines.postgres.maintenance import fold_counts
from ingot.engines.postgres.sql import SQL
from ingot.engines.postgres.tenants import check_tenant
from ingot.jobs.model import HistoryEntry, JobCollectionResult, RetentionPreview
from ingot.jobs.ports import CollectJobs, ListHistory, PreviewRetention
from ingot.kernel.clock import to_datetime

PREVIEW_JOBS_MAX: Final = 10_000
FREED_TYPES_MAX: Final = 1000
ABOVE_ALL_INSTANTS: Final = 2**62


async def collect_jobs(context: Context, command: CollectJobs) -> JobCollectionResult:
    """Remove a bounded number of jobs whose retention has passed."""
    (row,) = await context.database.call(CALL.collect_jobs, command.limit)
    if row["removed"]:
        await fold_counts(context.database)  # Marks types that have no jobs any more.
    await context.database.call(CALL.free_types, FREED_TYPES_MAX)
    return JobCollectionResult(removed=row["removed"], kept=row["kept"], more=row["more"])


async def preview_retention(context: Context, command: PreviewRetention) -> list[RetentionPreview]:
    """Return which of a tenant's jobs would be removed, by type."""
    tenant = command.tenant
    await check_tenant(context, tenant)
    return [
        RetentionPreview(
            type=row["type"],
            jobs=row["jobs"],
            oldest_finished_at=to_datetime(row["oldest"]),
            more=row["examined"] > PREVIEW_JOBS_MAX,
        )
        for row in await context.database.read(tenant, SQL.preview_retention, tenant, PREVIEW_JOBS_MAX)
    ]


async def list_history(context: Context, command: ListHistory) -> tuple[list[HistoryEntry], str | None]:
    """Return a page of the history, last finished first, and the position from which it continues."""
    tenant, limit = command.tenant, command.limit
    await check_tenant(context, tenant)
    position = (ABOVE_ALL_INSTANTS, ABOVE_ALL_IDS) if command.before is None else parse_position(command.before)
    values = (tenant, *position, limit + 1)
    if command.type is None:
        rows = await context.database.read(tenant, SQL.page_of_history, *values)
    else:
        rows = await context.database.read(tenant, SQL.page_of_history_by_type, *values, command.type)
    return page_of([decode(HistoryEntry, text) for (text,) in rows], limit)
