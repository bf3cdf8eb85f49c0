-- Attempts and their outcomes.

-- name: insert_attempts
-- Every claim inserts the row of its attempt, so that a crash leaves a trace. ?2 is the array of `lease_jobs`.
WITH claims AS MATERIALIZED (
    SELECT value ->> 0 AS fence, value ->> 1 AS worker_id, value ->> 3 AS host, value ->> 4 AS pid, value -> 5 AS jobs
    FROM json_each(?2)
)
INSERT INTO attempts (job, fence, number, worker_id, host, pid, started_at)
SELECT s.number, claims.fence, s.attempts, claims.worker_id, claims.host, claims.pid, ?1
FROM claims, json_each(claims.jobs) AS job CROSS JOIN states AS s ON s.number = job.value

-- name: attempts_of_job
-- The attempts of a job of this tenant, oldest first.
SELECT CAST(json_group_array(json_object(
    'job_id', a.id, 'fence', a.fence, 'number', a.number, 'worker_id', a.worker_id, 'host', a.host, 'pid', a.pid,
    'started_at', a.started_at, 'outcome', a.outcome, 'status_after', a.status_after, 'finished_at', a.finished_at,
    'exit_code', a.exit_code, 'error', a.error, 'progress', json(iif(
        a.percent IS NOT NULL, json_object('percent', a.percent, 'stage', coalesce(a.stage, '')), NULL
    )))) AS BLOB)
FROM (
    SELECT s.id, a.*, o.outcome, o.status_after, o.finished_at, o.exit_code, o.error, o.percent, o.stage
    FROM states AS s
    JOIN attempts AS a ON a.job = s.number
    LEFT JOIN outcomes AS o ON o.job = a.job AND o.fence = a.fence
    WHERE s.id = ? AND s.tenant = (SELECT number FROM tenants WHERE id = ?)
    ORDER BY a.fence
) AS a

-- name: insert_outcomes
-- The row of VALUES is repeated for each outcome.
INSERT INTO outcomes (
    job, fence, outcome, retry, status_after, run_at, attempts, finished_at, exit_code, error, result, percent, stage
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: outcomes_of_attempts
-- Recorded outcomes of these attempts (a JSON array of job numbers and fences).
SELECT CAST('[' || coalesce(group_concat('[' || o.job
    || ',' || o.fence || ',' || json_quote(o.outcome) || ',' || iif(o.retry, 'true', 'false')
    || ',' || json_quote(o.status_after) || ',' || json_quote(o.run_at) || ',' || o.attempts || ',' || o.finished_at
    || ',' || json_quote(o.exit_code) || ',' || json_quote(o.error)
    || ',' || coalesce(CAST(o.result AS TEXT), 'null') || ',' || json_quote(a.worker_id) || ']'), '') || ']' AS BLOB)
FROM json_each(?) AS item CROSS JOIN outcomes AS o
    ON o.job = item.value ->> 0 AND o.fence = item.value ->> 1
CROSS JOIN attempts AS a ON a.job = o.job AND a.fence = o.fence

-- name: remove_attempts
DELETE FROM attempts WHERE job IN (SELECT value FROM json_each(?))

-- name: remove_outcomes
DELETE FROM outcomes WHERE job IN (SELECT value FROM json_each(?))
