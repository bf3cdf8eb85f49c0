-- Dependencies between jobs.

-- name: insert_waits
-- The row of VALUES is repeated for each edge.
INSERT INTO waits (job, parent, parent_id, runs_anyway, open) VALUES (?, ?, ?, ?, 1)

-- name: awaited_parents
-- The jobs that other jobs wait for, and whether they are finished. The recursion jumps from one parent to the next in
-- the index.
WITH RECURSIVE parents (number) AS (
    SELECT min(parent) FROM waits INDEXED BY waits_open WHERE open = 1
    UNION ALL
    SELECT (SELECT min(w.parent) FROM waits AS w INDEXED BY waits_open WHERE w.open = 1 AND w.parent > p.number)
    FROM parents AS p WHERE p.number IS NOT NULL
)
SELECT CAST(json_group_array(json_array(
    p.number, json(iif(s.status IN ('succeeded', 'dead', 'canceled'), 'true', 'false')))) AS BLOB)
FROM parents AS p CROSS JOIN states AS s ON s.number = p.number

-- name: parents_by_id
-- The jobs with these IDs (a JSON array), to be used as parents: ID, tenant, number, and whether the job is finished.
SELECT CAST(json_group_array(json_array(
    s.id, t.id, s.number, json(iif(s.status IN ('succeeded', 'dead', 'canceled'), 'true', 'false')))) AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant
WHERE s.id IN (SELECT value FROM json_each(?))

-- name: open_parents
-- The unfinished parents of a job and their statuses, at most 100.
SELECT CAST(json_group_array(json_array(id, status)) AS BLOB)
FROM (
    SELECT p.id, p.status FROM waits AS w INDEXED BY waits_open_of_job JOIN states AS p ON p.number = w.parent
    WHERE w.job = ? AND w.open = 1 ORDER BY p.id LIMIT 100
)

-- name: failed_parents
-- The dead and canceled parents of a job that had to succeed, with their statuses, at most 100.
SELECT CAST(json_group_array(json_array(id, status)) AS BLOB)
FROM (
    SELECT p.id, p.status FROM waits AS w JOIN states AS p ON p.number = w.parent
    WHERE w.job = ? AND w.runs_anyway = 0 AND p.status IN ('dead', 'canceled') ORDER BY p.id LIMIT 100
)

-- name: unblocked_jobs
-- The states of those of these blocked jobs (?1, a JSON array of numbers) that no longer wait for a parent or an input.
-- The jobs in ?2 are going to be canceled, so their inputs do not matter.
SELECT CAST(json_group_array(json_array(
    s.number, s.id, t.id, s.type, s.limit_key, s.status, json(iif(s.due, 'true', 'false')), s.priority, s.run_at,
    s.attempts, s.failures, s.crashes, s.max_attempts, s.fence, s.dedupe_key, s.worker_id, s.started_at,
    s.lease_expires_at, json(iif(s.cancel_requested, 'true', 'false')), s.percent, s.stage, s.told_at, s.finished_at,
    s.batch) ORDER BY s.number) AS BLOB)
FROM states AS s JOIN tenants AS t ON t.number = s.tenant
WHERE s.number IN (SELECT value FROM json_each(?1)) AND s.status = 'blocked'
    AND NOT EXISTS (SELECT 1 FROM waits AS w INDEXED BY waits_open_of_job WHERE w.job = s.number AND w.open = 1)
    AND (
        s.number IN (SELECT value FROM json_each(?2)) OR NOT EXISTS (
            SELECT 1 FROM uploads AS u INDEXED BY uploads_of_jobs
            WHERE u.job_id = s.id AND u.job_id IS NOT NULL AND u.file = 'input' AND u.state IN ('open', 'verifying')
        )
    )

-- name: edges_to_close
-- Up to ?2 open edges to those of these parents (a JSON array of numbers) that are finished: the dependent, the parent,
-- and whether the dependent must be canceled.
SELECT CAST(json_group_array(json_array(job, parent, json(iif(doomed, 'true', 'false')))) AS BLOB)
FROM (
    SELECT w.job, w.parent, p.status <> 'succeeded' AND NOT w.runs_anyway AS doomed
    FROM json_each(?) AS item
    CROSS JOIN states AS p ON p.number = item.value AND p.status IN ('succeeded', 'dead', 'canceled')
    CROSS JOIN waits AS w INDEXED BY waits_open ON w.parent = p.number AND w.open = 1
    LIMIT ?
)

-- name: close_edges
-- Close these edges (a JSON array of dependents and parents).
UPDATE waits SET open = 0
FROM (SELECT value ->> 0 AS job, value ->> 1 AS parent FROM json_each(?)) AS e
WHERE waits.job = e.job AND waits.parent = e.parent

-- name: close_edges_of_jobs
-- Close all edges of these dependents (a JSON array of numbers).
UPDATE waits SET open = 0
WHERE (job, parent) IN (
    SELECT w.job, w.parent FROM json_each(?) AS item CROSS JOIN waits AS w INDEXED BY waits_open_of_job
        ON w.job = item.value AND w.open = 1
)

-- name: remove_waits
DELETE FROM waits WHERE job IN (SELECT value FROM json_each(?))
