-- Jobs: the immutable body (`jobs`) and the changing state (`states`).

-- name: last_job_number
SELECT max(last_number, (SELECT coalesce(max(number), 0) FROM jobs)) FROM store

-- name: number_of_job
SELECT s.number FROM states AS s JOIN tenants AS t ON t.number = s.tenant WHERE s.id = ? AND t.id = ?

-- name: newest_created_at
-- When the newest job was created.
SELECT coalesce((SELECT created_at FROM jobs WHERE number = (SELECT max(number) FROM jobs)), 0)

-- name: insert_jobs
-- Insert the bodies of new jobs. The row of VALUES is repeated for each job.
INSERT INTO jobs (
    number, payload, metadata, created_at, source, source_ref, created_by, correlation_id, trace_id, idempotency_key,
    inputs, payload_blob, reuse_key, depth
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_states
-- Insert the states of new jobs. The row of VALUES is repeated for each job.
INSERT INTO states (
    number, id, tenant, type, limit_key, dedupe_key, status, due, priority, run_at, max_attempts, batch,
    attempts, failures, crashes, fence, cancel_requested, told_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0, 0)

-- name: save_states
-- Write changed states back. The row of VALUES is repeated for each job.
WITH new (
    number, status, due, priority, run_at, attempts, failures, crashes, max_attempts, fence, worker_id, started_at,
    lease_expires_at, cancel_requested, percent, stage, told_at, finished_at
) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
UPDATE states SET
    status = new.status, due = new.due, priority = new.priority, run_at = new.run_at, attempts = new.attempts,
    failures = new.failures, crashes = new.crashes, max_attempts = new.max_attempts, fence = new.fence,
    worker_id = new.worker_id, started_at = new.started_at, lease_expires_at = new.lease_expires_at,
    cancel_requested = new.cancel_requested, percent = new.percent, stage = new.stage, told_at = new.told_at,
    finished_at = new.finished_at
FROM new
WHERE states.number = new.number

-- name: states_by_id
-- The states of the jobs with these IDs (a JSON array), as one JSON text. IDs of jobs that do not exist are omitted.
SELECT CAST(json_group_array(json_array(
    s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
    s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
    s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
    s.batch)) AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant
WHERE s.id IN (SELECT value FROM json_each(?))

-- name: whole_jobs
-- Complete jobs with these numbers (a JSON array), as one JSON text, in no order. Payload, metadata and result are
-- stored as JSON text and inserted unchanged, so that clients get exactly what they sent.
SELECT CAST('[' || coalesce(group_concat('[' ||
    json_array(
        s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
        s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
        s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
        s.batch)
    || ',[' || CAST(j.payload AS TEXT)
    || ',' || coalesce(CAST(j.metadata AS TEXT), 'null')
    || ',' || json_quote(j.created_at)
    || ',' || json_quote(j.source)
    || ',' || json_quote(j.source_ref)
    || ',' || json_quote(j.created_by)
    || ',' || json_quote(j.correlation_id)
    || ',' || json_quote(j.trace_id)
    || ',' || json_quote(j.idempotency_key)
    || ',' || coalesce(j.inputs, '{}')
    || ',' || json_quote(j.payload_blob)
    || ',' || json_quote(j.depth)
    || ',' || (SELECT json_group_array(g.tag) FROM tags AS g WHERE g.job = s.number)
    || ',' || (
        SELECT json_group_array(w.parent_id ORDER BY w.parent_id) FROM waits AS w WHERE w.job = s.number)
    || ',' || iif(EXISTS (SELECT 1 FROM waits AS w WHERE w.job = s.number AND w.runs_anyway), 'true', 'false')
    || ',' || iif(s.failures + s.crashes > 0, json_quote((
        SELECT o.error FROM outcomes AS o
        WHERE o.job = s.number AND o.error IS NOT NULL ORDER BY o.fence DESC LIMIT 1)), json_quote(j.reason))
    || ',' || iif(s.status = 'succeeded', coalesce(CAST((
        SELECT o.result FROM outcomes AS o WHERE o.job = s.number AND o.fence = s.fence) AS TEXT), 'null'), 'null')
    || ']]'), '') || ']' AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant JOIN jobs AS j ON j.number = s.number
WHERE s.number IN (SELECT value FROM json_each(?))

-- name: mark_jobs_succeeded
-- Mark these running jobs (a JSON array of numbers) as succeeded.
UPDATE states SET
    status = 'succeeded', worker_id = NULL, lease_expires_at = NULL, percent = NULL, stage = NULL, finished_at = ?
WHERE number IN (SELECT value FROM json_each(?))

-- name: matching_jobs
-- Those of these numbers (a JSON array) whose jobs belong to the tenant and match the filter, newest first.
SELECT CAST(json_group_array(s.number ORDER BY s.number DESC) AS BLOB)
FROM json_each(?1) AS item CROSS JOIN states AS s ON s.number = item.value
WHERE s.tenant = ?2
    AND (?3 IS NULL OR s.status = ?3)
    AND (?4 IS NULL OR s.type = ?4)
    AND (?5 IS NULL OR EXISTS (SELECT 1 FROM tags AS g WHERE g.job = s.number AND g.tag = ?5))
    AND (?6 IS NULL OR (SELECT j.source FROM jobs AS j WHERE j.number = s.number) = ?6)
    AND (?7 IS NULL OR (SELECT j.created_at FROM jobs AS j WHERE j.number = s.number) >= ?7)
    AND (?8 IS NULL OR (SELECT j.created_at FROM jobs AS j WHERE j.number = s.number) < ?8)

-- name: set_cancel_reason
UPDATE jobs SET reason = ?2 WHERE number = ?1

-- name: set_canceled_by
UPDATE jobs SET canceled_by = ?2 WHERE number = ?1

-- name: canceled_by
SELECT canceled_by FROM jobs WHERE number = ?

-- name: request_cancels
-- Request up to ?2 running jobs of a tenant to stop.
UPDATE states SET cancel_requested = 1 WHERE number IN (
    SELECT number FROM states INDEXED BY states_leased
    WHERE status = 'running' AND tenant = ?1 AND cancel_requested = 0 LIMIT ?2
)

-- name: jobs_to_clear
-- Up to ?2 jobs of a tenant that are not running: waiting jobs first, then finished ones.
SELECT CAST(json_group_array(number) AS BLOB) FROM (
    SELECT number FROM (
        SELECT number FROM states INDEXED BY states_live
        WHERE tenant = ?1 AND finished_at IS NULL AND status <> 'running' LIMIT ?2
    )
    UNION ALL
    SELECT number FROM (
        SELECT number FROM states INDEXED BY states_finished WHERE tenant = ?1 AND finished_at IS NOT NULL LIMIT ?2
    )
    LIMIT ?2
)

-- name: remove_jobs
DELETE FROM jobs WHERE number IN (SELECT value FROM json_each(?))

-- name: remove_states
DELETE FROM states WHERE number IN (SELECT value FROM json_each(?))

-- name: insert_tags
INSERT INTO tags (job, tag, tenant) VALUES (?, ?, ?)

-- name: delete_tags
DELETE FROM tags WHERE job = ?

-- name: remove_tags
DELETE FROM tags WHERE job IN (SELECT value FROM json_each(?))
