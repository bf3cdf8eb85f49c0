"""Invariants of the rows of a PostgreSQL store. Each statement returns the rows that violate it."""

from __future__ import annotations

from tests.faults.postgres_tables import JOB_STATES, Owner, read_definitions, read_tables
from tests.faults.replay import Replay

SHOWN_MAX = 12
# Two enqueues may be under way together, and the one that becomes visible later can have the lower transaction ID. So
# the log does not show which of their jobs comes first.
NOT_IN_THE_LOG = "J13"

RULES: dict[str, str] = {
    "J1 a job is in one table": f"""
        WITH places AS (
            SELECT id FROM ingot.ready UNION ALL SELECT id FROM ingot.later
            UNION ALL SELECT id FROM ingot.leases UNION ALL SELECT id FROM ingot.canceled
        )
        SELECT id::text, 'in two tables' FROM places GROUP BY id HAVING count(*) > 1
        UNION ALL SELECT id::text, 'without a body' FROM places WHERE id NOT IN (SELECT id FROM ingot.jobs)
        UNION ALL SELECT s.id::text, 'in no table' FROM ({JOB_STATES}) AS s
        WHERE s.id NOT IN (SELECT id FROM places)
            AND coalesce(s.status, '') NOT IN ('succeeded', 'dead', 'canceled')""",
    "J1 everything belongs to an existing tenant": """
        SELECT DISTINCT tenant::text FROM (
            SELECT tenant FROM ingot.jobs UNION SELECT tenant FROM ingot.events UNION SELECT tenant FROM ingot.counts
            UNION SELECT tenant FROM ingot.idempotency_keys UNION SELECT tenant FROM ingot.dedupe_keys
        ) AS t WHERE tenant NOT IN (SELECT id FROM ingot.tenants)""",
    "J1 the rows of a job name its tenant and type": """
        SELECT p.id::text FROM (
            SELECT id, tenant, type, dedupe_key FROM ingot.ready
            UNION ALL SELECT id, tenant, type, dedupe_key FROM ingot.later
            UNION ALL SELECT id, tenant, type, dedupe_key FROM ingot.leases
            UNION ALL SELECT id, tenant, type, dedupe_key FROM ingot.canceled
        ) AS p JOIN ingot.jobs AS j ON j.id = p.id
        WHERE (p.tenant, p.type) <> (j.tenant, j.type) OR p.dedupe_key IS DISTINCT FROM j.dedupe_key
        UNION ALL SELECT o.job::text FROM ingot.outcomes AS o JOIN ingot.jobs AS j ON j.id = o.job
        WHERE o.tenant <> j.tenant""",
    "J3 an attempt that ended holds no lease": """
        SELECT l.id::text, l.fence FROM ingot.leases AS l
        JOIN ingot.outcomes AS o ON o.job = l.id AND o.fence = l.fence""",
    "J3 an attempt has its job": """
        SELECT job::text, fence FROM ingot.attempts WHERE job NOT IN (SELECT id FROM ingot.jobs)""",
    "J3 an attempt has one outcome": """
        SELECT job::text, fence FROM ingot.outcomes GROUP BY job, fence HAVING count(*) > 1""",
    "J4 a job's fence is that of its latest attempt": f"""
        SELECT s.id::text, s.fence FROM ({JOB_STATES}) AS s
        WHERE s.fence <> (SELECT coalesce(max(a.fence), 0) FROM ingot.attempts AS a WHERE a.job = s.id)""",
    "J4 no fence is above the last one issued": """
        SELECT a.fence FROM ingot.attempts AS a, ingot.fences AS f WHERE a.fence > f.last_value""",
    "J5 a job is ready only when its time has come": """
        SELECT id::text FROM ingot.ready WHERE run_at > ingot.clock()""",
    "J6 a result comes only with success": """
        SELECT job::text, fence FROM ingot.outcomes
        WHERE (outcome = 'succeeded') <> (status_after = 'succeeded')
            OR (outcome <> 'succeeded' AND result IS NOT NULL)""",
    "J7 attempts are numbered and counted": f"""
        SELECT s.id::text, s.attempts FROM ({JOB_STATES}) AS s
        WHERE s.attempts <> (SELECT count(*) FROM ingot.attempts AS a WHERE a.job = s.id)
        UNION ALL
        SELECT job::text, number
        FROM (SELECT *, row_number() OVER (PARTITION BY job ORDER BY fence) AS place FROM ingot.attempts) AS a
        WHERE number <> place""",
    "J7 failures and crashes do not exceed the outcomes": f"""
        SELECT s.id::text FROM ({JOB_STATES}) AS s
        WHERE s.failures > (SELECT count(*) FROM ingot.outcomes AS o
                WHERE o.job = s.id AND o.outcome IN ('failed', 'timed_out'))
            OR s.crashes > (SELECT count(*) FROM ingot.outcomes AS o WHERE o.job = s.id AND o.outcome = 'lost')
            OR s.failures < 0 OR s.crashes < 0""",
    "J11 an idempotency key and its job name each other": """
        SELECT k.key, k.job::text FROM ingot.idempotency_keys AS k
        LEFT JOIN ingot.jobs AS j
            ON j.id = k.job AND j.tenant = k.tenant AND j.type = k.type AND j.idempotency_key = k.key
        WHERE j.id IS NULL
        UNION ALL
        SELECT j.idempotency_key, j.id::text FROM ingot.jobs AS j WHERE j.idempotency_key IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM ingot.idempotency_keys AS k WHERE k.job = j.id AND k.key = j.idempotency_key)""",
    "J11 dedupe keys are held by the unfinished jobs that have one": f"""
        SELECT coalesce(h.key, s.dedupe_key), coalesce(h.job, s.id)::text FROM ingot.dedupe_keys AS h
        FULL JOIN (
            SELECT s.id, s.tenant, j.dedupe_key FROM ({JOB_STATES}) AS s JOIN ingot.jobs AS j ON j.id = s.id
            WHERE j.dedupe_key IS NOT NULL AND s.status IN ('blocked', 'queued', 'running')
        ) AS s ON s.tenant = h.tenant AND s.dedupe_key = h.key AND s.id = h.job
        WHERE h.job IS NULL OR s.id IS NULL""",
    "J17 a job returns within its delay": """
        SELECT job::text, fence, run_at - finished_at FROM ingot.outcomes
        WHERE status_after = 'queued' AND (
            run_at < finished_at
            OR (outcome = 'released' AND run_at <> finished_at)
            OR (outcome = 'lost' AND run_at - finished_at > 5000000))""",
    "counts are exact": f"""
        SELECT tenant::text, type, status, sum(jobs) FROM (
            SELECT tenant, type, status, 1 AS jobs FROM ({JOB_STATES}) AS s
            UNION ALL SELECT tenant, type, status, -jobs FROM ingot.counts
            UNION ALL SELECT tenant, type, status, -jobs FROM ingot.count_deltas
        ) AS c GROUP BY tenant, type, status HAVING sum(jobs) <> 0""",
    "totals are the sums of counts": """
        SELECT tenant::text, status, sum(jobs) FROM (
            SELECT tenant, status, jobs FROM ingot.counts UNION ALL SELECT tenant, status, -jobs FROM ingot.count_totals
        ) AS c GROUP BY tenant, status HAVING sum(jobs) <> 0""",
    "the types of jobs are listed and counted": """
        SELECT tenant::text, type FROM (SELECT DISTINCT tenant, type FROM ingot.jobs) AS j WHERE NOT EXISTS (
            SELECT FROM ingot.tenant_types AS u WHERE u.tenant = j.tenant AND u.type = j.type)
        UNION ALL
        SELECT tenant::text, sum(types)::text FROM (
            SELECT tenant, 1 AS types FROM ingot.tenant_types UNION ALL SELECT tenant, -types FROM ingot.type_counts
        ) AS c GROUP BY tenant HAVING sum(types) <> 0""",
    "no attempt ends before it began": """
        SELECT job::text, fence FROM ingot.outcomes WHERE finished_at < started_at""",
    "a finished job is listed in the endings": """
        SELECT s.id::text FROM ingot.job_rows AS s WHERE s.finished_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM ingot.endings AS e
            WHERE e.tenant = s.tenant AND e.type = s.type AND e.finished_at = s.finished_at AND s.id = ANY (e.jobs))
        UNION ALL SELECT 'of a wrong size' FROM ingot.endings WHERE size <> cardinality(jobs) OR size = 0""",
    "a tag belongs to a job of its tenant": """
        SELECT g.job::text, g.tag FROM ingot.tags AS g LEFT JOIN ingot.jobs AS j ON j.id = g.job AND j.tenant = g.tenant
        WHERE j.id IS NULL""",
}


async def broken_rules(connection: Owner) -> list[str]:
    """Return a description of each violation, also of those that a replay finds. No call may be under way."""
    wrong: list[str] = []
    for rule, statement in RULES.items():
        rows = await connection.fetch(f"SELECT * FROM ({statement}) AS broken LIMIT 3")
        if rows:
            wrong.append(f"{rule}: {[tuple(row) for row in rows]}")
    replay = Replay(await read_tables(connection), await read_definitions(connection))
    from_replay = [text for text in replay.wrong if not text.startswith(NOT_IN_THE_LOG)]
    return wrong + from_replay[:SHOWN_MAX]
