"""The rows of a PostgreSQL store, read by plain SQL without the tested code, in the structs of the SQLite reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg
import msgspec

from ingot.engines.postgres.job_rows import EventEntryRow
from ingot.jobs import Definition
from ingot.jobs.model import JobEventData
from tests.faults.tables import AttemptRow, EventRow, JobRow, Tables

Owner = Any  # A connection whose role sees every row, or one from a pool.

_CURRENT_STATES = """
SELECT id, 'queued' AS status, priority, run_at, attempts, failures, crashes, max_attempts, fence,
    false AS cancel_requested, NULL AS stage FROM ingot.ready
UNION ALL
SELECT id, 'queued', priority, run_at, attempts, failures, crashes, max_attempts, fence, false, NULL FROM ingot.later
UNION ALL
SELECT id, 'running', priority, run_at, attempts, failures, crashes, max_attempts, fence, cancel_requested, stage
FROM ingot.leases
UNION ALL
SELECT id, 'canceled', priority, run_at, attempts, failures, crashes, max_attempts, fence, false, NULL
FROM ingot.canceled
"""
_NEWEST = "SELECT DISTINCT ON (job) * FROM ingot.outcomes ORDER BY job, fence DESC"
# The state of each job: from one of the four tables, or else from its newest outcome.
JOB_STATES = f"""
SELECT j.id, j.tenant, j.type, coalesce(s.status, o.status_after) AS status,
    coalesce(s.priority, o.priority) AS priority, coalesce(s.run_at, o.run_at) AS run_at,
    coalesce(s.attempts, o.attempts) AS attempts,
    coalesce(s.failures, o.failures) AS failures, coalesce(s.crashes, o.crashes) AS crashes,
    coalesce(s.max_attempts, o.max_attempts) AS max_attempts, coalesce(s.fence, o.fence) AS fence,
    coalesce(s.cancel_requested, o.cancel_requested) AS cancel_requested, s.stage
FROM ingot.jobs AS j LEFT JOIN ({_CURRENT_STATES}) AS s ON s.id = j.id LEFT JOIN ({_NEWEST}) AS o ON o.job = j.id
"""
# A job that a planted error removed from all four tables is read too, because a rule reports it.
_JOBS = f"""
SELECT s.id::text, s.tenant::text, s.type, coalesce(s.status, ''), coalesce(s.priority, 0), coalesce(s.run_at, 0),
    coalesce(s.attempts, 0), coalesce(s.failures, 0), coalesce(s.crashes, 0), coalesce(s.max_attempts, 0),
    coalesce(s.fence, 0), coalesce(s.cancel_requested, false), s.stage, j.correlation_id,
    convert_from(j.payload, 'UTF8'), j.dedupe_key, j.idempotency_key
FROM ({JOB_STATES}) AS s JOIN ingot.jobs AS j ON j.id = s.id
"""
_ATTEMPTS = """
SELECT a.job::text, a.fence, a.number, a.worker_id, o.outcome, coalesce(o.retry, true), o.status_after,
    CASE WHEN o.status_after = 'queued' THEN o.run_at END, o.attempts, o.finished_at, o.error,
    convert_from(o.result, 'UTF8'), o.stage
FROM ingot.attempts AS a LEFT JOIN ingot.outcomes AS o ON o.job = a.job AND o.fence = a.fence
"""
_EVENTS = "SELECT tenant::text, position, at, entries FROM ingot.events ORDER BY position, tenant"

_entries = msgspec.json.Decoder(list[EventEntryRow])


async def read_tables(connection: Owner) -> Tables:
    """Read all rows in one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        jobs: list[JobRow] = [_row(JobRow, values) for values in await connection.fetch(_JOBS)]
        attempts: list[AttemptRow] = [_row(AttemptRow, values) for values in await connection.fetch(_ATTEMPTS)]
        events = [
            EventRow(tenant, position, at, entry.name, data)
            for tenant, position, at, entries in await connection.fetch(_EVENTS)
            for entry in _entries.decode(entries)
            for data in entry.event_data()
            if isinstance(data, JobEventData)
        ]
        return Tables(
            tenants=_pairs(await connection.fetch("SELECT slug, id::text FROM ingot.tenants")),
            jobs={job.id: job for job in jobs},
            attempts={(attempt.job_id, attempt.fence): attempt for attempt in attempts},
            events=events,
            tags={(job, tag) for job, tag in await connection.fetch("SELECT job::text, tag FROM ingot.tags")},
        )


async def read_definitions(connection: Owner) -> Mapping[str, Definition]:
    """Return the definitions for all tenants, by type."""
    rows = await connection.fetch("SELECT definition FROM ingot.definitions WHERE tenant::text ~ '^[0-]+$'")
    definitions = [msgspec.json.decode(text, type=Definition) for (text,) in rows]
    return {definition.type: definition for definition in definitions}


def _row(type: Any, values: asyncpg.Record) -> Any:
    return type(*values.values())


def _pairs(rows: list[asyncpg.Record]) -> dict[str, str]:
    return {row[0]: row[1] for row in rows}
