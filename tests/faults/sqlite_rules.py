"""Invariants of the rows of a SQLite store. Each statement returns the rows that violate it."""

from __future__ import annotations

from typing import Final

import apsw

TIME_ORDER: Final = "events and attempts are in the order of time"
RULES: dict[str, str] = {
    "J1 a job has a row in jobs and in states": """
        SELECT number FROM states WHERE number NOT IN (SELECT number FROM jobs)
        UNION ALL SELECT number FROM jobs WHERE number NOT IN (SELECT number FROM states)
        UNION ALL SELECT number FROM states WHERE tenant NOT IN (SELECT number FROM tenants)""",
    "J3 an attempt is open exactly while its job runs under its fence": """
        SELECT s.id, a.fence FROM attempts AS a JOIN states AS s ON s.number = a.job
        LEFT JOIN outcomes AS o ON o.job = a.job AND o.fence = a.fence
        WHERE (o.job IS NULL) <> (s.status = 'running' AND s.fence = a.fence)
        UNION ALL
        SELECT id, fence FROM states AS s WHERE status = 'running'
            AND NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job = s.number AND a.fence = s.fence)""",
    "J3 an outcome and an attempt belong to a job": """
        SELECT job, fence FROM outcomes EXCEPT SELECT job, fence FROM attempts
        UNION ALL SELECT job, fence FROM attempts WHERE job NOT IN (SELECT number FROM states)""",
    "J4 a job's fence is that of its latest attempt": """
        SELECT id FROM states AS s
        WHERE fence <> (SELECT coalesce(max(a.fence), 0) FROM attempts AS a WHERE a.job = s.number)""",
    "J4 no fence is of a future epoch": """
        SELECT fence FROM attempts, store WHERE fence >> 32 > epoch OR fence >> 32 < 1""",
    "J5 a job is due only when its time has come": """
        SELECT id FROM states, store WHERE status = 'queued' AND due = 1 AND run_at > clock""",
    "J6 a job ends as its last attempt ended": """
        SELECT s.id, s.status, o.status_after FROM states AS s
        LEFT JOIN outcomes AS o ON o.job = s.number AND o.fence = s.fence
        WHERE s.status IN ('succeeded', 'dead') AND coalesce(o.status_after, '') <> s.status""",
    "J6 a result comes only with success": """
        SELECT job, fence FROM outcomes
        WHERE (outcome = 'succeeded') <> (status_after = 'succeeded')
            OR (outcome <> 'succeeded' AND result IS NOT NULL)""",
    "J7 attempts are numbered and counted": """
        SELECT s.id FROM states AS s
        WHERE s.attempts <> (SELECT count(*) FROM attempts AS a WHERE a.job = s.number)
        UNION ALL
        SELECT job FROM (SELECT *, row_number() OVER (PARTITION BY job ORDER BY fence) AS place FROM attempts)
        WHERE number <> place""",
    "J7 failures and crashes do not exceed the outcomes": """
        SELECT id FROM states AS s
        WHERE failures > (SELECT count(*) FROM outcomes AS o
                WHERE o.job = s.number AND o.outcome IN ('failed', 'timed_out'))
            OR crashes > (SELECT count(*) FROM outcomes AS o WHERE o.job = s.number AND o.outcome = 'lost')
            OR failures < 0 OR crashes < 0""",
    "J11 an idempotency key and its job name each other": """
        SELECT k.key, k.job FROM idempotency_keys AS k
        LEFT JOIN states AS s ON s.number = k.job AND s.tenant = k.tenant AND s.type = k.type
        LEFT JOIN jobs AS j ON j.number = k.job AND j.idempotency_key = k.key
        WHERE s.number IS NULL OR j.number IS NULL
        UNION ALL
        SELECT j.idempotency_key, j.number FROM jobs AS j WHERE j.idempotency_key IS NOT NULL
            AND NOT EXISTS (
                SELECT 1 FROM idempotency_keys AS k WHERE k.job = j.number AND k.key = j.idempotency_key)""",
    "J11 a dedupe key has one unfinished holder": """
        SELECT tenant, dedupe_key FROM states NOT INDEXED
        WHERE dedupe_key IS NOT NULL AND status IN ('blocked', 'queued', 'running')
        GROUP BY tenant, dedupe_key HAVING count(*) > 1""",
    "J17 a job returns within its delay": """
        SELECT o.job, o.fence, o.run_at - o.finished_at FROM outcomes AS o JOIN states AS s ON s.number = o.job
        LEFT JOIN definitions AS d ON d.tenant = '' AND d.type = s.type
        WHERE (o.run_at IS NULL) = (o.status_after = 'queued')
            OR o.run_at < o.finished_at
            OR (o.outcome = 'released' AND o.run_at <> o.finished_at)
            OR (o.outcome = 'lost' AND o.run_at - o.finished_at > 5000000)
            OR (o.outcome IN ('failed', 'timed_out') AND o.run_at - o.finished_at
                > 1000000 * coalesce(d.definition ->> '$.backoff.max_seconds', 3600))""",
    "counts are exact": """
        SELECT tenant, type, status FROM (
            SELECT tenant, type, status, 1 AS jobs FROM states
            UNION ALL SELECT tenant, '', status, 1 FROM states
            UNION ALL SELECT tenant, type, status, -jobs FROM counts
        ) GROUP BY tenant, type, status HAVING sum(jobs) <> 0""",
    "a job waits for others exactly while it is blocked": """
        SELECT s.id FROM states AS s
        WHERE (s.status = 'blocked') <> EXISTS (SELECT 1 FROM waits AS w WHERE w.job = s.number AND w.open = 1)
        UNION ALL
        SELECT w.job FROM waits AS w
        LEFT JOIN states AS s ON s.number = w.job LEFT JOIN states AS p ON p.number = w.parent
        WHERE s.number IS NULL OR p.number IS NULL OR p.tenant <> s.tenant""",
    "batches are counted exactly": """
        SELECT tenant, batch FROM (
            SELECT tenant, batch, 1 AS total, status = 'succeeded' AS succeeded, status = 'dead' AS dead,
                status = 'canceled' AS canceled
            FROM states WHERE batch IS NOT NULL
            UNION ALL SELECT tenant, batch, -total, -succeeded, -dead, -canceled FROM batches
        ) GROUP BY tenant, batch
        HAVING sum(total) <> 0 OR sum(succeeded) <> 0 OR sum(dead) <> 0 OR sum(canceled) <> 0""",
    "no time is above the store's clock": """
        SELECT at FROM (
            SELECT max(created_at) AS at FROM jobs UNION ALL SELECT max(started_at) FROM attempts
            UNION ALL SELECT max(finished_at) FROM outcomes UNION ALL SELECT max(finished_at) FROM states
            UNION ALL SELECT max(at) FROM events
        ), store WHERE at > clock""",
    TIME_ORDER: """
        SELECT batch FROM (SELECT batch, at, lag(at) OVER (ORDER BY batch) AS before FROM events) WHERE at < before
        UNION ALL SELECT fence FROM (
            SELECT fence, min(started_at) AS at, lag(max(started_at)) OVER (ORDER BY fence) AS before
            FROM attempts GROUP BY fence
        ) WHERE at < before""",
    "jobs are created in the order of their numbers, and attempts do not end before they begin": """
        SELECT number FROM (
            SELECT number, created_at, lag(created_at) OVER (ORDER BY number) AS before FROM jobs
        ) WHERE created_at < before
        UNION ALL SELECT a.fence FROM attempts AS a JOIN outcomes AS o USING (job, fence)
        WHERE o.finished_at < a.started_at
        UNION ALL SELECT number FROM states WHERE lease_expires_at < started_at""",
    "a finished job is listed in the endings": """
        SELECT s.id FROM states AS s WHERE s.finished_at IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM endings AS e, json_each(e.jobs) AS j
            WHERE e.tenant = s.tenant AND e.type = s.type AND e.finished_at = s.finished_at AND j.value = s.number)
        UNION ALL SELECT batch FROM endings WHERE size <> json_array_length(jobs) OR size = 0""",
    "a tag belongs to a job of its tenant": """
        SELECT g.job, g.tag FROM tags AS g LEFT JOIN states AS s ON s.number = g.job AND s.tenant = g.tenant
        WHERE s.number IS NULL""",
}


def broken_rules(connection: apsw.Connection, *, clock_went_back: bool = False) -> list[str]:
    """Return a description of each violation. Times are not in order if the clock of the machine went back."""
    wrong = [f"quick_check: {text}" for (text,) in connection.execute("PRAGMA quick_check") if text != "ok"]
    wrong += [f"integrity_check: {text}" for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
    for rule, statement in RULES.items():
        if clock_went_back and rule == TIME_ORDER:
            continue
        rows = list(connection.execute(f"SELECT * FROM ({statement}) LIMIT 3"))
        if rows:
            wrong.append(f"{rule}: {rows}")
    return wrong
