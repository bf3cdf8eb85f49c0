"""Writes finished jobs with SQL, including attempts, outcomes, counts and events, to create a long history."""

from __future__ import annotations

import asyncio
from typing import Final

import asyncpg

from benchmarks.postgres.adapter import TYPE
from benchmarks.postgres.ingot_system import TENANT, install, open_store
from benchmarks.queue.prefill import PAYLOAD
from ingot.identity.tenants import Tenants
from ingot.jobs.model import JobStatus
from ingot.jobs.service import Jobs

CLAIM_JOBS: Final = 250  # Jobs per transaction, with one row of events.
STEP_MICROS: Final = 1000
WRITERS: Final = 2

# IDs are UUIDv7: the time in milliseconds, the version, random digits. They are written in order.
FILL: Final = """
CREATE PROCEDURE pg_temp.fill(
    jobs integer, per_claim integer, started bigint, step bigint, of_tenant uuid, of_type text, body bytea
)
LANGUAGE plpgsql AS $$
DECLARE
    base integer;
    token bigint;
BEGIN
    FOR base IN 0 .. jobs - 1 BY per_claim LOOP
        token := nextval('ingot.fences');
        WITH new_jobs AS MATERIALIZED (
            SELECT started + n * step AS at, n,
                (lpad(to_hex((started + n * step) / 1000), 12, '0') || '7' || substr(md5(random()::text), 1, 3)
                    || '8' || substr(md5(random()::text), 1, 15))::uuid AS id
            FROM generate_series(base, least(base + per_claim, jobs) - 1) AS n
        ),
        inserted AS (
            INSERT INTO ingot.jobs (id, tenant, type, payload, created_at, source, depth)
            SELECT id, of_tenant, of_type, body, at, 'manual', 0 FROM new_jobs
        ),
        ended AS (
            INSERT INTO ingot.outcomes (
                job, fence, tenant, worker_id, started_at, outcome, retry, status_after, run_at, attempts, failures,
                crashes, max_attempts, priority, cancel_requested, finished_at, told_at
            )
            SELECT id, token, of_tenant, 'prefill', at + 200, 'succeeded', true, 'succeeded', at, 1, 0, 0, 5, 3, false,
                at + 700, 0
            FROM new_jobs
        ),
        listed AS (
            INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
            SELECT of_tenant, of_type, at + 700, 1, ARRAY[id] FROM new_jobs
        )
        INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT of_tenant, ingot.event_position(pg_current_xact_id()), max(at) + 700, '[' || string_agg(
            ingot.job_event_entry('job.created', ingot.quoted_id(id), of_type, 'queued', 0, 0, 0, 0, NULL, at,
                NULL, NULL, false, NULL, NULL)
            || ',' || ingot.job_event_entry('job.started', ingot.quoted_id(id), of_type, 'running', 1, 0, 0, token,
                'prefill', NULL, NULL, NULL, false, NULL, NULL)
            || ',' || ingot.job_event_entry('job.completed', ingot.quoted_id(id), of_type, 'succeeded', 1, 0, 0, token,
                NULL, NULL, NULL, NULL, false, NULL, NULL),
            ',' ORDER BY n) || ']'
        FROM new_jobs;
        COMMIT;
    END LOOP;
END
$$;
"""
COUNT: Final = "INSERT INTO ingot.counts (tenant, type, status, jobs) VALUES ($1, $2, 'succeeded', $3)"
NOW: Final = "SELECT ingot.clock()"


def make_history(url: str, finished_jobs: int) -> None:
    """Install Ingot in a database and write this number of finished jobs of the measured type."""
    install(url)
    asyncio.run(_fill(url, finished_jobs))


async def _fill(url: str, jobs: int) -> None:
    async with open_store(url, connections=1) as store:
        tenant = (await Tenants(store).get(TENANT)).id
    shares = [jobs // WRITERS + (writer < jobs % WRITERS) for writer in range(WRITERS)]
    await asyncio.gather(*(_write(url, tenant, share, writer) for writer, share in enumerate(shares)))
    connection = await asyncpg.connect(url)
    await connection.execute(COUNT, tenant, TYPE, jobs)
    await connection.execute("VACUUM ANALYZE", timeout=None)
    await connection.execute("CHECKPOINT")
    await connection.close()
    async with open_store(url, connections=1) as store:
        summary = await Jobs(store, lease_seconds=60).summary(tenant)
    counted_jobs = summary.counts[JobStatus.SUCCEEDED]
    if counted_jobs != jobs:
        raise AssertionError(f"the store has {counted_jobs:,} finished jobs instead of {jobs:,}")


async def _write(url: str, tenant: str, jobs: int, writer: int) -> None:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    await connection.execute(FILL)
    now = await connection.fetchval(NOW)
    # Each writer has its own range of times in the past.
    started = now - (WRITERS - writer) * jobs * STEP_MICROS - 60_000_000
    await connection.execute(
        "CALL pg_temp.fill($1, $2, $3, $4, $5, $6, $7)",
        jobs, CLAIM_JOBS, started, STEP_MICROS, tenant, TYPE, PAYLOAD,
        timeout=None,
    )  # fmt: skip
    await connection.close()
